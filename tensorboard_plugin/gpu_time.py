"""The time of a GPU, and who took the rest: in each bucket busy, and the shares of its hole by cause.

What the training thread did is known by exact clocks, of steps and of phases; how busy a GPU was, by the driver's
means over a fifth of a second or so. A cause takes at most what the GPU idled meanwhile; where several causes together
took longer, they are scaled alike. What is left is split by profiler windows, an estimate, and else unexplained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpu_util_callback.recording.manifest_facts import Claim
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import PAUSES
from tensorboard_plugin.reply_types import LaneInfo

# A part of the time -> what it is called beside its seconds; from the bottom of the lane to its top.
PARTS = {
    "busy": "GPU busy",
    "copies": "copying",
    "launch": "launches and syncs",
    "input": "waiting for input",
    "callbacks": "callbacks",
    "compile": "compiling",
    "validation": "validation",
    "checkpoint": "checkpoint",
    "rest": "unexplained",
}
EXACT = ("input", "callbacks", "compile", "validation", "checkpoint")
LANE, THREAD, MEAN = "time", "thread", "mean"
MANY_GPUS = 8  # from so many on, one lane shows their mean
STEP_COLUMNS = ("duration_ns", "input_wait_ns", "compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns")
CELLS = 4096
# Two refreshes of the driver: over less, steps of 34 ms would alias with its readings.
WINDOW_NS = 400_000_000
FEW = 6  # steps: of the thread's time, buckets are never about as long as one
# A reading holds for no longer: beyond, nothing is known, and no slope joins what is.
HOLD_NS = 2_000_000_000
# The sampler begins a little later than training, and ends a little earlier: so long, a GPU's mean stands for it.
EDGE_NS = 1_000_000_000
# A cause -> the part of the time that it takes; those of stalls are told apart by name.
PART_OF = {"input_bound": "input", "recompilation": "compile", "launch_bound": "launch", "sync_bound": "launch"}
PART_OF |= {"transfer_bound": "copies", "host_stall": "callbacks", "host_callback": "callbacks"}


class Totals(NamedTuple):
    """Rows, or cells of several: int64[n], ns since the start; sums and counts of their columns, each [columns, n]."""

    since_ns: np.ndarray
    total: np.ndarray
    counts: np.ndarray


class Curve(NamedTuple):
    """A running total, linear between its points: float64[n] places in ns since the start, float64[n] ns."""

    at: np.ndarray
    total: np.ndarray

    def until(self, places: np.ndarray) -> np.ndarray:
        """Return the total up to places, float64 like these."""
        return np.interp(places, self.at, self.total)


NOTHING = Curve(np.zeros(1), np.zeros(1))


def spread(start: np.ndarray, end: np.ndarray, ns: np.ndarray) -> Curve:
    """Return the running total of n stretches over each of which `ns` is spread evenly; they may overlap.

    Args:
        start, end: [n], of the stretches, ns since the run's start.
        ns: [n], amount of each.
    """
    has_length = (end > start) & (ns > 0)
    start, end, ns = (np.asarray(values[has_length], np.float64) for values in (start, end, ns))
    if not len(start):
        return NOTHING
    rate = ns / (end - start)  # begins at each start, ends at each end
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    at, rate_between = at[order], np.cumsum(np.concatenate([rate, -rate])[order])
    return Curve(at, np.append(0.0, np.cumsum(rate_between[:-1] * np.diff(at))))


@dataclass(frozen=True)
class Thread:
    """Activities of the training thread: a curve for each of `EXACT`, in `steps`, and in which it was `paused`."""

    parts: Mapping[str, Curve]
    steps: Curve
    paused: Curve


def thread_of(steps: Totals, phases: Mapping[str, np.ndarray], origin_ns: int) -> Thread:
    """Return the training thread's time by activity.

    Args:
        steps: with the columns `STEP_COLUMNS`; the parts of a step follow each other in that order.
        phases: columns of the `phases` table.
        origin_ns: start of the run, ns since the epoch.
    """
    duration, *parts_ns = steps.total.astype(np.float64)
    start = steps.since_ns.astype(np.float64)
    end = start + duration
    # A cell of one step has its parts in their order, one of several has them all along.
    single = np.max(steps.counts, axis=0, initial=0) <= 1
    part_ends = np.minimum(start + np.cumsum(parts_ns, axis=0), end)
    of = {}
    for row, column in enumerate(STEP_COLUMNS[1:]):
        before = part_ends[row - 1] if row else start
        of[column] = spread(np.where(single, before, start), np.where(single, part_ends[row], end), parts_ns[row])
    kind, account = (np.asarray(phases[name], object) for name in ("kind", "account"))
    begin, stop = (phases[name] - origin_ns for name in ("start_ns", "end_ns"))

    def of_phases(rows: np.ndarray) -> Curve:
        return spread(begin[rows], stop[rows], phases["self_ns"][rows])

    is_saving = kind == "checkpoint"
    parts = {
        "input": joined(of["input_wait_ns"], of_phases((account == "input_wait") & ~is_saving)),
        "callbacks": joined(of["callbacks_ns"], of_phases((account == "callbacks") & ~is_saving)),
        "compile": joined(of["compile_ns"], of_phases((account == "compile") & ~is_saving)),
        "validation": of_phases((account == "validation") & ~is_saving),
        "checkpoint": of_phases(is_saving & (account != "")),
    }
    in_steps = joined(of["body_ns"], of["gpu_wait_ns"], of_phases((account == "step") & ~is_saving))
    paused = np.isin(kind, PAUSES)
    return Thread(parts, in_steps, spread(begin[paused], stop[paused], (stop - begin)[paused]))


def joined(*curves: Curve) -> Curve:
    """Return the sum of curves."""
    at = np.unique(np.concatenate([curve.at for curve in curves]))
    return Curve(at, np.sum([curve.until(at) for curve in curves], axis=0))


def busy_curves(samples: Totals, end_ns: float = 0.0) -> tuple[Curve, Curve]:
    """Return a GPU's busy time, and the time in which it is known, as curves.

    Each reading is the driver's mean over the time since the one before it. When the first one began is not known: it
    counts for half of what is usual, as it does in the diagnosis. Up to the ends of the run, if they are near, the mean
    of all readings stands for what nobody read.

    Args:
        samples: of its utilization, the one column, %.
        end_ns: of the run, ns since its start.
    """
    count = samples.counts[0].astype(np.float64)
    has_values = count > 0
    count, first_ns = count[has_values], samples.since_ns[has_values].astype(np.float64)
    share = samples.total[0][has_values] / count / 100
    if not len(first_ns):
        return NOTHING, NOTHING
    period_ns = np.diff(first_ns, append=np.nan) / count
    usual_ns = float(np.nanmedian(period_ns)) if len(first_ns) > 1 else HOLD_NS / 2
    period_ns = np.where(np.isfinite(period_ns) & (period_ns < max(HOLD_NS, 4 * usual_ns)), period_ns, usual_ns)
    begin = first_ns - period_ns
    begin[0] = max(0.0, first_ns[0] - usual_ns / 2)
    end = np.minimum(np.append(begin[1:], np.inf), first_ns + period_ns * (count - 1))
    # A cell follows the one before it without a gap, unless readings were missed.
    follows = np.append(begin[1:] - end[:-1] < max(HOLD_NS, 2 * usual_ns), False)
    end = np.where(follows, np.append(begin[1:], np.inf), end)
    end = np.maximum(end, begin)
    lengths, share = end - begin, np.clip(share, 0, 1)
    mean = float(share @ lengths / max(1.0, lengths.sum()))
    if begin[0] <= EDGE_NS:  # near the run's beginning
        begin, end, share = np.append(0.0, begin), np.append(begin[0], end), np.append(mean, share)
    if 0 < end_ns - end[-1] <= EDGE_NS:  # near its end
        begin, end, share = np.append(begin, end[-1]), np.append(end, end_ns), np.append(share, mean)
    return spread(begin, end, share * (end - begin)), spread(begin, end, end - begin)


def sampled_range(samples: Sequence[Totals]) -> tuple[float, float]:
    """Return between which times some GPU was read, ns since the start; (0, 0) where none was."""
    read = [rows.since_ns[rows.counts[0] > 0] for rows in samples]
    times = [times for times in read if len(times)]
    return (float(min(each[0] for each in times)), float(max(each[-1] for each in times))) if times else (0.0, 0.0)


@dataclass(frozen=True)
class Split:
    """Seconds of cells by part.

    Attributes:
        edges: float64[n + 1], ns since the start.
        ns: float64[len(PARTS), n].
        known_ns: float64[n], of each cell's time; the parts add up to it.
    """

    edges: np.ndarray
    ns: np.ndarray
    known_ns: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.ns.nbytes + self.edges.nbytes + self.known_ns.nbytes

    def shares(self, edges: np.ndarray, least_ns: float = 0.0) -> np.ndarray:
        """Return the parts' percent of what is known of n buckets, float32 (len(PARTS), n); NaN where nothing is known.

        Args:
            edges: float64 (n + 1,), of the buckets, ns since the start.
            least_ns: of buckets that are shorter, the mean over so long around them.
        """
        middle, half = (edges[:-1] + edges[1:]) / 2, np.maximum(np.diff(edges), least_ns) / 2
        places = np.clip([middle - half, middle + half], self.edges[0], self.edges[-1])
        known, *ns = (self._between(row, places) for row in (self.known_ns, *self.ns))
        is_known = known > 1e-6 * np.maximum(np.diff(edges), 1)
        return np.where(is_known, 100 * np.stack(ns) / np.where(is_known, known, 1), np.nan).astype(np.float32)

    def _between(self, ns: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.diff(np.interp(places, self.edges, np.append(0.0, np.cumsum(ns))), axis=0)[0]


def split(
    thread: Thread, gpus: Sequence[tuple[Curve, Curve]], launch_share: float, edges: np.ndarray, end_ns: float
) -> Split:
    """Return the time of n cells by part.

    Args:
        gpus: busy and known time of each; their mean is shown. Without any it is the thread's time that is split.
        launch_share: share (0-1) of the time in steps in which a GPU waited for launches and syncs in profiler windows.
        edges: float64 (n + 1,), of the cells, within the run, ns since its start.
        end_ns: of the run, ns since its start.
    """
    middle, width_ns = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    half = np.maximum(width_ns, WINDOW_NS) / 2
    if not gpus:
        half = width_ns / 2  # one exact clock
    low, high = np.clip(middle - half, 0, end_ns), np.clip(middle + half, 0, end_ns)
    around_ns = np.maximum(high - low, 1.0)

    def share(curve: Curve) -> np.ndarray:
        return (curve.until(high) - curve.until(low)) / around_ns

    shares = np.stack([share(thread.parts[name]) for name in EXACT])
    in_steps = np.clip(share(thread.steps), 0, 1)
    running_ns = width_ns - np.minimum(width_ns, thread.paused.until(edges[1:]) - thread.paused.until(edges[:-1]))
    known, busy = running_ns, in_steps
    if gpus:
        measured = np.stack([share(known_ns) for _, known_ns in gpus])
        is_measured = measured > 0.5
        each = np.stack([share(busy_ns) for busy_ns, _ in gpus]) / np.maximum(measured, 1e-9)
        measured_count = is_measured.sum(axis=0)
        busy = np.clip(np.where(is_measured, each, 0).sum(axis=0) / np.maximum(measured_count, 1), 0, 1)
        known = np.where(measured_count > 0, running_ns, 0)
    idle_share = 1 - busy
    taken_share = shares.sum(axis=0)
    # Causes that together take more than the GPU idled are scaled alike.
    shares = shares * np.minimum(1, idle_share / np.maximum(taken_share, 1e-12))
    left_share = np.maximum(idle_share - shares.sum(axis=0), 0)
    launch = np.minimum(left_share, in_steps * launch_share) if gpus else np.zeros(len(width_ns))
    parts = dict.fromkeys(PARTS, np.zeros(len(width_ns))) | dict(zip(EXACT, shares, strict=True))
    parts |= {"busy": busy, "launch": launch, "rest": left_share - launch}
    return Split(edges, np.stack([parts[name] * known for name in PARTS]), known)


# Of a traced step: what a GPU did in it -> the part of its time.
TRACED = {
    "busy": ("kernel", "collective"),
    "copies": ("copy_h2d", "copy_d2h", "copy_d2d"),
    "input": ("idle_input",),
    "launch": ("idle_launch", "idle_sync"),
    "rest": ("idle_host", "other"),
}


def traced_split(rows: Mapping[str, np.ndarray], gpu: int, origin_ns: int, end_ns: float) -> Split:
    """Return the exact parts of a GPU's traced steps, a cell each; of the time between them nothing is known.

    Args:
        rows: columns of the `traced_steps` table.
        origin_ns: start of the run, ns since the epoch.
        end_ns: of the run, ns since its start.
    """
    of_gpu = rows["gpu"] == gpu
    start, length = rows["start_ns"][of_gpu] - origin_ns, rows["duration_ns"][of_gpu]
    order = np.argsort(start, kind="stable")
    start, length = start[order].astype(np.float64), length[order].astype(np.float64)
    # Steps that overlap: from the end of the one before.
    begin = np.maximum(start, np.append(0.0, np.maximum.accumulate(start + length)[:-1]))
    # Begin and end of each step: odd cells are steps.
    edges = np.stack([begin, np.maximum(begin, start + length)], axis=1).ravel()
    edges = np.concatenate([[0.0], edges, [max(end_ns, float(edges[-1]) if len(edges) else 0.0)]])
    ns, known_ns = np.zeros((len(PARTS), len(edges) - 1)), np.zeros(len(edges) - 1)
    inside = slice(1, -1, 2)
    for row, name in enumerate(PARTS):
        columns = [np.maximum(rows[f"{category}_ns"][of_gpu][order], 0) for category in TRACED.get(name, ())]
        ns[row, inside] = np.sum(columns, axis=0) if columns else 0
    known_ns[inside] = ns[:, inside].sum(axis=0)
    return Split(edges, ns, known_ns)


def used_gpus(recording: Recording) -> list[int]:
    """Return the framework's GPUs of which utilization, or a trace, is known."""
    listed = [gpu["index"] for gpu in recording.facts.get("gpus") or () if gpu.get("used_by_framework", True)]
    return [index for index in listed if is_traced(recording) or group_of(recording, index)]


def is_traced(recording: Recording) -> bool:
    """Return whether a recording is what a profiler's files show, without samples."""
    return recording.facts.get("job_source") == "imported trace"


def group_of(recording: Recording, gpu: int) -> str:
    """Return the group of samples with a GPU's utilization, the finest one; "" where there is none."""
    groups = (f"gpu{gpu}/utilization", f"gpu{gpu}")
    return next((g for g in groups if recording.summary.get(g, {}).get("utilization_pct", {}).get("count")), "")


def launch_share(recording: Recording, gpus: Iterable[int]) -> float:
    """Return the share of traced steps in which GPUs waited for launches and syncs; 0 before they are diagnosed."""
    diagnosis = recording.stored
    traced = diagnosis["traced"] if diagnosis is not None and "traced" in diagnosis else ()
    of_gpus = [gpu["sums"] for gpu in traced if gpu["gpu"] in set(gpus)]
    idle = sum(sums["ns"].get(name, 0) for sums in of_gpus for name in TRACED["launch"])
    return idle / max(1, sum(sums["duration_ns"] for sums in of_gpus))


def which(recording: Recording) -> list[str]:
    """Return whose time lanes are of: "gpu0" …, the "mean" of many GPUs, or the "thread" without a GPU."""
    gpus = used_gpus(recording)
    if len(gpus) >= MANY_GPUS:
        return [MEAN]
    return [f"gpu{index}" for index in gpus] or [THREAD]


def groups_of(recording: Recording, whose: str) -> list[str]:
    """Return the groups of samples that the time of a lane is made of."""
    if whose == THREAD or is_traced(recording):
        return []
    gpus = used_gpus(recording) if whose == MEAN else [int(whose.removeprefix("gpu"))]
    return [group for index in gpus if (group := group_of(recording, index))]


def splits_of(
    recording: Recording, steps: Totals, samples: Mapping[str, Sequence[Totals]], edges: np.ndarray
) -> dict[str, Split]:
    """Return the time of lanes, by part.

    Args:
        steps: as of `thread_of`.
        samples: whose time a lane is ("gpu0", "mean", "thread") -> totals of each of its groups, with the one column of
            utilization.
        edges: of the cells, float64 (n + 1,) within the run.
    """
    origin_ns = recording.top.origin_ns
    end_ns = float(max(recording.end_ns - origin_ns, 1))
    thread = thread_of(steps, recording.top.longest, origin_ns)
    splits: dict[str, Split] = {}
    for whose, rows in samples.items():
        gpus = used_gpus(recording) if whose in (MEAN, THREAD) else [int(whose.removeprefix("gpu"))]
        if is_traced(recording) and whose != THREAD:
            splits[whose] = traced_split(recording.traced_steps, gpus[0], origin_ns, end_ns)
        elif recording.step_count and not len(steps.since_ns):  # damaged: what the thread did is not known
            splits[whose] = Split(edges[[0, -1]], np.zeros((len(PARTS), 1)), np.zeros(1))
        else:
            curves = [busy_curves(each, end_ns) for each in rows]
            splits[whose] = split(thread, curves, launch_share(recording, gpus), edges, end_ns)
    return splits


def time_lanes(recording: Recording) -> list[LaneInfo]:
    """Return the lanes of the GPUs' time, or of the thread's."""
    called = {MEAN: f"{len(used_gpus(recording))} GPUs, mean", THREAD: "Training thread"}
    return [
        {
            "id": f"{LANE}:{whose}",
            "group": LANE,
            "title": called.get(whose) or f"GPU {whose.removeprefix('gpu')}",
            "unit": "%",
            "kind": "time",
            "max": 100.0,
            "note": "under the edge a kernel or a copy ran; above it, what training did meanwhile"
            if whose != THREAD
            else "under the edge the steps; above it, what training did instead",
            "series": [{"name": name, "title": title} for name, title in titles(whose).items()],
        }
        for whose in which(recording)
    ]


def titles(whose: str) -> dict[str, str]:
    """Return what the parts of a lane are called."""
    return {**PARTS, "busy": "in steps"} if whose == THREAD else PARTS


def part_of(finding: Claim, savers: frozenset[str]) -> str:
    """Return the part of the GPU's time that a finding takes; "" where it takes none of its own."""
    name = finding["id"].partition(":")[2].partition("@")[0].partition(".")[0]
    if finding["cause"] == "host_stall" and name == "validation":
        return name
    if finding["cause"] == "host_stall" and name in savers:
        return "checkpoint"
    return PART_OF.get(finding["cause"], "")


def savers_of(recording: Recording) -> frozenset[str]:
    """Return the names of what saved checkpoints."""
    phases = recording.top.longest
    saving = np.asarray(phases["kind"], object) == "checkpoint"
    return frozenset(str(name).partition(".")[0] for name in np.asarray(phases["name"], object)[saving])
