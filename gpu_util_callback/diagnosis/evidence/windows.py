"""Profiler windows extrapolated to the run: shares and costs of categories, kernels, occupancy."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.evidence.gauges import cached
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import link_bytes_per_s
from gpu_util_callback.diagnosis.evidence.source import LEAST_STEPS, Windows, base_of
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.thresholds import A_TWENTIETH, AGAIN, MOSTLY, SIGNIFICANT, Constant
from gpu_util_callback.recording.manifest_facts import SourceFacts

IN_A_ROW = AGAIN  # windows in a row that differ from the rest: a single one may have met a checkpoint


class Share(NamedTuple):
    """Share of categories over the traced GPUs that ran kernels.

    Attributes:
        where: the range it holds for, None = the run.
        pct: of the steps, waiting for input included (as the timeline shows it).
        lost_ns: extrapolated to all steps of the range.
        ms_per_step: mean over steps and GPUs.
        steps: how many were traced.
        kernels_per_step, kernel_us: number of kernels, and duration of one.
        exact: all steps of the range were traced, so that nothing is extrapolated.
        whole: the name of what it is a share of.
    """

    where: Range | None
    pct: float
    lost_ns: int
    ms_per_step: float
    steps: int
    gpus: tuple[int, ...]
    kernels_per_step: float
    kernel_us: float
    exact: bool = False
    whole: str = "step"

    def without(self, ns: int) -> "Share":
        """Return the share without the part of its time that has another cause.

        Args:
            ns: lost_ns of that part.
        """
        return self.limited_to(self.lost_ns - ns)

    def limited_to(self, ns: int) -> "Share":
        """Return the share scaled to `ns` of its lost time; negative `ns` counts as 0."""
        kept_share = max(0, ns) / max(1, self.lost_ns)
        return self._replace(
            pct=kept_share * self.pct,
            lost_ns=round(kept_share * self.lost_ns),
            ms_per_step=kept_share * self.ms_per_step,
        )


def traced_gpus(run: Run) -> list[int]:
    """Return the indices of the GPUs that computed in enough traced steps, not only a few kernels."""
    if run.source is not None:  # all of the run is a trace
        return run.source["gpus"]
    if not len(run.steps):
        return []
    busy_share = {
        index: (gpu.kernel_busy_ns + gpu.ns["kernel"]) / gpu.duration_ns
        for index, gpu in sorted(run.traced.gpus.items())
        if index >= 0 and gpu.steps >= LEAST_STEPS and gpu.duration_ns > 0
    }
    highest_share = max(busy_share.values(), default=0)
    return [index for index, share in busy_share.items() if share > 0 and share >= A_TWENTIETH * highest_share]


def _most_idle(run: Run, index: int, where: Range | None) -> float:
    """Return the largest share (0-1) of the steps in which no kernel can have run.

    SMs are active only while kernels run: if GPM counted more than a window left room for, the
    profiler itself made the difference (its cost per kernel, or kernels of CUDA graphs it missed).
    """
    extent_ns = run.steps.extent_ns if where is None else where.extent_ns
    sm_active = run.gpu_mean(index, "sm_active_pct", *extent_ns)
    return 1.0 if sm_active is None else max(0.0, 1 - sm_active.value / 100)


def share_of(run: Run, *categories: str, where: Range | None = None) -> Share | None:
    """Return the categories' share of the steps, mean over the traced GPUs; None if untraced.

    A window represents the steps around it, half-way to its neighbours: the recorder takes them ever more rarely as a
    run grows. Those steps are assumed to be like the traced ones, apart from their input wait and compilation, which
    are known for every step.

    Args:
        categories: of GPU time, such as "kernel" or "idle_host".
        where: only the windows, and the steps, of this range; None = of the run.
    """
    gpus = traced_gpus(run)
    if not gpus:
        return None
    if run.source is not None:
        return _share_of_trace(run, run.source, gpus, categories)
    pct = lost = ms_per_step = 0.0
    gpu_count = most_steps = traced_steps = kernels = busy_ns = 0
    for index in gpus:
        windows = _windows_of(run, index, where)
        if not len(windows):
            continue
        rows, spent_ns, working_ns = _represented(run, index, where)
        traced, spent = np.maximum(windows["duration_ns"], 1), windows.spent_ns(*categories)
        # Weighted by the time of the steps that each window represents.
        share = float(np.average(spent / traced, weights=spent_ns))
        most_idle = 1.0 if "collective" in categories else _most_idle(run, index, where)
        capped = min(1.0, most_idle / share) if share > 0 else 1.0  # idling cannot exceed what GPM leaves room for
        at_work = np.maximum(traced - windows["idle_input_ns"], 1)
        pct += 100 * share * capped
        # In the working time of the represented steps; their input wait is known for each of them.
        lost += capped * float((spent / at_work * working_ns).sum())
        ms_per_step += capped * float(np.average(spent / windows["steps"], weights=rows)) / 1e6
        gpu_count += 1
        most_steps = max(most_steps, int(windows["steps"].sum()))
        traced_steps += int(windows["steps"].sum())
        kernels += int(windows["kernels"].sum())
        busy_ns += int(windows["kernel_busy_ns"].sum() or windows["kernel_ns"].sum())
    if not gpu_count:
        return None
    return Share(
        where,
        pct / gpu_count,
        max(0, round(lost / gpu_count)),
        ms_per_step / gpu_count,
        most_steps,
        tuple(gpus),
        kernels / traced_steps,
        busy_ns / max(1, kernels) / 1e3,
    )


def _share_of_trace(run: Run, source: SourceFacts, gpus: Sequence[int], categories: Sequence[str]) -> Share | None:
    """Return the categories' share of a run of which every step was traced; None without such steps or GPUs."""
    sums = [run.traced.gpus[gpu] for gpu in gpus if gpu in run.traced.gpus]
    steps, total_ns = run.steps.total_rows, run.steps.total("duration_ns")
    if not sums or not steps or not total_ns:
        return None
    spent_ns = sum(gpu.ns[name] for gpu in sums for name in categories) / len(sums)
    kernels = [kernel for (gpu, _), kernel in run.traced.kernels.items() if gpu in gpus]
    count = sum(kernel.count for kernel in kernels)
    return Share(
        None,  # where: the run
        100 * spent_ns / total_ns,
        round(spent_ns),
        spent_ns / steps / 1e6,
        steps,
        tuple(gpus),
        count / steps / len(sums),
        sum(kernel.total_ns for kernel in kernels) / max(1, count) / 1e3,
        exact=True,
        whole=base_of(source),
    )


def stretches_of(run: Run, limit_pct: float, *categories: str) -> list[Share]:
    """Return the stretches of the run in which the categories take at least `limit_pct` of the steps; [] if nowhere.

    That is the whole run, or parts of it. Several windows in a row that show much less than those of another part of
    the run end a stretch, half-way to the one before.
    """
    if run.source is not None:  # a trace has no windows: only all of it
        whole = share_of(run, *categories)
        return [whole] if whole is not None and whole.pct >= limit_pct else []
    highest = max((_pct_of_windows(run, index, *categories).max() for index in traced_gpus(run)), default=0)
    whole = share_of(run, *categories) if highest >= limit_pct else None
    if whole is None:
        return []
    parts = _stretches_above(run, limit_pct, *categories)
    if not parts:
        # Not by a single window alone.
        is_over = whole.pct >= limit_pct and not _is_single(run, MOSTLY * limit_pct, *categories)
        return [whole] if is_over else []
    shares = []
    for where in parts:
        share = share_of(run, *categories, where=where)
        if share is None or share.pct < limit_pct or share.steps < LEAST_STEPS:
            continue
        if 100 * share.lost_ns >= SIGNIFICANT["min_run_pct"].default * run.present_ns:  # too small a loss is left out
            shares.append(share)
    return shares


def _stretches_above(run: Run, limit_pct: float, *categories: str) -> list[Range]:
    """Return the ranges of windows above the limit; [] if all windows are in one state.

    A window stays above until it falls clearly below the limit. Fewer than `IN_A_ROW` windows make no state.
    """
    gpu = max(traced_gpus(run), key=lambda index: len(run.traced.of(index)))
    windows = run.traced.of(gpu)
    pct = _pct_of_windows(run, gpu, *categories)
    above = False
    states: list[list] = []  # [above, first, end] of windows in one state
    for number, value in enumerate(pct):
        state = value >= (MOSTLY * limit_pct if above else limit_pct)
        if not states or state != above:  # a new state begins
            states.append([state, number, number + 1])
        states[-1][2], above = number + 1, state
    joined: list[list] = []
    for state, first, end in states:
        # The same state, or too few windows: part of the stretch before.
        if joined and (state == joined[-1][0] or end - first < IN_A_ROW):
            joined[-1][2] = end
        else:
            joined.append([state, first, end])
    # Too few windows at the beginning: part of the next stretch.
    if len(joined) > 1 and joined[0][2] - joined[0][1] < IN_A_ROW:
        first = joined.pop(0)[1]
        joined[0][1] = first
    if len({state for state, _, _ in joined}) < 2:
        return []
    edges = windows.edges(run.first_step, run.end_step)
    return [_range_between(run, edges[first], edges[end]) for state, first, end in joined if state]


def _is_single(run: Run, pct: float, *categories: str) -> bool:
    """Return True if one of several windows alone shows it: that says nothing about the run."""
    each = [_pct_of_windows(run, index, *categories) for index in traced_gpus(run)]
    return all(len(percents) >= 2 * IN_A_ROW and (percents >= pct).sum() < IN_A_ROW for percents in each)


def _pct_of_windows(run: Run, index: int, *categories: str) -> np.ndarray:
    """Return the categories' share of the steps in each window, %."""
    windows = run.traced.of(index)
    return 100 * windows.spent_ns(*categories) / np.maximum(windows["duration_ns"], 1)


@cached
def _windows_of(run: Run, index: int, where: Range | None) -> Windows:
    """Return the windows of a GPU in a range, None = of the run."""
    windows = run.traced.of(index)
    return windows if where is None else windows.inside(where.start_step, where.end_step)


@cached
def _represented(run: Run, index: int, where: Range | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return float64[windows] three times: rows each represents, their ns, and their ns without waits and compiling."""
    windows = _windows_of(run, index, where)
    first, end = (where.start_step, where.end_step) if where else (run.first_step, run.end_step)
    edges = windows.edges(first, end)
    at, *grown = _cumulated(run)
    rows, spent, working = (np.diff(np.interp(edges, at, sums)) for sums in grown)
    # Windows that share a step, or lie outside the rows known by now, still count a little.
    return np.maximum(rows, 1e-9), np.maximum(spent, 1e-9), np.maximum(working, 0)


@cached
def _cumulated(run: Run) -> list[np.ndarray]:
    """Return steps, and cumulated before each: rows, ns, and ns without waits and compiling."""
    steps = run.steps
    columns = steps["rows"], steps["duration_ns"], steps["duration_ns"] - steps.explained_ns
    sums = [np.concatenate([[0], np.cumsum(column)]) for column in columns]
    return [np.append(steps["first_step"], run.end_step), *sums]


def _range_between(run: Run, first: float, end: float) -> Range:
    """Return the range of the steps [first, end), its times interpolated between blocks."""
    steps = run.steps
    at = np.append(steps["first_step"], run.end_step)
    times = np.append(steps["start_ns"], steps["end_ns"].max()) - steps["start_ns"][0]
    begin_ns, end_ns = (int(steps["start_ns"][0] + np.interp(x, at, times)) for x in (first, end))
    return Range(round(first), round(end), begin_ns, max(end_ns, begin_ns + 1))


class Fill(NamedTuple):
    """Part of a GPU that its kernels fill, %.

    Attributes:
        active_pct: NVML's utilization over the steps: kernels and copies.
        kernels_pct: of it kernels, at least; nothing but `sm_active_pct` shows them where copies are not known.
        sm_active_pct: GPM's SM active of the time of the kernels.
    """

    active_pct: float
    kernels_pct: float
    sm_active_pct: float


def fill(run: Run, gpu: int, at_least: int) -> Fill | None:
    """Return the part of a GPU that its kernels fill; None if it has no GPM values, or too few of them.

    Args:
        at_least: samples that are needed.
    """
    if not len(run.steps):  # no step yet
        return None
    active, sm = (
        run.gpu_mean(gpu, column, *run.steps.extent_ns, at_least) for column in ("utilization_pct", "sm_active_pct")
    )
    if active is None or sm is None:
        return None
    copying = copying_pct(run, gpu)
    kernels_at_least = 0.0 if copying is None else active.value - copying
    kernels = max(sm.value, kernels_at_least)  # SMs work only while kernels run
    # GPM averages over all the time; occupancy refers to the time in which kernels run.
    return Fill(active.value, kernels, min(100.0, 100 * sm.value / max(1.0, kernels)))


DELIVERED = Constant(0.75, "of its nominal rate, at least, a PCIe link delivers to copies; an H200's 87 %")


def copying_pct(run: Run, gpu: int) -> float | None:
    """Return the share of the steps in which a GPU can have run nothing but copies, %; None if that is not known.

    As profiler windows show it; without them it counts as copying in all the time that its PCIe traffic takes, one
    direction after the other.
    """
    if not len(run.steps):
        return None
    if gpu in traced_gpus(run) and len(windows := _windows_of(run, gpu, None)):
        # Not the category of copies: the time in which one is made ready belongs to it, and NVML counts that as idle.
        alone_ns = np.maximum(windows["any_busy_ns"] - windows["kernel_busy_ns"], 0)
        _, spent_ns, _ = _represented(run, gpu, None)
        alone = float(np.average(alone_ns / np.maximum(windows["duration_ns"], 1), weights=spent_ns))
        return 100 * min(alone, _most_idle(run, gpu, None))
    facts = run.gpu(gpu)
    generation, width = (
        run.highest(gpu, f"pcie_{name}") or facts.get(f"pcie_{name}_max") or np.nan for name in ("generation", "width")
    )
    [link] = link_bytes_per_s(np.array([generation]), np.array([width]))
    ways = [run.gpu_mean(gpu, f"pcie_{way}_bytes_per_s", *run.steps.extent_ns) for way in ("rx", "tx")]
    rate = sum(mean.value if mean is not None else np.nan for mean in ways)
    busy = float(100 * rate / (DELIVERED * link))
    return None if np.isnan(busy) else min(100.0, busy)


def needed_vram(run: Run, gpu: int) -> float | None:
    """Return the largest share (0-1) of a GPU's memory that was really needed; None if unknown.

    TensorFlow's pool fills the card whatever the model needs, so the driver's number only counts if the framework's own
    allocator reports nothing and the framework is PyTorch.
    """
    total_bytes = run.gpu(gpu).get("memory_total_bytes")
    columns = ["allocator_peak_bytes", "allocator_used_bytes"]
    if run.framework == "torch":
        columns.append("memory_used_bytes")
    peak_bytes = next((peak_bytes for column in columns if (peak_bytes := run.highest(gpu, column))), None)
    return peak_bytes / total_bytes if peak_bytes and total_bytes else None


def capability(run: Run, gpu: int) -> float | None:
    """Return the compute capability as a number; None if unknown, or of another maker's GPU."""
    reported = run.gpu(gpu).get("compute_capability")
    try:
        return float(reported) if reported else None
    except ValueError:
        return None
