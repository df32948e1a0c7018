"""Stretches in which training stands still: their place, and the GPU's activity in them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_TENTH, A_TWENTIETH, MOSTLY, WARM_UP

# Only this many are excluded from training.
MOST_COMPILATIONS = 8


def usual_ns(spent: np.ndarray) -> int:
    """Return the total with the largest replaced by the median, the lower one of two: an outlier is no state."""
    median = np.sort(spent)[(len(spent) - 1) // 2]
    return int(spent.sum()) - int(spent.max()) + int(median)  # those of damaged rows overflow


def intervals(occurrences: Occurrences) -> list[tuple[int, int]]:
    """Return (start, end) of each, in ns."""
    return list(zip(occurrences["start_ns"].tolist(), occurrences["end_ns"].tolist(), strict=True))


def stalled_range(run: Run, occurrences: Occurrences) -> Range:
    """Return the range from the work before the first stall to the end of the last stall's epoch.

    A validation belongs to the epoch before it, so that stalls at the end of every epoch cover the
    run, not only its seams, and others at the same end.
    """
    starts, ends = occurrences["start_ns"], occurrences["end_ns"]
    first, end_ns = int(starts[0]), int(ends.max())
    for epochs in run.phases.of("epoch").values():  # to the end of the epoch that contains the last stall
        around = (epochs["start_ns"] <= int(starts[-1])) & (epochs["end_ns"] > end_ns)
        end_ns = int(epochs["end_ns"][around][0]) if around.any() else end_ns
    start_ns = run.start_ns
    if len(occurrences) > 1:
        # Assume that the work before the first stall is as long as that between two, from an
        # epoch's start.
        earliest = first - (1 + A_TWENTIETH) * max(0.0, float(np.median(starts[1:] - ends[:-1])))
        start_ns = max(start_ns, int(earliest))
        for epochs in run.phases.of("epoch").values():
            before = epochs["start_ns"][epochs["start_ns"] < first]
            inside = before[before >= earliest]
            if len(before):  # an epoch begins there, or the newest one before the first stall
                start_ns = max(run.start_ns, int(inside[0] if len(inside) else before[-1]))
    step = run.step_at(start_ns)
    last = max(int(occurrences["step"].max()), step)
    return Range(step, last, start_ns, max(end_ns, start_ns + 1))


def long_steps(run: Run, least_ns: float) -> tuple[Occurrences, float]:
    """Return the steps of a custom loop that take ten times as long as the usual one, and the usual one's ns.

    A step is recorded as its block: so its place is the block's, and there is none where other steps take most of those
    blocks. No steps and 0.0 where each block holds a single step.

    Args:
        least_ns: shorter steps are left out.
    """
    steps = run.steps
    rows, top_ns = steps["rows"], steps["top_body_ns"]
    if not (rows > 1).any():
        return Occurrences(), 0.0
    usual = usual_body_ns(run)
    warm = steps["first_step"] >= WARM_UP.default
    long = np.flatnonzero(warm & (top_ns >= least_ns) & (A_TENTH * top_ns >= usual))
    if top_ns[long].sum() < MOSTLY * steps["duration_ns"][long].sum():  # other steps take much of the blocks
        return Occurrences(), usual
    columns = steps["start_ns"], steps["end_ns"], top_ns, steps["first_step"], np.ones_like(rows)
    return Occurrences(list(zip(*(column[long].tolist() for column in columns), strict=True))), usual


def usual_bodies_ns(run: Run) -> np.ndarray:
    """Return the own time of a step in each block, ns; where blocks hold several, without the longest of each."""
    rows, body_ns = run.steps["rows"], run.steps["body_ns"]
    several = rows > 1
    return (body_ns - run.steps["top_body_ns"])[several] / (rows[several] - 1) if several.any() else body_ns


def usual_body_ns(run: Run) -> float:
    """Return the median own time of a step; where a block holds several, without its longest."""
    return float(np.median(usual_bodies_ns(run)))


def in_which_steps(run: Run, share: float) -> str:
    """Return where what takes a share (0-1) of the steps' own time lies: in "each", in "some" long ones, or a "few"."""
    beyond = np.sort(np.maximum(0, run.steps["body_ns"] - run.steps["rows"] * usual_body_ns(run)))
    most = MOSTLY * share * run.steps.total("body_ns")
    if beyond.sum() < most:
        return "each"
    return "some" if beyond[:-A_FEW].sum() >= most else "few"


def idle_in_steps(run: Run) -> int | None:
    """Return how long the GPUs at work idled in steps, ns; None if utilization was not sampled.

    Time between the steps of a block is assumed to be idle.
    """
    begin, end = run.steps["start_ns"], run.steps["end_ns"]
    share, samples = run.idle_each(begin, end)
    is_measured, length = np.isfinite(share), (end - begin).astype(float)
    if samples < A_FEW or not length[is_measured].sum():
        return None
    idle = float(np.average(share[is_measured], weights=length[is_measured])) * float(length.sum())
    # Without the time between the steps.
    return max(0, round(idle - float(length.sum()) + run.steps.total("duration_ns")))


def lost_in(run: Run, occurrences: Occurrences, where: Range) -> tuple[int, float | None]:
    """Return the GPU's idle time during stalls in ns and its mean utilization in percent; None if not sampled.

    Without samples the first number is all of the stalls' time. Utilization is a mean that lags by up to
    `run.lag_ns()`: the effect of a short stall shows after it. So the idle time is that from its start until the gauge
    has caught up, beyond what the GPU idles in training anyway.

    Args:
        occurrences: the stalls.
        where: the range whose training is the reference.
    """
    stalled_ns = occurrences.self_ns
    stalls = intervals(occurrences)
    length_ns = sum(end - start for start, end in stalls)
    # Samples too coarse to tell one stall from its surroundings.
    coarse = 2 * run.resolution_ns() > length_ns / len(stalls) + run.lag_ns()
    if coarse or occurrences.joined:
        return _lost_of_all(run, stalled_ns, where)
    affected, between = _split_times(stalls, where.start_ns, run.end_ns, run.lag_ns())
    compilations = [interval for rows in run.phases.of("compilation").values() for interval in intervals(rows)]
    longest = sorted(compilations, key=lambda span: span[0] - span[1])[:MOST_COMPILATIONS]
    between = _cut_out(between, longest)  # the GPU idles while a function compiles: not training either
    during, training = _idle_samples(run, affected), _idle_samples(run, between)
    # Too few samples, or of less than half of the time.
    if during is None or during.samples < A_FEW or 2 * during.known_ns < during.length_ns:
        return stalled_ns, None
    if training is not None and 10 * training.known_ns >= where.length_ns:
        usual = training.idle_ns / training.known_ns  # share of the training between the stalls in which the GPU idled
        idle_ns = during.idle_ns - usual * max(0, during.known_ns - length_ns)
    else:  # they follow too closely: the idle time is attributed to them
        idle_ns = during.idle_ns
    share = min(1.0, max(0.0, idle_ns / max(1, length_ns)))
    return round(stalled_ns * share), round(100 * (1 - share), 1)


def _lost_of_all(run: Run, took: int, where: Range) -> tuple[int, float | None]:
    """Return `lost_in` for a run so long that its stalls or samples are not kept separately.

    The GPU's idle time is distributed over all the time in which training stood still.

    Args:
        took: ns of the stalls.
    """
    start, length = np.array([where.start_ns]), np.array([where.length_ns])
    idle = run.idle(*where.extent_ns)
    stalled_ns = float(run.stalled_pct(start, length)[0]) / 100 * float(length[0])
    if idle is None or stalled_ns <= 0:
        return took, None
    share = min(1.0, idle.idle_ns / stalled_ns)
    return round(took * share), round(100 * (1 - share), 1)


def _split_times(stalls: list[tuple[int, int]], start_ns: int, end_ns: int, lag: int) -> tuple[list, list]:
    """Return the (start, end) times at which samples show the stalls, merged, and the times between them.

    Args:
        stalls: (start, end) in order.
        start_ns, end_ns: of the run.
        lag: ns after a stall until which samples may show it.
    """
    apart = [after[0] - before[1] for before, after in pairwise(stalls)]
    # If stalls follow closely, half the time between them is left to observe training by itself.
    lag = min(lag, max(0, int(np.median(apart)) // 2)) if apart else lag
    affected: list[tuple[int, int]] = []
    between: list[tuple[int, int]] = []
    at = start_ns
    for start, end in stalls:
        shown_until = min(end + lag, max(end, end_ns))
        if affected and start <= affected[-1][1]:  # begins before the one before has left the samples
            affected[-1] = (affected[-1][0], max(affected[-1][1], shown_until))
        else:
            between.append((at, start))
            affected.append((start, shown_until))
        at = affected[-1][1]
    return affected, [piece for piece in between if piece[1] > piece[0]]


def _cut_out(pieces: list[tuple[int, int]], cuts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (start, end) pieces without the parts that lie in the cuts."""
    for first, last in cuts:
        parts = [part for start, end in pieces for part in ((start, min(end, first)), (max(start, last), end))]
        pieces = [(start, end) for start, end in parts if end > start]
    return pieces


@dataclass(slots=True)
class _IdleSamples:
    """Samples of the GPUs over several stretches."""

    length_ns: int
    known_ns: int  # of it with samples
    idle_ns: float
    samples: float


def _idle_samples(run: Run, pieces: list[tuple[int, int]]) -> _IdleSamples | None:
    """Return the GPUs' idle time over these (start, end) pieces in ns; None if nothing was sampled."""
    at = np.array(pieces, np.int64).reshape(-1, 2)
    share, samples = run.idle_each(at[:, 0], at[:, 1])
    length = at[:, 1] - at[:, 0]
    is_measured = np.isfinite(share)
    if not is_measured.any():
        return None
    idle = float((length * np.nan_to_num(share)).sum())
    return _IdleSamples(int(length.sum()), int(length[is_measured].sum()), idle, samples)


def times(occurrences: Occurrences, share: str, pct: float) -> dict[str, object]:
    """Return evidence: share of the time under the name `share`, number and duration."""
    return {
        share: round(pct, 1),
        "times": occurrences.count,
        "seconds_each": round(occurrences.self_ns / max(1, occurrences.count) / 1e9, 3),
        "longest_s": round(occurrences.longest_ns / 1e9, 3),
    }
