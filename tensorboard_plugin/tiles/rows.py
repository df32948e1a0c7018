"""The rows behind the pyramids, each handed out once, and the mapping from steps to times."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.sealed import extent
from gpu_util_callback.recording.segments import Rows

__all__ = ["Growing", "NewRows", "StepTimes"]


class NewRows:
    """A recording's rows, handed out once each, in order, as the recording grows."""

    def __init__(self, recording: Recording, covered: int = -1):
        self._recording = recording
        self._seen: dict[str, int] = {}  # table or group -> rows handed out
        # State of `_seen` after a segment; segments up to number `covered` are left out.
        self._ends: dict[int, dict[str, int]] = {covered: {}}
        # Of the open segment at its last reading: its name, its first and its last time.
        self.open_extent: tuple[str, int, int] | None = None

    @property
    def waiting(self) -> int:
        """Return how many segments `read` would open."""
        whole = max(self._ends)
        return sum(info.last > whole for info in self._recording.segments)

    def read(self) -> Iterator[tuple[Rows, Rows]]:
        """Yield (tables, samples) of each new stretch; of the tables only "steps"."""
        whole = max(self._ends)  # sealed segments up to here have been handed out
        for info, segment in self._recording.opened(after=whole):
            # A merged segment may begin before rows already handed out.
            begin = max((n for n in self._ends if n < info.first), default=-1)
            before = self._ends[begin]
            tables, samples = segment.readable(
                ("steps",), partial(self._recording.damaged, info.name)
            )
            yield (
                self._unseen("tables/", tables, before),
                self._unseen("samples/", samples, before),
            )
            if info.sealed:
                self._ends[info.last] = dict(self._seen)
            elif tables or samples:
                self.open_extent = (info.name, *extent(tables, samples))

    def _unseen(self, kind: str, rows: Rows, before: dict[str, int]) -> Rows:
        found: Rows = {}
        for name, columns in rows.items():
            key = kind + name
            count = len(next(iter(columns.values())))
            skip = max(0, self._seen.get(key, 0) - before.get(key, 0))
            if skip < count:
                found[name] = {column: values[skip:] for column, values in columns.items()}
            self._seen[key] = max(self._seen.get(key, 0), before.get(key, 0) + count)
        return found


class Growing:
    """An ascending int64 array that grows."""

    def __init__(self) -> None:
        self._held = np.zeros(0, np.int64)
        self._used = 0

    @property
    def array(self) -> np.ndarray:
        return self._held[: self._used]

    def add(self, values: np.ndarray) -> None:
        """Append values in ascending order, whatever a damaged file contains."""
        if not len(values):
            return
        end = self._used + len(values)
        if end > len(self._held):
            grown = np.zeros(max(end, self._used + self._used // 4), np.int64)
            grown[: self._used] = self._held[: self._used]
            self._held = grown
        least = self._held[self._used - 1] if self._used else values[0]
        np.maximum.accumulate(np.maximum(values, least), out=self._held[self._used : end])
        self._used = end

    def last(self, count: int) -> np.ndarray:
        """Return the last `count` of them, as stored."""
        return self._held[self._used - count : self._used]


class StepTimes:
    """Times at which the steps began: the mapping between the axes."""

    def __init__(self) -> None:
        self._starts = Growing()
        self._numbers = Growing()

    @property
    def nbytes(self) -> int:
        return self._starts.array.nbytes + self._numbers.array.nbytes

    def add(self, numbers: np.ndarray, starts: np.ndarray) -> None:
        """Append steps: their numbers, and their starts in ns since the recording's start."""
        self._numbers.add(numbers)
        self._starts.add(starts)

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return int64: the number of the step under way at these times (0 before the first)."""
        starts, numbers = self._starts.array, self._numbers.array
        if not len(starts):
            return np.zeros(len(since_ns), np.int64)
        return numbers[np.clip(np.searchsorted(starts, since_ns, "right") - 1, 0, None)]

    def start_of(self, steps: np.ndarray) -> np.ndarray:
        """Return float64: when these steps began, ns since the start; NaN beyond the last one."""
        starts, numbers = self._starts.array, self._numbers.array
        at = np.searchsorted(numbers, steps)
        result = np.full(len(steps), np.nan)
        known = at < len(numbers)
        result[known] = starts[at[known]]
        return result
