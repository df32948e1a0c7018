"""The thread that asks the driver, tick by tick."""

import threading
import time
from collections.abc import Callable, Sequence

from gpu_util_callback.gpus._gate import Gate, Retired
from gpu_util_callback.gpus._reader import GpuReader

__all__ = ["Pace", "Worker"]


class Pace:
    """How often a tick comes: as asked, and slower while the driver or our own share is.

    hz: what was asked for. A tick may take a quarter of its period (a slow driver is a driver that
    training waits for, too) and `cpu_share` of one core per GPU.
    """

    SLOWEST_S = 10.0

    def __init__(self, hz: float, gpus: int, cpu_share: float = 0.02) -> None:
        self.asked_s = 1.0 / max(hz, 0.1)
        self.period_s = self.asked_s
        self._cpu_share = cpu_share * max(gpus, 1)
        self._wall_s = 0.0
        self._cpu_s = 0.0
        self._ticks = 0

    def tick(self, wall_s: float, cpu_s: float) -> None:
        """Account one tick and set the period of the next."""
        self._ticks += 1
        # The first ticks load symbols; a slow driver shows at once, a fast one is believed slowly.
        self._wall_s = max(wall_s, 0.8 * self._wall_s + 0.2 * wall_s) if self._ticks > 1 else 0.0
        self._cpu_s += 0.1 * (cpu_s - self._cpu_s) if self._ticks > 2 else 0.0
        wanted = max(self.asked_s, 4 * self._wall_s, self._cpu_s / self._cpu_share)
        self.period_s = min(wanted, max(self.SLOWEST_S, self.asked_s))


class Worker(threading.Thread):
    """Reads its GPUs until it is stopped, or retired because a call of it hung."""

    def __init__(
        self,
        open_readers: Callable[["Worker"], Sequence[GpuReader]],
        hz: float,
        stopped: threading.Event,
    ) -> None:
        super().__init__(name="gpu-util-sampler", daemon=True)
        self.gate: Gate | None = None
        self.readers: list[GpuReader] = []
        self.reading: GpuReader | None = None
        self.started_s = time.perf_counter()
        self.cpu_s = 0.0
        self.pace: Pace | None = None
        self._open = open_readers
        self._hz = hz
        self._stopped = stopped

    def run(self) -> None:
        """Open the driver, then tick."""
        try:
            self.readers = list(self._open(self))
            self.pace = Pace(self._hz, len(self.readers))
            self._ticks(self.pace)
        except Retired:
            pass
        finally:
            self._close()

    def _ticks(self, pace: Pace) -> None:
        due = time.perf_counter()
        while self.readers and not self._stopped.is_set():
            wall, cpu = time.perf_counter(), time.thread_time()
            for reader in self.readers:
                self.reading = reader
                reader.read(wall)
            self.reading = None
            self.cpu_s = time.thread_time()
            now = time.perf_counter()
            pace.tick(now - wall, self.cpu_s - cpu)
            due = max(due + pace.period_s, now)
            self._stopped.wait(due - now)

    def _close(self) -> None:
        pass
