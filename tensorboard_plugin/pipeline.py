"""The input pipeline's stages as a lane: work per batch of each stage, reading by reading."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.reader import Recording

__all__ = ["LANE", "gather_stages", "stage_lane", "stage_ranges", "stages_are_gathered"]

LANE = "pipeline"
# Stages with most work that are drawn; more lines are unreadable.
SHOWN = 6
# Readings are taken every few seconds; those of longer runs are gathered in the background.
MOST_STEPS = 200_000
# Segments searched for the stages; the newest may hold validation's only.
NEWEST = 4
# Between two segments, requests go first.
YIELD_S = 0.003

_COLUMNS = ("time_ns", "step", "which", "parent", "stage", "elements", "processing_ns")

Range = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Readings:
    """Milliseconds per batch of each stage, over the stretch before each reading.

    Attributes:
        stages: names, in descending order of work.
        ms: float64[stages, readings]; NaN where a stage was not read.
        edges: by axis: float64[readings + 1], steps or ns since the recording's start.
    """

    stages: list[str]
    ms: np.ndarray
    edges: Mapping[str, np.ndarray]


def stage_lane(recording: Recording) -> dict[str, Any] | None:
    """Return the lane's description for the tab; None where no pipeline was read."""
    if _is_long(recording):
        stages = _gathered(recording).stages
    else:
        found = _readings(recording)
        stages = [] if found is None else found.stages
    if not stages:
        return None
    return {
        "id": LANE, "group": "training", "title": "Pipeline stages", "unit": "ms", "kind": "band",
        "max": None,
        "note": "own work of each stage of the input pipeline for a batch, over all its threads",
        "series": [{"name": str(i), "title": name[:60]} for i, name in enumerate(stages)],
    }  # fmt: skip


def stages_are_gathered(recording: Recording) -> bool:
    """Return whether `stage_ranges` has all readings; if not, call `gather_stages`."""
    return not _is_long(recording) or _gathered(recording).revision == recording.revision


def gather_stages(recording: Recording) -> None:
    """Read the new readings of a long run; takes seconds for a run of days."""
    if _is_long(recording):
        _gathered(recording).update(recording)


def stage_ranges(
    recording: Recording, axis: str, level: int, first: int, count: int
) -> list[tuple[str, Range]]:
    """Return each series' name and (min, max, mean: float32[count]) of buckets of 2^level."""
    found = _gathered(recording).readings if _is_long(recording) else _readings(recording)
    if found is None:
        return []
    edges = found.edges[axis]
    some = np.flatnonzero(np.diff(edges) > 0)  # readings with a length on this axis
    shape = (len(found.stages), count)
    low, high, mean = (np.full(shape, np.nan, np.float32) for _ in range(3))
    if len(some):
        edges, ms = np.append(edges[some], edges[-1]), found.ms[:, some]
        buckets = np.arange(first, first + count + 1) * 2.0**level
        # Readings [begin, end) reach into a bucket.
        begin = np.searchsorted(edges[1:], buckets[:-1], "right")
        end = np.searchsorted(edges[:-1], buckets[1:], "left")
        known = np.flatnonzero(end > begin)
        pairs = np.stack([begin[known], end[known]], axis=1).ravel()
        padded = np.pad(ms, ((0, 0), (0, 1)), constant_values=np.nan)
        if len(known):
            low[:, known] = np.fmin.reduceat(padded, pairs, axis=1)[:, ::2]
            high[:, known] = np.fmax.reduceat(padded, pairs, axis=1)[:, ::2]
        mean[:] = _means(edges, ms, buckets)
    return [(str(row), (low[row], high[row], mean[row])) for row in range(shape[0])]


def _means(edges: np.ndarray, ms: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """Return float64[stages, buckets]: means of stretches, weighted by share of a bucket."""
    found = np.full((len(ms), len(buckets) - 1), np.nan)
    lengths = np.diff(edges)
    for row, values in enumerate(ms):
        known = np.isfinite(values)
        weight = np.append(0.0, np.cumsum(known * lengths))
        total = np.append(0.0, np.cumsum(np.where(known, values, 0.0) * lengths))
        covered = np.diff(np.interp(buckets, edges, weight))
        some = covered > 1e-9 * (buckets[1] - buckets[0])
        found[row, some] = np.diff(np.interp(buckets, edges, total))[some] / covered[some]
    return found


# Results per recording, valid until its table has grown; and those of long runs.
_made: "WeakKeyDictionary[Recording, tuple[str, _Readings | None]]" = WeakKeyDictionary()
_long: "WeakKeyDictionary[Recording, _Gathered]" = WeakKeyDictionary()


def _is_long(recording: Recording) -> bool:
    return recording.step_count > MOST_STEPS


def _readings(recording: Recording) -> _Readings | None:
    revision = recording.revision
    before = _made.get(recording)
    if before is None or before[0] != revision:
        part = _part(recording.pipeline)
        found = None if part is None else _put_together([part], _busiest(part), recording.start_ns)
        before = _made[recording] = (revision, found)
    return before[1]


def _gathered(recording: Recording) -> "_Gathered":
    found = _long.get(recording)
    if found is None or (not found.stages and found.revision != recording.revision):
        found = _long[recording] = _Gathered(_newest_stages(recording), recording.revision)
    return found


def _newest_stages(recording: Recording) -> list[str]:
    """Return the stages with most work in the newest of the segments that have readings."""
    for info in reversed(recording.having("pipeline")[-NEWEST:]):
        segment = recording.open_segment(info)
        try:
            part = _part(segment.table("pipeline", _COLUMNS)) if segment is not None else None
        except Damaged as error:
            recording.damaged(info.name, error)
            continue
        if part is not None:
            return _busiest(part)
    return []


class _Gathered:
    """Readings of a long run, gathered segment by segment; its stages are known before.

    Attributes:
        readings: None until the first `update` is complete.
        revision: of the recording at that time; of one without stages, when that was seen.
    """

    def __init__(self, stages: list[str], revision: str):
        self.stages = stages
        self.readings: _Readings | None = None
        self.revision: str | None = None if stages else revision
        self._lock = threading.Lock()
        self._parts: list[_Part] = []  # of sealed segments, up to number `_covered`
        self._covered = -1

    def update(self, recording: Recording) -> None:
        """Read what is new."""
        with self._lock:
            revision, parts = recording.revision, list[_Part]()
            for info, segment in recording.opened(self._covered, "pipeline"):
                try:
                    part = _part(segment.table("pipeline", _COLUMNS))
                except Damaged as error:
                    recording.damaged(info.name, error)
                    continue
                if part is not None and self._parts:
                    part = part.after(self._parts[-1].times[-1])  # segments may have been merged
                if part is not None and len(part.times):
                    (self._parts if info.sealed else parts).append(part)
                if info.sealed:
                    self._covered = info.last
                time.sleep(YIELD_S)
            parts = self._parts + parts
            if parts and self.stages:
                self.readings = _put_together(parts, self.stages, recording.start_ns)
            self.revision = revision


@dataclass(frozen=True)
class _Part:
    """Readings of a part of the table: their times, steps and numbers of batches.

    `spent`: stage -> float64[n] its work since the previous reading, ns; NaN where not read.
    """

    times: np.ndarray
    steps: np.ndarray
    batches: np.ndarray
    spent: dict[str, np.ndarray]

    def after(self, time_ns: int) -> "_Part":
        """Return the readings taken after a time."""
        new = self.times > time_ns
        spent = {name: row[new] for name, row in self.spent.items()}
        return _Part(self.times[new], self.steps[new], self.batches[new], spent)


def _part(table: Mapping[str, np.ndarray]) -> _Part | None:
    train = table["which"] == "train"
    if not train.any():
        return None
    times, at = np.unique(table["time_ns"][train], return_inverse=True)
    stage, work = table["stage"][train].astype(str), table["processing_ns"][train]
    root = table["parent"][train] < 0
    batches, steps = np.zeros(len(times)), np.zeros(len(times))
    np.maximum.at(batches, at[root], table["elements"][train][root])
    np.maximum.at(steps, at, table["step"][train])
    names, named = np.unique(stage, return_inverse=True)
    spent = np.zeros((len(names), len(times)))
    seen = np.zeros((len(names), len(times)), bool)
    np.add.at(spent, (named, at), np.maximum(work, 0))
    seen[named, at] = True
    spent[~seen] = np.nan
    rows = {str(name): row for name, row in zip(names, spent, strict=True)}
    return _Part(times, steps, batches, rows)


def _busiest(part: _Part) -> list[str]:
    work = {name: float(np.nansum(row)) for name, row in part.spent.items()}
    return sorted(work, key=lambda name: -work[name])[:SHOWN]


def _put_together(parts: Sequence[_Part], stages: list[str], start_ns: int) -> _Readings:
    batches = np.concatenate([part.batches for part in parts])
    spent = np.stack([
        np.concatenate([part.spent.get(name, np.full(len(part.times), np.nan)) for part in parts])
        for name in stages
    ])  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        ms = np.where(batches > 0, spent / 1e6 / batches, np.nan)
    times = np.concatenate([part.times for part in parts])
    since = np.maximum.accumulate(np.maximum(times - start_ns, 0)).astype(float)
    steps = np.maximum.accumulate(np.concatenate([part.steps for part in parts]))
    edges = {"step": np.append(0.0, steps), "time": np.append(0.0, since)}
    return _Readings(stages, ms, edges)
