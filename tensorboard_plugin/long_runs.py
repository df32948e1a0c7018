"""Series of a long recording: thinned in memory, rows read where a view is finer than that."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.levels import Entries, LevelsBuilder, blank, join
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.segments import Rows
from tensorboard_plugin.levels import Range
from tensorboard_plugin.merging import empty, reduced, spread
from tensorboard_plugin.raw_rows import RawRows
from tensorboard_plugin.rows import NewRows

__all__ = ["LongRun"]

FOLD_BITS = 3
# Ranges of groups that were made beside requests and are kept for when they are asked for again.
MOST_MADE = 96
# Between two files, requests go first.
YIELD_S = 0.003


class LongRun:
    """What `Pyramids` is for a short run, at a small part of its rows' size.

    Views as coarse as the entries are answered from memory: exactly on a group's own axis (steps
    by step, samples by time), within the width of an entry on the other one. Finer ones take the
    rows of the segments in view.
    """

    def __init__(self, recording: Recording):
        self.recording = recording
        self.origin_ns = recording.start_ns
        self.raw = RawRows(recording)
        self._lock = threading.Lock()
        self._revision: str | None = None
        self._new: NewRows | None = None
        self._builder = LevelsBuilder(self.origin_ns)
        self._series: dict[str, _Series] = {}
        self._made: OrderedDict[tuple, tuple[str | None, Range]] = OrderedDict()
        self._last_steps: tuple[tuple, tuple[np.ndarray, np.ndarray] | None] = ((), None)

    @property
    def ready(self) -> bool:
        """Whether `update` has been through once."""
        return self._revision is not None

    @property
    def nbytes(self) -> int:
        # A copy: a group may be added meanwhile.
        return sum(one.nbytes for one in list(self._series.values())) + self.raw.nbytes

    def update(self, revision: str) -> None:
        """Take in what was recorded since."""
        with self._lock:
            if revision == self._revision:
                return
            if self._new is None:
                covered = self._read_levels()
                self._new = NewRows(self.recording, covered)
            for tables, samples in self._new.read():
                self._take(tables, samples)
            self._revision = revision

    def waiting(self, revision: str) -> int:
        """How many segments `update` would open."""
        return 0 if revision == self._revision or self._new is None else self._new.waiting

    def columns(self, group: str) -> list[str]:
        """The columns of "steps" or a sample group."""
        series = self._series.get(group)
        return series.columns if series is not None else []

    # --- the two axes -----------------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        steps = self._steps
        return int(steps.step[-1] + steps.rows[-1] - 1) if steps is not None else -1

    @property
    def _steps(self) -> Entries | None:
        series = self._series.get("steps")
        return series.entries if series is not None and len(series.entries) else None

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """int64: the step under way at these times, within an entry's steps."""
        steps = self._steps
        if steps is None:
            return np.zeros(len(since_ns), np.int64)
        at = np.clip(np.searchsorted(steps.time, since_ns, "right") - 1, 0, None)
        length = np.maximum(steps.end[at] - steps.time[at], 1)
        share = np.clip((since_ns - steps.time[at]) / length, 0, 1)
        inside = np.floor(share * steps.rows[at]).astype(np.int64)
        return steps.step[at] + np.minimum(inside, steps.rows[at] - 1)

    def start_of(self, numbers: np.ndarray) -> np.ndarray:
        """float64: when these steps began, ns since the start; NaN beyond the last one."""
        steps = self._steps
        if steps is None:
            return np.full(len(numbers), np.nan)
        at = np.clip(np.searchsorted(steps.step, numbers, "right") - 1, 0, None)
        share = np.clip((numbers - steps.step[at]) / steps.rows[at], 0, 1)
        found = steps.time[at] + share * (steps.end[at] - steps.time[at])
        return np.where(numbers > self.last_step, np.nan, found)

    # --- what a view needs ------------------------------------------------------------------------

    def level_of(self, group: str, axis: str) -> int:
        """The finest level on which the entries in memory suffice for a group."""
        series = self._series.get(group)
        return series.level(axis, self.step_at) if series is not None else 0

    def wanted(self, groups: Iterable[str], axis: str, level: int) -> list[str]:
        """Those of the groups whose rows have to be read at this level."""
        return [g for g in groups if g in self._series and level < self.level_of(g, axis)]

    def stretch(self, axis: str, level: int, first: int, count: int) -> tuple[int, int]:
        """The times, in ns since the epoch, between which all rows of these buckets lie."""
        begin, end = first << level, (first + count) << level
        steps = self._steps
        if axis == "step" and steps is not None:
            at = np.searchsorted(steps.step, [begin, end - 1], "right")
            begin = int(steps.time[max(0, at[0] - 1)])
            if at[1] < len(steps):
                end = int(steps.time[at[1]])
            elif self.recording.status == "live":
                # Steps reach the disk later than samples: what follows belongs to one to come.
                end = int(steps.end[-1])
            else:
                end = 2**61
        return self.origin_ns + begin, self.origin_ns + end

    def range(
        self, group: str, columns: Sequence[str], axis: str, level: int, first: int, count: int
    ) -> Range:
        """Min, max and mean, float32[columns, count], of buckets out of the entries in memory."""
        with self._lock:
            entries = self._series[group].at(level, axis, self.step_at)
        if axis == "time" or entries.of_steps:
            keys, offset = entries.time if axis == "time" else entries.step, 0
        else:  # only the steps of the samples in view
            since, until = self.stretch(axis, level, first, count)
            edges = [since - self.origin_ns - (1 << entries.bits), until - self.origin_ns]
            offset, stop = np.searchsorted(entries.time, edges)
            keys = self.step_at(entries.time[offset:stop])
        begin, end = np.searchsorted(keys, [first << level, (first + count) << level])
        numbers = (keys[begin:end] >> level) - first
        part = slice(begin + offset, end + offset)
        known = [column for column in columns if column in entries.columns]
        at = [entries.columns.index(column) for column in known]
        low, high, mean = entries.low[at, part], entries.high[at, part], entries.mean[at, part]
        found = reduced(numbers, count, low, high, mean, entries.rows[part])
        return spread(found, columns, known, count)

    def range_of_rows(
        self, group: str, columns: Sequence[str], axis: str, level: int, first: int, count: int
    ) -> Range:
        """The same out of the rows themselves."""
        since, until = self.stretch(axis, level, first, count)
        low, high, mean = empty(len(columns), count)
        numbers: list[np.ndarray] = []
        values: list[np.ndarray] = []
        # Where an entry of steps is no wider than a bucket, it says well enough which step it was.
        known = self._steps_between(since, until) if level < self.level_of("steps", axis) else None
        for at, step, part in self.raw.read(group, columns, since, until):
            at = np.maximum(at - self.origin_ns, 0)
            if axis == "time":
                numbers.append(at)
            else:
                numbers.append(self._exact_steps(at, known) if step is None else step)
            values.append(part)
        if not values:
            return low, high, mean
        keys = np.maximum.accumulate(np.concatenate(numbers))
        begin, end = np.searchsorted(keys, [first << level, (first + count) << level])
        part = np.concatenate(values, axis=1)[:, begin:end]
        ones = np.ones(end - begin, np.int64)
        return reduced((keys[begin:end] >> level) - first, count, part, part, part, ones)

    def made(
        self, group: str, columns: Sequence[str], axis: str, level: int, first: int, count: int
    ) -> Range | None:
        """What `make` made, if the run has not grown since."""
        found = self._made.get((group, tuple(columns), axis, level, first, count))
        return found[1] if found is not None and found[0] == self._revision else None

    def make(
        self, wanted: Mapping[str, Sequence[str]], axis: str, level: int, first: int, count: int
    ) -> None:
        """Have `range_of_rows` of some groups at hand; for what takes longer than a request may."""
        for group, columns in wanted.items():
            revision = self._revision
            found = self.range_of_rows(group, columns, axis, level, first, count)
            with self._lock:
                self._made[group, tuple(columns), axis, level, first, count] = (revision, found)
                while len(self._made) > MOST_MADE:
                    self._made.popitem(last=False)

    def _steps_between(self, since: int, until: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(starts in ns since the recording's start, numbers) of steps whose rows are at hand."""
        key = (since, until, self._revision)
        last = self._last_steps
        if last[0] != key:
            found = self.raw.steps_at_hand(since, until)
            if found is None:
                return None
            last = self._last_steps = (key, (found[0] - self.origin_ns, found[1]))
        return last[1]

    def _exact_steps(
        self, at: np.ndarray, known: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """The steps under way at these times, to the step where their rows are `known`."""
        if known is None:
            return self.step_at(at)
        starts, numbers = known
        place = np.searchsorted(starts, at, "right") - 1
        return np.where(place < 0, self.step_at(at), numbers[np.clip(place, 0, None)])

    def edges(self, axis: str, level: int, first: int, count: int) -> np.ndarray:
        """The other axis at each bucket's start: float64[count] ns, or step numbers."""
        at = np.arange(first, first + count, dtype=np.int64) << level
        since, until = self.stretch(axis, level, first, count)
        known = None
        if level < self.level_of("steps", axis):
            known = self._steps_between(since, until)
        if axis == "time":
            if known is None:
                return self.step_at(at).astype(np.float64)
            return self._exact_steps(at, known).astype(np.float64)
        found = self.start_of(at)
        if known is not None:
            starts, numbers = known
            place = np.searchsorted(numbers, at)
            inside = (place < len(numbers)) & (at >= numbers[0]) & (at <= self.last_step)
            found[inside] = starts[place[inside]]
        return found

    # --- taking rows in ---------------------------------------------------------------------------

    def _read_levels(self) -> int:
        """The entries on disk; returns the last segment they hold."""
        covered, sizes = -1, dict[str, tuple[list[str], int]]()
        files = []
        for first, last in self.recording.level_files:
            file = self.recording.open_levels(first, last) if first == covered + 1 else None
            if file is None:
                break  # what is missing is read from the segments
            for group, (columns, count) in file.sizes.items():
                known, total = sizes.get(group, ([], 0))
                sizes[group] = (list(dict.fromkeys([*known, *columns])), total + count)
            files.append((first, last))
            covered = last
        # In arrays of their final size: pieces would leave holes all over the heap.
        made = {group: blank(columns, total) for group, (columns, total) in sizes.items()}
        ends = dict.fromkeys(made, 0)
        for first, last in files:
            try:
                self._copy(first, last, made, ends)
            except Damaged as error:
                self.recording.levels_damaged(first, last, error)
                covered = first - 1
                break
            time.sleep(YIELD_S)
        for group in list(made):
            entries = made.pop(group)
            self._series[group] = _Series(entries.part(slice(0, ends[group])))
        return covered

    def _copy(self, first: int, last: int, into: dict[str, Entries], ends: dict[str, int]) -> None:
        file = self.recording.open_levels(first, last)
        if file is None:
            raise Damaged("it changed while it was read")
        found = {group: file.entries(group) for group in file.sizes if group in into}
        for group, entries in found.items():
            begin, ends[group] = ends[group], ends[group] + len(entries)
            into[group].put(begin, entries)

    def _take(self, tables: Rows, samples: Rows) -> None:
        self._builder.add(tables, samples)
        for group, entries in self._builder.entries().items():
            if group in self._series:
                self._series[group].add(entries)
            else:
                self._series[group] = _Series(entries)
        self._builder.clear()


class _Series:
    """Entries of one group, and fewer of them for coarse views; thread safe."""

    def __init__(self, entries: Entries):
        self._lock = threading.Lock()  # parts that come while others are joined must not get lost
        self._chunks = [entries]
        self._coarse = [entries.folded(FOLD_BITS)]
        self._levels: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._chunks + self._coarse)

    @property
    def columns(self) -> list[str]:
        return self.entries.columns

    @property
    def entries(self) -> Entries:
        with self._lock:
            if len(self._chunks) > 1:
                self._chunks = [join(self._chunks)]
            return self._chunks[0]

    @property
    def coarse(self) -> Entries:
        with self._lock:
            if len(self._coarse) > 1:
                self._coarse = [join(self._coarse)]
            return self._coarse[0]

    def add(self, entries: Entries) -> None:
        coarse = entries.folded(FOLD_BITS)
        with self._lock:
            self._chunks.append(entries)
            self._coarse.append(coarse)
        self._levels.clear()

    def level(self, axis: str, step_at) -> int:
        if axis not in self._levels:
            self._levels[axis] = _width(self.entries, axis, step_at)
        return self._levels[axis]

    def at(self, level: int, axis: str, step_at) -> Entries:
        """The fewest entries that are fine enough for a level."""
        return self.coarse if level >= self.level(axis, step_at) + FOLD_BITS else self.entries


def _width(entries: Entries, axis: str, step_at) -> int:
    """The level whose buckets are as wide as nearly all of the entries."""
    if entries.of_steps == (axis == "step"):
        return entries.bits
    some = slice(None, None, max(1, len(entries) // 4096))
    if entries.of_steps:
        lengths = entries.end[some] - entries.time[some]
    else:
        begin = entries.time[some]
        lengths = step_at(begin + (1 << entries.bits)) - step_at(begin)
    return int(max(1, np.percentile(lengths, 90, method="higher")) - 1).bit_length()
