"""A long run thinned out: min, max and mean of a few rows each, so that any zoom reads little.

`levels-<first>-<last>.npz` holds the *entries* of segments `first` to `last`. An entry stands for
neighbouring rows of one group: 32 steps whose numbers share all but the lowest five bits, or the
samples of a power of two of nanoseconds, about sixteen or more of them. The files are extra: all
rows are in the segments, and a reader without the files reads those.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.recording.container import (
    Container,
    Damaged,
    FrameError,
    OtherFormat,
    checked_ns,
    decode_frame,
    encode_frame,
    pack,
)
from gpu_util_callback.recording.overview import (
    checked_shift,
    extremes,
    reduce_rows,
    step_series,
)
from gpu_util_callback.recording.schema import FORMAT_MAJOR, STEP_SERIES
from gpu_util_callback.recording.segments import Rows, checked_frame

STEP_BITS = 5
SAMPLES_PER_ENTRY = 16
# A pause between two steps (a validation) ends an entry: the rows after it began later.
PAUSE_NS = 10_000_000
MAX_ENTRIES = 1 << 22

_KEYS = ("time", "end", "step", "rows")
_KEY_KINDS = dict.fromkeys(_KEYS, "int")
_VALUES = ("low", "high", "mean")


def levels_name(first: int, last: int) -> str:
    """Return the name of the file with the entries of segments `first` to `last`."""
    return f"levels-{first:06d}-{last:06d}.npz"


@dataclass
class Entries:
    """Entries of one group, in the order of their rows.

    `time`, `end`: int64[n], ns since the recording's start: of the first row, and of the end of the
    last one (a sample: its time). `step`: int64[n], number of the first step; -1 for samples.
    `rows`: int64[n]. `low`, `high`, `mean`: float32[columns, n], NaN = no data. `bits`: an entry's
    rows share their step number (samples: time) except for this many low bits.
    """

    columns: list[str]
    bits: int
    time: np.ndarray
    end: np.ndarray
    step: np.ndarray
    rows: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray

    def __len__(self) -> int:
        return len(self.time)

    @property
    def of_steps(self) -> bool:
        return bool((self.step[:1] >= 0).all())

    def arranged(self, columns: Sequence[str]) -> "Entries":
        """Return the same with these columns in this order; missing ones hold no data."""
        if list(columns) == self.columns:
            return self
        at = [self.columns.index(name) if name in self.columns else -1 for name in columns]

        def rearranged(values: np.ndarray) -> np.ndarray:
            found = values[at]
            found[[place < 0 for place in at]] = np.nan
            return found

        return Entries(
            list(columns), self.bits, self.time, self.end, self.step, self.rows,
            *map(rearranged, (self.low, self.high, self.mean)),
        )  # fmt: skip

    def starts(self, by: int) -> np.ndarray:
        """Return the first index of each group of entries that agree in 2^by times as much."""
        keys = (self.step if self.of_steps else self.time) >> (self.bits + by)
        new = np.diff(keys) != 0
        if self.of_steps:
            new |= self.time[1:] - self.end[:-1] > PAUSE_NS
        return np.flatnonzero(np.append(True, new))

    def folded(self, by: int, starts: np.ndarray | None = None) -> "Entries":
        """Return those groups as entries (at least one); `starts` is the result of `starts`."""
        if starts is None:
            starts = self.starts(by)
        weights = np.where(np.isnan(self.mean), np.float32(0), self.rows.astype(np.float32))
        total = np.add.reduceat(np.where(weights > 0, self.mean, 0) * weights, starts, axis=1)
        weights = np.add.reduceat(weights, starts, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(weights > 0, total / weights, np.nan).astype(np.float32)
        last = np.append(starts[1:], len(self)) - 1
        low, high = extremes(self.low, self.high, starts)
        return Entries(
            self.columns, self.bits + by, self.time[starts], self.end[last], self.step[starts],
            np.add.reduceat(self.rows, starts), low, high, mean,
        )  # fmt: skip


def join(parts: Sequence[Entries]) -> Entries:
    """Return the entries of the parts one after the other, with all their columns."""
    if len(parts) == 1:
        return parts[0]
    columns = list(dict.fromkeys(name for part in parts for name in part.columns))
    parts = [part.arranged(columns) for part in parts]

    def joined(field: str) -> np.ndarray:
        return np.concatenate([getattr(part, field) for part in parts], axis=-1)

    fields = ("time", "end", "step", "rows", "low", "high", "mean")
    return Entries(columns, max(part.bits for part in parts), *map(joined, fields))


class LevelsBuilder:
    """Makes entries out of rows as they come.

    Attributes:
        cells: number of values added since the last `clear`.
    """

    def __init__(self, origin_ns: int):
        self.origin_ns = origin_ns
        self.cells = 0
        self._bits: dict[str, int] = {}
        self._parts: dict[str, list[Entries]] = {}

    def add(self, tables: Rows, samples: Rows) -> None:
        """Add rows that follow those added before; of the tables only steps are used."""
        steps = tables.get("steps")
        if steps is not None and len(steps["step"]):
            self.cells += len(STEP_SERIES) * len(steps["step"])
            self._parts.setdefault("steps", []).append(self._of_steps(steps))
        for group, columns in samples.items():
            if len(columns["time_ns"]) and len(columns) > 1:
                self.cells += (len(columns) - 1) * len(columns["time_ns"])
                self._parts.setdefault(group, []).append(self._of_samples(group, columns))

    def entries(self) -> dict[str, Entries]:
        """Return group -> its entries since the last `clear`."""
        return {group: join(parts) for group, parts in self._parts.items()}

    def clear(self) -> None:
        self.cells = 0
        self._parts = {}

    def pack(self) -> bytes:
        """Return the bytes of a levels file."""
        groups, arrays = {}, {}
        for group, entries in self.entries().items():
            keys = {name: getattr(entries, name) for name in _KEYS}
            frame, planes = encode_frame(keys, _KEY_KINDS)
            groups[group] = {"columns": entries.columns, "bits": entries.bits, "keys": frame}
            arrays[f"{group}/keys"] = planes
            for name in _VALUES:
                arrays[f"{group}/{name}"] = getattr(entries, name)
        index = {"format": FORMAT_MAJOR, "origin_ns": self.origin_ns, "groups": groups}
        return pack(index, arrays, level=1)

    def _of_steps(self, steps: dict[str, np.ndarray]) -> Entries:
        number = np.maximum.accumulate(np.maximum(steps["step"], 0))
        time = np.maximum.accumulate(np.maximum(steps["start_ns"] - self.origin_ns, 0))
        end = time + np.maximum(steps["duration_ns"], 0)
        new = (np.diff(number >> STEP_BITS) != 0) | (time[1:] - end[:-1] > PAUSE_NS)
        return _entries(
            STEP_SERIES, STEP_BITS, np.cumsum(np.append(0, new)), time, end, number,
            step_series(steps),
        )  # fmt: skip

    def _of_samples(self, group: str, columns: dict[str, np.ndarray]) -> Entries:
        time = np.maximum.accumulate(np.maximum(columns["time_ns"] - self.origin_ns, 0))
        bits = self._bits.get(group)
        if bits is None:
            pause = float(np.median(np.diff(time))) if len(time) > 1 else 1e8
            bits = int(np.clip(np.ceil(np.log2(max(1.0, SAMPLES_PER_ENTRY * pause))), 16, 50))
            if len(time) >= SAMPLES_PER_ENTRY:
                self._bits[group] = bits
        names = [name for name in columns if name != "time_ns"]
        values = np.stack([columns[name] for name in names])
        return _entries(names, bits, time >> bits, time, time, np.full(len(time), -1), values)


def _entries(columns, bits, keys, time, end, step, values) -> Entries:
    """Return entries of the runs of equal keys, which do not descend."""
    starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    _, reduced = reduce_rows(keys, values, 0)
    rows = np.diff(np.append(starts, len(keys)))
    last = starts + rows - 1
    return Entries(
        list(columns), bits, time[starts], end[last], step[starts], rows, reduced.low,
        reduced.high, reduced.mean,
    )  # fmt: skip


class LevelsFile:
    """A levels file, unpacked on demand.

    Raises: Damaged from every method, and nothing else.

    Attributes:
        sizes: group -> (its columns, number of entries).
    """

    def __init__(self, data: bytes, origin_ns: int):
        self._container = Container(data)
        index = self._container.index
        if index.get("format") != FORMAT_MAJOR:
            raise OtherFormat("levels", index.get("format"), FORMAT_MAJOR)
        self.sizes: dict[str, tuple[list[str], int]] = {}
        try:
            self._shift = checked_ns(index["origin_ns"]) - origin_ns
            self._groups: dict[str, dict] = index["groups"]
            for group, about in self._groups.items():
                count, columns = about["keys"]["rows"], [str(name) for name in about["columns"]]
                checked_shift(about["bits"])
                checked_frame(group, about["keys"], _KEY_KINDS)
                if not 0 < count <= MAX_ENTRIES:
                    raise Damaged(f"{group[:40]}: {count} entries claimed; refused")
                # Their memory is allocated before they are read.
                sizes = [self._container.size(f"{group}/{name}") for name in _VALUES]
                if min(sizes) < 4 * count * len(columns) or not columns:
                    raise Damaged(f"{group[:40]}: fewer values than {count} entries have")
                self.sizes[group] = (columns, count)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise (
                error if isinstance(error, Damaged) else Damaged(f"no levels: {error!r}")
            ) from error

    def entries(self, group: str) -> Entries:
        """Return the entries of one of the groups in `sizes`."""
        columns, count = self.sizes[group]
        try:
            keys = decode_frame(self._groups[group]["keys"], self._container.array(f"{group}/keys"))
            time, end, step, rows = (keys[name] for name in _KEYS)
        except (FrameError, KeyError) as error:
            raise Damaged(f"{group}: {error}") from error
        values = [self._container.array(f"{group}/{name}") for name in _VALUES]
        if any(part.shape != (len(columns), count) for part in values):
            raise Damaged(f"{group}: values of another shape than {len(columns)} × {count}")
        if any(part.dtype != np.float32 for part in values):
            raise Damaged(f"{group}: values of another kind of number")
        return Entries(
            columns, int(self._groups[group]["bits"]), time + self._shift, end + self._shift,
            step, rows, *values,
        )  # fmt: skip
