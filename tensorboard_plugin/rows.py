"""The rows behind the pyramids: each handed out once, and found again where they are needed."""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.segment_list import SegmentInfo
from gpu_util_callback.recording.segments import Rows

__all__ = ["Growing", "NewRows", "SegmentRows", "StepTimes"]


class NewRows:
    """Hands out a recording's rows once each, in order, as the recording grows."""

    def __init__(self, recording: Recording):
        self._recording = recording
        self._seen: dict[str, int] = {}  # table or group -> rows handed out
        self._ends: dict[int, dict[str, int]] = {-1: {}}  # what `_seen` was after a segment

    def read(self) -> Iterator[tuple[Rows, Rows]]:
        """(tables, samples) of each stretch that is new; of the tables only "steps"."""
        whole = max(self._ends)  # sealed segments up to here have been handed out
        for info, segment in self._recording.opened(after=whole):
            # A merged segment may begin before what was handed out of its last part.
            begin = max((n for n in self._ends if n < info.first), default=-1)
            before = self._ends[begin]
            try:
                tables = {"steps": segment.table("steps")} if segment.rows("steps") else {}
                samples = {group: segment.samples(group) for group in segment.groups}
            except Damaged:
                tables, samples = {}, {}  # named in the recording's problems when it was listed
            yield (
                self._unseen("tables/", tables, before),
                self._unseen("samples/", samples, before),
            )
            if info.sealed:
                self._ends[info.last] = dict(self._seen)

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
    """An int64 array that grows."""

    def __init__(self) -> None:
        self._held = np.zeros(0, np.int64)
        self._used = 0

    @property
    def array(self) -> np.ndarray:
        return self._held[: self._used]

    def add(self, values: np.ndarray) -> None:
        end = self._used + len(values)
        if end > len(self._held):
            grown = np.zeros(max(end, self._used + self._used // 4), np.int64)
            grown[: self._used] = self._held[: self._used]
            self._held = grown
        self._held[self._used : end] = values
        self._used = end

    def thin(self, stride: int) -> None:
        """Keep every `stride`-th value."""
        self._held = self.array[::stride].copy()
        self._used = len(self._held)


class StepTimes:
    """When each step began: the way from one axis to the other.

    Exact up to `limit` steps; beyond, every 16th start is kept and those between are interpolated.
    """

    STRIDE = 16

    def __init__(self, limit: int = 1 << 20):
        self._limit = limit
        self._starts = Growing()
        self._numbers = Growing()
        self._thinned = False
        self._skip = 0

    @property
    def nbytes(self) -> int:
        return self._starts.array.nbytes + self._numbers.array.nbytes

    def add(self, numbers: np.ndarray, starts: np.ndarray) -> None:
        """Append steps: their numbers, and their starts in ns since the recording's start."""
        if self._thinned:
            kept = slice(self._skip, None, self.STRIDE)
            self._skip = (self._skip - len(numbers)) % self.STRIDE
            numbers, starts = numbers[kept], starts[kept]
        self._numbers.add(numbers)
        self._starts.add(starts)
        if not self._thinned and len(self._numbers.array) > self._limit:
            self._thinned = True
            self._skip = -len(self._numbers.array) % self.STRIDE
            self._numbers.thin(self.STRIDE)
            self._starts.thin(self.STRIDE)

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """int64: the number of the step under way at these times (0 before the first)."""
        starts, numbers = self._starts.array, self._numbers.array
        if not len(starts):
            return np.zeros(len(since_ns), np.int64)
        if self._thinned:
            return np.floor(np.interp(since_ns, starts, numbers)).astype(np.int64)
        return numbers[np.clip(np.searchsorted(starts, since_ns, "right") - 1, 0, None)]

    def start_of(self, steps: np.ndarray) -> np.ndarray:
        """float64: when these steps began, ns since the start; NaN beyond the last one."""
        starts, numbers = self._starts.array, self._numbers.array
        if not len(starts):
            return np.full(len(steps), np.nan)
        if self._thinned:
            return np.interp(steps, numbers, starts, right=np.nan)
        at = np.searchsorted(numbers, steps)
        result = np.full(len(steps), np.nan)
        known = at < len(numbers)
        result[known] = starts[at[known]]
        return result


class SegmentRows:
    """Rows of a long recording, read from its segments again; the last few stay in memory."""

    KEEP = 8

    def __init__(self, recording: Recording):
        self._recording = recording
        self._kept: OrderedDict[tuple, tuple[Rows, Rows]] = OrderedDict()

    def read(self, group: str, axis: str, begin: int, end: int) -> list[dict[str, np.ndarray]]:
        """Columns of "steps" or a sample group out of every segment that reaches into a range.

        Args:
            axis: "step": `begin` and `end` are step numbers (steps only); "time": ns since the
                epoch.
        """
        found = []
        for info in self._recording.segments:
            if not _reaches(info, axis, begin, end):
                continue
            tables, samples = self._rows(info)
            columns = tables.get("steps") if group == "steps" else samples.get(group)
            if columns:
                found.append(columns)
        return found

    def _rows(self, info: SegmentInfo) -> tuple[Rows, Rows]:
        key = (info.name, info.sealed)
        rows = self._kept.get(key) if info.sealed else None
        if rows is None:
            rows = ({}, {})
            segment = self._recording.open_segment(info)
            try:
                if segment is not None:
                    rows[0]["steps"] = segment.table("steps")
                    rows[1].update((group, segment.samples(group)) for group in segment.groups)
            except Damaged:
                pass  # named in the recording's problems when it was first read
            self._kept[key] = rows
            while len(self._kept) > self.KEEP:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return rows


def _reaches(info: SegmentInfo, axis: str, begin: int, end: int) -> bool:
    if info.steps < 0:
        return True  # not known without opening it
    if axis == "step":
        return info.steps > 0 and info.first_step < end and info.last_step >= begin
    return info.start_ns < end and info.end_ns >= begin
