"""A recording's rows: what is new since the last look, and those of the segments in view."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.overview import step_series
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.sealed import extent
from gpu_util_callback.recording.segments import Rows, Segment, SegmentInfo

__all__ = ["NewRows", "Part", "RawRows"]

# Cache of decoded rows: holds all of a run that is not long.
MAX_BYTES = 12 << 20

# Group -> columns; column -> values; (time, step, float32[n] of each), `step` None for samples.
Wanted = Mapping[str, Sequence[str]]
Columns = dict[str, np.ndarray]
Part = tuple[np.ndarray, np.ndarray | None, list[np.ndarray]]

_STEP_COLUMNS = ("step", "start_ns", *STEP_SERIES)


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

    def read(self) -> Iterator[tuple[SegmentInfo, tuple[Rows, Rows], tuple[Rows, Rows]]]:
        """Yield each new segment: its facts, (tables, samples), and what is new of these.

        Of the tables only "steps".
        """
        whole = max(self._ends)  # sealed segments up to here have been handed out
        for info, segment in self._recording.opened(after=whole):
            # A merged segment may begin before rows already handed out.
            begin = max((n for n in self._ends if n < info.first), default=-1)
            before = self._ends[begin]
            tables, samples = segment.readable(
                ("steps",), partial(self._recording.damaged, info.name)
            )
            new = (
                self._unseen("tables/", tables, before),
                self._unseen("samples/", samples, before),
            )
            yield info, (tables, samples), new
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


class RawRows:
    """Rows of a recording's sealed and open segments by time, column by column; thread safe."""

    def __init__(self, recording: Recording, max_bytes: int = MAX_BYTES):
        self._recording = recording
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # never held while a file is read
        # (segment, group, column) -> its values; column "" holds the times.
        self._kept: OrderedDict[tuple[str, str, str], np.ndarray] = OrderedDict()
        self._revision = ""  # of the recording, as shown
        self._open = ("", 0, 0)
        none = np.zeros(0, np.int64)
        self._extents: tuple[list[SegmentInfo], np.ndarray, np.ndarray] = ([], none, none)
        self.nbytes = 0

    def unread(self, wanted: Wanted, since: int, until: int) -> int:
        """Return how many segments `read` would open."""
        infos = self._between(since, until)
        return sum(bool(self._at_hand(info, wanted)[1]) for info in infos)

    def keep(self, info: SegmentInfo, revision: str, tables: Rows, samples: Rows) -> None:
        """Keep the rows of a segment that were decoded as a whole, at a revision to come."""
        decoded = {
            group: _of_samples(rows, [name for name in rows if name != "time_ns"])
            for group, rows in samples.items()
        }
        nothing = np.zeros(0, np.int64)
        steps = tables.get("steps")
        decoded["steps"] = {"": nothing, "step": nothing} if steps is None else _of_steps(steps)
        self._keep(_key(info, revision), decoded)

    def read(self, wanted: Wanted, since: int, until: int) -> Iterator[dict[str, Part]]:
        """Yield what each segment has of some groups; each is opened once at most."""
        for info in self._between(since, until):
            found, missing = self._at_hand(info, wanted)
            if missing:
                for group, values in self._decode(info, missing).items():
                    found[group].update(values)
            yield {
                group: (
                    found[group][""],
                    found[group].get("step"),
                    [found[group][column] for column in columns],
                )
                for group, columns in wanted.items()
                if len(found[group][""])
            }

    def _at_hand(self, info: SegmentInfo, wanted: Wanted) -> tuple[dict[str, Columns], Wanted]:
        """Return (cached values of each group, columns left to decode) of a segment."""
        key, found, missing = self._key(info), dict[str, Columns](), dict[str, list[str]]()
        with self._lock:
            for group, columns in wanted.items():
                values = {}
                for column in ("", "step", *columns):
                    kept = self._kept.get((key, group, column))
                    if kept is not None:
                        self._kept.move_to_end((key, group, column))
                        values[column] = kept
                if "" not in values:
                    values = {}
                found[group] = values
                lacking = [column for column in columns if column not in values]
                if lacking or not values:
                    missing[group] = lacking
        return found, missing

    def steps_at_hand(self, since: int, until: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (starts in ns since the epoch, numbers) of decoded steps between two times."""
        starts, numbers = [], []
        for info in self._between(since, until):
            key = self._key(info)
            with self._lock:
                begun, number = (self._kept.get((key, "steps", name)) for name in ("", "step"))
            if begun is None or number is None:
                return None
            starts.append(begun)
            numbers.append(number)
        if not sum(map(len, starts)):
            return None
        return np.concatenate(starts), np.concatenate(numbers)

    def segments(self, since: int, until: int) -> list[str]:
        """Return the names of what `read` reads; the same names stand for the same rows."""
        return [self._key(info) for info in self._between(since, until)]

    def _between(self, since: int, until: int) -> list[SegmentInfo]:
        infos = self._recording.segments
        known, begin, end = self._extents
        if known is not infos:
            far = 2**62  # a segment of unknown extent may hold any time
            begin = np.array([-far if one.steps < 0 else one.start_ns for one in infos], np.int64)
            end = np.array([far if one.steps < 0 else one.end_ns for one in infos], np.int64)
            self._extents = (infos, begin, end)
        found = [infos[at] for at in np.flatnonzero((begin < until) & (end >= since)).tolist()]
        if found and not found[-1].sealed:
            name, first, last = self._open
            if name == found[-1].name and not (first < until and last >= since):
                del found[-1]
        return found

    def advance(self, revision: str, open_extent: tuple[str, int, int] | None) -> None:
        """Show the open segment as of this revision from now on.

        Args:
            open_extent: its name, and the first and the last time in it.
        """
        with self._lock:
            self._revision, self._open = revision, open_extent or ("", 0, 0)
            for key in [
                key for key in self._kept if key[0].partition(" ")[2] not in ("", revision)
            ]:
                self.nbytes -= self._kept.pop(key).nbytes

    def _key(self, info: SegmentInfo) -> str:
        return _key(info, self._revision)

    def _decode(self, info: SegmentInfo, missing: Wanted) -> dict[str, Columns]:
        """Decode and cache the missing values."""
        key = self._key(info)
        segment = self._recording.open_segment(info)
        decoded: dict[str, Columns] = {}
        for group, columns in missing.items():
            try:
                values = {} if segment is None else _columns(segment, group, columns)
            except Damaged as error:
                values = {}
                self._recording.damaged(info.name, error)
            values.setdefault("", np.zeros(0, np.int64))
            if group == "steps":
                values.setdefault("step", values[""])
            for column in columns:
                values.setdefault(column, np.full(len(values[""]), np.nan, np.float32))
            decoded[group] = values
        self._keep(key, decoded)
        return decoded

    def _keep(self, key: str, decoded: Mapping[str, Columns]) -> None:
        with self._lock:
            for group, columns in decoded.items():
                for column, values in columns.items():
                    old = self._kept.pop((key, group, column), None)
                    self.nbytes += values.nbytes - (old.nbytes if old is not None else 0)
                    self._kept[key, group, column] = values
            while self.nbytes > self._max_bytes and next(iter(self._kept))[0] != key:
                _, dropped = self._kept.popitem(last=False)
                self.nbytes -= dropped.nbytes


def _key(info: SegmentInfo, revision: str) -> str:
    # The open segment is a different one after each flush.
    return info.name if info.sealed else f"{info.name} {revision}"


def _columns(segment: Segment, group: str, columns: Sequence[str]) -> Columns:
    if group == "steps":
        rows = segment.table("steps", dict.fromkeys(_STEP_COLUMNS)) if segment.rows("steps") else {}
        return _of_steps(rows) if rows else {}
    if group not in segment.groups:
        return {}
    return _of_samples(segment.samples(group, columns), columns)


def _of_steps(rows: Mapping[str, np.ndarray]) -> Columns:
    values = step_series(dict(rows)).astype(np.float32)
    found = dict(zip(STEP_SERIES, values, strict=True))
    return {**found, "": rows["start_ns"], "step": np.maximum(rows["step"], 0)}


def _of_samples(rows: Mapping[str, np.ndarray], columns: Iterable[str]) -> Columns:
    found = {name: rows[name].astype(np.float32) for name in columns if name in rows}
    return {**found, "": rows["time_ns"]}
