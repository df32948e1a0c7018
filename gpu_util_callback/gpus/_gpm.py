"""GPM metrics (Hopper and newer): how much of the GPU was active, not only that some of it was."""

from typing import Any

from gpu_util_callback.gpus import _words
from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._gate import NO_NEW_VALUE, OFF, Gate
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording.clock import Clock

__all__ = ["Gpm"]

NAN = float("nan")
_MIB = float(1 << 20)
# The driver refreshes its counters every 100 ms: closer samples hold no difference.
_APART_NS = 110_000_000
_TOO_OLD_NS = 10_000_000_000

# metric id -> (column, value of one unit)
METRICS: dict[int, tuple[str, float]] = {
    2: ("sm_active_pct", 1.0),
    3: ("sm_occupancy_pct", 1.0),
    5: ("tensor_active_pct", 1.0),
    10: ("dram_active_pct", 1.0),
    11: ("fp64_active_pct", 1.0),
    12: ("fp32_active_pct", 1.0),
    13: ("fp16_active_pct", 1.0),
    20: ("pcie_tx_bytes_per_s", _MIB),
    21: ("pcie_rx_bytes_per_s", _MIB),
    60: ("nvlink_rx_bytes_per_s", _MIB),
    61: ("nvlink_tx_bytes_per_s", _MIB),
}


class Gpm:
    """One row per interval between two chained samples, stamped at the interval's end.

    GPM support is queried, not inferred from the GPU's name. The first interval of a run and the
    first after a gap have no row.
    """

    columns = tuple(column for column, _ in METRICS.values())

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str, store: Store, clock: Clock) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key
        self._store = store
        self._clock = clock
        self._metrics = list(METRICS)
        self._samples: list[Any] | None = None  # (older, newer), swapped at each read
        self._request: Any = None
        self._taken_ns: int | None = None  # when the older of the pair was taken
        self.supported = self._probe()

    def read(self) -> None:
        """Take a sample when the last one is old enough, and store the difference."""
        if not self.supported or not self._ready():
            return
        time_ns = self._clock.now()
        if self._taken_ns is not None and time_ns - self._taken_ns < _APART_NS:
            return
        older, newer = self._samples  # type: ignore[misc]
        if not self._take(newer):
            self._taken_ns = None
            return
        chained = self._taken_ns is not None and time_ns - self._taken_ns < _TOO_OLD_NS
        self._taken_ns = time_ns
        self._samples = [newer, older]
        if chained:
            row = self._values(older, newer)
            if row is not None:
                self._store.add(self._key + "/gpm", self.columns, time_ns, row)

    def close(self) -> None:
        """Give the samples back to the driver's library."""
        for sample in self._samples or ():
            self._gate.ask("nvmlGpmSampleFree", sample, gpu=self._key)
        self._samples = None
        self.supported = False

    def _probe(self) -> bool:
        ask, key = self._gate.ask, self._key
        answer = ask("nvmlGpmQueryDeviceSupport", self._gpu.board, gpu=key)
        if answer is None:
            return False
        if not answer.isSupportedDevice:
            self._gate.memory.off("nvmlGpmQueryDeviceSupport", key, *_words.NO_GPM)
            return False
        return True

    def _ready(self) -> bool:
        if self._samples is not None:
            return True
        pair = [self._gate.ask("nvmlGpmSampleAlloc", gpu=self._key) for _ in range(2)]
        if any(sample is None for sample in pair):
            for sample in pair:
                if sample is not None:
                    self._gate.ask("nvmlGpmSampleFree", sample, gpu=self._key)
            return False
        self._samples = pair
        # The binding knows the size of its own structure, which differs between its versions.
        self._request = self._gate.binding.c_nvmlGpmMetricsGet_t()
        self._request.version = self._gate.binding.NVML_GPM_METRICS_GET_VERSION
        return True

    def _take(self, sample: Any) -> bool:
        gpu, key = self._gpu, self._key
        if gpu.mig and gpu.gi is not None:
            return (
                self._gate.ask("nvmlGpmMigSampleGet", gpu.board, gpu.gi, sample, gpu=key)
                is not None
            )
        return self._gate.ask("nvmlGpmSampleGet", gpu.handle, sample, gpu=key) is not None

    def _values(self, older: Any, newer: Any) -> list[float] | None:
        request = self._request
        request.sample1, request.sample2 = older, newer
        request.numMetrics = len(self._metrics)
        for i, metric in enumerate(self._metrics):
            request.metrics[i].metricId = metric
        if self._gate.ask("nvmlGpmMetricsGet", request, gpu=self._key) is None:
            return None
        row = dict.fromkeys(self.columns, NAN)
        for i, metric in enumerate(tuple(self._metrics)):
            answer = request.metrics[i]
            column, unit = METRICS[metric]
            if answer.nvmlReturn == 0:
                row[column] = _sane(answer.value, column) * unit
            elif answer.nvmlReturn not in NO_NEW_VALUE and answer.nvmlReturn in OFF:
                self._metrics.remove(metric)
                reason, cure = _words.explain(int(answer.nvmlReturn))
                self._gate.memory.note(f"{column} (GPM)", self._key, reason, cure)
        values = list(row.values())
        return values if any(value == value for value in values) else None


def _sane(value: float, column: str) -> float:
    """Return a reading, or NaN where the value is impossible."""
    if not value >= 0 or (column.endswith("_pct") and value > 101):
        return NAN
    return min(value, 100.0) if column.endswith("_pct") else value
