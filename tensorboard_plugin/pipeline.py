"""The input pipeline's stages as a lane: what each worked for a batch, reading by reading."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gpu_util_callback.recording.reader import Recording

__all__ = ["LANE", "stage_lane", "stage_ranges"]

LANE = "pipeline"
# Stages with most work that are drawn; more lines than that tell nobody anything.
SHOWN = 6
# Readings are taken every few seconds; of a run longer than this they are not gathered.
MOST_STEPS = 200_000

Range = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Readings:
    """Milliseconds a batch of each stage, over the stretch before each reading.

    Attributes:
        stages: names, the one with most work first.
        ms: float64[stages, readings]; NaN where a stage was not read.
        edges: by axis: float64[readings + 1], steps or ns since the recording's start.
    """

    stages: list[str]
    ms: np.ndarray
    edges: dict[str, np.ndarray]


def stage_lane(recording: Recording) -> dict[str, Any] | None:
    """The lane as the tab is told about it; None where no pipeline was read."""
    found = _readings(recording)
    if found is None:
        return None
    return {
        "id": LANE, "group": "training", "title": "Pipeline stages", "unit": "ms", "kind": "band",
        "max": None,
        "note": "own work of each stage of the input pipeline for a batch, over all its threads",
        "series": [{"name": str(i), "title": name[:60]} for i, name in enumerate(found.stages)],
    }  # fmt: skip


def stage_ranges(
    recording: Recording, axis: str, level: int, first: int, count: int
) -> list[tuple[str, Range]]:
    """Name and (min, max, mean: float32[count]) of each series in `count` buckets of 2^level."""
    found = _readings(recording)
    if found is None:
        return []
    size = float(2**level)
    edges = (found.edges[axis] - first * size) / size
    rows = len(found.stages)
    low = np.full((rows, count), np.nan, np.float32)
    high = low.copy()
    total = np.zeros((rows, count))
    weight = np.zeros((rows, count))
    inside = np.searchsorted(edges, [0.0, float(count)])
    for i in range(max(0, inside[0] - 1), min(found.ms.shape[1], inside[1])):
        ms = found.ms[:, i]
        begin, end = max(0.0, edges[i]), min(float(count), edges[i + 1])
        if end <= begin:
            continue
        at = slice(int(begin), min(count, int(np.ceil(end))))
        buckets = np.arange(at.start, at.stop)
        share = np.minimum(end, buckets + 1) - np.maximum(begin, buckets)
        known = np.isfinite(ms)
        own = np.where(known, ms, 0.0)[:, None]
        total[:, at] += own * share
        weight[:, at] += known[:, None] * share
        low[:, at] = np.fmin(low[:, at], ms[:, None])
        high[:, at] = np.fmax(high[:, at], ms[:, None])
    with np.errstate(invalid="ignore"):
        mean = np.where(weight > 0, total / weight, np.nan).astype(np.float32)
    return [(str(row), (low[row], high[row], mean[row])) for row in range(rows)]


# What was made of a recording's table, until it has grown.
_made: "WeakKeyDictionary[Recording, tuple[str, _Readings | None]]" = WeakKeyDictionary()


def _readings(recording: Recording) -> _Readings | None:
    if recording.step_count > MOST_STEPS:
        return None
    revision = recording.revision
    before = _made.get(recording)
    if before is None or before[0] != revision:
        before = _made[recording] = (revision, _read(recording))
    return before[1]


def _read(recording: Recording) -> _Readings | None:
    table = recording.pipeline
    train = table["which"] == "train"
    if not train.any():
        return None
    times, at = np.unique(table["time_ns"][train], return_inverse=True)
    stage, work = table["stage"][train].astype(str), table["processing_ns"][train]
    root = table["parent"][train] < 0
    batches = np.zeros(len(times))
    np.maximum.at(batches, at[root], table["elements"][train][root])
    steps = np.zeros(len(times))
    np.maximum.at(steps, at, table["step"][train])
    names, named = np.unique(stage, return_inverse=True)
    spent = np.zeros((len(names), len(times)))
    seen = np.zeros((len(names), len(times)), bool)
    np.add.at(spent, (named, at), np.maximum(work, 0))
    seen[named, at] = True
    with np.errstate(divide="ignore", invalid="ignore"):
        ms = np.where(seen & (batches > 0), spent / 1e6 / batches, np.nan)
    order = np.argsort(-np.nansum(spent, axis=1), kind="stable")[:SHOWN]
    since = np.maximum.accumulate(np.maximum(times - recording.start_ns, 0)).astype(float)
    edges = {"step": np.maximum.accumulate(steps), "time": since}
    return _Readings(
        [str(names[i]) for i in order],
        ms[order],
        {axis: np.concatenate([[0.0], values]) for axis, values in edges.items()},
    )
