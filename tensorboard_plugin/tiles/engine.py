"""Tiles of one recording: coarse ones at once, fine ones as soon as their rows are read.

- `OverviewTiles`: of its overview alone, a first view while anything finer is being read;
- `NewRows` and `RawRows`: what is new since the last look, and the rows of the segments in view;
- `BackgroundJobs`: work that no request waits for, or not for long.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.overview import Marks, Overview, step_series
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segments import Rows, Segment, SegmentInfo, extent
from tensorboard_plugin.tiles.entries import EntryTiles
from tensorboard_plugin.tiles.merging import Range, View, empty, reduced, reduced_rows, spread

# The rows of recordings with more values than this stay on disk.
LONG_CELLS = 1 << 20
# A request waits this long for the rows of a view, and this long for those that are new. With the
# rest of a reply, that leaves a zoom below 20 ms and a first view below 100 ms.
PATIENCE_S = 0.005
NEW_PATIENCE_S = 0.06
# It waits for no more files than these: they take longer.
FEW_SEGMENTS, FEW_NEW_SEGMENTS = 1, 3
# Longer work begins after this, so that the requests of a view are done first; an initial view has
# more of them.
PAUSE_S, FIRST_PAUSE_S = 0.02, 0.1
# Cache of ranges made in the background, for repeated requests: a view of 64 GPUs, or a dozen
# initial views.
MADE_BYTES = 12 << 20

Wanted = Mapping[str, Sequence[str]]


@dataclass
class Answer:
    """Ranges by group, their rows in the order of `columns`; `other`: the other axis.

    Of `coarse` groups finer data are being read. Those in `bits` have buckets this many bits
    wider, around the requested ones; of these the first `filled` have begun by the end.
    """

    other: np.ndarray
    columns: dict[str, list[str]]
    ranges: dict[str, Range] = field(default_factory=dict)
    coarse: set[str] = field(default_factory=set)
    bits: dict[str, int] = field(default_factory=dict)
    filled: int = 0


class RecordingTiles:
    """All series of one recording at any zoom, brought up to date on demand; thread safe.

    A view comes from the first of these that is fine enough: the recording's overview, which is
    read at once; its entries, which are in memory soon after; its rows, of which the recent ones
    are kept. All rows of a run that is not long are among these.

    Args:
        jobs: what reads files; None: every request does, however long it takes.
    """

    def __init__(self, recording: Recording, jobs: BackgroundJobs | None):
        self.recording = recording
        self.entries = EntryTiles(recording)
        self.rows = RawRows(recording)
        self._jobs = jobs
        self._origin_ns = recording.start_ns
        self._lock = threading.Lock()
        self._updating = threading.Lock()  # held while reading what is new, and only then
        self._new: NewRows | None = None
        self._revision: str | None = None  # of the recording when it was last read
        self._is_long = True  # as far as is known
        self._made: OrderedDict[tuple, tuple[list[str], Range]] = OrderedDict()
        self._last_steps: tuple[tuple, tuple[np.ndarray, np.ndarray] | None] = ((), None)

    @property
    def nbytes(self) -> int:
        """Return about how much memory this takes."""
        with self._lock:
            made = sum(map(_nbytes, self._made.values()))
        return self.entries.nbytes + self.rows.nbytes + made

    @property
    def ready(self) -> bool:
        """Return whether all of the recording has been read once."""
        return self._revision is not None

    # --- following the recording ------------------------------------------------------------------

    def prepare(self) -> None:
        """Begin to read what the first view needs."""
        if not self.ready and self._jobs is not None:
            pause = FIRST_PAUSE_S if is_long(self.recording) else 0.0
            self._jobs.do(self.recording.id, self.update, pause)

    def _follow(self, revision: str) -> bool:
        """Read what is new; return whether that is all there was at this revision."""
        if revision == self._revision:
            return True
        if self._jobs is None:
            self.update()
            return True
        new = self._new
        few = not self._is_long if new is None else new.waiting <= FEW_NEW_SEGMENTS
        pause = 0.0 if few else PAUSE_S if self.ready else FIRST_PAUSE_S
        done = self._jobs.do(self.recording.id, self.update, pause)
        if few:
            done.wait(NEW_PATIENCE_S)
        return self._revision in (revision, self.recording.revision)

    def update(self) -> None:
        """Read what was recorded since the last call."""
        with self._updating:
            revision = self.recording.revision
            if revision == self._revision:
                return
            self._is_long = long = is_long(self.recording)
            if self._new is None:
                if long:
                    self._open_overview()
                self._new = NewRows(self.recording, self.entries.read_files())
            for info, whole, new in self._new.read():
                self.entries.add(*new)
                if not long:
                    self.rows.keep(info, revision, *whole)
            self.entries.fold()
            self.rows.advance(revision, self._new.open_extent)
            self._revision = revision
            self.recording.overview.release()  # no longer needed

    def _open_overview(self) -> None:
        """Unpack what is shown on either axis until the entries are read."""
        for groups in self.recording.overview.axes.values():
            for group in groups.names():
                groups.cells(group)

    # --- answering --------------------------------------------------------------------------------

    def answer(self, revision: str, wanted: Wanted, view: View) -> Answer:
        """Return a view of those of the wanted columns that there are."""
        self._is_long = is_long(self.recording)
        current = self._follow(revision)
        ready = self.ready
        source = self.entries if ready else OverviewTiles(self.recording.overview)
        known = {}
        for group, columns in wanted.items():
            there = source.columns(group)
            if some := [column for column in columns if column in there]:
                known[group] = some
        fine = {g: known[g] for g in known if self._needs_rows(source, g, view)}
        found = self._from_rows(fine, view) if ready else {}
        coarse = fine.keys() - found.keys()
        answer = Answer(self._other_axis(source, view), known, dict(found), set(coarse))
        by_level: dict[int, dict[str, list[str]]] = {}
        for group in known.keys() - found.keys():
            level = max(view.level, source.level_of(group, view.axis))
            by_level.setdefault(level, {})[group] = known[group]
        for level, groups in by_level.items():
            answer.ranges.update(source.ranges(groups, view.widened(level)))
            answer.bits.update(dict.fromkeys(groups, level - view.level))
        end = source.last_step + 1
        if view.axis == "time":
            end = self.recording.end_ns - self._origin_ns
        answer.filled = view.begun(end)
        # The newest rows may be missing anywhere; an overview has all, and is no less than asked.
        if not current and (ready or not self._is_long):
            answer.coarse = set(known)
        if self._jobs is not None and ready:
            self._jobs.tidy()
        return answer

    def _needs_rows(self, source: EntryTiles | OverviewTiles, group: str, view: View) -> bool:
        if view.level < source.level_of(group, view.axis):
            return True
        # On a group's own axis, wide buckets of entries are those of the rows.
        return (group == "steps") != (view.axis == "step") and not self._is_long

    def _from_rows(self, wanted: Wanted, view: View) -> dict[str, Range]:
        """Return the buckets of those groups whose rows are at hand, or soon are."""
        if self._jobs is None:
            return self.reduce(wanted, view)
        found = self.made(wanted, view)
        lacking = {group: columns for group, columns in wanted.items() if group not in found}
        if not lacking:
            return found
        unread = self.rows.unread(lacking, *self.stretch(view))
        id = f"{self.recording.id} {view} {sorted(lacking.items())}"
        if not unread and not self._jobs.has(id):
            return {**found, **self.reduce(lacking, view)}
        few = unread <= FEW_SEGMENTS
        done = self._jobs.do(id, lambda: self.make(lacking, view), 0.0 if few else PAUSE_S)
        if few:
            done.wait(PATIENCE_S)
        return {**found, **self.made(lacking, view)}

    # --- buckets of rows --------------------------------------------------------------------------

    def stretch(self, view: View) -> tuple[int, int]:
        """Return the times, in ns since the epoch, between which all rows of these buckets lie."""
        begin, end = view.begin, view.end
        steps = self.entries.steps
        if view.axis == "step":
            # Steps reach the disk later than samples: later samples belong to a step to come.
            last = 2**61
            if self.recording.status == "live":
                last = int(steps.end[-1]) if steps is not None else 0
            if steps is None:
                return self._origin_ns, self._origin_ns + last
            at = np.searchsorted(steps.step, [begin, end - 1], "right")
            begin = int(steps.time[max(0, at[0] - 1)]) if at[0] > 1 else 0
            end = int(steps.time[at[1]]) if at[1] < len(steps) else last
        return self._origin_ns + begin, self._origin_ns + end

    def reduce(self, wanted: Wanted, view: View) -> dict[str, Range]:
        """Return min, max and mean, float32[columns, count], of the rows in a view's buckets."""
        since, until = self.stretch(view)
        parts: dict[str, list[Part]] = {group: [] for group in wanted}
        for segment in self.rows.read(wanted, since, until):
            for group, part in segment.items():
                parts[group].append(part)
        edges = view.edges
        begun = self._begun(view, until) if view.axis == "step" else edges
        found = {}
        for group, columns in wanted.items():
            if not parts[group]:
                found[group] = empty(len(columns), view.count)
                continue
            times, steps, values = zip(*parts[group], strict=True)
            if group == "steps" and view.axis == "step":
                keys, ends = np.concatenate(steps), edges
            else:
                keys, ends = np.maximum(np.concatenate(times) - self._origin_ns, 0), begun
            cuts = np.searchsorted(np.maximum.accumulate(keys), ends)
            rows = np.empty((len(columns), len(keys)), np.float32)
            for row, pieces in zip(rows, zip(*values, strict=True), strict=True):
                np.concatenate(pieces, out=row)
            at = np.repeat(np.arange(view.count), np.diff(cuts))
            found[group] = reduced_rows(at, view.count, rows[:, cuts[0] : cuts[-1]])
        return found

    def _begun(self, view: View, until: int) -> np.ndarray:
        """Return int64, ascending: ns since the start from which samples fall into these steps."""
        edges, steps = view.edges, self._exact_steps(view)
        begun = self.entries.start_of(edges) if steps is None else self._starts_of(edges, steps)
        # What follows the last step belongs to it, and what precedes the first, to that.
        begun[np.isnan(begun)] = until - self._origin_ns
        first = self.entries.steps
        begun[edges <= (first.step[0] if first is not None else 0)] = 0
        return np.maximum.accumulate(np.ceil(begun).astype(np.int64))

    def make(self, wanted: Wanted, view: View) -> None:
        """Keep the buckets of rows that it takes longer to read than a request may wait."""
        segments = self.rows.segments(*self.stretch(view))
        for group, found in self.reduce(wanted, view).items():
            with self._lock:
                key = (group, tuple(wanted[group]), view)
                self._made.pop(key, None)
                self._made[key] = (segments, found)
                while sum(map(_nbytes, self._made.values())) > MADE_BYTES and len(self._made) > 1:
                    self._made.popitem(last=False)

    def made(self, wanted: Wanted, view: View) -> dict[str, Range]:
        """Return the results of `make` for these groups, unless the view has other rows since."""
        segments = self.rows.segments(*self.stretch(view))
        found = {}
        for group, columns in wanted.items():
            made = self._made.get((group, tuple(columns), view))
            if made is not None and made[0] == segments:
                found[group] = made[1]
        return found

    # --- the other axis ---------------------------------------------------------------------------

    def _other_axis(self, source: EntryTiles | OverviewTiles, view: View) -> np.ndarray:
        """Return the other axis at each bucket's start: float64[count] ns, or step numbers."""
        steps = self._exact_steps(view) if source is self.entries else None
        if steps is None:
            return source.edges(view)
        at = view.edges[:-1]
        if view.axis == "step":
            return self._starts_of(at, steps)
        starts, numbers = steps
        place = np.searchsorted(starts, at, "right") - 1
        under_way = np.where(place < 0, self.entries.step_at(at), numbers[np.clip(place, 0, None)])
        return under_way.astype(np.float64)

    def _starts_of(self, at: np.ndarray, steps: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Return `EntryTiles.start_of`, to the nanosecond where the steps' rows are known."""
        found = self.entries.start_of(at)
        starts, numbers = steps
        place = np.searchsorted(numbers, at)
        inside = (place < len(numbers)) & (at >= numbers[0]) & (at <= self.entries.last_step)
        found[inside] = starts[place[inside]]
        return found

    def _exact_steps(self, view: View) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (starts in ns since the recording's start, numbers) of a view's decoded steps.

        None where they are not at hand, or their entries suffice for the view.
        """
        if not self._is_long:
            since, until = 0, 2**62
        elif view.level < self.entries.level_of("steps", view.axis):
            since, until = self.stretch(view)
        else:
            return None
        key = (since, until, self._revision)
        last = self._last_steps
        if last[0] != key:
            found = self.rows.steps_at_hand(since, until)
            if found is None:
                return None
            starts = np.maximum.accumulate(np.maximum(found[0] - self._origin_ns, 0))
            last = self._last_steps = (key, (starts, np.maximum.accumulate(found[1])))
        return last[1]


def is_long(recording: Recording) -> bool:
    """Return whether a recording has too many values to keep in memory or to read per request."""
    if recording.step_count * len(STEP_SERIES) > LONG_CELLS:
        return True  # known without opening anything
    summary = recording.summary.values()
    cells = sum(column.get("count", 0) for group in summary for column in group.values())
    return cells > LONG_CELLS


def _nbytes(made: tuple[list[str], Range]) -> int:
    return sum(part.nbytes for part in made[1])


class OverviewTiles:
    """The interface of `EntryTiles`, for views no finer than the overview's buckets."""

    def __init__(self, overview: Overview):
        self._overview = overview
        self._starts, self._steps = overview.marks["step"], overview.marks["time"]

    def columns(self, group: str) -> list[str]:
        """Return the columns of "steps" or a sample group."""
        groups = self._overview.axes["time"]
        return groups.about(group)[0] if group in groups else []

    def level_of(self, group: str, axis: str) -> int:
        """Return the finest level available for a group."""
        groups = self._overview.axes[axis]
        return groups.about(group)[1] if group in groups else 0

    @property
    def last_step(self) -> int:
        return self._overview.last_step

    def ranges(self, wanted: Mapping[str, Sequence[str]], view: View) -> dict[str, Range]:
        """Return min, max and mean, float32[columns, count], of each group in a view's buckets."""
        return {group: self._range(group, columns, view) for group, columns in wanted.items()}

    def _range(self, group: str, columns: Sequence[str], view: View) -> Range:
        groups = self._overview.axes[view.axis]
        if group not in groups:
            return spread(None, columns, [], view.count)
        cells = groups.cells(group)
        bits, ends = view.level - cells.shift, (view.first, view.first + view.count)
        begin, end = (min(at << bits, cells.low.shape[1]) for at in ends)
        known = [column for column in columns if column in cells.columns]
        rows, part = [cells.columns.index(column) for column in known], slice(begin, end)
        numbers = (np.arange(begin, end) >> bits) - view.first
        found = reduced(
            numbers, view.count, cells.low[rows, part], cells.high[rows, part],
            cells.mean[rows, part], cells.count[rows, part].astype(np.int64),
        )  # fmt: skip
        return spread(found, columns, known, view.count)

    def edges(self, view: View) -> np.ndarray:
        """Return the other axis at each bucket's start: float64[count] ns, or step numbers."""
        at = view.edges[:-1]
        return self._step_at(at) if view.axis == "time" else self._start_of(at)

    def _start_of(self, steps: np.ndarray) -> np.ndarray:
        """Return when the bucket of these steps began, ns since the start; NaN beyond the last."""
        values = _filled(self._starts)
        at = steps >> self._starts.shift
        inside = (at < len(values)) & (steps <= self._overview.last_step)
        result = np.full(len(steps), np.nan)
        result[inside] = values[at[inside]]
        result[result < 0] = np.nan
        return result

    def _step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return the step under way at these times, within a bucket's steps."""
        marks = self._steps
        # Where no step begins in a bucket, an earlier one is still under way.
        known = _filled(marks)
        at = np.clip(since_ns >> marks.shift, 0, len(known) - 1)
        found = np.maximum(known[at] - (marks.values[at] >= 0), 0).astype(np.float64)
        if self._overview.last_step >= 0:
            begun = np.flatnonzero(marks.values >= 0)
            found[at > begun[-1]] = self._overview.last_step
        return found


def _filled(marks: Marks) -> np.ndarray:
    return np.maximum.accumulate(marks.values)


# Cache of decoded rows: holds all of a run that is not long.
MAX_BYTES = 12 << 20

# Group -> columns; column -> values; (time, step, float32[n] of each), `step` None for samples.
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


logger = logging.getLogger("gpu_util_callback")


class BackgroundJobs:
    """Jobs done one after the other on a thread of their own, the newest first.

    Where one takes long (its disk may not answer), the others go on on another thread.
    """

    MOST = 16
    LINGER_S = 1.0
    LONG_S = 10.0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._current: tuple[str, _Job] | None = None
        self._current_since = 0.0
        self._long: dict[str, _Job] = {}  # jobs that were left to their threads
        self._thread: threading.Thread | None = None

    def has(self, id: str) -> bool:
        """Return whether a job with this id waits or runs."""
        with self._changed:
            return self._known(id) is not None

    def do(self, id: str, work: Callable[[], None], pause_s: float = 0.0) -> threading.Event:
        """Do some work soon, unless a job with this id waits or runs already.

        Args:
            pause_s: how long it may wait, so that requests under way go first.

        Returns: an event that is set once it is done.
        """
        with self._changed:
            known = self._known(id)
            if known is not None:
                if id in self._jobs:
                    self._run()
                return known.done
            job = self._jobs[id] = _Job(work, pause_s)
            while len(self._jobs) > self.MOST:
                self._jobs.popitem(last=False)  # a view that still needs it asks again
            self._run()
            self._changed.notify()
            return job.done

    def tidy(self) -> None:
        """Return free memory to the system soon."""
        with self._changed:
            self._run()

    def _known(self, id: str) -> _Job | None:
        if self._current is not None and self._current[0] == id:
            return self._current[1]
        return self._long.get(id) or self._jobs.get(id)

    def _run(self) -> None:
        if self._current is not None and time.monotonic() - self._current_since > self.LONG_S:
            id, job = self._current
            self._long[id] = job
            self._thread = self._current = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpu-util-tiles", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._thread is not me:  # replaced
                    break
                self._current = None
                self._current = self._next()
                self._current_since = time.monotonic()
                if self._current is None:
                    self._thread = None
                    break
                id, job = self._current
            try:
                job.work()
            except Exception:
                logger.exception("reading a recording for its tiles failed")
            job.done.set()
            with self._changed:
                self._long.pop(id, None)
        _return_free_memory()

    def _next(self) -> tuple[str, _Job] | None:
        """Take the newest job that is due, waiting for one; None once there was none for long."""
        end = time.monotonic() + self.LINGER_S
        while True:
            now = time.monotonic()
            for id in reversed(self._jobs):
                if self._jobs[id].due <= now:
                    return id, self._jobs.pop(id)
            if not self._jobs and now >= end:
                return None
            self._changed.wait(min((job.due for job in self._jobs.values()), default=end) - now)


class _Job:
    def __init__(self, work: Callable[[], None], pause_s: float):
        self.work, self.due = work, time.monotonic() + pause_s
        self.done = threading.Event()


def _return_free_memory() -> None:
    """Return pages that reading hundreds of segments left scattered over the heap.

    Measured: half of what a long run's entries took remained with the allocator otherwise.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library: its allocator decides
