"""The top of the pyramid: a whole run in a thousand buckets, on both axes, at a fixed size.

`overview.npz` is rewritten when a segment is sealed and covers exactly the sealed segments; it
also lists them, so that the first view of a long run reads the manifest and this file alone. A
reader adds the one open segment with the same code.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged, OtherFormat, checked_ns, pack
from gpu_util_callback.recording.facts import MOST_COUNT, MOST_LENGTH_NS, encodable
from gpu_util_callback.recording.schema import FORMAT_MAJOR, STEP_SERIES
from gpu_util_callback.recording.segments import Rows

# Runs of up to this many values are reduced together, longer ones one by one.
SHORT = 16


class Buckets:
    """Min, max, sum and count of `columns` over a run of buckets; NaN/0 where there is no data.

    `low`, `high`: float32[columns, buckets]; `total`: float64; `count`: int64.
    """

    __slots__ = ("count", "high", "low", "total")

    def __init__(self, columns: int, buckets: int):
        self.low = np.full((columns, buckets), np.nan, np.float32)
        self.high = np.full((columns, buckets), np.nan, np.float32)
        self.total = np.zeros((columns, buckets))
        self.count = np.zeros((columns, buckets), np.int64)

    def __len__(self) -> int:
        return self.low.shape[1]

    @property
    def mean(self) -> np.ndarray:
        """float32[columns, buckets]; NaN where there is no data."""
        with np.errstate(invalid="ignore"):
            return np.where(self.count > 0, self.total / np.maximum(self.count, 1), np.nan).astype(
                np.float32
            )

    def put(self, at: np.ndarray, other: "Buckets", rows: Sequence[int] | slice) -> None:
        """Merge `other`'s buckets into those numbered `at` (each once), into columns `rows`."""
        where = (rows, at) if isinstance(rows, slice) else np.ix_(np.asarray(rows), at)
        self.low[where] = np.fmin(self.low[where], other.low)
        self.high[where] = np.fmax(self.high[where], other.high)
        self.total[where] += other.total
        self.count[where] += other.count


def reduce_rows(keys: np.ndarray, values: np.ndarray, shift: int) -> tuple[np.ndarray, Buckets]:
    """Reduce rows to the buckets `key >> shift`.

    Args:
        keys: int64[n], not descending.
        values: float[columns, n], NaN = absent.

    Returns: (int64[k] bucket numbers that have rows, ascending; their k buckets).
    """
    numbers = keys >> shift
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    result = Buckets(len(values), 0)
    known = ~np.isnan(values)
    low, high = extremes(values, values, starts)
    result.low, result.high = low.astype(np.float32), high.astype(np.float32)
    result.total = np.add.reduceat(np.where(known, values, 0.0), starts, axis=1, dtype=np.float64)
    result.count = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
    return numbers[starts], result


def extremes(
    low: np.ndarray, high: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimum of `low` and the maximum of `high` in each run; NaN where all are NaN.

    Equals `fmin.reduceat` and `fmax.reduceat`, in less than half the time for many short runs.

    Args:
        low, high: float[columns, n]; the same array where they are equal.
        starts: int64[k], first index of each run; the first is 0.
    """
    sizes = np.diff(starts, append=low.shape[1])
    long = np.flatnonzero(sizes > SHORT)
    if len(long) > len(starts) // 64:
        return np.fmin.reduceat(low, starts, axis=1), np.fmax.reduceat(high, starts, axis=1)
    # The first value of all runs, then the second of all, …: an exhausted run repeats its last.
    least = np.take(low, starts, axis=1)
    most = least.copy() if high is low else np.take(high, starts, axis=1)
    last = starts + sizes - 1
    for depth in range(1, min(SHORT, int(sizes.max(initial=0)))):
        at = np.minimum(starts + depth, last)
        values = np.take(low, at, axis=1)
        np.fmin(least, values, out=least)
        np.fmax(most, values if high is low else np.take(high, at, axis=1), out=most)
    for run in long.tolist():
        part = slice(int(starts[run]), int(last[run]) + 1)
        least[:, run] = np.fmin.reduce(low[:, part], axis=1)
        most[:, run] = np.fmax.reduce(high[:, part], axis=1)
    return least, most


class Folded:
    """A fixed number of buckets for any number of rows: it folds by two as the keys grow.

    After any number of rows it holds at most `size` buckets and, once folded, at least a quarter
    of that many up to the last key.
    """

    def __init__(self, columns: Sequence[str] = (), shift: int = 0, size: int = 1024):
        self.columns = list(columns)
        self.shift = shift
        self.size = size
        self.used = 0  # buckets up to the last one with rows
        self.buckets = Buckets(len(self.columns), size)

    def add(self, keys: np.ndarray, columns: Sequence[str], values: np.ndarray) -> None:
        """Add rows: `keys` int64[n] ≥ 0 not descending, `values` float[len(columns), n]."""
        if not len(keys):
            return
        for name in columns:
            if name not in self.columns:
                self._grow(name)
        while int(keys[-1]) >> self.shift >= self.size:
            if self.used:
                self.fold()
            else:  # a run's first rows
                self.shift += 1
        numbers, reduced = reduce_rows(keys, values, self.shift)
        self.buckets.put(numbers, reduced, [self.columns.index(name) for name in columns])
        self.used = max(self.used, int(numbers[-1]) + 1)

    def fold(self) -> None:
        """Halve the number of buckets in use; each then covers twice as much."""
        folded = Buckets(len(self.columns), self.size)
        half = self.size // 2
        for part in (slice(0, None, 2), slice(1, None, 2)):
            other = Buckets(0, 0)
            other.low, other.high = self.buckets.low[:, part], self.buckets.high[:, part]
            other.total, other.count = self.buckets.total[:, part], self.buckets.count[:, part]
            folded.put(np.arange(half), other, slice(None))
        self.buckets = folded
        self.shift += 1
        self.used = (self.used + 1) // 2

    def _grow(self, name: str) -> None:
        old = self.buckets
        self.columns.append(name)
        self.buckets = Buckets(len(self.columns), self.size)
        for field in Buckets.__slots__:
            getattr(self.buckets, field)[:-1] = getattr(old, field)


class Marks:
    """The first value of every bucket, -1 where there is none; folds as `Folded` does.

    Maps one axis to the other: the start of a bucket's first step, or its number.
    """

    def __init__(self, shift: int = 0, size: int = 1024):
        self.shift = shift
        self.size = size
        self.values = np.full(size, -1, np.int64)

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Add rows: `keys` int64[n] ≥ 0 not descending, `values` int64[n] ≥ 0."""
        if not len(keys):
            return
        while int(keys[-1]) >> self.shift >= self.size:
            even, odd = self.values[0::2], self.values[1::2]
            self.values = np.full(self.size, -1, np.int64)
            self.values[: self.size // 2] = np.where(even >= 0, even, odd)
            self.shift += 1
        numbers, first = np.unique(keys >> self.shift, return_index=True)
        free = self.values[numbers] < 0
        self.values[numbers[free]] = values[first[free]]


SIZE = 1024
MOST_COLUMNS = 4096


@dataclass(frozen=True)
class Cells:
    """The buckets of a group that are in use: [columns, buckets] each, read-only."""

    columns: list[str]
    shift: int
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    count: np.ndarray


class Groups:
    """Group -> its buckets. `first_shift`: the width of those of a new group."""

    def __init__(self, first_shift: int):
        self.first_shift = first_shift
        self._made: dict[str, Folded] = {}

    def __getitem__(self, group: str) -> Folded:
        return self._made[group]

    def __contains__(self, group: object) -> bool:
        return group in self._made

    def get(self, group: str) -> Folded | None:
        """Return a group's buckets; None for an unknown group."""
        return self[group] if group in self else None  # noqa: SIM401

    def cells(self, group: str) -> Cells:
        """Return a group's data; cheaper than the buckets where those are in a file."""
        folded = self[group]
        buckets, used = folded.buckets, slice(0, folded.used)
        return Cells(
            folded.columns, folded.shift, buckets.low[:, used], buckets.high[:, used],
            buckets.mean[:, used], buckets.count[:, used],
        )  # fmt: skip

    def names(self) -> list[str]:
        """Return all groups, whether they are in memory or not."""
        return list(self._made)

    def about(self, group: str) -> tuple[list[str], int]:
        """Return (columns, bits of a bucket's width) of a group, without unpacking it."""
        folded = self._made[group]
        return folded.columns, folded.shift

    def add(self, group: str, keys: np.ndarray, names: Sequence[str], values: np.ndarray) -> None:
        """Add rows, as `Folded.add` does."""
        if group not in self:
            self._made[group] = Folded(names, self.first_shift, SIZE)
        self[group].add(keys, names, values)

    def release(self) -> None:
        """Drop the data that can be unpacked or computed again."""


class StoredGroups(Groups):
    """The groups of a file, read-only: each is unpacked on first use."""

    def __init__(
        self,
        container: Container,
        axis: str,
        stored: Mapping[str, Any],
        on_damage: Callable[[Damaged], None] | None,
    ):
        super().__init__(0)
        self._container, self._axis, self._on_damage = container, axis, on_damage
        self._stored = {str(group): _described(about) for group, about in stored.items()}
        self._cells: dict[str, Cells] = {}

    def __getitem__(self, group: str) -> Folded:
        made = self._made.get(group)
        if made is None:
            made = self._made[group] = self._unpacked(group)
        return made

    def __contains__(self, group: object) -> bool:
        return group in self._stored

    def names(self) -> list[str]:
        return list(self._stored)

    def about(self, group: str) -> tuple[list[str], int]:
        return self._stored[group][:2]

    def release(self) -> None:
        self._made, self._cells = {}, {}

    def cells(self, group: str) -> Cells:
        found = self._cells.get(group)
        if found is None:
            found = self._cells[group] = self._read(group)
        return found

    def _read(self, group: str) -> Cells:
        columns, shift, used = self._stored[group]
        try:
            arrays = [
                self._container.array(f"{self._axis}/{group}/{name}")
                for name in ("min", "max", "mean", "count")
            ]
            if any(array.shape != (len(columns), used) for array in arrays):
                raise Damaged(f"{group}: buckets of another shape than {len(columns)} × {used}")
            if "".join(array.dtype.kind for array in arrays) not in ("fffi", "fffu"):
                raise Damaged(f"{group}: buckets of another kind of number")
        except Damaged as error:
            if self._on_damage is None:
                raise
            self._on_damage(error)
            nothing = np.zeros((len(columns), 0), np.float32)
            arrays = [nothing] * 4
        return Cells(columns, shift, *arrays)

    def _unpacked(self, group: str) -> Folded:
        cells = self.cells(group)
        folded = Folded(cells.columns, cells.shift, SIZE)
        folded.used = used = cells.low.shape[1]
        buckets = folded.buckets
        buckets.low[:, :used], buckets.high[:, :used] = cells.low, cells.high
        buckets.count[:, :used] = cells.count
        np.multiply(cells.mean, cells.count, out=buckets.total[:, :used], where=cells.count > 0)
        return folded


class GrownGroups(Groups):
    """Existing groups plus later rows, which are folded into a group on first use."""

    def __init__(self, before: Groups, first_shift: int):
        super().__init__(first_shift)
        self._before = before
        self._rows: dict[str, tuple[np.ndarray, Sequence[str], np.ndarray]] = {}

    def __getitem__(self, group: str) -> Folded:
        made = self._made.get(group)
        if made is not None:
            return made
        before = self._before.get(group)
        if group not in self._rows:
            if before is None:
                raise KeyError(group)
            return before
        keys, names, values = self._rows[group]
        made = Folded(names, self.first_shift, SIZE) if before is None else deepcopy(before)
        made.add(keys, names, values)
        self._made[group] = made
        return made

    def __contains__(self, group: object) -> bool:
        return group in self._rows or group in self._before

    def names(self) -> list[str]:
        return list(dict.fromkeys([*self._before.names(), *self._rows]))

    def about(self, group: str) -> tuple[list[str], int]:
        columns: list[str] = []
        shift = self.first_shift
        if group in self._before:
            columns, shift = self._before.about(group)
        if group in self._rows:
            keys, names, _ = self._rows[group]
            columns = list(dict.fromkeys([*columns, *names]))
            while int(keys[-1]) >> shift >= SIZE:
                shift += 1  # as `Folded.add` does
        return columns, shift

    def add(self, group: str, keys: np.ndarray, names: Sequence[str], values: np.ndarray) -> None:
        self._rows[group] = (keys, list(names), values)

    def release(self) -> None:
        self._made = {}
        self._before.release()


def checked_shift(value: Any) -> int:
    """Return a bucket's width in bits. Raises: Damaged where it is invalid."""
    if type(value) is not int or not 0 <= value < 63:
        raise Damaged("a bucket width that is none")
    return value


def _described(about: Any) -> tuple[list[str], int, int]:
    """Return (columns, shift, buckets in use) of a group."""
    columns, used = [encodable(str(name)) for name in about["columns"]], about["used"]
    if type(used) is not int or not 0 <= used <= SIZE or len(columns) > MOST_COLUMNS:
        raise Damaged(f"more than {SIZE} buckets claimed, or {MOST_COLUMNS} columns")
    return columns, checked_shift(about["shift"]), used


# Time buckets start at 2^16 ns (65 µs), step buckets at single steps; both fold as the run grows.
FIRST_SHIFT = {"step": 0, "time": 16}
AXES = ("step", "time")


def step_series(steps: dict[str, np.ndarray]) -> np.ndarray:
    """Return float64[len(STEP_SERIES), n]: the drawn columns of `steps`, absent ones NaN."""
    values = np.stack([steps[name] for name in STEP_SERIES]).astype(np.float64)
    values[values < 0] = np.nan
    return values


class Overview:
    """Folded series of a recording: "steps" and every sample group, by step and by time.

    `axes[axis][group]` is a `Folded`; its keys are step numbers, or nanoseconds since
    `origin_ns`. `marks[axis]` maps to the other axis: on the step axis it holds the start of each
    bucket's first step (ns since the origin), on the time axis the number of its first step.
    """

    def __init__(self, origin_ns: int):
        self.origin_ns = origin_ns
        self.axes = {axis: Groups(FIRST_SHIFT[axis]) for axis in AXES}
        self.marks = {axis: Marks(FIRST_SHIFT[axis], SIZE) for axis in AXES}
        self.last_step = -1
        self._last_start_ns = origin_ns

    def add(self, tables: Rows, samples: Rows) -> None:
        """Add rows that follow those added before."""
        steps = tables.get("steps")
        number = start = np.zeros(0, np.int64)
        if steps is not None and len(steps["step"]):
            number, start = steps["step"], steps["start_ns"]
            values = step_series(steps)
            order = _ascending(number)
            self._add("step", "steps", number[order], STEP_SERIES, values[:, order])
            self.marks["step"].add(
                np.maximum(number[order], 0), np.maximum(start[order] - self.origin_ns, 0)
            )
            order = _ascending(start)
            since = np.maximum(start[order] - self.origin_ns, 0)
            self._add("time", "steps", since, STEP_SERIES, values[:, order])
            self.marks["time"].add(since, np.maximum(number[order], 0))
        # Start times of steps, including the last known one of the previous rows.
        starts = np.concatenate([[self._last_start_ns], start])
        numbers = np.concatenate([[max(0, self.last_step)], number])
        for group, columns in samples.items():
            times = columns["time_ns"]
            if not len(times):
                continue
            order = _ascending(times)
            times = times[order]
            names = [name for name in columns if name != "time_ns"]
            values = np.stack([columns[name][order] for name in names]).astype(np.float64)
            self._add("time", group, times - self.origin_ns, names, values)
            if len(number) or self.last_step >= 0:
                # The current step at each sample; sorted, since a step's start can be an estimate.
                at = np.clip(np.searchsorted(starts, times, "right") - 1, 0, None)
                keys = np.maximum.accumulate(numbers[at])
                self._add("step", group, keys, names, values)
        if len(number):
            self.last_step = int(number[-1])
            self._last_start_ns = int(start[-1])

    def _add(self, axis: str, group: str, keys, names, values) -> None:
        self.axes[axis].add(group, np.maximum(keys, 0), names, values)

    def with_rows(self, tables: Rows, samples: Rows) -> "Overview":
        """Return another overview that has these rows, too; this one stays as it is.

        They are folded into a group only when that is used: the newest rows of a live run come with
        every flush, and mostly nobody looks at the overview of them.
        """
        other = Overview(self.origin_ns)
        other.last_step, other._last_start_ns = self.last_step, self._last_start_ns
        for axis in AXES:
            other.marks[axis].shift = self.marks[axis].shift
            other.marks[axis].values = self.marks[axis].values.copy()
            other.axes[axis] = GrownGroups(self.axes[axis], FIRST_SHIFT[axis])
        other.add(tables, samples)
        return other

    def release(self) -> None:
        """Drop the unpacked data that can be unpacked again."""
        for groups in self.axes.values():
            groups.release()

    def pack(self, index: dict[str, Any], beside: Mapping[str, np.ndarray] | None = None) -> bytes:
        """Return the bytes of `overview.npz`; `index` and arrays `beside` are stored with it."""
        about: dict[str, Any] = {
            "format": FORMAT_MAJOR,
            "origin_ns": self.origin_ns,
            "last_step": self.last_step,
            "last_start_ns": self._last_start_ns,
            "axes": {},
            "marks": {},
            **index,
        }
        arrays: dict[str, np.ndarray] = dict(beside or {})
        for axis in AXES:
            about["marks"][axis] = self.marks[axis].shift
            arrays[f"{axis}/marks"] = self.marks[axis].values
            about["axes"][axis] = {}
            for group in self.axes[axis].names():
                folded = self.axes[axis][group]
                about["axes"][axis][group] = {
                    "columns": folded.columns, "shift": folded.shift, "used": folded.used,
                }  # fmt: skip
                used, buckets = folded.used, folded.buckets
                key = f"{axis}/{group}"
                arrays[f"{key}/min"] = buckets.low[:, :used]
                arrays[f"{key}/max"] = buckets.high[:, :used]
                arrays[f"{key}/mean"] = buckets.mean[:, :used]
                arrays[f"{key}/count"] = buckets.count[:, :used].astype(np.uint32)
        # These floats hardly compress; a higher level would only cost time.
        return pack(about, arrays, level=1)

    @classmethod
    def unpack(
        cls, container: Container, on_damage: Callable[[Damaged], None] | None = None
    ) -> "Overview":
        """Return the overview of an `overview.npz`.

        Args:
            on_damage: called when a group turns out to be damaged, at its first use; the group is
                empty then. Without it the error is raised there.

        Raises: Damaged.
        """
        index = container.index
        if index.get("format") != FORMAT_MAJOR:
            raise OtherFormat("overview", index.get("format"), FORMAT_MAJOR)
        try:
            overview = cls(checked_ns(index["origin_ns"]))
            overview.last_step = index["last_step"]
            if type(overview.last_step) is not int or not -1 <= overview.last_step <= MOST_COUNT:
                raise Damaged("a last step that is none")
            overview._last_start_ns = checked_ns(index["last_start_ns"])
            for axis in AXES:
                marks = overview.marks[axis]
                marks.shift = checked_shift(index["marks"][axis])
                most = MOST_LENGTH_NS if axis == "step" else max(0, overview.last_step)
                stored_marks = container.array(f"{axis}/marks")
                marks.values = _marks(stored_marks, overview.last_step, most)
                if axis == "step" and overview.last_step >= 0:
                    first = int(np.flatnonzero(marks.values >= 0)[0])
                    if first << marks.shift > overview.last_step:
                        raise Damaged("a first step behind the last one")
                stored = index["axes"][axis]
                overview.axes[axis] = StoredGroups(container, axis, stored, on_damage)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, Damaged):
                raise
            raise Damaged(f"not an overview: {error!r}") from error
        return overview


def _marks(values: np.ndarray, last_step: int, most: int) -> np.ndarray:
    """Return int64[SIZE]: marks as stored. Raises: Damaged where they do not fit the steps."""
    if values.shape != (SIZE,) or values.dtype.kind != "i":
        raise Damaged(f"marks of {values.dtype}{list(values.shape)}")
    if last_step >= 0 and not (values >= 0).any():
        raise Damaged(f"steps up to {last_step}, but no mark of one")
    if values.min() < -1 or values.max() > most:
        raise Damaged("marks beyond the recording")
    return values.astype(np.int64)


def _ascending(keys: np.ndarray) -> np.ndarray | slice:
    """Return the index that sorts `keys`, which nearly always are sorted."""
    if (keys[1:] >= keys[:-1]).all():
        return slice(None)
    return np.argsort(keys, kind="stable")
