"""One clock for all recorded times: nanoseconds since the epoch that never jump."""

import threading
import time
from collections.abc import Callable
from typing import overload

import numpy as np


class Clock:
    """Epoch nanoseconds from a monotonic clock, with pairs to convert wall-clock stamps.

    The wall clock is read once, at construction; from then on time advances with
    `time.perf_counter_ns`, so that an NTP step or a manual change of the clock cannot tear a
    recording apart. `pair()` is called at every flush and keeps (ours, wall) together; stamps made
    by others from the wall clock (NVML, XPlane, `tf.timestamp`) are converted with the nearest
    pair.

    A wall clock that is set, or a suspended laptop (the monotonic clock stands still, the wall
    clock does not), shows as a jump of `ours - wall` between two pairs. The pairs between two
    jumps form an era, in which both clocks run alike; a stamp is converted within the era whose
    stretch of wall time holds it. After a step back some wall times exist twice: then the era
    nearest to `near_ns` wins, by default the latest.
    """

    MAX_PAIRS = 4096
    # Between two pairs both clocks may drift apart by slewing (NTP: at most 500 ppm) and by the
    # time it takes to read them; anything beyond that is a jump.
    SLEW = 0.001
    TOLERANCE_NS = 2_000_000

    def __init__(self, perf_ns: Callable[[], int] = time.perf_counter_ns, wall_ns: Callable[[], int] = time.time_ns):
        self._perf_ns = perf_ns
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        self._ours: list[int] = []  # the pairs: this clock and the wall clock, ns
        self._wall: list[int] = []
        self._era: list[int] = []  # the era each pair belongs to, ascending
        self._eras: list[tuple[np.ndarray, np.ndarray]] | None = None  # by era: the pairs as arrays; None = to be made
        perf, wall = self._read_both()
        self.offset_ns = wall - perf  # from `perf_counter_ns` to this clock
        self._keep(wall, wall)

    def now(self) -> int:
        """Return the current time, in nanoseconds since the epoch on this clock."""
        return self._perf_ns() + self.offset_ns

    def from_perf(self, perf_ns: int) -> int:
        """Convert a `time.perf_counter_ns()` reading to this clock."""
        return perf_ns + self.offset_ns

    def pair(self) -> tuple[int, int]:
        """Read both clocks together, keep the pair and return it as (ours, wall)."""
        perf, wall = self._read_both()
        own_ns = perf + self.offset_ns
        with self._lock:
            self._keep(own_ns, wall)
        return own_ns, wall

    def _read_both(self) -> tuple[int, int]:
        """Return (perf, wall) in ns, read as close together as three attempts allow: a preemption spoils one."""
        best = (0, 0, 0)
        for attempt in range(3):
            before = self._perf_ns()
            wall = self._wall_ns()
            took_ns = self._perf_ns() - before
            if attempt == 0 or took_ns < best[0]:
                best = (took_ns, before + took_ns // 2, wall)
        return best[1], best[2]

    def _keep(self, ours: int, wall: int) -> None:
        """Keep a pair of readings, ns: of this clock and of the wall clock.

        A jump since the last pair begins a new era.
        """
        era = 0
        if self._ours:
            elapsed = ours - self._ours[-1]
            jump_ns = abs((wall - self._wall[-1]) - elapsed)
            jumped = jump_ns > self.TOLERANCE_NS + self.SLEW * max(0, elapsed)
            era = self._era[-1] + jumped
        self._ours.append(ours)
        self._wall.append(wall)
        self._era.append(era)
        self._eras = None
        if len(self._ours) > self.MAX_PAIRS:
            self._thin()

    def _thin(self) -> None:
        """Drop every second pair of the older half; the first and last of an era stay."""
        half = len(self._ours) // 2
        era = self._era
        keep = [i >= half or i % 2 == 0 or era[i] != era[i - 1] or era[i] != era[i + 1] for i in range(len(era))]
        if all(keep):  # nothing but jumps: forget the oldest
            keep = [i >= half for i in range(len(era))]
        for values in (self._ours, self._wall, self._era):
            values[:] = [value for value, stays in zip(values, keep, strict=True) if stays]

    @overload
    def from_wall(self, wall_ns: int, near_ns: int | None = None) -> int: ...
    @overload
    def from_wall(self, wall_ns: np.ndarray, near_ns: int | None = None) -> np.ndarray: ...
    def from_wall(self, wall_ns: int | np.ndarray, near_ns: int | None = None) -> int | np.ndarray:
        """Convert wall-clock stamps to this clock.

        Args:
            wall_ns: wall-clock nanoseconds since the epoch; a number or an array.
            near_ns: a time on this clock near which the stamps were made; decides only where a
                clock that was set back made the same wall time happen twice.

        Returns: an int for an int, an int64 array of the same shape for an array.
        """
        with self._lock:
            if self._eras is None:
                era, ours, wall = (np.asarray(v) for v in (self._era, self._ours, self._wall))
                cuts = np.flatnonzero(np.diff(era)) + 1
                self._eras = list(zip(np.split(ours, cuts), np.split(wall, cuts), strict=True))
            eras = self._eras
        stamps = np.atleast_1d(np.asarray(wall_ns, dtype=np.int64))
        result = _convert_by_era(stamps, eras, near_ns)
        if np.ndim(wall_ns) == 0:
            return int(result[0])
        return result.reshape(np.shape(wall_ns))


def _convert_by_nearest_pair(stamps: np.ndarray, ours: np.ndarray, wall: np.ndarray) -> np.ndarray:
    """Convert with the pair nearest in wall time; `wall` (nearly) ascends within an era."""
    wall = np.maximum.accumulate(wall)
    nearest = np.searchsorted((wall[1:] + wall[:-1]) // 2, stamps)
    return stamps - wall[nearest] + ours[nearest]


def _convert_by_era(stamps: np.ndarray, eras: list, near_ns: int | None) -> np.ndarray:
    """Convert each stamp in the era that holds it; see `Clock` for the choice among several.

    Args:
        stamps: int64[n], wall-clock ns.
        eras: the pairs of each era, as (ours, wall), int64[pairs] ns.
        near_ns: where a wall time happened twice, the era nearest to this time on our clock wins; None = the latest.
    """
    best = np.zeros(len(stamps), dtype=np.int64)
    best_outside_ns = np.full(len(stamps), np.iinfo(np.int64).max)
    near = eras[-1][0][-1] if near_ns is None else near_ns
    for number, (ours, wall) in enumerate(eras):
        candidate = _convert_by_nearest_pair(stamps, ours, wall)
        # The jump fell somewhere between the last pair of one era and the first of the next, so
        # an era reaches up to its neighbours' pairs; the first and the last have no far end.
        low = eras[number - 1][0][-1] if number else np.iinfo(np.int64).min
        high = eras[number + 1][0][0] if number + 1 < len(eras) else np.iinfo(np.int64).max
        outside_ns = np.where(candidate < low, low - candidate, 0)
        outside_ns = np.where(candidate > high, candidate - high, outside_ns)
        closer = outside_ns < best_outside_ns
        tie = (outside_ns == best_outside_ns) & (abs(candidate - near) < abs(best - near))  # held by several eras
        best = np.where(closer | tie, candidate, best)
        best_outside_ns = np.where(closer, outside_ns, best_outside_ns)
    return best
