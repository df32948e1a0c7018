"""Base class of rules."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.windows import Share
from gpu_util_callback.diagnosis.finding import ESTIMATED, MEASURED, Advice, Confidence, Evidence, Finding, Range
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold


class Rule:
    """Base of all rules; one subclass per cause, each in its own file.

    A subclass states `cause`, `title`, `sources` (its inputs, for people), `thresholds`, and
    `unknown` (its message if sources are missing), and implements `missing` and `find`. A rule is
    silent, never positive, when a source is missing.

    A rule that profiler traces have the sources of says so with `unknown_in_trace`, its message if
    one of them lacks them. `run.source` then tells a trace, whose few steps are timed exactly, from
    a recording.

    Attributes:
        look: its glyph, which no other cause has, and the name of its colour in the tab's palette.
        opening: beginning of a verdict about it; "" = the finding's title. Two more are for a run
            without a GPU in use, and for a large loss.
        part: of the host account, in which its time is counted.
        blocking: nothing else is worth fixing first (the framework does not use the GPU).
        idling: it loses time only while the GPU idles, outside of the work of steps.
        between_steps: its time lies between steps, mostly at the ends of epochs.
        slowing: it slows down one GPU, so that others wait for it.
        comparing: it compares GPUs or workers: none is judged alone.
        between_fits: its time lies between the fits of a script.
        unnamed: detail of its findings about time that nothing names, which are never a fix.
        unused: its GPUs do nothing all the time, and the training's own time is not lost by it.
        forecast: it costs nothing until it ends the run: its title says so.
    """

    cause: ClassVar[str]
    title: ClassVar[str]
    look: ClassVar[tuple[str, str]]
    sources: ClassVar[tuple[str, ...]]
    thresholds: ClassVar[Mapping[str, Threshold]]
    unknown: ClassVar[str]
    unknown_in_trace: ClassVar[str] = ""
    opening: ClassVar[str] = ""
    opening_without_gpu: ClassVar[str] = ""
    opening_if_large: ClassVar[str] = ""
    part: ClassVar[str] = ""
    blocking: ClassVar[bool] = False
    idling: ClassVar[bool] = False
    between_steps: ClassVar[bool] = False
    slowing: ClassVar[bool] = False
    comparing: ClassVar[bool] = False
    between_fits: ClassVar[bool] = False
    unnamed: ClassVar[str] = ""
    unused: ClassVar[bool] = False
    forecast: ClassVar[bool] = False

    def missing(self, run: Run) -> bool:
        """Return whether the sources without which nothing can be judged are missing."""
        raise NotImplementedError

    def find(self, run: Run, limits: Limits) -> Iterable[Finding]:
        """Yield the findings of this cause; called only if no source is missing."""
        raise NotImplementedError

    @classmethod
    def finding(
        cls,
        *,
        evidence: Evidence,
        advice: Advice,
        title: str | None = None,
        where: Range | None = None,
        lost_ns: int | None = None,
        confidence: Confidence = MEASURED,
        threshold: Mapping[str, object] | None = None,
        gpus: Iterable[int] = (),
        **more: Any,
    ) -> Finding:
        """Return a finding of this cause: of the whole run and of unknown cost, unless given.

        Args:
            title: by default the rule's.
            threshold: the limits that fired, of `chosen` where the evidence has the same names.
            more: further attributes of `Finding`.
        """
        return Finding(
            cls.cause,
            cls.title if title is None else title,
            where,
            lost_ns,
            confidence,
            evidence,
            dict(threshold or {}),
            advice,
            list(gpus),
            **more,
        )

    def loss(
        self, share: Share, advice: Advice, threshold: Mapping[str, float], evidence: Evidence, of_trace: str
    ) -> Finding:
        """Return a finding for the steps of a share.

        Args:
            of_trace: its title where they are all steps of a trace.
        """
        return self.finding(
            title=of_trace if share.exact else None,
            where=share.where,
            lost_ns=share.lost_ns,
            confidence=MEASURED if share.exact else ESTIMATED,
            evidence=evidence if share.exact else evidence | {"traced_steps": share.steps},
            threshold=threshold,
            advice=advice,
            gpus=share.gpus,
            severity=share.pct / 100 if share.exact else None,
        )

    def part_of(self, detail: str) -> str:
        """Return the part of the host account in which a finding of this detail is counted."""
        return self.part

    def between(self, runs: Sequence[Run], limits: Limits) -> Iterable[Finding]:
        """Yield the findings that only a comparison of the processes of one trace shows."""
        return ()
