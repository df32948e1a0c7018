"""Tiles: the buckets a view asks for, as bytes."""

import ctypes
import gzip
import json
import struct
import threading
from collections import OrderedDict

import numpy as np

from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from tensorboard_plugin.lanes import STACK
from tensorboard_plugin.overview_tiles import OverviewTiles
from tensorboard_plugin.pyramids import Pyramids

__all__ = ["MAX_COUNT", "MAX_LEVEL", "BadTile", "TileServer"]

MAX_COUNT = 4096
MAX_LEVEL = 62
MAX_LANES = 512
# Pyramids of recordings nobody looked at lately go first.
MAX_BYTES = 256 << 20
# Pyramids of fewer steps are made in no time.
LONG_RUN_STEPS = 200_000

_STEP_LANES = {
    "steps": [(name, column) for name, column, _ in STACK],
    "input_wait": [("input_wait", "input_wait_ns")],
}


class BadTile(ValueError):
    """A request that makes no sense; the message says why in one line."""


class TileServer:
    """Answers tile requests from pyramids that are made when first needed."""

    def __init__(self, max_bytes: int = MAX_BYTES):
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pyramids: OrderedDict[str, Pyramids] = OrderedDict()
        self._preparing: set[str] = set()

    def tile(
        self, recording: Recording, axis: str, level: int, first: int, count: int, lanes: list[str]
    ) -> bytes:
        """One reply, gzipped: u32 header length, JSON header, padding to 8, float32s, float64s.

        Raises: BadTile.
        """
        if axis not in ("step", "time"):
            raise BadTile(f"axis is step or time, not {axis!r}")
        if not 0 <= level <= MAX_LEVEL:
            raise BadTile(f"level is 0 to {MAX_LEVEL}, not {level}")
        if not 1 <= count <= MAX_COUNT:
            raise BadTile(f"count is 1 to {MAX_COUNT}, not {count}")
        if first < 0 or (first + count) << level > 2**62:
            raise BadTile("first is out of range")
        if len(lanes) > MAX_LANES:
            raise BadTile(f"at most {MAX_LANES} lanes at once")
        revision = recording.revision
        groups = {group for lane in lanes for _, group, _, _ in _series(lane)}
        source = self._source(recording, revision, groups, axis, level)
        series: list[dict[str, str]] = []
        arrays: list[np.ndarray] = []
        ranges: dict[str, tuple | None] = {}
        for lane in lanes:
            for name, group, column, scale in _series(lane):
                if group not in ranges:
                    ranges[group] = source.range(group, axis, level, first, count)
                found = ranges[group]
                columns = source.columns(group)
                if found is None or column not in columns:
                    continue
                row = columns.index(column)
                series.append({"lane": lane, "name": name})
                arrays += [part[row] * np.float32(scale) for part in found]
        edges = np.arange(first, first + count, dtype=np.float64) * 2.0**level
        if axis == "time":
            times, steps = edges, source.times.step_at(edges.astype(np.int64)).astype(float)
        else:
            times, steps = source.times.start_of(edges), edges
        header = {
            "axis": axis, "level": level, "first": first, "count": count, "revision": revision,
            "series": series, "steps_at": True,
        }  # fmt: skip
        return _packed(header, arrays, [times, steps])

    def _source(
        self, recording: Recording, revision: str, groups: set[str], axis: str, level: int
    ) -> Pyramids | OverviewTiles:
        """The pyramids; of a long run, the overview where it suffices until they are made."""
        pyramids = self._of(recording)
        if not pyramids.ready and recording.step_count > LONG_RUN_STEPS:
            overview = OverviewTiles(recording.overview)
            if overview.suffices(groups, axis, level):
                self.prepare(recording)
                return overview
        new = not pyramids.ready
        pyramids.update(revision)
        self._make_room()
        if new and recording.step_count > LONG_RUN_STEPS:
            _return_free_memory()
        return pyramids

    def prepare(self, recording: Recording) -> None:
        """Begin to make a long run's pyramids, so that they are there when somebody zooms in."""
        if recording.step_count <= LONG_RUN_STEPS:
            return
        pyramids = self._of(recording)
        with self._lock:
            if pyramids.ready or recording.id in self._preparing:
                return
            self._preparing.add(recording.id)

        def make() -> None:
            try:
                pyramids.update(recording.revision)
                _return_free_memory()
            finally:
                self._preparing.discard(recording.id)

        threading.Thread(target=make, name="gpu-util-pyramids", daemon=True).start()

    def _of(self, recording: Recording) -> Pyramids:
        with self._lock:
            known = self._pyramids.get(recording.id)
            if known is None or known.recording is not recording:
                known = self._pyramids[recording.id] = Pyramids(recording)
            self._pyramids.move_to_end(recording.id)
            return known

    def _make_room(self) -> None:
        with self._lock:
            total = sum(one.nbytes for one in self._pyramids.values())
            while total > self._max_bytes and len(self._pyramids) > 1:
                total -= self._pyramids.popitem(last=False)[1].nbytes


def _return_free_memory() -> None:
    """Give pages back that reading hundreds of segments left scattered over the heap.

    Seen: half of what a long run's pyramids took remained with the allocator otherwise.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library: its allocator decides


def _series(lane: str) -> list[tuple[str, str, str, float]]:
    """(name, group, column, factor) of each series of a lane; [] for an unknown one."""
    if lane in _STEP_LANES:
        return [(name, "steps", column, 1e-6) for name, column in _STEP_LANES[lane]]
    group, _, column = lane.rpartition(":")
    if group == "steps" and column in STEP_SERIES:
        return [(column, "steps", column, 1e-6)]
    return [(column, group, column, 1.0)] if group else []


def _packed(header: dict, singles: list[np.ndarray], doubles: list[np.ndarray]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    head = struct.pack("<I", len(text)) + text
    head += b"\0" * (-len(head) % 8)
    body = b"".join(
        [np.ascontiguousarray(a, "<f4").tobytes() for a in singles]
        + [np.ascontiguousarray(a, "<f8").tobytes() for a in doubles]
    )
    # Level 1: loopback and proxies alike gain more from speed than from the last percent.
    return gzip.compress(head + body, compresslevel=1, mtime=0)
