"""Tiles: the buckets of a view, as bytes."""

import json
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpu_util_callback.recording.reader import Recording
from tensorboard_plugin import gpu_time
from tensorboard_plugin.lanes import LANE, STACK, stage_ranges
from tensorboard_plugin.tiles.recording_tiles import Answer, Jobs, Recent, RecordingTiles, View
from tensorboard_plugin.tiles.time_tiles import time_shares

MAX_COUNT = 4096
MAX_LEVEL = 62
MAX_LANES = 512
MAX_SERIES = 1024
# What is kept of the decoded rows of all recordings, recently used.
MAX_BYTES = 64 << 20
# Recordings whose tops are kept.
MAX_RECORDINGS = 64

_STEP_LANES = {"steps": [(name, column) for name, column, _ in STACK], "input_wait": [("input_wait", "input_wait_ns")]}


class BadTile(ValueError):
    """A request that makes no sense; the message says why in one line."""


class TileServer:
    """Server of tile requests; data read for them are kept while they are in use.

    Args:
        patient: answer as finely as there is data, however long reading takes.
    """

    def __init__(self, patient: bool = False):
        self._cached: Recent[Any] = Recent(MAX_BYTES)
        self._lock = threading.Lock()
        self._tiles: Recent[RecordingTiles] = Recent(MAX_RECORDINGS)
        self._local = None if patient else Jobs()

    def tile(self, recording: Recording, axis: str, level: int, first: int, count: int, lanes: list[str]) -> bytes:
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
        view = View(axis, level, first, count)
        _check_request(view, lanes)
        revision = recording.revision
        answer = self._tiles_of(recording).answer(revision, _columns(lanes), view)
        series: list[tuple[dict[str, object], tuple[np.ndarray, ...]]] = []
        refining: list[str] = []
        for lane in lanes:
            if lane.startswith(f"{gpu_time.LANE}:"):  # time of a GPU
                shares, coarse = time_shares(self._tiles_of(recording), lane, view, answer.other)
                series += [({"lane": lane, "name": name}, (row, row, row)) for name, row in shares]
                refining += [lane] * coarse
                continue
            if lane == LANE:  # stages of the input pipeline
                stages = stage_ranges(recording, axis, view.edges)
                series += [({"lane": lane, "name": name}, ranges) for name, ranges in stages]
                continue
            series += _lane_series(lane, answer)
            coarse = any(group in answer.coarse for _, group, _, _ in _series_with_columns(lane, answer))
            if coarse and lane not in refining:
                refining.append(lane)
        edges = view.edges[:-1].astype(np.float64)
        header = {
            "axis": axis,
            "level": level,
            "first": first,
            "count": count,
            "revision": revision,
            "series": [about for about, _ in series],
            "refining": refining,
            "filled": answer.filled,
        }
        axes = [edges, answer.other] if axis == "time" else [answer.other, edges]
        return _packed_reply(header, series, axes)

    def _tiles_of(self, recording: Recording) -> RecordingTiles:
        """Return a recording's tiles, kept until another object stands for the recording."""
        with self._lock:
            tiles = self._tiles.get(recording.id)
            if tiles is None or tiles.recording is not recording:
                # Jobs of its own: a silent store holds up no other.
                jobs = Jobs() if self._local and recording.remote else self._local
                tiles = RecordingTiles(recording, jobs, self._cached)
                self._tiles.put(recording.id, tiles)
            return tiles


def _check_request(view: View, lanes: list[str]) -> None:
    """Raise BadTile for a view or lanes outside the limits."""
    if view.axis not in ("step", "time"):
        raise BadTile(f"axis is step or time, not {view.axis[:40]!r}")
    if not 0 <= view.level <= MAX_LEVEL:
        raise BadTile(f"level is 0 to {MAX_LEVEL}, not {view.level}")
    if not 1 <= view.count <= MAX_COUNT:
        raise BadTile(f"count is 1 to {MAX_COUNT}, not {view.count}")
    if view.first < 0 or view.end > 2**62:
        raise BadTile("first is out of range")
    if len(lanes) > MAX_LANES:
        raise BadTile(f"at most {MAX_LANES} lanes at once")
    if sum(len(_series(lane)) for lane in lanes) > MAX_SERIES:
        raise BadTile(f"at most {MAX_SERIES} series at once")


def _columns(lanes: list[str]) -> dict[str, list[str]]:
    """Return the columns that lanes draw, by group."""
    wanted: dict[str, dict[str, None]] = {}
    for lane in lanes:
        for _, group, column, _ in _series(lane):
            wanted.setdefault(group, {})[column] = None
    return {group: list(columns) for group, columns in wanted.items()}


def _series_with_columns(lane: str, answer: Answer) -> list[tuple[str, str, str, float]]:
    """Return those of a lane's series whose columns there are."""
    return [series for series in _series(lane) if series[2] in answer.columns.get(series[1], ())]


def _lane_series(lane: str, answer: Answer) -> Iterator[tuple[dict[str, object], tuple[np.ndarray, ...]]]:
    """Yield for each series of a lane its header, and its min, max and mean: float32[buckets] each."""
    for name, group, column, scale in _series_with_columns(lane, answer):
        about: dict[str, object] = {"lane": lane, "name": name}
        if answer.bits.get(group):
            about["bits"] = answer.bits[group]
        row = answer.columns[group].index(column)
        yield about, tuple(part[row] * np.float32(scale) for part in answer.ranges[group])


def _series(lane: str) -> list[tuple[str, str, str, float]]:
    """Return (name, group, column, factor) of each series of a lane; [] for an unknown one."""
    if lane in _STEP_LANES:
        return [(name, "steps", column, 1e-6) for name, column in _STEP_LANES[lane]]
    group, _, column = lane.rpartition(":")
    if not group:
        return []
    # `allocator/used`: of the group's part of that name.
    parts = [(name, *name.rpartition("/")) for name in column.split("+")]
    return [(name, f"{group}{slash}{part}", bare, 1.0) for name, part, slash, bare in parts]


def _packed_reply(
    header: Mapping[str, object],
    series: list[tuple[dict[str, object], tuple[np.ndarray, ...]]],
    doubles: list[np.ndarray],
) -> bytes:
    """Return a reply as `TileServer.tile` describes it.

    Args:
        header: its "series" holds the dictionaries of `series`, which are completed here.
        series: header, and (min, max, mean) of each.
        doubles: float64 arrays that follow.
    """
    singles: list[np.ndarray] = []
    for about, (low, high, mean) in series:
        bits = low.view(np.int32)  # two without data are alike
        if (bits == high.view(np.int32)).all() and (bits == mean.view(np.int32)).all():
            about["alike"] = True
            singles.append(low)
        else:
            singles += [low, high, mean]
    text = json.dumps(header, separators=(",", ":")).encode()
    head = struct.pack("<I", len(text)) + text
    head += b"\0" * (-len(head) % 8)
    values = np.concatenate(singles, dtype="<f4") if singles else np.zeros(0, "<f4")
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T)
    body = [head, planes.tobytes(), *(array.astype("<f8").tobytes() for array in doubles)]
    # Neighbours share exponents, rarely mantissas: with the floats' bytes grouped by position,
    # zlib need look for runs alone, which takes half of the time and packs no worse.
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16, strategy=zlib.Z_RLE)
    return packer.compress(b"".join(body)) + packer.flush()
