"""Findings of a trace: runs the rules over its processes and sorts the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.thresholds import Limits, changed, resolve
from gpu_util_callback.traces.frameworks import facts
from gpu_util_callback.traces.rules import RULES, Finding, Scene

if TYPE_CHECKING:
    from gpu_util_callback.traces.analysis import Analysis, ProcessAnalysis

__all__ = ["find", "find_in", "limits_of", "thresholds_set"]

_DECLARED = {rule.cause: rule.thresholds for rule in RULES}


def limits_of(thresholds: Mapping | None) -> dict[str, dict[str, float]]:
    """Return the thresholds in force, by cause and name.

    Args:
        thresholds: `{"input_bound": {"wait_pct": 10}}` or `{"input_bound.wait_pct": 10}`.

    Raises:
        UnusableInput: a threshold that does not exist or is not a number.
    """
    return resolve(_DECLARED, thresholds)


def thresholds_set(analysis: Analysis) -> dict[str, float]:
    """Return an analysis's thresholds other than the default: `{"input_bound.wait_pct": 10}`."""
    return changed(_DECLARED, analysis.thresholds)


def find(analysis: Analysis) -> tuple[list[Finding], list[dict[str, str]]]:
    """Find the causes of GPU idle time in a trace.

    Returns:
        The findings, the one that lost most time first; and the causes that no process of the
        trace allows to judge, `{"cause", "reason"}`.
    """
    scenes = _scenes(analysis, analysis.processes)
    findings = _merged(f for scene in scenes for f in _of_process(scene, analysis.thresholds))
    for rule in RULES:
        findings.extend(rule.between(scenes, analysis.thresholds[rule.cause]))
    found = {finding["cause"] for finding in findings}
    silent = [
        {"cause": rule.cause, "reason": rule.unknown}
        for rule in RULES
        if rule.cause not in found and all(rule.missing(scene) for scene in scenes)
    ]
    return _in_order(findings), silent


def find_in(p: ProcessAnalysis, analysis: Analysis) -> list[Finding]:
    """Return the findings of one process."""
    return _in_order(_merged(_of_process(_scenes(analysis, [p])[0], analysis.thresholds)))


def _scenes(analysis: Analysis, processes: Iterable[ProcessAnalysis]) -> list[Scene]:
    names, said = analysis.trace.names, analysis.wording
    return [Scene(p, names, Run(facts(p, said), floor_ns=0)) for p in processes]


def _of_process(scene: Scene, limits: Mapping[str, Limits]) -> list[Finding]:
    rank = scene.p.process.rank
    ranks = [] if rank is None else [rank]
    return [
        {**finding, "ranks": ranks}
        for rule in RULES
        if not rule.missing(scene)
        for finding in rule.find(scene, limits[rule.cause])
    ]


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge a cause of several GPUs or processes; numbers and advice are of the worst one.

    They run in parallel: time lost by several of them is lost once.
    """
    alike: dict[str, Finding] = {}
    for finding in _in_order(list(findings)):
        first = alike.setdefault(finding["cause"], finding)
        if first is not finding:
            for of in ("gpus", "ranks"):
                first[of] = sorted({*first[of], *finding[of]})
    return list(alike.values())


def _in_order(findings: list[Finding]) -> list[Finding]:
    """Return findings sorted by time lost (unknown last), with ids that are unique and stable."""
    findings = sorted(findings, key=lambda f: (f["lost_s"] is None, -(f["lost_s"] or 0.0)))
    seen: dict[str, int] = {}
    result: list[dict[str, Any]] = []
    for finding in findings:
        cause = finding["cause"]
        seen[cause] = seen.get(cause, 0) + 1
        key = cause if seen[cause] == 1 else f"{cause}.{seen[cause]}"
        result.append({**finding, "id": key})
    return result
