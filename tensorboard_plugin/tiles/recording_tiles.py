"""Tiles of one recording: coarse ones from its top, fine ones from the rows of the segments."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from gpu_util_callback import daemon
from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.fold import FAR, Fold
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segments import Segment, SegmentInfo
from gpu_util_callback.recording.summary import step_series
from gpu_util_callback.recording.top import Top, statistics

# A request waits this long for the rows of a view. With the rest of a reply, that leaves a zoom below 20 ms.
PATIENCE_S = 0.005
# It waits for no more files than these: they take longer.
FEW_SEGMENTS = 1
QUICK_SEGMENTS = 3  # and goes through no more than these, once they are read

# Group -> columns
Wanted = Mapping[str, Sequence[str]]
# (min, max, mean), each float32[columns, count]
Range = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class View:
    """A requested view: `count` buckets of 2^level keys from number `first` on.

    Keys are step numbers, or nanoseconds since the recording's start.
    """

    axis: str
    level: int
    first: int
    count: int

    @property
    def edges(self) -> np.ndarray:
        """int64[count + 1]: where each bucket begins, and where the last one ends."""
        return np.arange(self.first, self.first + self.count + 1, dtype=np.int64) << self.level

    @property
    def begin(self) -> int:
        return self.first << self.level

    @property
    def end(self) -> int:
        return (self.first + self.count) << self.level

    def begun(self, end: int) -> int:
        """Return how many of its buckets begin before a key."""
        return max(0, min(self.count, -(-end >> self.level) - self.first))

    def widened(self, level: int) -> View:
        """Return the buckets of a level at least as wide that hold these."""
        bits = level - self.level
        first = self.first >> bits
        count = ((self.first + self.count - 1) >> bits) - first + 1
        return replace(self, level=level, first=first, count=count)

    def reduced(self, rows: Cells, columns: Sequence[str], cuts: np.ndarray) -> Range:
        """Return (min, max, mean) of rows in each bucket, float32[columns, count] each; NaN without a row.

        Args:
            rows: in order.
            cuts: int[count + 1], where the rows of each bucket begin, and at last where they end.
        """
        inside = slice(int(cuts[0]), int(cuts[-1]))
        fold = Fold(self.count + self.count % 2)
        fold.add(
            np.repeat(np.arange(self.count), np.diff(cuts)),
            **{part: (columns, values[:, inside]) for part, values in rows.parts.items()},
        )
        low, high, mean = (np.full((len(columns), self.count), np.nan, "f4") for _ in range(3))
        if fold.used:
            total, count = fold.matrix("total"), fold.matrix("count")
            low[:, : fold.used], high[:, : fold.used] = fold.matrix("low"), fold.matrix("high")
            np.divide(total, count, out=mean[:, : fold.used], where=count > 0, casting="unsafe")
        return low, high, mean


@dataclass(frozen=True)
class Cells:
    """Rows, or cells of rows: when they begin, since the recording's start; their first step.

    `parts`: "low", "high", "total" and "count" of them, [columns, n] each.
    """

    since_ns: np.ndarray
    step: np.ndarray | None
    parts: dict[str, np.ndarray]


def joined(rows: Sequence[Cells]) -> Cells:
    """Return rows one after the other; at least one part."""
    steps = [row.step for row in rows if row.step is not None]
    by_identity: dict[tuple[int, ...], np.ndarray] = {}  # of rows, most parts are the same values

    def part(name: str) -> np.ndarray:
        """Return the concatenated part of all rows, made once for equal pieces."""
        pieces = [row.parts[name] for row in rows]
        key = tuple(map(id, pieces))
        if key not in by_identity:
            by_identity[key] = np.concatenate(pieces, axis=1)
        return by_identity[key]

    return Cells(
        np.maximum.accumulate(np.concatenate([row.since_ns for row in rows])),
        np.maximum.accumulate(np.concatenate(steps)) if steps else None,
        {name: part(name) for name in rows[0].parts},
    )


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


@dataclass(frozen=True)
class Fine:
    """A view made of rows; `other`: the other axis at each bucket's start, where known."""

    ranges: dict[str, Range]
    other: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.other.nbytes + sum(values.nbytes for each in self.ranges.values() for values in each)


M = TypeVar("M", bound=Any)  # kept by its `nbytes`


class TopTiles:
    """Views of a top: all that its cells are fine enough for.

    They are exact on a group's own axis (steps by step, samples by time), and within the width of
    a cell on the other one.
    """

    def __init__(self, top: Top, live: bool):
        self.top = top
        self._live = live
        self._levels: dict[tuple[str, str], int] = {}

    def columns(self, group: str) -> list[str]:
        """Return the columns of "steps" or a sample group."""
        fold = self._fold(group)
        return [] if fold is None else fold.columns("low")

    def _fold(self, group: str) -> Fold | None:
        return self.top.steps.fold if group == "steps" else self.top.group(group)

    def level_of(self, group: str, axis: str) -> int:
        """Return the finest level available for a group."""
        level = self._levels.get((group, axis))
        if level is None:
            level = self._levels[group, axis] = self._level_of(group, axis)
        return level

    def _level_of(self, group: str, axis: str) -> int:
        """Return the finest level, of buckets of 2^level steps or ns, that a group's cells fill; 0.

        Each cell is a row.
        """
        fold = self._fold(group)
        if fold is None or not fold.used:
            return 0
        is_single = fold.matrix("count").max() <= 1  # where a row is, its cell tells exactly
        if (group == "steps") == (axis == "step"):  # the group's own axis
            return 0 if is_single else _bits(fold.width)
        first, _, start, end = self.top.step_cells()
        if group == "steps":
            lengths = end - start
        elif len(first):
            time = fold.of("first", "time")
            time = time[time < FAR]
            lengths = self.top.step_at(time + fold.width) - self.top.step_at(time)
        else:
            return 0
        wide = 0 if is_single else _bits(int(max(1, np.percentile(lengths, 90, method="higher"))))
        return max(wide, 0 if group == "steps" else _bits(self.top.steps.fold.width))

    def cells(self, group: str, columns: Sequence[str]) -> Cells:
        """Return the cells of a group in the order of their rows; without any, empty ones."""
        fold = self._fold(group)
        if fold is None or not fold.used:
            none = np.zeros(0, np.int64)
            values = np.zeros((len(columns), 0), np.float32)
            return _rows(none, none if group == "steps" else None, columns, values)
        has_rows = fold.of("first", "first_step" if group == "steps" else "time") < FAR
        parts = {part: fold.matrix(part, columns)[:, has_rows] for part in ("low", "high", "count")}
        parts["total"] = fold.matrix("sum" if group == "steps" else "total", columns)[:, has_rows]
        if group == "steps":
            step, start = (fold.of("first", name)[has_rows] for name in ("first_step", "start_ns"))
            return Cells(np.maximum.accumulate(np.maximum(start - self.top.origin_ns, 0)), step, parts)
        return Cells(np.maximum.accumulate(fold.of("first", "time")[has_rows]), None, parts)

    def range(self, group: str, columns: Sequence[str], view: View) -> Range:
        """Return (min, max, mean) of a group's columns in a view's buckets."""
        rows = self.cells(group, columns)
        keys = rows.since_ns if view.axis == "time" else rows.step
        if keys is None:
            keys, ends = self.top.step_at(rows.since_ns), self.top.step_cells()[3]
            if self._live or not len(ends):
                # Steps reach the disk later than samples: later ones belong to a step to come.
                keys[rows.since_ns >= (ends[-1] if len(ends) else 0)] = FAR
        return view.reduced(rows, columns, np.searchsorted(keys, view.edges))

    def edges(self, view: View) -> np.ndarray:
        """Return the other axis at each bucket's start: float64[count] ns, or step numbers."""
        at = view.edges[:-1]
        if view.axis == "step":
            return self.top.start_of(at)
        return self.top.step_at(at).astype(np.float64)


def _bits(width: int) -> int:
    return (width - 1).bit_length()


def _rows(since: np.ndarray, step: np.ndarray | None, columns: object, values: np.ndarray) -> Cells:
    """Return rows of their values, float[columns, n]."""
    return Cells(since, step, {part: each for part, (_, each) in statistics(columns, values).items()})


class RecordingTiles:
    """All series of one recording at any zoom, brought up to date on demand; thread safe.

    A view comes from the recording's top where that is fine enough, and else from the rows of the
    segments in view.

    Args:
        jobs: what reads files; None: every request does, however long it takes.
        cached: decoded rows, and what was made of them, of all recordings.
    """

    def __init__(self, recording: Recording, jobs: Jobs | None, cached: Recent[Any]):
        self.recording = recording
        self._jobs = jobs
        self._cached = cached
        self._loading = threading.Lock()
        self._top: tuple[str, TopTiles] | None = None  # the recording's revision, and its top

    def source(self, revision: str) -> TopTiles:
        """Return the recording's top as of a revision."""
        with self._loading:
            if self._top is None or self._top[0] != revision:
                live = self.recording.status == "live"
                self._top = revision, TopTiles(self.recording.top, live)
            return self._top[1]

    # --- answering --------------------------------------------------------------------------------

    def answer(self, revision: str, requested: Wanted, view: View) -> Answer:
        """Return a view of the requested columns that exist.

        Args:
            revision: of the recording, for which what was read is kept.
        """
        source = self.source(revision)
        existing = {}
        for group, columns in requested.items():
            known_columns = source.columns(group)
            if existing_columns := [column for column in columns if column in known_columns]:
                existing[group] = existing_columns
        finer_than_cells = {g: existing[g] for g in existing if view.level < source.level_of(g, view.axis)}
        fine = self._exact_buckets(source, finer_than_cells, view, self._buckets_of) if finer_than_cells else None
        answer = Answer(source.edges(view) if fine is None else fine.other, existing)
        if fine is not None:
            answer.ranges.update(fine.ranges)
        for group in existing.keys() - answer.ranges.keys():
            level = max(view.level, source.level_of(group, view.axis))
            answer.bits[group] = level - view.level
            answer.ranges[group] = source.range(group, existing[group], view.widened(level))
        end = source.top.step_range[1] + 1
        if view.axis == "time":
            end = self.recording.end_ns - source.top.origin_ns
        answer.filled = view.begun(end)
        answer.coarse = set(finer_than_cells if fine is None else ())
        return answer

    def rows(
        self, revision: str, kind: str, requested: Wanted, view: View, make: Callable[[dict[str, Cells]], M]
    ) -> M | None:
        """Return what `make` makes of the rows in a view; None where reading them takes longer than a request may.

        Args:
            kind: what it makes: the result is kept under this name.
        """

        def made(top: Top, about: Wanted, view: View, infos: Sequence[SegmentInfo]) -> M:
            return make(self._rows_by_group(top, about, view, infos))

        return self._exact_buckets(self.source(revision), requested, view, made, kind)

    def _exact_buckets(
        self,
        source: TopTiles,
        requested: Wanted,
        view: View,
        make_of: Callable[[Top, Wanted, View, Sequence[SegmentInfo]], M],
        kind: str = "",
    ) -> M | None:
        """Return what is made of the rows in a view; None where reading them takes longer than a request may.

        Args:
            make_of: makes it of (top, requested columns, view, segments); the result is kept.
            kind: as in `rows`; "" = buckets.
        """
        infos = self._segments(source.top, view)
        about = {group: tuple(columns) for group, columns in requested.items()}
        key = self, kind, view, tuple(about.items()), tuple(info.name for info in infos)
        buckets = self._cached.get(key)
        if buckets is not None:
            return buckets

        def make() -> M:
            fine = make_of(source.top, about, view, infos)
            self._cached.put(key, fine, fine.nbytes)
            return fine

        if self._jobs is None:  # a request may take as long as it needs
            return make()
        unread = sum(not self._is_decoded(info, requested) for info in infos)
        # Quick: nothing has to be read.
        if not unread and len(infos) <= QUICK_SEGMENTS and key not in self._jobs.running:
            return make()
        self._jobs.do(key, make, PATIENCE_S if unread <= FEW_SEGMENTS else 0)
        return self._cached.get(key)

    # --- rows -------------------------------------------------------------------------------------

    def _segments(self, top: Top, view: View) -> list[SegmentInfo]:
        """Return the segments that may have rows in a view."""
        begin, end = view.begin, view.end
        if view.axis == "step":
            first, _, start, _ = top.step_cells()
            at = np.searchsorted(first, [begin, end - 1], "right")
            # Times of the steps at both ends; samples may lie before the first one.
            begin = int(start[at[0] - 1]) if at[0] > 1 else 0
            end = int(start[at[1]]) if at[1] < len(start) else 2**61
        since, until = top.origin_ns + begin, top.origin_ns + end
        return [
            info
            for info in self.recording.segments
            # One of unknown extent may hold any time.
            if info.steps < 0 or (info.start_ns < until and info.end_ns >= since)
        ]

    def _buckets_of(self, top: Top, requested: Wanted, view: View, infos: Sequence[SegmentInfo]) -> Fine:
        """Return the buckets of the rows in some segments, and the other axis as the rows say."""
        requested = {"steps": (), **requested}
        all_rows = self._rows_by_group(top, requested, view, infos)
        steps = all_rows["steps"]
        other = _other_axis(top, view, steps)
        ends = view.edges if view.axis == "time" else self._first_sample_times(top, view.edges, other)
        ranges = {}
        for group, columns in requested.items():
            rows = all_rows[group]
            keys = rows.step if view.axis == "step" else None
            if columns:
                cuts = np.searchsorted(rows.since_ns, ends) if keys is None else np.searchsorted(keys, view.edges)
                ranges[group] = view.reduced(rows, columns, cuts)
        return Fine(ranges, other[: view.count])

    def _rows_by_group(self, top: Top, requested: Wanted, view: View, infos: Sequence[SegmentInfo]) -> dict[str, Cells]:
        """Return the rows of some segments, or cells of them that are fine enough for a view, by group."""
        parts: dict[str, list[Cells]] = {
            group: [TopTiles(Top(0), False).cells(group, columns)] for group, columns in requested.items()
        }
        for source in self._sources(top, infos, requested, view):
            for group, rows in source.items():
                parts[group].append(rows)
        return {group: joined(rows) for group, rows in parts.items()}

    def _sources(
        self, top: Top, infos: Sequence[SegmentInfo], requested: Wanted, view: View
    ) -> Iterator[dict[str, Cells]]:
        """Yield what a view is made of, by group.

        Cells of a stretch of segments where they are fine enough, or rows.
        """
        opened: dict[tuple[int, int], TopTiles | None] = {}
        for info in infos:
            stretch = self.recording.stretch_of(info)
            if stretch is not None and stretch not in opened:
                tiles = self._top_of_stretch(stretch)
                opened[stretch] = None
                if tiles is not None:
                    if all(
                        tiles.level_of(group, view.axis) <= view.level
                        for group, columns in requested.items()
                        if columns
                    ):
                        opened[stretch] = tiles
                        yield {group: tiles.cells(group, names) for group, names in requested.items()}
                    self._cached.put((self, stretch), tiles, tiles.top.nbytes)
            if stretch is None or opened[stretch] is None:
                yield self._rows(top, info, requested)

    def _first_sample_times(self, top: Top, edges: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return from when on samples fall into each of the steps that begin at `edges`; int64, ascending, ns.

        Args:
            starts: when these steps begin, ns; NaN = they are not recorded.
        """
        begun = starts.copy()
        # What follows the last step belongs to it, and what precedes the first, to that; while a
        # run goes on, what follows belongs to a step that is not written yet.
        ends = top.step_cells()[3]
        live = self.recording.status == "live" and len(ends)
        begun[np.isnan(begun)] = ends[-1] if live else 2**61
        begun[edges <= top.step_range[0]] = 0
        return np.maximum.accumulate(np.ceil(begun).astype(np.int64))

    def _top_of_stretch(self, stretch: tuple[int, int]) -> TopTiles | None:
        """Return the top of a stretch of segments, None where it cannot be read."""
        tiles = self._cached.get((self, stretch))
        if tiles is None and (top := self.recording.open_stretch(stretch)) is not None:
            tiles = TopTiles(top, False)
        return tiles

    def _is_decoded(self, info: SegmentInfo, requested: Wanted) -> bool:
        """Return True if all columns that a request wants of a segment are decoded already."""
        return all(
            self._cached.get((self, info.name, group, column)) is not None
            for group, columns in {"steps": (), **requested}.items()
            for column in ("", *columns)
        )

    def _rows(self, top: Top, info: SegmentInfo, requested: Wanted) -> dict[str, Cells]:
        """Return columns of a segment's groups as rows, by group.

        What was decoded is kept, under its column's name; "" are the times, "step" the step numbers.
        """
        columns_by_group: dict[str, dict[str, np.ndarray]] = {group: {} for group in requested}
        missing = {}
        for group, columns in requested.items():
            names = ["", *(["step"] if group == "steps" else ()), *columns]
            for name in names:
                values = self._cached.get((self, info.name, group, name))
                if values is not None:
                    columns_by_group[group][name] = values
            if len(columns_by_group[group]) < len(names):
                missing[group] = columns
        segment = self.recording.open_segment(info) if missing else None
        for group, columns in missing.items():
            decoded: dict[str, np.ndarray] = {}
            try:
                decoded = {} if segment is None else _decoded_columns(segment, group, columns)
            except Damaged as error:
                self.recording.damaged(info.name, error)
            decoded.setdefault("", np.zeros(0, np.int64))
            decoded.setdefault("step", decoded[""])
            for name in columns:
                decoded.setdefault(name, np.full(len(decoded[""]), np.nan, np.float32))
            for name, values in decoded.items():
                self._cached.put((self, info.name, group, name), values, values.nbytes)
            columns_by_group[group] = decoded
        rows = {}
        for group, columns in requested.items():
            values = columns_by_group[group]
            matrix = np.array([values[name] for name in columns], np.float32).reshape(len(columns), len(values[""]))
            step = values["step"] if group == "steps" else None
            rows[group] = _rows(np.maximum(values[""] - top.origin_ns, 0), step, columns, matrix)
        return rows


def _other_axis(top: Top, view: View, steps: Cells) -> np.ndarray:
    """Return the other axis at each edge of a view: float64, exact where steps are single rows."""
    at, number, start = view.edges, steps.step, steps.since_ns
    if view.axis == "step":
        axis = top.start_of(at)
        if number is not None and len(number):
            inside = (at >= number[0]) & (at <= min(top.step_range[1], number[-1]))
            axis[inside] = np.interp(at[inside], number, start)
        return axis
    axis = top.step_at(at).astype(np.float64)
    if number is not None and len(number):
        inside = at >= start[0]
        axis[inside] = np.floor(np.interp(at[inside], start, number))
    return axis


def _decoded_columns(segment: Segment, group: str, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Return a segment's columns of a group as float32, its times in ns under ""; {} without such rows."""
    if group == "steps":
        if not segment.rows("steps"):
            return {}
        rows = segment.table("steps")
        values = dict(zip(STEP_SERIES, step_series(rows).astype(np.float32), strict=True))
        return {**values, "": rows["start_ns"], "step": np.maximum(rows["step"], 0)}
    if group not in segment.groups:
        return {}
    rows = segment.samples(group, columns)
    columns_read = {name: rows[name].astype(np.float32) for name in columns if name in rows}
    return {**columns_read, "": rows["time_ns"]}


T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key, the least recently used of which are dropped beyond a size; thread safe.

    Args:
        most: the sum of their sizes, or how many they are.
    """

    def __init__(self, most: int):
        self._most = most
        self._lock = threading.Lock()
        self._cached: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key; None if it is missing."""
        with self._lock:
            if key not in self._cached:
                return None
            self._cached.move_to_end(key)
            return self._cached[key][0]

    def put(self, key: Hashable, value: T, size: int = 1) -> None:
        """Keep a value; the ones used longest ago go while all sizes together exceed the limit."""
        with self._lock:
            before = self._cached.pop(key, None)
            self._size += size - (0 if before is None else before[1])
            self._cached[key] = value, size
            while self._size > self._most and len(self._cached) > 1:
                self._size -= self._cached.popitem(last=False)[1][1]


logger = logging.getLogger("gpu_util_callback")


class Jobs:
    """Work on threads of its own: each job once at a time, and few jobs at a time."""

    MOST = 8  # of the eight recordings that the tab compares one each; one that hangs holds up no other

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running: dict[Hashable, Future[None]] = {}

    def do(self, id: Hashable, work: Callable[[], object], wait_s: float = 0.0) -> None:
        """Begin some work, unless a job with this id runs or too many others do, and wait for it.

        A view that needs what was refused asks again.
        """

        def run() -> None:
            try:
                work()
            except Exception:
                logger.exception("reading a recording for its tiles failed")
            finally:
                with self._lock:
                    del self.running[id]

        with self._lock:
            job = self.running.get(id)
            if job is None:
                if len(self.running) >= self.MOST:
                    return
                job = self.running[id] = daemon.begin(run, "gpu-util-tiles")
        wait([job], wait_s)
