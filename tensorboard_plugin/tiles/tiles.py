"""Tiles: the buckets of a view, as bytes."""

import ctypes
import json
import logging
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from tensorboard_plugin.lanes import STACK
from tensorboard_plugin.pipeline import (
    LANE,
    gather_stages,
    stage_ranges,
    stages_are_gathered,
)
from tensorboard_plugin.tiles.levels import Range
from tensorboard_plugin.tiles.long_runs import LongRun
from tensorboard_plugin.tiles.merging import around
from tensorboard_plugin.tiles.overview import OverviewTiles
from tensorboard_plugin.tiles.pyramids import Pyramids

__all__ = [
    "FIRST_PAUSE_S",
    "MAX_COUNT",
    "MAX_LEVEL",
    "BackgroundJobs",
    "BadTile",
    "TileServer",
    "gzipped",
    "is_long",
]

logger = logging.getLogger("gpu_util_callback")

# Background work begins after this, so that the requests of a view are done first; an initial
# view has more of them.
PAUSE_S, FIRST_PAUSE_S = 0.02, 0.1


class BackgroundJobs:
    """Jobs done one after the other on a thread of their own, the newest first."""

    MOST = 16
    TIDY_S = 1.0

    def __init__(self) -> None:
        self._tidied = 0.0
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, tuple[Callable[[], None], float]] = OrderedDict()
        self._current: str | None = None
        self._runs = False

    def has(self, id: str) -> bool:
        """Return whether a job with this id waits or runs."""
        with self._lock:
            return id in self._jobs or id == self._current

    def do(self, id: str, job: Callable[[], None], pause_s: float = PAUSE_S) -> None:
        """Run `job` soon, unless one with this id waits or runs already."""
        with self._lock:
            if id in self._jobs or id == self._current:
                return
            self._jobs[id] = (job, pause_s)
            while len(self._jobs) > self.MOST:
                self._jobs.popitem(last=False)  # a view that still needs it asks again
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._work, name="gpu-util-tiles", daemon=True).start()

    def tidy(self) -> None:
        """Give free memory back soon, unless that was done just now."""
        if time.monotonic() - self._tidied > self.TIDY_S:
            self.do("tidy", lambda: None)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._current = None
                if not self._jobs:
                    self._runs = False
                    break
                self._current, (job, pause_s) = self._jobs.popitem()
            time.sleep(pause_s)
            try:
                job()
            except Exception:
                logger.exception("reading a recording for its tiles failed")
        self._tidied = time.monotonic()
        _return_free_memory()


def _return_free_memory() -> None:
    """Return pages that reading hundreds of segments left scattered over the heap.

    Measured: half of what a long run's pyramids took remained with the allocator otherwise.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library: its allocator decides


# ---- packing ---------------------------------------------------------------------------


# Parts that would keep more than this share of their size are stored as they are. Packing takes
# longer the less it gains: of a dense tile the upper half of its bytes is packed in a tenth of the
# time that the lower half, which is noise, would take for half of its size.
WORTH = 0.5
# A part is judged by a sample of this many bytes.
SOME = 4096
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\4\xff"
_MOST_STORED = 0xFFFF


def gzipped(parts: Sequence[bytes | memoryview], strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """Return the parts one after the other as one gzip member.

    Args:
        parts: bytes, one after the other in memory.
        strategy: zlib's, for what is not stored.
    """
    out: list[bytes | memoryview] = [_HEADER]
    check = size = 0
    packer = None
    for part in parts:
        check, size = zlib.crc32(part, check), size + len(part)
        if _share_left(np.frombuffer(part, np.uint8)) > WORTH:
            if packer is not None:  # the next block starts on a whole byte, on its own
                out.append(packer.flush(zlib.Z_FULL_FLUSH))
                packer = None
            out += _stored(part)
            continue
        if packer is None:
            packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, strategy)
        out.append(packer.compress(part))
    if packer is None:
        packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    out.append(packer.flush())
    out.append(check.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little"))
    return b"".join(out)


def _stored(part: bytes | memoryview) -> list[bytes | memoryview]:
    """Return deflate blocks that hold bytes as they are."""
    blocks: list[bytes | memoryview] = []
    for begin in range(0, len(part), _MOST_STORED):
        piece = part[begin : begin + _MOST_STORED]
        length = len(piece)
        blocks.append(
            b"\0" + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
        )
        blocks.append(piece)
    return blocks


def _share_left(octets: np.ndarray) -> float:
    """Estimate the share of bytes left after packing: repeats are free, others cost their bits."""
    if len(octets) < SOME:
        return 0.0
    # An odd stride: repeats have periods that are powers of two.
    at = np.arange(1, len(octets), len(octets) // SOME | 1)
    some = octets[at]
    new = some[some != octets[at - 1]]
    counts = np.bincount(new, minlength=256)
    counts = counts[counts > 0]
    bits = -(counts * np.log2(counts / len(new))).sum() if len(new) else 0.0
    return float(bits) / (8 * len(some))


# ---- tile requests ---------------------------------------------------------------------


MAX_COUNT = 4096
MAX_LEVEL = 62
MAX_LANES = 512
MAX_SERIES = 1024
# Recordings not viewed lately go first.
MAX_BYTES = 256 << 20
# Recordings of more values than this are long: their rows stay on disk.
LONG_CELLS = 1 << 20
# Reading rows and making buckets of them is done in the background if it takes longer than this:
# with the rest of a reply, that leaves a request well below 20 ms.
PATIENCE_MS = 5.0
# Segments that a watched run may have grown by for its rows to be taken in within a request.
FEW_SEGMENTS = 2

_STEP_LANES = {
    "steps": [(name, column) for name, column, _ in STACK],
    "input_wait": [("input_wait", "input_wait_ns")],
}


class BadTile(ValueError):
    """A request that makes no sense; the message says why in one line."""


@dataclass(frozen=True)
class _View:
    """A requested view: `count` buckets of 2^level keys from number `first` on."""

    axis: str
    level: int
    first: int
    count: int


@dataclass
class _Answer:
    """Ranges by group, their rows in the order of `columns`; `other`: the other axis.

    Of `coarse` groups finer data are being read. Those in `bits` have buckets this many bits
    wider, around the requested ones; of these the first `filled` have begun by the end.
    """

    other: np.ndarray
    columns: dict[str, list[str]] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    coarse: set[str] = field(default_factory=set)
    bits: dict[str, int] = field(default_factory=dict)
    filled: int = 0


class TileServer:
    """Server of tile requests; data read for them are kept while they are in use.

    Args:
        max_bytes: about how much is kept of all recordings together.
        patient: answer as finely as there is data, however long reading takes.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, patient: bool = False):
        self._max_bytes = max_bytes
        self._patient = patient
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Pyramids | LongRun] = OrderedDict()
        self._local = BackgroundJobs()
        self._remote: dict[
            str, BackgroundJobs
        ] = {}  # by recording: a silent store holds up no other

    def tile(
        self, recording: Recording, axis: str, level: int, first: int, count: int, lanes: list[str]
    ) -> bytes:
        """Return a gzipped reply: u32 header length, JSON header, padding to 8, float32s, float64s.

        The float32s are min, max and mean of one series after the other; one array for all three
        where the header says that they are `alike`. Where it has `bits`, they are of the buckets
        this many bits wider around the requested ones, of which the first `filled` repeat the wider
        ones' values and the others are empty. The float32s are stored bytewise: all first bytes,
        then all second ones, and so on.

        The header lists lanes as `refining` whose buckets only repeat wider ones while finer data
        are still being read: the same request a moment later gets them.

        Raises: BadTile.
        """
        if axis not in ("step", "time"):
            raise BadTile(f"axis is step or time, not {axis[:40]!r}")
        if not 0 <= level <= MAX_LEVEL:
            raise BadTile(f"level is 0 to {MAX_LEVEL}, not {level}")
        if not 1 <= count <= MAX_COUNT:
            raise BadTile(f"count is 1 to {MAX_COUNT}, not {count}")
        if first < 0 or (first + count) << level > 2**62:
            raise BadTile("first is out of range")
        if len(lanes) > MAX_LANES:
            raise BadTile(f"at most {MAX_LANES} lanes at once")
        if sum(len(_series(lane)) for lane in lanes) > MAX_SERIES:
            raise BadTile(f"at most {MAX_SERIES} series at once")
        revision = recording.revision
        wanted: dict[str, list[str]] = {}
        for lane in lanes:
            for _, group, column, _ in _series(lane):
                columns = wanted.setdefault(group, [])
                if column not in columns:
                    columns.append(column)
        view = _View(axis, level, first, count)
        answer = self._answer(recording, revision, wanted, view)
        series: list[dict[str, Any]] = []
        arrays: list[tuple[np.ndarray, ...]] = []
        refining: list[str] = []
        for lane in lanes:
            if lane == LANE:
                if not self._stages_are_gathered(recording):
                    refining.append(lane)
                for name, found in stage_ranges(recording, axis, level, first, count):
                    series.append({"lane": lane, "name": name})
                    arrays.append(tuple(found))
            for name, group, column, scale in _series(lane):
                columns = answer.columns.get(group, [])
                if column not in columns:
                    continue
                row = columns.index(column)
                series.append({"lane": lane, "name": name})
                if answer.bits.get(group):
                    series[-1]["bits"] = answer.bits[group]
                arrays.append(tuple(part[row] * np.float32(scale) for part in answer.ranges[group]))
                if group in answer.coarse and lane not in refining:
                    refining.append(lane)
        edges = np.arange(first, first + count, dtype=np.float64) * 2.0**level
        header = {
            "axis": axis, "level": level, "first": first, "count": count, "revision": revision,
            "series": series, "refining": refining, "filled": answer.filled,
        }  # fmt: skip
        both = [edges, answer.other] if axis == "time" else [answer.other, edges]
        return _packed(header, arrays, both)

    def prepare(self, recording: Recording) -> None:
        """Begin to read what the tiles of a long run need."""
        known = self._of(recording)
        if isinstance(known, LongRun) and not known.ready:
            self._read_beside(known, recording)

    # --- sources of an answer ---------------------------------------------------------------------

    def _answer(
        self, recording: Recording, revision: str, wanted: dict[str, list[str]], view: _View
    ) -> _Answer:
        known = self._of(recording)
        wait, behind = self._patient or not known.ready, False
        if isinstance(known, Pyramids):
            behind = not known.update(revision, wait)
            answer = _of_pyramids(known, wanted, view)
        elif known.ready or self._patient:
            if known.waiting(revision) > FEW_SEGMENTS and not self._patient:
                self._read_beside(known, recording)
                behind = True
            else:
                behind = not known.update(revision, wait)
            answer = self._of_long_run(known, wanted, view)
            self._local.tidy()
        else:
            self._read_beside(known, recording)
            answer = _of_overview(recording, wanted, view)
        if behind:  # the newest rows may be missing anywhere
            answer.coarse = set(answer.columns)
        self._make_room()
        return answer

    def _stages_are_gathered(self, recording: Recording) -> bool:
        """Return whether all readings of the pipeline are in memory; if not, gather them."""
        if not stages_are_gathered(recording):
            if not self._patient:
                self._beside(recording).do(
                    f"{recording.id} stages", lambda: gather_stages(recording)
                )
                return False
            gather_stages(recording)
        return True

    def _of_long_run(self, run: LongRun, wanted: dict[str, list[str]], view: _View) -> _Answer:
        axis, level, first, count = view.axis, view.level, view.first, view.count
        known = {group: _known(run.columns(group), columns) for group, columns in wanted.items()}
        known = {group: columns for group, columns in known.items() if columns}
        fine = {group: known[group] for group in run.wanted(known, axis, level)}
        ready = run.made(fine, axis, level, first, count) if fine else {}
        lacking = {group: columns for group, columns in fine.items() if group not in ready}
        coarse: set[str] = set()
        if lacking and not self._patient:
            id = f"{run.recording.id} {axis} {level} {first} {count} {sorted(lacking.items())}"
            beside = self._beside(run.recording)
            if beside.has(id) or (
                run.cost_ms(lacking, axis, level, first, count, PATIENCE_MS) > PATIENCE_MS
            ):
                coarse = set(lacking)
                beside.do(id, lambda: run.make(lacking, axis, level, first, count))
        answer = _Answer(np.zeros(0), known, coarse=coarse)
        end = run.last_step + 1 if axis == "step" else run.recording.end_ns - run.origin_ns
        now = {group: columns for group, columns in lacking.items() if group not in coarse}
        if now:
            ready |= run.ranges_of_rows(now, axis, level, first, count)
        answer.ranges.update(ready)
        by_level: dict[int, dict[str, list[str]]] = {}
        for group in known.keys() - ready.keys():
            wide = run.level_of(group, axis) if group in coarse else level
            by_level.setdefault(wide, {})[group] = known[group]
        for wide, groups in by_level.items():
            answer.ranges.update(run.ranges(groups, axis, wide, *around(level, wide, first, count)))
            answer.bits.update(dict.fromkeys(groups, wide - level))
        answer.filled = _begun(end, view)
        answer.other = run.edges(axis, level, first, count)
        return answer

    def _read_beside(self, run: LongRun, recording: Recording) -> None:
        def read() -> None:
            overview = recording.overview
            if not run.ready:  # it is shown on either axis, until this is done
                for groups in overview.axes.values():
                    for group in groups.names():
                        groups.cells(group)
            run.update(recording.revision)
            recording.overview.release()  # it is no longer needed

        self._beside(recording).do(recording.id, read, FIRST_PAUSE_S)

    def _beside(self, recording: Recording) -> BackgroundJobs:
        if not recording.remote:
            return self._local
        with self._lock:
            return self._remote.setdefault(recording.id, BackgroundJobs())

    def _of(self, recording: Recording) -> Pyramids | LongRun:
        long = is_long(recording)
        with self._lock:
            known = self._known.get(recording.id)
            if (
                known is None
                or known.recording is not recording
                or (long and isinstance(known, Pyramids))
            ):
                known = LongRun(recording) if long else Pyramids(recording)
                self._known[recording.id] = known
            self._known.move_to_end(recording.id)
            return known

    def _make_room(self) -> None:
        with self._lock:
            total = sum(one.nbytes for one in self._known.values())
            while total > self._max_bytes and len(self._known) > 1:
                total -= self._known.popitem(last=False)[1].nbytes


def _of_pyramids(pyramids: Pyramids, wanted: dict[str, list[str]], view: _View) -> _Answer:
    level, first, count = view.level, view.first, view.count
    edges = np.arange(first, first + count, dtype=np.int64) << level
    if view.axis == "time":
        answer = _Answer(pyramids.times.step_at(edges).astype(np.float64))
    else:
        answer = _Answer(pyramids.times.start_of(edges))
    for group, columns in wanted.items():
        known = _known(pyramids.columns(group), columns)
        if known:
            answer.columns[group] = known
            answer.ranges[group] = pyramids.range(group, known, view.axis, level, first, count)
    return answer


def _of_overview(recording: Recording, wanted: dict[str, list[str]], view: _View) -> _Answer:
    axis, level, first, count = view.axis, view.level, view.first, view.count
    overview = recording.overview
    tiles = OverviewTiles(overview)
    answer = _Answer(tiles.edges(axis, level, first, count))
    end = overview.last_step + 1 if axis == "step" else recording.end_ns - overview.origin_ns
    for group, columns in wanted.items():
        known = _known(tiles.columns(group), columns)
        if not known:
            continue
        answer.columns[group] = known
        finest = tiles.level_of(group, axis)
        if level >= finest:
            answer.ranges[group] = tiles.range(group, known, axis, level, first, count)
            continue
        answer.coarse.add(group)
        answer.bits[group] = finest - level
        wide = around(level, finest, first, count)
        answer.ranges[group] = tiles.range(group, known, axis, finest, *wide)
    answer.filled = _begun(end, view)
    return answer


def _begun(end: int, view: _View) -> int:
    """Return how many buckets of a view begin before this key."""
    return max(0, min(view.count, -(-end >> view.level) - view.first))


def _known(there: list[str], columns: list[str]) -> list[str]:
    return [column for column in columns if column in there]


def is_long(recording: Recording) -> bool:
    """Return whether a recording has too many values to keep in memory or to read per request."""
    if recording.step_count * len(STEP_SERIES) > LONG_CELLS:
        return True  # known without opening anything
    summary = recording.summary.values()
    cells = sum(column.get("count", 0) for group in summary for column in group.values())
    return cells > LONG_CELLS


def _series(lane: str) -> list[tuple[str, str, str, float]]:
    """Return (name, group, column, factor) of each series of a lane; [] for an unknown one."""
    if lane in _STEP_LANES:
        return [(name, "steps", column, 1e-6) for name, column in _STEP_LANES[lane]]
    group, _, column = lane.rpartition(":")
    if group == "steps" and column in STEP_SERIES:
        return [(column, "steps", column, 1e-6)]
    return [(name, group, name, 1.0) for name in column.split("+")] if group else []


def _packed(
    header: dict[str, Any], series: list[tuple[np.ndarray, ...]], doubles: list[np.ndarray]
) -> bytes:
    singles: list[np.ndarray] = []
    buckets = same = 0
    for about, (low, high, mean) in zip(header["series"], series, strict=True):
        bits = low.view(np.int32)  # two without data are alike
        equal = int(np.count_nonzero(bits == high.view(np.int32)))
        if equal == len(bits) and (bits == mean.view(np.int32)).all():
            about["alike"] = True
            singles.append(low)
            continue
        singles += [low, high, mean]
        buckets, same = buckets + len(bits), same + equal
    text = json.dumps(header, separators=(",", ":")).encode()
    head = struct.pack("<I", len(text)) + text
    head += b"\0" * (-len(head) % 8)
    values = np.concatenate(singles, dtype="<f4") if singles else np.zeros(0, "<f4")
    # Neighbours share exponents, rarely mantissas: with the floats' bytes grouped by position,
    # looking for runs alone is the fastest way to pack a tile. Where in many buckets a minimum is
    # the maximum, they repeat each other: searching for that packs a third better.
    strategy = zlib.Z_DEFAULT_STRATEGY if 4 * same > buckets else zlib.Z_RLE
    planes = [plane.data for plane in np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T)]
    return gzipped([head, *planes, *(array.astype("<f8").tobytes() for array in doubles)], strategy)
