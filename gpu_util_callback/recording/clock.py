"""One clock for everything: nanoseconds since the epoch that never jump."""

import bisect
import threading
import time

__all__ = ["Clock"]


class Clock:
    """Epoch nanoseconds from a monotonic clock, with pairs to convert wall-clock stamps.

    The wall clock is read once, at construction; from then on time advances with
    `time.perf_counter_ns`, so that an NTP step or a person setting the clock cannot tear a
    recording apart. `pair()` is called at every flush and keeps (ours, wall) together; stamps made
    by others from the wall clock (NVML, XPlane, `tf.timestamp`) are converted with the nearest pair.
    """

    MAX_PAIRS = 4096

    def __init__(self, perf_ns=time.perf_counter_ns, wall_ns=time.time_ns):
        self._perf_ns = perf_ns
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        before = perf_ns()
        wall = wall_ns()
        self.offset_ns = wall - (before + perf_ns()) // 2
        self._ours: list[int] = []
        self._wall: list[int] = []
        self.pair()

    def now(self) -> int:
        """Now, in nanoseconds since the epoch on this clock."""
        return self._perf_ns() + self.offset_ns

    def from_perf(self, perf_ns: int) -> int:
        """A `time.perf_counter_ns()` reading on this clock."""
        return perf_ns + self.offset_ns

    def pair(self) -> tuple[int, int]:
        """Read both clocks together, keep the pair and return it as (ours, wall)."""
        before = self._perf_ns()
        wall = self._wall_ns()
        after = self._perf_ns()
        ours = (before + after) // 2 + self.offset_ns
        with self._lock:
            self._ours.append(ours)
            self._wall.append(wall)
            if len(self._ours) > self.MAX_PAIRS:  # thin the old half; recent pairs stay dense
                half = self.MAX_PAIRS // 2
                self._ours[:half] = self._ours[:half:2]
                self._wall[:half] = self._wall[:half:2]
        return ours, wall

    def from_wall(self, wall_ns: int) -> int:
        """A wall-clock stamp (ns since the epoch) on this clock, by the pair nearest to it."""
        with self._lock:
            # A stepped wall clock is not sorted; the newest pair at or before the stamp is then
            # found by scanning, which is rare and short.
            walls = self._wall
            if all(a <= b for a, b in zip(walls[-8:], walls[-7:], strict=False)):
                at = bisect.bisect_left(walls, wall_ns)
                near = [i for i in (at - 1, at) if 0 <= i < len(walls)]
            else:
                near = list(range(len(walls)))
            best = min(near, key=lambda i: abs(walls[i] - wall_ns))
            return wall_ns - walls[best] + self._ours[best]
