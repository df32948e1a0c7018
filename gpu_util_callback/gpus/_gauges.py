"""What a GPU shows at one moment: utilization, memory, power, temperature, clocks."""

from gpu_util_callback.gpus._devices import NvmlGpu, memory_of
from gpu_util_callback.gpus._gate import Gate

__all__ = ["Gauges"]

NAN = float("nan")
_SM_CLOCK = 1
_CORE_SENSOR = 0


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
        memory = memory_of(self._gate, self._gpu.handle, self._key)
        if memory is None:
            return NAN, NAN
        return float(memory.used), float(getattr(memory, "reserved", NAN))

    def _temperature(self) -> float:
        value = self._gate.first_of(
            ("nvmlDeviceGetTemperatureV", self._gpu.board, _CORE_SENSOR),
            ("nvmlDeviceGetTemperature", self._gpu.board, _CORE_SENSOR),  # drivers before 570
            gpu=self._key,
        )
        return NAN if value is None else float(value)
