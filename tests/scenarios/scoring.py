"""Findings held against the truth of a made-up run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from made_up_run import findings_of

from gpu_util_callback.diagnosis import RULES

Truth = Mapping[str, list[tuple[int, int]] | None]  # cause -> spans in steps; None = the whole run
LEAST_IOU = 0.7
CORES = 256  # CPU time in percent counts 100 a core


def by_cause(result: Mapping) -> dict[str, list[dict]]:
    """cause -> its spans and findings in a diagnosis."""
    findings: dict[str, list[dict]] = {}
    for finding in findings_of(result):
        findings.setdefault(finding["cause"], []).append(finding)
    return findings


def iou(truth: list[tuple[int, int]], findings: list[dict], steps: int) -> float:
    """Steps in both over steps in either; a finding without a range holds for all steps."""

    def covered(spans: Iterable[tuple[int, int]]) -> set[int]:
        return {step for first, end in spans for step in range(first, end)}

    found = covered((finding.get("start_step", 0), finding.get("end_step", steps)) for finding in findings)
    meant = covered(truth)
    return len(found & meant) / len(found | meant)


def overlaps(truth: Truth, findings: Mapping[str, list[dict]], steps: int) -> list[float]:
    """How well the findings lie where the causes are, by cause that has a place."""
    return [iou(spans, findings[cause], steps) for cause, spans in truth.items() if spans is not None]


def check(truth: Truth, findings: Mapping[str, list[dict]], steps: int) -> None:
    """Every cause is found where it is, and nothing else; no second is lost twice."""
    assert set(findings) == set(truth)
    assert min(overlaps(truth, findings, steps), default=1) >= LEAST_IOU
    every = [finding for of_cause in findings.values() for finding in of_cause]
    spans = [finding for finding in every if "start_ns" in finding]
    for span in spans:
        inside = [one for one in spans if span["start_ns"] <= one["start_ns"] and one["end_ns"] <= span["end_ns"]]
        lost = sum(one["lost_s"] or 0 for one in inside)
        assert lost <= (span["end_ns"] - span["start_ns"]) / 1e9 * 1.000001
    for finding in every:
        assert finding["lost_s"] is None or finding["lost_s"] > 0, "unknown is null, never 0"
        assert finding["severity"] is None or 0 < finding["severity"] <= 1
        check_shown(finding)


THRESHOLDS = {rule.cause: set(rule.thresholds) for rule in RULES}
MOST = {"_pct": 100 * CORES, "_gib": 1024, "_gb": 1024}


def check_shown(finding: dict) -> None:
    """A finding shows the limit that its numbers passed, and no number that no machine has."""
    evidence = finding["evidence"]
    assert set(finding["threshold"]) <= set(evidence)
    assert finding["threshold"] or not THRESHOLDS[finding["cause"]] & set(evidence)
    for name, value in evidence.items():
        for unit, most in MOST.items():
            assert not name.endswith(unit) or value is None or 0 <= value <= most, (name, value)
