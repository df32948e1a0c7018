"""Tiles of one recording: coarse ones at once, fine ones as soon as their rows are read."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from tensorboard_plugin.tiles.background import BackgroundJobs
from tensorboard_plugin.tiles.entries import EntryTiles
from tensorboard_plugin.tiles.merging import Range, View, empty, reduced_rows
from tensorboard_plugin.tiles.overview import OverviewTiles
from tensorboard_plugin.tiles.rows import NewRows, Part, RawRows

__all__ = ["RecordingTiles", "is_long"]

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
