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
        if self._memory_v2 is not None and not self._gate.lacks(_MEMORY_V2, key):
            # v2 tells what the driver reserves apart from what processes use.
            memory = ask(
                "nvmlDeviceGetMemoryInfo", handle, self._memory_v2, gpu=key, name=_MEMORY_V2
            )
            if memory is not None:
                return float(memory.used), float(memory.reserved)
            if not self._gate.lacks(_MEMORY_V2, key):
                return NAN, NAN
            self._gate.memory.forget(_MEMORY_V2, key)
        # Drivers before 515: `used` holds the reserved part as well.
        memory = ask("nvmlDeviceGetMemoryInfo", handle, gpu=key)
        return (NAN, NAN) if memory is None else (float(memory.used), NAN)

    def _temperature(self) -> float:
        ask, key, board = self._gate.ask, self._key, self._gpu.board
        symbol = "nvmlDeviceGetTemperatureV"
        if self._gate.lacks(symbol, key):  # drivers before 570 have only the older call
            symbol = "nvmlDeviceGetTemperature"
        value = ask(symbol, board, _CORE_SENSOR, gpu=key)
        if value is None and symbol.endswith("V") and self._gate.lacks(symbol, key):
            self._gate.memory.forget(symbol, key)
            return self._temperature()
        return NAN if value is None else float(value)
