"""What a GPU shows at one moment: utilization, memory, power, temperature, clocks."""

from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._gate import Gate

__all__ = ["Gauges"]

NAN = float("nan")
_SM_CLOCK = 1
_CORE_SENSOR = 0
_MEMORY_V2 = "nvmlDeviceGetMemoryInfo_v2"


class Gauges:
    """One row of `columns` per tick, NaN where the driver has no answer.

    Memory and processes are a MIG device's own; power, temperature and clocks are its board's.
    """

    columns = (
        "utilization_pct",
        "memory_utilization_pct",
        "memory_used_bytes",
        "memory_reserved_bytes",
        "power_mw",
        "temperature_c",
        "sm_clock_mhz",
    )

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key
        self._memory_v2 = getattr(gate.binding, "nvmlMemory_v2", None)

    def read(self) -> list[float]:
        """[float] * len(columns)."""
        ask, key, board = self._gate.ask, self._key, self._gpu.board
        rates = ask("nvmlDeviceGetUtilizationRates", self._gpu.handle, gpu=key)
        used, reserved = self._memory()
        power = ask("nvmlDeviceGetPowerUsage", board, gpu=key)
        clock = ask("nvmlDeviceGetClockInfo", board, _SM_CLOCK, gpu=key)
        return [
            NAN if rates is None else float(rates.gpu),
            NAN if rates is None else float(rates.memory),
            used,
            reserved,
            NAN if power is None else float(power),
            self._temperature(),
            NAN if clock is None else float(clock),
        ]

    def _memory(self) -> tuple[float, float]:
        ask, key, handle = self._gate.ask, self._key, self._gpu.handle
        if self._memory_v2 is not None:
            # v2 tells what the driver reserves apart from what processes use; drivers before 515
            # lack it, and then `used` holds both.
            memory = ask(
                "nvmlDeviceGetMemoryInfo", handle, self._memory_v2, gpu=key, name=_MEMORY_V2
            )
            if memory is not None:
                return float(memory.used), float(memory.reserved)
            self._gate.memory.forget(_MEMORY_V2, key)
        memory = ask("nvmlDeviceGetMemoryInfo", handle, gpu=key)
        return (NAN, NAN) if memory is None else (float(memory.used), NAN)

    def _temperature(self) -> float:
        ask, key, board = self._gate.ask, self._key, self._gpu.board
        value = ask("nvmlDeviceGetTemperatureV", board, _CORE_SENSOR, gpu=key)
        if value is None:  # drivers before 570 have only the older call
            self._gate.memory.forget("nvmlDeviceGetTemperatureV", key)
            value = ask("nvmlDeviceGetTemperature", board, _CORE_SENSOR, gpu=key)
        return NAN if value is None else float(value)
