"""Findings of a trace: each process becomes the tables of a recording, which the rules read."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_util_callback.diagnosis import (
    RULES,
    Diagnosis,
    diagnose_together,
    thresholds_in_force,
    thresholds_set,
)
from gpu_util_callback.traces.analysis import Analysis, measure
from gpu_util_callback.traces.hostside import facts
from gpu_util_callback.traces.model import Trace
from gpu_util_callback.traces.output import kernel_rows, step_rows, traced_rows

__all__ = ["analyse"]


def analyse(trace: Trace, thresholds: Mapping | None = None) -> Analysis:
    """Explain a trace: `measure` it, and find the causes of GPU idle time.

    Args:
        thresholds: other limits for the rules, `{"input_bound": {"wait_pct": 10}}` or
            `{"input_bound.wait_pct": 10}`; `gpu-util trace --rules` lists them.

    Raises:
        UnusableInput: a threshold that does not exist or is not a number from 0 on.
    """
    limits = thresholds_in_force(thresholds)
    analysis = measure(trace)
    found = diagnose_together(
        [_diagnosis(analysis, place, limits) for place in range(len(analysis.processes))], limits
    )
    analysis.findings, analysis.silent = found["findings"], found["silent"]
    analysis.thresholds = {
        rule.cause: limits[rule.cause] for rule in RULES if rule.unknown_in_trace
    }
    analysis.thresholds_set = thresholds_set(limits)
    return analysis


def _diagnosis(analysis: Analysis, place: int, limits: Mapping) -> Diagnosis:
    p = analysis.processes[place]
    diagnosis = Diagnosis(facts(p, analysis.trace.names, analysis.wording), limits)
    diagnosis.add({
        "steps": step_rows(p, 0),
        "traced_steps": traced_rows(p, 0, 0, lambda d: d.index),
        "kernels": kernel_rows(p, 0, lambda d: d.index),
    })  # fmt: skip
    return diagnosis
