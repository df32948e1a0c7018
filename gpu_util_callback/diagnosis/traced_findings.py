"""Findings of an imported trace, added to those of the rules for whole runs."""

from collections.abc import Mapping
from typing import Any

__all__ = ["with_trace_findings"]


def with_trace_findings(found: dict[str, Any], of_trace: list[dict[str, Any]]) -> dict[str, Any]:
    """Add findings of a trace that the rules miss for lack of steps.

    The rules judge runs of thousands of steps and need many. A trace holds few, but every
    microsecond of them: its measurements stand, and so does its advice, which knows the stages of
    the input pipeline and the host's activity.
    """
    of_trace = [finding for finding in of_trace if _holds(finding, found["thresholds_set"])]
    measured = {finding["cause"]: finding["advice"] for finding in of_trace}
    found = dict(found)
    for of in ("findings", "spans"):
        found[of] = [_advised(thing, measured.get(thing["cause"])) for thing in found[of]]
    known = {thing["cause"] for thing in [*found["findings"], *found["spans"]]}
    added = [finding for finding in of_trace if finding["cause"] not in known]
    if not added:
        return found
    findings = sorted(
        [*found["findings"], *added], key=lambda f: (f["lost_s"] is None, -(f["lost_s"] or 0.0))
    )
    silent = [
        entry for entry in found["silent"] if entry["cause"] not in {f["cause"] for f in added}
    ]
    verdict = found["verdict"]
    if findings[0] in added:
        verdict = f"{findings[0]['title']}."
    return {**found, "findings": findings, "silent": silent, "verdict": verdict}


def _advised(thing: dict[str, Any], advice: dict[str, str] | None) -> dict[str, Any]:
    """Return a finding with the trace's advice; the minimum saving of another one is not known."""
    if advice is None or advice == thing["advice"]:
        return thing
    return {**thing, "advice": advice, "saves_s": thing["lost_s"]}


def _holds(finding: dict[str, Any], limits_set: Mapping[str, float]) -> bool:
    """Return whether the measurement also crosses the reader's own limits, on the same side."""
    for name, before in finding["threshold"].items():
        value, now = finding["evidence"].get(name), limits_set.get(f"{finding['cause']}.{name}")
        if now is None or not isinstance(value, (int, float)):
            continue
        if (value >= before and value < now) or (value <= before and value > now):
            return False
    return True
