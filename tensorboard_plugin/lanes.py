"""Lanes of a recording: their order, titles, units and scales, and the input pipeline's stages.

Those are drawn as work per batch of each stage, reading by reading.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from gpu_util_callback.recording.fold import FAR
from gpu_util_callback.recording.manifest_facts import Gpu
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.top import PIPELINE, STAGE
from gpu_util_callback.recording.work import peak_text
from gpu_util_callback.words import GPU_TIME, capitalized
from tensorboard_plugin.gpu_time import time_lanes
from tensorboard_plugin.reply_types import LaneInfo

# Series of the step breakdown, from the bottom of the stack to its top: (name, column, title).
STACK = (
    ("step", "body_ns", "train function"),
    ("gpu_wait", "gpu_wait_ns", "GPU wait"),
    ("compile", "compile_ns", "compile"),
    ("callbacks", "callbacks_ns", "callbacks"),
    ("input_wait", "input_wait_ns", "input wait"),
)

WAIT_TITLES = [("input_wait", "input wait")]

_WORDS = json.loads(Path(__file__).with_name("lane_words.json").read_text(encoding="utf-8"))
# Titles of the sampled columns, each with a note, in the order in which lanes are offered.
TITLES: dict[str, tuple[str, str | None]] = {"utilization_pct": GPU_TIME["gpu_active"]}
TITLES |= {column: (title, note) for column, (title, note) in _WORDS["titles"].items()}
# Drawn into one lane where there are several: lane's title -> its columns and their labels.
TOGETHER: dict[str, dict[str, str]] = _WORDS["together"]
# Drawn into another lane or into none: limits are the top of their lane; masks and events are no
# quantities.
HIDDEN = {
    "power_limit_mw",
    "sm_clock_max_mhz",
    "event_reasons",
    "xid",
    "lost",
    "python_blocks",
    "process_address_space_bytes",
    "allocator_live_allocations",
}
UNITS = (
    ("_bytes_per_s", "bytes/s"),
    ("_per_s", "/s"),
    ("_bytes", "bytes"),
    ("_pct", "%"),
    ("_mw", "mW"),
    ("_mhz", "MHz"),
    ("_c", "°C"),
    ("_ns", "ns"),
)


def lanes_of(recording: Recording) -> list[LaneInfo]:
    """Return the recording's lanes in drawing order; a long run's segments need not be read."""
    summary = recording.summary
    of_steps = summary.get("steps", {})
    took = [(name, title) for name, column, title in STACK if name == "step" or of_steps.get(column, {}).get("max")]
    lanes: list[LaneInfo] = [
        *time_lanes(recording),
        _training_lane("steps", "Step time", "what the training thread did in each step", took, "stack"),
        _training_lane("input_wait", "Input wait", "how much fetching the batch delayed the step", WAIT_TITLES),
    ]
    stages = stage_lane(recording)
    if stages is not None:
        lanes.append(stages)
    order = list(TITLES)
    for group in sorted((g for g in summary if g != "steps"), key=_group_order):
        columns = [c for c in summary[group] if c not in HIDDEN and summary[group][c].get("count")]
        columns.sort(key=lambda c: (order.index(c) if c in order else len(order), c))
        lanes += [_sampled(recording, group, column, summary) for column in columns]
    lanes = _together(_finest(lanes))
    _add_limits(lanes, recording)
    return lanes


def _training_lane(id_: str, title: str, note: str, series: Iterable[tuple[str, str]], kind: str = "band") -> LaneInfo:
    named = [{"name": name, "title": called} for name, called in series]
    shared = {"id": id_, "group": "training", "title": title, "unit": "ms", "kind": kind, "max": None, "note": note}
    return cast(LaneInfo, {**shared, "series": named})


def _together(lanes: list[LaneInfo]) -> list[LaneInfo]:
    """Merge lanes of one quantity into one lane with a series each, at the place of the first."""
    by_id = {lane["id"]: lane for lane in lanes}
    merged: set[int] = set()
    for title, columns in TOGETHER.items():
        groups = (lane["id"].rpartition(":")[0] for lane in lanes)
        # With its parts: "gpu0" for "gpu0/allocator".
        for group in dict.fromkeys(name_part for each in groups for name_part in (each, each.split("/")[0])):
            lanes_by_column = {name: by_id[id_] for name in columns if (id_ := _id(group, name)) in by_id}
            names, parts = list(lanes_by_column), list(lanes_by_column.values())
            if len(parts) < 2:  # alone: it stays
                continue
            first = parts[0]
            for name, part in lanes_by_column.items():
                part["series"][0] |= {"name": name, "title": columns[name]}
            first["id"] = f"{group}:{'+'.join(names)}"
            first["title"] = title
            first["series"] = [part["series"][0] for part in parts]
            first["minor"] = all(part["minor"] for part in parts)
            first["max"] = max((part["max"] for part in parts if part["max"] is not None), default=None)
            merged |= {id(part) for part in parts[1:]}
    return [lane for lane in lanes if id(lane) not in merged]


def _id(group: str, name: str) -> str:
    """Return the id of a column's own lane; "allocator/used" is of that part of the group."""
    part, slash, column = name.rpartition("/")
    return f"{group}{slash}{part}:{column}"


def _add_limits(lanes: list[LaneInfo], recording: Recording) -> None:
    """Add the limit of the values to lanes of memory, bytes."""
    machine = recording.facts.get("machine") or {}
    container, total = machine.get("memory_limit_bytes"), machine.get("memory_total_bytes")
    for lane in lanes:
        if lane["id"].startswith("host:process_held_bytes"):
            value = min((limit_bytes for limit_bytes in (container, total) if limit_bytes), default=None)
            if value:
                lane["limit"] = {
                    "value": value,
                    # Its scale ends there.
                    "title": "limit of the container" if value == container else "the machine's memory",
                }
                if value == container:
                    lane["max"] = max(value, lane["max"] or 0)
        elif lane["title"] == "VRAM" and lane["max"]:
            lane["limit"] = {"value": lane["max"], "title": "the GPU's memory"}


def _finest(lanes: list[LaneInfo]) -> list[LaneInfo]:
    """Return lanes without those of polled values that the driver's own show at full resolution."""
    fine = {lane["id"].replace("/utilization:", ":"): lane for lane in lanes if "/utilization:" in lane["id"]}
    return list({shown["id"]: shown for lane in lanes for shown in [fine.get(lane["id"], lane)]}.values())


def _group_order(group: str) -> tuple:
    gpu = re.match(r"gpu(\d+)(/|$)", group)
    return (0, int(gpu[1]), group) if gpu else (1, 0, group)


def _sampled(recording: Recording, group: str, column: str, summary: dict) -> LaneInfo:
    """Return the lane of a sampled column: its title, unit, scale and note."""
    unit_ending, unit = next(((end, unit) for end, unit in UNITS if column.endswith(end)), ("", ""))
    plain_name = column.removesuffix(unit_ending).replace("_", " ")
    title, note = TITLES.get(column, (capitalized(plain_name), None))
    if not group.startswith("gpu"):
        title = title.replace("VRAM", "Memory")
    head, _, source = group.partition("/")
    gpus = (gpu for gpu in recording.facts.get("gpus") or () if head == f"gpu{gpu.get('index')}")
    gpu = next(gpus, cast(Gpu, {"index": -1}))  # none: nothing is known of it
    peak = gpu.get("peak")
    if column == "mfu_pct" and peak:
        note, source = f"model FLOPs utilization: share of {peak_text(peak)}", ""
    notes = [note, source, *_measured_over(column, gpu)]
    total = gpu.get("memory_total_bytes") if column.startswith("memory_") and unit == "bytes" else None
    return {
        "id": f"{group}:{column}",
        "group": head,
        "title": title,
        "unit": unit,
        "kind": "band",
        "series": [{"name": column, "title": title.lower()}],
        "max": _top(column, unit, summary[group], total),
        "note": "; ".join(filter(None, notes)) or None,
        "minor": not summary[group][column]["max"],
    }


def _measured_over(column: str, gpu: Gpu) -> Iterator[str]:
    """Yield the time that each reading of the driver is the mean of, where it is long."""
    refresh_ms = gpu.get("utilization_refresh_ms")
    if column == "utilization_pct" and refresh_ms:
        yield f"the mean of the {refresh_ms / 1e3:.1f} s before each reading"
    if column == "power_mw" and gpu.get("power_instant") is False:
        yield "the driver's mean over up to a second"
    if column == "power_mw" and gpu.get("mig"):
        yield "of the whole board, which several MIG devices share"


def _top(column: str, unit: str, summary: Mapping[str, Mapping[str, float]], total: float | None) -> float | None:
    """Return the end of a lane's scale; None = that of its values.

    Args:
        summary: of the group's columns.
        total: bytes of the memory that the column is about; None = another column.
    """
    top = total or (100.0 if unit == "%" else None)
    limit = {"power_mw": "power_limit_mw", "sm_clock_mhz": "sm_clock_max_mhz"}.get(column, "")
    if limit in summary and summary[limit].get("count"):
        top = summary[limit]["max"]
    highest = summary[column]["max"]
    if top is not None and highest > top:
        # A process on several cores, a limit that was raised: never cut off (100.2 % is noise).
        top = 100.0 * math.ceil(min(highest, 1e9) / 100 - 0.01) if unit == "%" else highest
    return top


LANE = "pipeline"
# Stages with most work that are drawn; more lines are unreadable.
SHOWN = 6

Range = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Readings:
    """Milliseconds per batch of each stage, over the stretch before each reading.

    Attributes:
        stages: (name of the series, of the stage), in descending order of work.
        ms: float64[stages, readings]; NaN where a stage was not read.
        edges: by axis: float64[readings + 1], steps or ns since the recording's start.
    """

    stages: list[tuple[str, str]]
    ms: np.ndarray
    edges: Mapping[str, np.ndarray]


def stage_lane(recording: Recording) -> LaneInfo | None:
    """Return the lane's description for the tab; None where no pipeline was read."""
    readings = _readings(recording)
    if readings is None:
        return None
    note = "own work of each stage of the input pipeline for a batch, over all its threads"
    return _training_lane(LANE, "Pipeline stages", note, ((name, stage[:60]) for name, stage in readings.stages))


def _readings(recording: Recording) -> _Readings | None:
    """Return the readings of the input pipeline in the recording's top; None where it has none."""
    fold = recording.top.group(PIPELINE)
    if fold is None or not fold.used:
        return None
    has_readings = fold.of("first", "time") < FAR

    def means(columns: Sequence[str]) -> np.ndarray:
        total, count = (fold.matrix(part, columns)[:, has_readings] for part in ("total", "count"))
        return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)

    columns = [column for column in fold.columns("total") if column.startswith(STAGE)]
    work, (batches,) = means(columns), means(["batches"])
    busiest = np.argsort(-np.nansum(work, axis=1), kind="stable")[:SHOWN]  # places of the stages with most work
    ms = np.full((len(busiest), len(batches)), np.nan)
    np.divide(work[busiest] / 1e6, batches, out=ms, where=batches > 0)
    reading_ns = np.maximum.accumulate(fold.of("first", "time")[has_readings]).astype(float)
    steps = np.maximum.accumulate(fold.matrix("high", ["step"])[0, has_readings]).astype(float)
    stages = [(str(at), columns[at].removeprefix(STAGE)) for at in busiest.tolist()]
    return _Readings(stages, ms, {"step": np.append(0.0, steps), "time": np.append(0.0, reading_ns)})


def stage_ranges(recording: Recording, axis: str, buckets: np.ndarray) -> list[tuple[str, Range]]:
    """Return each stage's series: its name, and (min, max, mean) of the buckets, float32[count] each.

    Args:
        axis: "step" or "time".
        buckets: int64[count + 1], their edges.
    """
    readings = _readings(recording)
    if readings is None:
        return []
    edges = readings.edges[axis]
    has_length = np.flatnonzero(np.diff(edges) > 0)  # readings with a length on this axis
    shape = (len(readings.stages), len(buckets) - 1)
    low, high, mean = (np.full(shape, np.nan, np.float32) for _ in range(3))
    if len(has_length):
        edges, ms = np.append(edges[has_length], edges[-1]), readings.ms[:, has_length]
        # Readings [begin, end) reach into a bucket.
        begin = np.searchsorted(edges[1:], buckets[:-1], "right")
        end = np.searchsorted(edges[:-1], buckets[1:], "left")
        filled = np.flatnonzero(end > begin)
        pairs = np.stack([begin[filled], end[filled]], axis=1).ravel()
        padded = np.pad(ms, ((0, 0), (0, 1)), constant_values=np.nan)
        if len(filled):
            low[:, filled] = np.fmin.reduceat(padded, pairs, axis=1)[:, ::2]
            high[:, filled] = np.fmax.reduceat(padded, pairs, axis=1)[:, ::2]
        mean[:] = _means(edges, ms, buckets)  # weighted by the part of a bucket that each reading covers
    return [(name, (low[row], high[row], mean[row])) for row, (name, _) in enumerate(readings.stages)]


def _means(edges: np.ndarray, ms: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """Return the mean of each stage in each bucket, weighted by time or steps; float64[stages, buckets], NaN = nothing.

    Args:
        edges: float64[readings + 1], of the stretches before the readings.
        ms: float64[stages, readings].
        buckets: [buckets + 1], their edges.
    """
    means = np.full((len(ms), len(buckets) - 1), np.nan)
    lengths = np.diff(edges)
    for row, values in enumerate(ms):
        measured = np.isfinite(values)
        weight = np.append(0.0, np.cumsum(measured * lengths))
        total = np.append(0.0, np.cumsum(np.where(measured, values, 0.0) * lengths))
        covered = np.diff(np.interp(buckets, edges, weight))
        is_covered = covered > 1e-9 * (buckets[1] - buckets[0])
        means[row, is_covered] = np.diff(np.interp(buckets, edges, total))[is_covered] / covered[is_covered]
    return means
