"""The base of rules over traces: one cause, its thresholds, its sources, and a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.finding import MEASURED, Advice
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.traces.model import PS_PER_MS

if TYPE_CHECKING:
    from gpu_util_callback.traces.analysis import ProcessAnalysis
    from gpu_util_callback.traces.model import Names

__all__ = ["Finding", "Scene", "TraceRule"]

Finding = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """One process of a trace, as rules see it.

    Attributes:
        p: its steps, GPUs and host.
        names: the names of its events, by number.
        run: the trace's facts about the run (framework, input, GPUs), for advice; it has no rows.
    """

    p: ProcessAnalysis
    names: Names
    run: Run

    @property
    def total_ps(self) -> int:
        """The length of all steps together."""
        return int((self.p.steps.end_ps - self.p.steps.start_ps).sum())

    @property
    def window(self) -> tuple[int, int]:
        """The times of the first step's start and the last one's end, ps; there must be a step."""
        return int(self.p.steps.start_ps[0]), int(self.p.steps.end_ps[-1])

    @property
    def gpus(self) -> list[int]:
        return [d.index for d in self.p.active]

    @property
    def whole(self) -> str:
        """The name of the base of shares: a step, or the trace as one."""
        return "step" if self.p.has_steps else "trace"

    def pct(self, category: str) -> float:
        """Return a category's share of all steps, mean over the GPUs at work; 0 without GPUs."""
        return 100 * self.p.share(category)


class TraceRule:
    """Base of all rules over traces; one subclass per cause, each in its own file.

    A subclass states `cause`, `title`, `sources` (its required data, for people), `thresholds`, and
    `unknown` (its message when the sources are missing), and implements `missing` and `find`.
    Shares are of the traced steps: outside them a trace holds start-up, the profiler itself and
    unrelated work. A rule is silent, never positive, when a source is missing.
    """

    cause: ClassVar[str]
    title: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]
    thresholds: ClassVar[Mapping[str, Threshold]]
    unknown: ClassVar[str]

    def missing(self, scene: Scene) -> bool:
        """Return whether indispensable sources are missing."""
        raise NotImplementedError

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        """Yield the findings of one process; called only when nothing is missing."""
        raise NotImplementedError

    def between(self, scenes: Sequence[Scene], limits: Limits) -> Iterable[Finding]:
        """Yield the findings that only a comparison of processes shows."""
        return ()

    def of_steps(
        self,
        scene: Scene,
        pct: float,
        title: str,
        advice: Advice,
        threshold: Mapping[str, float],
        evidence: Mapping[str, Any],
    ) -> Finding:
        """Return a finding about a share of all steps, on the GPUs at work; see `finding`."""
        return self.finding(
            title, advice, lost_ps=pct / 100 * scene.total_ps, severity=pct / 100,
            gpus=scene.gpus, threshold=threshold, evidence=evidence,
        )  # fmt: skip

    def finding(
        self,
        title: str,
        advice: Advice,
        *,
        lost_ps: float | None,
        severity: float,
        gpus: Sequence[int],
        threshold: Mapping[str, float],
        evidence: Mapping[str, Any],
        ranks: Sequence[int] = (),
    ) -> Finding:
        """Return a finding in the contract's form.

        Args:
            title: a sentence with the number that matters.
            lost_ps: time it cost, mean over the GPUs; None = it cannot be known.
            severity: share of the steps, 0-1.
            threshold: the limits that fired, under the names of the evidence they apply to.
        """
        return {
            "cause": self.cause,
            "title": title,
            "lost_s": None if lost_ps is None else round(lost_ps / PS_PER_MS / 1000, 9),
            "severity": round(severity, 9),
            "confidence": MEASURED,
            "evidence": {name: _digits(value) for name, value in evidence.items()},
            "threshold": dict(threshold),
            "advice": {"text": advice.text, "code": advice.code},
            "gpus": list(gpus),
            "ranks": list(ranks),
        }


def _digits(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
