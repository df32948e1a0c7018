"""All readings of one GPU, each at its own pace."""

from gpu_util_callback.gpus._buffers import UtilizationBuffer
from gpu_util_callback.gpus._counters import Counters
from gpu_util_callback.gpus._devices import NvmlGpu, find_again, memory_of
from gpu_util_callback.gpus._gate import Gate
from gpu_util_callback.gpus._gpm import Gpm
from gpu_util_callback.gpus._health import Health
from gpu_util_callback.gpus._processes import Processes
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording.clock import Clock

__all__ = [
    "Gauges",
    "GpuReader",
]

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
        """Return the row: [float] * len(columns)."""
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


NAN = float("nan")
# Seconds between reads of values that are slow to query or to change; the rest: every tick.
BUFFER_S, GPM_S, COUNTERS_S, PROCESSES_S, HEALTH_S = 0.5, 0.18, 0.18, 1.0, 10.0
_NO_COUNTERS = [NAN] * len(Counters.columns)
_NO_PROCESSES = [NAN] * len(Processes.columns)
_NO_HEALTH = [NAN] * len(Health.columns)


class GpuReader:
    """Reads one GPU into the store: groups "gpu<i>", "gpu<i>/utilization", "gpu<i>/gpm".

    In "gpu<i>" a column that is read less often than every tick is NaN in between. A GPU that is
    lost has no rows until it is back; group "gpu<i>/lost" holds a 1 when it went and a 0 when it
    came back.

    Args:
        expected: True if the framework of this process uses the GPU.
    """

    columns = (*Gauges.columns, *Counters.columns, *Processes.columns, *Health.columns)

    def __init__(
        self,
        gate: Gate,
        gpu: NvmlGpu,
        index: int,
        store: Store,
        clock: Clock,
        expected: bool = False,
    ) -> None:
        self.key = f"gpu{index}"
        self.index = index
        self.gpu = gpu
        self._gate = gate
        self._store = store
        self._clock = clock
        self._expected = expected
        self._lost = False
        self._due = [0.0] * 5
        self._open()

    def renewed(self, gate: Gate) -> "GpuReader":
        """Return a reader of the same GPU for another thread's gate."""
        return GpuReader(gate, self.gpu, self.index, self._store, self._clock, self._expected)

    def read(self, now_s: float) -> None:
        """Read whatever is due; now_s: `time.perf_counter()`."""
        memory = self._gate.memory
        retry_at = memory.gone.get(self.key)
        if retry_at is not None:
            self._mark(True)
            if now_s < retry_at or not find_again(self._gate, self.gpu, self.key):
                return
            memory.found(self.key)
            self._mark(False)
            self._gpm.close()
            self._open()
        time_ns = self._clock.now()
        gauges = self._gauges.read()
        if self._is_due(0, now_s, BUFFER_S):
            self._buffer.read(gauges[:2])
        # Read a wrapping counter before it can have wrapped twice.
        pause_s = 0.0 if self._counters.wraps else COUNTERS_S
        counters = self._counters.read() if self._is_due(4, now_s, pause_s) else _NO_COUNTERS
        if self._is_due(1, now_s, GPM_S):
            self._gpm.read()
        processes = self._processes.read() if self._is_due(2, now_s, PROCESSES_S) else _NO_PROCESSES
        health = self._health.read() if self._is_due(3, now_s, HEALTH_S) else _NO_HEALTH
        if self.key in memory.gone:
            self._mark(True)  # discard the incomplete row
        else:
            self._store.add(self.key, self.columns, time_ns, gauges + counters + processes + health)

    def close(self) -> None:
        """Drain the last samples and release what the driver's library holds for us."""
        if self.key not in self._gate.memory.gone:
            self._buffer.read((NAN, NAN))
        self._gpm.close()

    def _open(self) -> None:
        gate, gpu, key = self._gate, self.gpu, self.key
        self._gauges = Gauges(gate, gpu, key)
        self._buffer = UtilizationBuffer(gate, gpu, key, self._store, self._clock)
        self._counters = Counters(gate, gpu, key)
        self._gpm = Gpm(gate, gpu, key, self._store, self._clock)
        self._processes = Processes(gate, gpu, key, self._expected)
        self._health = Health(gate, gpu, key)

    def _is_due(self, which: int, now_s: float, period_s: float) -> bool:
        if now_s < self._due[which]:
            return False
        self._due[which] = now_s + period_s
        return True

    def _mark(self, lost: bool) -> None:
        if lost != self._lost:
            self._lost = lost
            self._store.add(self.key + "/lost", ("lost",), self._clock.now(), [float(lost)])
