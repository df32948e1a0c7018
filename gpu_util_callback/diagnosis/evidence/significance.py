"""Significance: the findings of a cause that cost enough to be reported."""

from collections.abc import Iterable

import numpy as np

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.finding import LEAST_GAIN, Finding
from gpu_util_callback.diagnosis.thresholds import (
    A_FEW,
    A_FIFTH,
    A_QUARTER,
    A_TREND,
    DOUBLE,
    MIN_STEPS,
    Constant,
    Limits,
    Threshold,
)

MANY_TIMES = int(MIN_STEPS.default)  # at ends of epochs: a state of the run however short that was
MANY_STEPS = A_TREND  # the same for steps
SLICE_MS = Constant(3, "Linux gives another thread the core for 3 ms: a host that lost it once stalls as long")
SURE_GAIN = Constant(0.15, "so large a gain shows however unsteady the steps are; less shows from twice their scatter")
PARTS, FEWEST_PARTS = 16, 4  # of the steps, to compare their pace
ALWAYS_S = Threshold(60, "a lost minute is worth reporting however long the run is")
LEAST_S = Threshold(
    0.5,
    "healthy fits of a few seconds lose 0.1-0.5 s to the ends of their epochs; less is reported "
    f"only if it came in {MANY_STEPS} steps, or {MANY_TIMES} times otherwise",
)
SIGNIFICANT = {  # what `significant` reads
    "min_run_pct": Threshold(2, "below 2 % of the run fixing it does not show; hiccups of a shared machine reach 1"),
    "least_s": LEAST_S,
}


def significant(findings: Iterable[Finding], present_ns: int, limits: Limits) -> list[Finding]:
    """Return the findings whose kind cost enough of the run.

    That is at least `min_run_pct` of the run or `always_s` seconds, and `least_s` seconds in any
    case. Findings with the same `detail` (a GPU, a callback) are added up: a cause that comes and
    goes costs as much as one that stays. Spans that are small compared to others of their kind are
    left out.

    Args:
        findings: of one cause, with their loss; those of unknown loss are left out.
        present_ns: duration of the run without times in which the process was stopped.
        limits: the cause's thresholds.
    """
    enough = limits["min_run_pct"] / 100 * present_ns
    if "always_s" in limits:
        enough = min(enough, limits["always_s"] * 1e9)
    by_kind: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.lost_ns:
            by_kind.setdefault(finding.detail, []).append(finding)
    listed = []
    for kind in by_kind.values():
        total = sum(finding.lost_ns or 0 for finding in kind)
        if total >= enough and not negligible(kind, limits):
            least = A_QUARTER * min(enough, total / len(kind))
            listed += [finding for finding in kind if (finding.lost_ns or 0) >= least]
    return listed


def negligible(findings: Iterable[Finding], limits: Limits) -> bool:
    """Return whether findings of a kind cost too little: `least_s`, or part of it as a state."""
    findings = list(findings)
    share = A_FIFTH if any(finding.state for finding in findings) else 1
    return sum(finding.lost_ns or 0 for finding in findings) < share * limits["least_s"] * 1e9


def in_many_steps(total_ns: int, top_ns: np.ndarray) -> bool:
    """Return whether a total, with at most `top_ns` in a step, came from many steps."""
    return total_ns >= MANY_STEPS * int(top_ns.max())


def shows(run: Run, lost_ns: int) -> bool:
    """Return whether a run without this loss is faster than chance makes it."""
    gain = lost_ns / max(1, run.wall_ns - lost_ns)
    return gain >= max(LEAST_GAIN - 1, min(SURE_GAIN, DOUBLE * _scatter(run)))


def one_interruption(run: Run, finding: Finding) -> bool:
    """Return whether a loss in a trace of one or two steps may be one interruption of the host."""
    has_few_steps = run.source is not None and run.steps.total_rows < A_FEW
    return has_few_steps and finding.lost_ns is not None and finding.lost_ns < SLICE_MS * 1e6


def _scatter(run: Run) -> float:
    """Return the typical deviation of the pace of a run's parts from its median; 0.0 if unknown.

    Waits, callbacks and compiling are excluded from the pace: they are what is diagnosed.
    """
    steps = run.steps
    parts = np.array_split(np.stack([steps.own_ns, steps["rows"]]), min(PARTS, len(steps)), axis=1)
    if len(parts) < FEWEST_PARTS:
        return 0.0
    pace = np.array([part[0].sum() / max(1, part[1].sum()) for part in parts])
    low, middle, high = np.percentile(pace, [25, 50, 75])
    return float((high - low) / 2 / middle) if middle > 0 else 0.0
