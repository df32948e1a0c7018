"""Series of a long recording: thinned in memory, with rows read for finer views."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.levels import LevelsBuilder
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.segments import Rows
from tensorboard_plugin.tiles.following import IncrementalReader
from tensorboard_plugin.tiles.levels import Range
from tensorboard_plugin.tiles.merging import empty, reduced, reduced_rows, spread
from tensorboard_plugin.tiles.raw_rows import GROUP_MS, VALUE_MS, Part, RawRows
from tensorboard_plugin.tiles.rows import NewRows
from tensorboard_plugin.tiles.series import Series

__all__ = ["LongRun"]

# Size of the cache of ranges made in the background, for repeated requests: a view of 64 GPUs,
# or a dozen initial views.
MADE_BYTES = 12 << 20
# Upper bound of the assumed slowdown of making buckets.
MOST_PACE = 8.0
# Between two files, requests go first.
YIELD_S = 0.003


class LongRun(IncrementalReader):
    """Counterpart of `Pyramids` for long runs, at a small part of their rows' size.

    Views as coarse as the entries are answered from memory: exactly on a group's own axis (steps
    by step, samples by time), within the width of an entry on the other one. Finer ones take the
    rows of the segments in view.
    """

    def __init__(self, recording: Recording):
        super().__init__()
        self.recording = recording
        self.origin_ns = recording.start_ns
        self.raw = RawRows(recording)
        self._lock = threading.Lock()
        self._new: NewRows | None = None
        self._builder = LevelsBuilder(self.origin_ns)
        self._series: dict[str, Series] = {}
        self._made: OrderedDict[tuple, tuple[list[str], Range]] = OrderedDict()
        self._pace = 1.0  # recent slowdown of making buckets: see `cost_ms`
        self._last_steps: tuple[tuple, tuple[np.ndarray, np.ndarray] | None] = ((), None)

    @property
    def nbytes(self) -> int:
        # A copy: a group may be added meanwhile.
        made = sum(map(_nbytes, list(self._made.values())))
        return sum(one.nbytes for one in list(self._series.values())) + self.raw.nbytes + made

    def _take_in(self, revision: str) -> None:
        if self._new is None:
            self._new = NewRows(self.recording, self._read_levels())
        for tables, samples in self._new.read():
            self._take(tables, samples)
        if self._new.open_extent is not None:
            name, begin, end = self._new.open_extent
            self.raw.learn(name, revision, begin, end)
        for series in self._series.values():
            series.fold(self._steps)
            if not self.ready:  # no request waits yet: the first one would take milliseconds
                for axis in ("step", "time"):
                    series.width(axis, self._steps)

    def waiting(self, revision: str) -> int:
        """Return how many segments `update` would open."""
        return 0 if revision == self._revision or self._new is None else self._new.waiting

    def columns(self, group: str) -> list[str]:
        """Return the columns of "steps" or a sample group."""
        series = self._series.get(group)
        return series.columns if series is not None else []

    # --- the two axes -----------------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        steps = self._steps
        return int(steps.step[-1] + steps.rows[-1] - 1) if steps is not None else -1

    @property
    def _steps(self) -> Series | None:
        series = self._series.get("steps")
        return series if series is not None and len(series) else None

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return int64: the step under way at these times, within an entry's steps."""
        steps = self._steps
        return np.zeros(len(since_ns), np.int64) if steps is None else steps.step_at(since_ns)

    def start_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return float64: when these steps began, ns since the start; NaN beyond the last one."""
        steps = self._steps
        if steps is None:
            return np.full(len(numbers), np.nan)
        at = np.clip(np.searchsorted(steps.step, numbers, "right") - 1, 0, None)
        share = np.clip((numbers - steps.step[at]) / steps.rows[at], 0, 1)
        found = steps.time[at] + share * (steps.end[at] - steps.time[at])
        return np.where(numbers > self.last_step, np.nan, found)

    # --- planning a view --------------------------------------------------------------------------

    def level_of(self, group: str, axis: str) -> int:
        """Return the finest level at which the entries in memory suffice for a group."""
        series = self._series.get(group)
        return series.width(axis, self._steps) if series is not None else 0

    def wanted(self, groups: Iterable[str], axis: str, level: int) -> list[str]:
        """Return those of the groups whose rows have to be read at this level."""
        return [g for g in groups if g in self._series and level < self.level_of(g, axis)]

    def stretch(self, axis: str, level: int, first: int, count: int) -> tuple[int, int]:
        """Return the times, in ns since the epoch, between which all rows of these buckets lie."""
        begin, end = first << level, (first + count) << level
        steps = self._steps
        if axis == "step" and steps is not None:
            at = np.searchsorted(steps.step, [begin, end - 1], "right")
            begin = int(steps.time[max(0, at[0] - 1)])
            if at[1] < len(steps):
                end = int(steps.time[at[1]])
            elif self.recording.status == "live":
                # Steps reach the disk later than samples: later samples belong to a step to come.
                end = int(steps.end[-1])
            else:
                end = 2**61
        return self.origin_ns + begin, self.origin_ns + end

    def ranges(
        self, wanted: Mapping[str, Sequence[str]], axis: str, level: int, first: int, count: int
    ) -> dict[str, Range]:
        """Return min, max and mean, float32[columns, count], of buckets of entries in memory."""
        within = (first << level, (first + count) << level)
        # Groups with equal numbers of columns are processed together: with few entries, the calls
        # take most of the time.
        bunches: dict[int, list[tuple[str, list[str], np.ndarray, np.ndarray, Range]]] = {}
        for group, columns in wanted.items():
            series = self._series[group]
            known = [column for column in columns if column in series.columns]
            keys, rows, parts = series.between(known, level, axis, self._steps, within)
            bunch = bunches.setdefault(len(known), [])
            numbers = (keys >> level) - first + count * len(bunch)
            bunch.append((group, known, numbers, rows, parts))
        found: dict[str, Range] = {}
        for bunch in bunches.values():
            _, _, numbers_of, rows_of, parts_of = zip(*bunch, strict=True)
            low, high, mean = (np.concatenate(one, axis=1) for one in zip(*parts_of, strict=True))
            whole = reduced(
                np.concatenate(numbers_of), count * len(bunch), low, high, mean,
                np.concatenate(rows_of),
            )  # fmt: skip
            for at, (group, known, *_) in enumerate(bunch):
                low, high, mean = (one[:, count * at : count * (at + 1)] for one in whole)
                found[group] = spread((low, high, mean), wanted[group], known, count)
        return found

    def cost_ms(
        self,
        wanted: Mapping[str, Sequence[str]],
        axis: str,
        level: int,
        first: int,
        count: int,
        enough: float,
    ) -> float:
        """Return about how long `ranges_of_rows` takes; above `enough`, a lower bound."""
        since, until = self.stretch(axis, level, first, count)
        return self.raw.cost_ms(wanted, since, until, enough, self._pace)

    def ranges_of_rows(
        self, wanted: Mapping[str, Sequence[str]], axis: str, level: int, first: int, count: int
    ) -> dict[str, Range]:
        """Return the same for some groups, from the rows themselves."""
        since, until = self.stretch(axis, level, first, count)
        parts: dict[str, list[Part]] = {group: [] for group in wanted}
        for segment in self.raw.read(wanted, since, until):
            for group, part in segment.items():
                parts[group].append(part)
        numbers = np.arange(first, first + count + 1, dtype=np.int64) << level
        worked, values_in = time.thread_time(), 0
        begun = self._begun(level, numbers, since, until) if axis == "step" else numbers
        found = {}
        for group, columns in wanted.items():
            if not parts[group]:
                found[group] = empty(len(columns), count)
                continue
            times, steps, values = zip(*parts[group], strict=True)
            if group == "steps" and axis == "step":
                keys, edges = np.concatenate(steps), numbers
            else:
                keys, edges = np.maximum(np.concatenate(times) - self.origin_ns, 0), begun
            cuts = np.searchsorted(np.maximum.accumulate(keys), edges)
            rows = np.empty((len(columns), len(keys)), np.float32)
            for row, pieces in zip(rows, zip(*values, strict=True), strict=True):
                np.concatenate(pieces, out=row)
            at = np.repeat(np.arange(count), np.diff(cuts))
            found[group] = reduced_rows(at, count, rows[:, cuts[0] : cuts[-1]])
            values_in += rows.size
        expected = GROUP_MS * len(wanted) + VALUE_MS * values_in
        took = 1e3 * (time.thread_time() - worked) / expected
        self._pace += 0.2 * (min(max(took, 0.2), MOST_PACE) - self._pace)
        return found

    def _begun(self, level: int, numbers: np.ndarray, since: int, until: int) -> np.ndarray:
        """Return int64, ascending: ns since the start from which samples fall into these steps."""
        # Where an entry of steps is no wider than a bucket, its start is precise enough.
        finer = level < self.level_of("steps", "step")
        begun = self._starts_of(numbers, self._steps_between(since, until) if finer else None)
        begun[np.isnan(begun)] = 2.0**62  # whatever follows the last step belongs to it
        if self._steps is not None:
            begun[numbers <= self._steps.step[0]] = 0  # and whatever precedes the first, to that
        return np.maximum.accumulate(np.ceil(begun).astype(np.int64))

    def made(
        self, wanted: Mapping[str, Sequence[str]], axis: str, level: int, first: int, count: int
    ) -> dict[str, Range]:
        """Return the results of `make` for these groups, unless the view has other rows since."""
        segments = self.raw.segments(*self.stretch(axis, level, first, count))
        found = {}
        for group, columns in wanted.items():
            made = self._made.get((group, tuple(columns), axis, level, first, count))
            if made is not None and made[0] == segments:
                found[group] = made[1]
        return found

    def make(
        self, wanted: Mapping[str, Sequence[str]], axis: str, level: int, first: int, count: int
    ) -> None:
        """Prepare `ranges_of_rows`; for work that takes longer than a request may."""
        segments = self.raw.segments(*self.stretch(axis, level, first, count))
        for group, found in self.ranges_of_rows(wanted, axis, level, first, count).items():
            with self._lock:
                key = (group, tuple(wanted[group]), axis, level, first, count)
                self._made.pop(key, None)
                self._made[key] = (segments, found)
                while sum(map(_nbytes, self._made.values())) > MADE_BYTES and len(self._made) > 1:
                    self._made.popitem(last=False)

    def _steps_between(self, since: int, until: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (starts in ns since the recording's start, numbers) of steps with decoded rows."""
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
        """Return the steps under way at these times, exactly where their rows are `known`."""
        if known is None:
            return self.step_at(at)
        starts, numbers = known
        place = np.searchsorted(starts, at, "right") - 1
        return np.where(place < 0, self.step_at(at), numbers[np.clip(place, 0, None)])

    def edges(self, axis: str, level: int, first: int, count: int) -> np.ndarray:
        """Return the other axis at each bucket's start: float64[count] ns, or step numbers."""
        at = np.arange(first, first + count, dtype=np.int64) << level
        since, until = self.stretch(axis, level, first, count)
        known = None
        if level < self.level_of("steps", axis):
            known = self._steps_between(since, until)
        if axis == "time":
            if known is None:
                return self.step_at(at).astype(np.float64)
            return self._exact_steps(at, known).astype(np.float64)
        return self._starts_of(at, known)

    def _starts_of(self, at: np.ndarray, known: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        """Return the same as `start_of`, to the nanosecond where the steps' rows are `known`."""
        found = self.start_of(at)
        if known is not None:
            starts, numbers = known
            place = np.searchsorted(numbers, at)
            inside = (place < len(numbers)) & (at >= numbers[0]) & (at <= self.last_step)
            found[inside] = starts[place[inside]]
        return found

    # --- reading rows -----------------------------------------------------------------------------

    def _read_levels(self) -> int:
        """Read the entries on disk; return the last segment they hold."""
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
        # Of their final size: growing in pieces would fragment the heap.
        made = {group: Series(columns, total) for group, (columns, total) in sizes.items()}
        for first, last in files:
            try:
                self._copy(first, last, made)
            except Damaged as error:
                self.recording.levels_damaged(first, last, error)
                covered = first - 1
                break
            time.sleep(YIELD_S)
        self._series = {group: series for group, series in made.items() if len(series)}
        return covered

    def _copy(self, first: int, last: int, into: dict[str, Series]) -> None:
        file = self.recording.open_levels(first, last)
        if file is None:
            raise Damaged("it changed while it was read")
        found = {group: file.entries(group) for group in file.sizes if group in into}
        for group, entries in found.items():
            into[group].add(entries)

    def _take(self, tables: Rows, samples: Rows) -> None:
        self._builder.add(tables, samples)
        for group, entries in self._builder.entries().items():
            if group not in self._series:
                self._series[group] = Series(entries.columns)
            self._series[group].add(entries)
        self._builder.clear()


def _nbytes(made: tuple[list[str], Range]) -> int:
    return sum(part.nbytes for part in made[1])
