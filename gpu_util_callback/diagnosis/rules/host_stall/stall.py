"""The finding of a stall, whatever detects it."""

from collections.abc import Mapping
from typing import Any

from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.evidence.stalls import intervals
from gpu_util_callback.diagnosis.rule import ESTIMATED, MEASURED, Advice, Evidence, Finding
from gpu_util_callback.diagnosis.thresholds import MANY_TIMES

CAUSE = "host_stall"


def stall(
    run: Run,
    title: str,
    detail: str,
    where: Range,
    lost_ns: int,
    active_pct: float | None,
    evidence: Evidence,
    advice: Advice,
    each: Occurrences | None = None,
    threshold: Mapping[str, object] | None = None,
    **more: Any,
) -> Finding:
    """Return the finding of a stall.

    Args:
        lost_ns: time in which the GPU idled; where that was not sampled, in which training stood still.
        active_pct: utilization of the GPU during it; None = not sampled.
        each: the single stalls; None = all of it lies within many steps, or between them.
        threshold: the limits that fired; None = those on its evidence.
        more: further attributes of `Finding`.
    """
    if active_pct is None:
        evidence["counted"] = "the time training stood still: GPU utilization was not measured"
    confidence = ESTIMATED if active_pct is None and run.used_gpus else MEASURED
    if each is not None:
        more.setdefault("state", each.count >= MANY_TIMES)
        more["pieces"] = intervals(each)
    fired, gpus = None if threshold is None else dict(threshold), run.used_gpus
    return Finding(CAUSE, title, where, lost_ns, confidence, evidence, fired, advice, gpus, detail, **more)
