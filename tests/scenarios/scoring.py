"""Findings held against the truth: precision, recall and how well spans overlap, by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from gpu_util_callback.diagnosis import RULES

Truth = Mapping[str, list[tuple[int, int]] | None]


def by_cause(result: Mapping) -> dict[str, list[dict]]:
    """cause -> its spans and findings in a diagnosis."""
    findings: dict[str, list[dict]] = {}
    for finding in [*result["spans"], *result["findings"]]:
        findings.setdefault(finding["cause"], []).append(finding)
    return findings


def iou(truth: list[tuple[int, int]], findings: list[dict], steps: int) -> float:
    """Steps in both over steps in either; a finding without a range holds for all steps."""

    def covered(spans: Iterable[tuple[int, int]]) -> set[int]:
        return {step for first, end in spans for step in range(first, end)}

    found = covered((finding.get("start_step", 0), finding.get("end_step", steps)) for finding in findings)
    meant = covered(truth)
    return len(found & meant) / len(found | meant)


@dataclass
class Score:
    """One cause over many runs."""

    cause: str
    hits: int = 0
    false: int = 0
    missed: int = 0
    overlaps: list[float] = field(default_factory=list)

    @property
    def precision(self) -> float:
        return self.hits / (self.hits + self.false) if self.hits + self.false else 1.0

    @property
    def recall(self) -> float:
        return self.hits / (self.hits + self.missed) if self.hits + self.missed else 1.0

    def __str__(self) -> str:
        overlap = f"{median(self.overlaps):>12.3f}{min(self.overlaps):>7.2f}" if self.overlaps else ""
        return f"{self.cause:<22}{self.hits + self.missed:>6}{self.precision:>11.3f}{self.recall:>8.3f}{overlap}"


def score(outcomes: Iterable[tuple[Truth, Mapping[str, list[dict]], int]], title: str) -> Score:
    """Print the table and return the score over all causes.

    Args:
        outcomes: of each run (truth, findings by cause, steps).
    """
    scores = {rule.cause: Score(rule.cause) for rule in RULES}
    runs = healthy = 0
    for truth, findings, steps in outcomes:
        runs, healthy = runs + 1, healthy + (not truth)
        for cause in {*truth, *findings}:
            one, spans = scores[cause], truth.get(cause)
            there, found = cause in truth, cause in findings
            one.hits += there and found
            one.false += found and not there
            one.missed += there and not found
            if there and found and spans is not None:
                one.overlaps.append(iou(spans, findings[cause], steps))
    every = Score("all")
    for one in scores.values():
        every.hits, every.false = every.hits + one.hits, every.false + one.false
        every.missed, every.overlaps = every.missed + one.missed, every.overlaps + one.overlaps
    print(f"\n{title}: {runs} runs, {healthy} of them healthy")
    print(f"{'cause':<22}{'cases':>6}{'precision':>11}{'recall':>8}{'median IoU':>12}{'min':>7}")
    for one in (*scores.values(), every):
        print(one)
    return every
