"""Everything that is read from one GPU at one tick."""

from gpu_util_callback.gpus._devices import NvmlGpu, find_again
from gpu_util_callback.gpus._gate import Gate
from gpu_util_callback.gpus._gauges import Gauges
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording.clock import Clock

__all__ = ["GpuReader"]


class GpuReader:
    """Reads one GPU into the store; a lost GPU is only asked now and then whether it is back."""

    def __init__(self, gate: Gate, gpu: NvmlGpu, index: int, store: Store, clock: Clock) -> None:
        self.key = f"gpu{index}"
        self._gate = gate
        self._gpu = gpu
        self._store = store
        self._clock = clock
        self._gauges = Gauges(gate, gpu, self.key)

    def read(self, now_perf_s: float) -> None:
        """Take one sample of everything that is due."""
        retry_at = self._gate.memory.gone.get(self.key)
        if retry_at is not None:
            if now_perf_s < retry_at or not find_again(self._gate, self._gpu, self.key):
                return
            self._gate.memory.found(self.key)
        time_ns = self._clock.now()
        row = self._gauges.read()
        if self.key not in self._gate.memory.gone:
            self._store.add(self.key, Gauges.columns, time_ns, row)
