"""Tiles of a recording's entries: neighbouring rows thinned to min, max and mean, in memory."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.levels import Entries, LevelsBuilder
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.segments import Rows
from tensorboard_plugin.tiles.merging import Range, View, reduced, spread

# Each level has a quarter as many entries as the one before, down to this minimum.
FOLD_BITS = 2
FEWEST = 1024
# Folded in blocks, to keep the temporary memory small.
BLOCK = 1 << 14
# Between two files, requests go first.
YIELD_S = 0.003


class EntryTiles:
    """Views no finer than the entries, at a small part of the rows' size; thread safe.

    They are exact on a group's own axis (steps by step, samples by time), and within the width of
    an entry on the other one.
    """

    def __init__(self, recording: Recording):
        self._recording = recording
        self._origin_ns = recording.start_ns
        self._builder = LevelsBuilder(self._origin_ns)
        self._series: dict[str, Series] = {}

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in list(self._series.values()))

    def columns(self, group: str) -> list[str]:
        """Return the columns of "steps" or a sample group."""
        series = self._series.get(group)
        return series.columns if series is not None else []

    # --- the two axes -----------------------------------------------------------------------------

    @property
    def steps(self) -> "Series | None":
        """The entries of the steps, if there are any."""
        series = self._series.get("steps")
        return series if series is not None and len(series) else None

    @property
    def last_step(self) -> int:
        steps = self.steps
        return int(steps.step[-1] + steps.rows[-1] - 1) if steps is not None else -1

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return int64: the step under way at these times, within an entry's steps."""
        steps = self.steps
        return np.zeros(len(since_ns), np.int64) if steps is None else steps.step_at(since_ns)

    def start_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return float64: when these steps began, ns since the start; NaN beyond the last one."""
        steps = self.steps
        if steps is None:
            return np.full(len(numbers), np.nan)
        at = np.clip(np.searchsorted(steps.step, numbers, "right") - 1, 0, None)
        share = np.clip((numbers - steps.step[at]) / steps.rows[at], 0, 1)
        found = steps.time[at] + share * (steps.end[at] - steps.time[at])
        return np.where(numbers > self.last_step, np.nan, found)

    def edges(self, view: View) -> np.ndarray:
        """Return the other axis at each bucket's start: float64[count] ns, or step numbers."""
        at = view.edges[:-1]
        return self.step_at(at).astype(np.float64) if view.axis == "time" else self.start_of(at)

    # --- buckets ----------------------------------------------------------------------------------

    def level_of(self, group: str, axis: str) -> int:
        """Return the finest level available for a group."""
        series = self._series.get(group)
        return series.width(axis, self.steps) if series is not None else 0

    def ranges(self, wanted: Mapping[str, Sequence[str]], view: View) -> dict[str, Range]:
        """Return min, max and mean, float32[columns, count], of each group in a view's buckets."""
        # Groups with equal numbers of columns are processed together: with few entries, the calls
        # take most of the time.
        bunches: dict[int, list[tuple[str, list[str], np.ndarray, np.ndarray, Range]]] = {}
        for group, columns in wanted.items():
            series = self._series[group]
            known = [column for column in columns if column in series.columns]
            keys, rows, parts = series.between(
                known, view.level, view.axis, self.steps, (view.begin, view.end)
            )
            bunch = bunches.setdefault(len(known), [])
            numbers = (keys >> view.level) - view.first + view.count * len(bunch)
            bunch.append((group, known, numbers, rows, parts))
        found: dict[str, Range] = {}
        count = view.count
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

    # --- reading ----------------------------------------------------------------------------------

    def read_files(self) -> int:
        """Read the entries on disk; return the number of the last segment they hold."""
        covered, sizes = -1, dict[str, tuple[list[str], int]]()
        files = []
        for first, last in self._recording.level_files:
            file = self._recording.open_levels(first, last) if first == covered + 1 else None
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
                self._recording.levels_damaged(first, last, error)
                covered = first - 1
                break
            time.sleep(YIELD_S)
        self._series = {group: series for group, series in made.items() if len(series)}
        return covered

    def _copy(self, first: int, last: int, into: "dict[str, Series]") -> None:
        file = self._recording.open_levels(first, last)
        if file is None:
            raise Damaged("it changed while it was read")
        found = {group: file.entries(group) for group in file.sizes if group in into}
        for group, entries in found.items():
            into[group].add(entries)

    def add(self, tables: Rows, samples: Rows) -> None:
        """Add rows that follow those added before."""
        self._builder.add(tables, samples)
        for group, entries in self._builder.entries().items():
            if group not in self._series:
                self._series[group] = Series(entries.columns)
            self._series[group].add(entries)
        self._builder.clear()

    def fold(self) -> None:
        """Prepare coarser views ahead of the first request for one."""
        for series in self._series.values():
            series.fold(self.steps)
            for axis in ("step", "time"):
                series.width(axis, self.steps)


class Series:
    """Growing entries of one group, and fewer of them for coarser views; thread safe.

    A constant column takes no room.

    Args:
        columns: expected names, as far as known.
        count: expected number of entries, as far as known.
    """

    def __init__(self, columns: Sequence[str] = (), count: int = 0):
        self._lock = threading.Lock()  # held while computing, never while reading a file
        self._levels = [_Level(columns, _with_room(count))]
        self._done: list[tuple[int, int]] = []  # see `_complete`
        self._widths: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._levels[0])

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in list(self._levels))

    @property
    def columns(self) -> list[str]:
        return self._levels[0].names

    @property
    def bits(self) -> int:
        return self._levels[0].bits

    @property
    def of_steps(self) -> bool:
        return self._levels[0].of_steps

    # Keys of the finest entries: int64[n]. Entries are only ever added.

    @property
    def time(self) -> np.ndarray:
        return self._levels[0].key("time")

    @property
    def end(self) -> np.ndarray:
        return self._levels[0].key("end")

    @property
    def step(self) -> np.ndarray:
        return self._levels[0].key("step")

    @property
    def rows(self) -> np.ndarray:
        return self._levels[0].key("rows")

    def add(self, entries: Entries) -> None:
        """Append entries that follow those added before."""
        if not len(entries):
            return
        with self._lock:
            self._levels[0].add(entries)
            self._widths = {}

    def fold(self, steps: "Series | None") -> None:
        """Fold ahead of the first read; `steps`: those of the recording."""
        with self._lock:
            self._complete()
            for level in self._levels if not self.of_steps else ():
                level.place(steps)

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return int64: the step under way at these times, to an entry's width; of steps only."""
        time = self.time
        at = np.clip(np.searchsorted(time, since_ns, "right") - 1, 0, None)
        begun, first, rows = time[at], self.step[at], self.rows[at]
        share = (since_ns - begun) / np.maximum(self.end[at] - begun, 1)
        inside = np.floor(np.clip(share, 0, 1) * rows).astype(np.int64)
        return first + np.minimum(inside, rows - 1)

    def width(self, axis: str, steps: "Series | None") -> int:
        """Return the level whose buckets are as wide as nearly all of the entries."""
        widths = self._widths  # of the current entries; `add` clears them
        found = widths.get(axis)
        if found is None:
            found = widths[axis] = self._width(axis, steps)
        return found

    def _width(self, axis: str, steps: "Series | None") -> int:
        if self.of_steps == (axis == "step"):
            return self.bits
        time = self.time
        some = slice(None, None, max(1, len(time) // 4096))
        begin = time[some]
        if self.of_steps:
            lengths = self.end[: len(time)][some] - begin
        elif steps is not None and len(steps):
            lengths = steps.step_at(begin + (1 << self.bits)) - steps.step_at(begin)
        else:
            lengths = np.zeros(len(begin), np.int64)
        return int(max(1, np.percentile(lengths, 90, method="higher")) - 1).bit_length()

    def between(
        self,
        columns: Sequence[str],
        level: int,
        axis: str,
        steps: "Series | None",
        within: tuple[int, int],
    ) -> tuple[np.ndarray, np.ndarray, Range]:
        """Return entries that are fine enough for a level and begin in a range of an axis.

        Args:
            columns: some of `columns`.
            steps: the recording's steps, for the place of samples among them.
            within: [begin, end) in steps, or ns since the recording's start.

        Returns: (int64[n] keys on the axis, int64[n] rows of each, (min, max, mean) of them).
        """
        coarser = (level - self.width(axis, steps)) // FOLD_BITS
        with self._lock:
            self._complete()
            one = self._levels[max(0, min(coarser, len(self._levels) - 1))]
            if axis == "step" and not one.of_steps:
                one.place(steps)
            keys = one.key(axis)
            part = slice(*np.searchsorted(keys, within).tolist())
            # Copies: the last entry of a coarser level may change.
            return keys[part].copy(), one.key("rows")[part].copy(), one.values(columns, part)

    def _complete(self) -> None:
        """Fold what is new; the last entry of each level is recomputed from where it began."""
        depth = 0
        while len(self._levels[depth]) > FEWEST:
            finer = self._levels[depth]
            if depth == len(self._done):
                self._done.append((0, 0))
                self._levels.append(_Level(finer.names, _with_room(len(finer) >> FOLD_BITS)))
            done, begun = self._done[depth]  # entries that were folded, and where the last began
            coarse = self._levels[depth + 1]
            while done < len(finer):
                part = finer.part(slice(begun, min(len(finer), max(done, begun) + BLOCK)))
                starts = part.starts(FOLD_BITS)
                if done:
                    coarse.drop_last()
                coarse.add(part.folded(FOLD_BITS, starts))
                done, begun = begun + len(part), begun + int(starts[-1])
            self._done[depth] = (done, begun)
            depth += 1


@dataclass
class _Column:
    """Values of a column: one for all entries so far, or float32[3, capacity]: min, max, mean."""

    value: np.float32
    values: np.ndarray | None = None


class _Level:
    """Entries in arrays with room for more.

    The key "step" of samples is filled in by `place`, once the steps they fall into are known.
    """

    def __init__(self, columns: Sequence[str], capacity: int):
        self.bits = 0
        self.of_steps = False
        self._used = 0
        self._placed = 0  # samples whose step is final
        self._filled = 0  # columns that have arrays
        self._capacity = capacity
        self._keys = {
            name: np.zeros(capacity, np.int64) for name in ("time", "end", "step", "rows")
        }
        self._columns = {name: _Column(np.float32(np.nan)) for name in columns}

    def __len__(self) -> int:
        return self._used

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    @property
    def nbytes(self) -> int:
        return (32 + 12 * self._filled) * self._capacity

    def key(self, name: str) -> np.ndarray:
        used = self._used  # before the array, which exists before it counts as used
        return self._keys[name][:used]

    def values(self, columns: Sequence[str], at: slice) -> Range:
        """Return (min, max, mean): float32[columns, n]."""
        found = np.empty((3, len(columns), at.stop - at.start), np.float32)
        for row, name in enumerate(columns):
            column = self._columns[name]
            found[:, row] = column.value if column.values is None else column.values[:, at]
        return found[0], found[1], found[2]

    def part(self, at: slice) -> Entries:
        time, end, step, rows = (self._keys[name][at] for name in ("time", "end", "step", "rows"))
        if not self.of_steps:
            step = np.full(len(time), -1)
        low, high, mean = self.values(self.names, at)
        return Entries(self.names, self.bits, time, end, step, rows, low, high, mean)

    def place(self, steps: Series | None) -> None:
        """Find the steps under way at the samples added since the last call."""
        if self._placed == self._used:
            return
        time, new = self.key("time"), slice(self._placed, self._used)
        if steps is None or not len(steps):
            self._keys["step"][new] = 0
            return
        self._keys["step"][new] = steps.step_at(time[new])
        # Samples after the last known step began may belong to a later one.
        self._placed = int(np.searchsorted(time, steps.time[-1]))

    def drop_last(self) -> None:
        self._used -= 1
        self._placed = min(self._placed, self._used)

    def add(self, entries: Entries) -> None:
        begin, end = self._used, self._used + len(entries)
        if end > self._capacity:
            self._grow(end + end // 8 + 64)
        self.bits = max(self.bits, entries.bits)
        self.of_steps = entries.of_steps
        for name, key in self._keys.items():
            key[begin:end] = getattr(entries, name)
            if begin and (name == "time" or (name == "step" and self.of_steps)):
                # A clock that went back must not break the order.
                np.maximum(key[begin:end], key[begin - 1], out=key[begin:end])
        for name in entries.columns:
            if name not in self._columns:
                self._columns[name] = _Column(np.float32(np.nan))
        constant = _constant(entries)
        for row, name in enumerate(entries.columns):
            self._put(self._columns[name], slice(begin, end), entries, row, bool(constant[row]))
        for name in self._columns.keys() - set(entries.columns):
            self._put(self._columns[name], slice(begin, end), None, 0, True)
        self._used = end

    def _put(
        self, column: _Column, at: slice, entries: Entries | None, row: int, constant: bool
    ) -> None:
        if column.values is None:
            value = np.float32(np.nan) if entries is None else entries.low[row, 0]
            if not at.start:
                column.value = value
            if constant and np.array_equal(value, column.value, equal_nan=True):
                return
            self._filled += 1
            column.values = np.full((3, self._capacity), np.nan, np.float32)
            column.values[:, : at.start] = column.value
        if entries is None:
            column.values[:, at] = np.nan
        else:
            for to, values in zip(
                column.values, (entries.low, entries.high, entries.mean), strict=True
            ):
                to[at] = values[row]

    def _grow(self, capacity: int) -> None:
        more = capacity - self._capacity
        self._capacity = capacity
        self._keys = {name: np.pad(key, (0, more)) for name, key in self._keys.items()}
        for column in self._columns.values():
            if column.values is not None:
                column.values = np.pad(column.values, ((0, 0), (0, more)), constant_values=np.nan)


def _with_room(count: int) -> int:
    """Return room for the end of a recording, which is not (yet) in its levels files."""
    return count + count // 32 + 64 if count else 0


def _constant(entries: Entries) -> np.ndarray:
    """Return bool[columns]: whether a column holds one value, or none, throughout."""
    first = entries.low[:, :1]
    same = (entries.low == first).all(axis=1) & (entries.high == first).all(axis=1)
    return (same & (entries.mean == first).all(axis=1)) | np.isnan(entries.mean).all(axis=1)
