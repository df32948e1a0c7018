"""Values that change rarely (limits, the PCIe link, ECC counts), and critical errors."""

from typing import Any

from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._gate import Gate
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording.clock import Clock

__all__ = ["Health", "XidWatch"]

NAN = float("nan")
_SM_CLOCK = 1
_VOLATILE = 0  # since the last reboot; aggregate counts survive a repair
_XID = 0x8


class Health:
    """One row of `columns`, NaN where the driver has no answer."""

    columns = (
        "power_limit_mw",
        "sm_clock_max_mhz",
        "pcie_generation",
        "pcie_width",
        "ecc_corrected",
        "ecc_uncorrected",
    )

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key

    def read(self) -> list[float]:
        """Return [float] * len(columns). An idle link that saves power shows a low generation."""
        return [
            self._value("nvmlDeviceGetEnforcedPowerLimit"),
            self._value("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
            self._value("nvmlDeviceGetCurrPcieLinkGeneration"),
            self._value("nvmlDeviceGetCurrPcieLinkWidth"),
            self._value("nvmlDeviceGetTotalEccErrors", 0, _VOLATILE),
            self._value("nvmlDeviceGetTotalEccErrors", 1, _VOLATILE, name="uncorrected"),
        ]

    def _value(self, symbol: str, *args: Any, name: str = "") -> float:
        value = self._gate.ask(
            symbol, self._gpu.board, *args, gpu=self._key, name=f"{symbol}/{name}" if name else ""
        )
        return NAN if value is None else float(value)


class XidWatch:
    """Critical errors (Xid) of all GPUs, each a row of group "gpu<i>/xid"."""

    columns = ("xid",)

    def __init__(self, gate: Gate, gpus: dict[str, NvmlGpu], store: Store, clock: Clock) -> None:
        self._gate = gate
        self._gpus = gpus
        self._store = store
        self._clock = clock
        self._set = gate.ask("nvmlEventSetCreate")
        self._watched = False
        if self._set is not None:
            for key, gpu in gpus.items():
                gate.ask("nvmlDeviceRegisterEvents", gpu.board, _XID, self._set, gpu=key)
                registered = ("nvmlDeviceRegisterEvents", key) not in gate.memory.blocked
                self._watched |= registered

    def read(self) -> None:
        """Store the errors since the last read, without waiting for one."""
        for _ in range(16 if self._watched else 0):
            event = self._gate.ask("nvmlEventSetWait_v2", self._set, 1)
            if event is None:
                return
            if event.eventType == _XID:
                self._mark(event)

    def close(self) -> None:
        """Release the event set."""
        if self._set is not None:
            self._gate.ask("nvmlEventSetFree", self._set)
            self._set, self._watched = None, False

    def _mark(self, event: Any) -> None:
        address = _address(event.device)
        for key, gpu in self._gpus.items():
            if _address(gpu.board) == address:
                row = [float(event.eventData)]
                self._store.add(key + "/xid", self.columns, self._clock.now(), row)


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0
