"""Base class of rules, their findings and advice, and which findings cost enough to be reported."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import SharedSpan
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.evidence.windows import Share
from gpu_util_callback.diagnosis.thresholds import (
    A_FEW,
    A_FIFTH,
    A_QUARTER,
    A_TREND,
    A_TWENTIETH,
    DOUBLE,
    Constant,
    Limits,
    Threshold,
)

Confidence = Literal["measured", "estimated"]
MEASURED: Confidence = "measured"
ESTIMATED: Confidence = "estimated"

Evidence = dict[str, object]
LEAST_GAIN = Constant(1 + A_TWENTIETH, "times faster: equal runs differ by less")
MODELLED = Constant(1.35, "predicted durations of 84 % of the cures that were applied lie within this factor")
EQUAL_RUNS = Constant(1.2, "predicted gains of equal runs differ by 1.18 in the median: closer ones are equal")


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedy: a few sentences for a person who does not know the code, and the line.

    Attributes:
        code: to copy, and to run: no part of the change hides in a comment; `...` stands for
            arguments and statements that are there already.
        saves: share of the lost time (0-1) that it saves: `cache()` still reads everything once, a
            callback every hundredth batch still runs a hundredth of the time. 0 = nothing is promised.
        most: the most that it may save, a share likewise.
        wholly: it may save that much: what is made once may be all that was waited for, or be made before the run.
        alters_training: it changes the computation (batch size, precision), not only its speed.
        before: what the code replaces, where that is known.
        question: a condition was not observed: it helps if the answer is yes, and promises nothing.
        changes: what else it changes, as it is said in the text; "" = nothing.
        remedy: the text without what was observed; "" = there is no remedy, or it is not told apart.
        name: of its entry in a table of advice: equal names are one remedy.
        leaves_out: the advice is to do measured work less often, which saves that work's time; else
            it makes work faster, and a model predicts how long the rest takes then.
        frees_cores: the input computes next to nothing afterwards: steps on a CPU get quicker, too.
        compiles: it replaces Python code that starts each operation. A run does not show how much faster
            the steps can get then: their gain has no upper end.
        untried: why `gpu-util try` cannot measure it; "" = it can where `trying.changes` reads its code.
        proof: what measured that it helps: a program of `gauntlet/`, or a test. Only a question promises without one.
        otherwise: the advice if this one is not worth altering the training for.
    """

    text: str
    code: str = ""
    saves: float = 0.0
    most: float = 1.0
    wholly: bool = False
    alters_training: bool = False
    otherwise: "Advice | None" = None
    before: str = ""
    question: bool = False
    changes: str = ""
    remedy: str = ""
    name: str = ""
    leaves_out: bool = False
    frees_cores: bool = False
    compiles: bool = False
    untried: str = ""
    proof: str = ""


@dataclass(slots=True)
class Finding:
    """Finding of a rule: a cause held over a range (or, with `where=None`, the whole run).

    Attributes:
        lost_ns: time of the run this cause cost; None = it held, but its cost cannot be known.
        detail: distinguishes findings of one cause ("validation", "gpu1"); part of the id.
        evidence: name -> number or text, in the order to show; units in the names.
        threshold: the limits that fired, under the names of the evidence they apply to; None = all that have
            the name of some of the evidence.
        gpus: None = those in use.
        pieces: (start, end) in ns of the times in which all of the loss lies, where they are known;
            empty = anywhere in the range.
        state: seen often enough that more of it will follow, however little it cost so far.
        severity: share of the time (0-1) where it is not that of `lost_ns`.
        ranks: the processes it is about; None = this run's.
        slack_ns: what these steps on a CPU may be quicker by, beyond `lost_ns`, once the input leaves
            them the cores; part of the most that advice which `frees_cores` saves.
        of_ns: duration of the script with several fits that it is about; None = it is about the
            recording alone.
    """

    cause: str
    title: str
    where: Range | None
    lost_ns: int | None
    confidence: Confidence
    evidence: Evidence
    threshold: Evidence | None
    advice: Advice
    gpus: list[int] | None = None
    detail: str = ""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    state: bool = False
    severity: float | None = None
    ranks: list[int] | None = None
    slack_ns: int = 0
    of_ns: int | None = None

    @property
    def saves_ns(self) -> int | None:
        """Time that the advice saves of `lost_ns`; 0 while a question about it is open."""
        if self.lost_ns is None:
            return None
        return 0 if self.advice.question else round(self.lost_ns * self.advice.saves)

    def saves_range_ns(self, present_ns: int, on_cpu: bool) -> tuple[int, int | None] | None:
        """Return the least and the most time that the advice saves; None if nothing is promised.

        The most is None where a run does not show what would limit it.

        No more is saved than is lost, but for advice which frees cores that the steps share, and for
        advice to compile: steps of 178 ms took 1.03 ms where 90 % of them were lost, measured.

        Args:
            present_ns: duration of the steps that it concerns, which end up shorter by the saving.
            on_cpu: whether the steps share the cores, the caches and Python's lock with their input.
        """
        if not self.lost_ns or not self.advice.saves:
            return None
        saved_ns = self.lost_ns * self.advice.saves
        if self.advice.leaves_out:  # work is left out: the saving is known but for the scatter of equal runs
            return round(saved_ns / EQUAL_RUNS), round(min(saved_ns * EQUAL_RUNS, self.lost_ns))
        # Steps on a CPU get quicker once the input frees the cores.
        slack_ns = self.slack_ns if on_cpu and self.advice.frees_cores else 0
        after_ns = max(0.0, present_ns - saved_ns)
        least_ns = max(0.0, present_ns - after_ns * MODELLED)
        if self.advice.compiles and present_ns >= LEAST_GAIN * (present_ns - least_ns):  # no upper end is known
            return round(min(least_ns, saved_ns)), None
        limit, most = self.lost_ns * self.advice.most + slack_ns, present_ns - max(0.0, after_ns - slack_ns) / MODELLED
        most = limit if self.advice.wholly else min(most, limit)
        return round(min(least_ns, saved_ns)), round(max(saved_ns, most))


Findings = Iterable[Finding]


def all_findings(report: Mapping) -> list[Mapping]:
    """Return the findings in a report of one run: about the run, and about its spans."""
    return [*report["findings"], *report["spans"]]


def own_findings(report: Mapping) -> list[Mapping]:
    """Return the findings about the recording alone, not about all fits of a script."""
    return [finding for finding in all_findings(report) if not finding.get("of_s")]


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
        voids: until it is fixed there is no advice on the same part of the account: other data are meant to come.
        idling: it loses time only while the GPU idles, outside of the work of steps.
        between_steps: its time lies between steps, mostly at the ends of epochs.
        slowing: it slows down one GPU, so that others wait for it.
        comparing: it compares GPUs or workers: none is judged alone.
        between_fits: its time lies between the fits of a script.
        unnamed: detail of its findings about time that nothing names, which are never a fix.
        unused: its GPUs do nothing all the time, and the training's own time is not lost by it.
        forecast: its title says all of a finding without a known cost, such as one that ends the run some day.
        halts: nothing trains meanwhile, which the recorder says at once. Where that is most of the run, or goes
            on, nothing else is worth fixing first. Its severity is the share of the run.
    """

    cause: ClassVar[str]
    title: ClassVar[str]
    look: ClassVar[tuple[str, str]]
    sources: ClassVar[tuple[str, ...]]
    thresholds: ClassVar[Mapping[str, Threshold]] = {}
    unknown: ClassVar[str]
    unknown_in_trace: ClassVar[str] = ""
    opening: ClassVar[str] = ""
    opening_without_gpu: ClassVar[str] = ""
    opening_if_large: ClassVar[str] = ""
    part: ClassVar[str] = ""
    blocking: ClassVar[bool] = False
    voids: ClassVar[bool] = False
    idling: ClassVar[bool] = False
    between_steps: ClassVar[bool] = False
    slowing: ClassVar[bool] = False
    comparing: ClassVar[bool] = False
    between_fits: ClassVar[bool] = False
    unnamed: ClassVar[str] = ""
    unused: ClassVar[bool] = False
    forecast: ClassVar[bool] = False
    halts: ClassVar[bool] = False

    def missing(self, run: Run) -> bool:
        """Return whether the sources without which nothing can be judged are missing."""
        raise NotImplementedError

    def find(self, run: Run, limits: Limits) -> Findings:
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
        gpus: Iterable[int] | None = None,
        **more: Any,
    ) -> Finding:
        """Return a finding of this cause: by default of the whole run, of unknown cost, and measured.

        Args:
            evidence, advice, where, lost_ns, confidence, threshold, gpus: as in `Finding`.
            title: by default the rule's.
            more: further attributes of `Finding`.
        """
        return Finding(
            cls.cause,
            cls.title if title is None else title,
            where,
            lost_ns,
            confidence,
            evidence,
            None if threshold is None else dict(threshold),
            advice,
            None if gpus is None else list(gpus),
            **more,
        )

    def loss(
        self,
        share: Share,
        advice: Advice,
        evidence: Evidence,
        of_trace: str,
        detail: str = "",
        threshold: Mapping[str, float] | None = None,
    ) -> Finding:
        """Return a finding for the steps of a share: measured if all steps were traced, else estimated.

        Args:
            share: time of GPU categories over a range; see `Share`.
            of_trace: its title where all steps of a trace are its range.
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
            detail=detail,
        )

    def of_stretch(
        self, stretch: SharedSpan, *, evidence: Evidence, lost_ns: int | None = None, **more: Any
    ) -> Finding:
        """Return a finding for a stretch of samples in which GPUs lose time.

        Args:
            lost_ns: None = what the slowest GPU lost in the stretch.
        """
        lost_ns = stretch.lost_ns if lost_ns is None else lost_ns
        evidence, gpus = {"gpu": stretch.gpus[0]} | evidence, stretch.gpus
        return self.finding(
            where=stretch.where, lost_ns=lost_ns, confidence=ESTIMATED, evidence=evidence, gpus=gpus, **more
        )

    def part_of(self, detail: str) -> str:
        """Return the part of the host account in which a finding of this detail is counted."""
        return self.part

    def between(self, runs: Sequence[Run], limits: Limits) -> Findings:
        """Yield the findings that only a comparison of the processes of one trace shows."""
        return ()


SLICE_MS = Constant(3, "Linux gives another thread the core for 3 ms: a host that lost it once stalls as long")
SURE_GAIN = Constant(0.15, "so large a gain shows however unsteady the steps are; less shows from twice their scatter")
PARTS, FEWEST_PARTS = 16, 4  # of the steps, to compare their pace


def significant(findings: Findings, present_ns: int, limits: Limits) -> list[Finding]:
    """Return the findings whose kind cost enough of the run.

    That is at least `min_run_pct` of the run or `always_s` seconds, and `least_s` seconds in any
    case. Findings with the same `detail` (a GPU, a callback) are added up: a cause that comes and
    goes costs as much as one that stays. Spans that are small compared to others of their kind are
    left out.

    Args:
        findings: of one cause; those of unknown loss are kept.
        present_ns: duration of the run without times in which the process was stopped.
        limits: the cause's thresholds.
    """
    enough_ns = limits["min_run_pct"] / 100 * present_ns
    if "always_s" in limits:
        enough_ns = min(enough_ns, limits["always_s"] * 1e9)
    findings = list(findings)
    by_kind: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.lost_ns:
            by_kind.setdefault(finding.detail, []).append(finding)
    kept = [finding for finding in findings if finding.lost_ns is None]
    for kind in by_kind.values():
        total_ns = sum(finding.lost_ns or 0 for finding in kind)
        if total_ns >= enough_ns and not negligible(kind, limits):
            least_ns = A_QUARTER * min(enough_ns, total_ns / len(kind))  # small among its kind: left out
            kept += [finding for finding in kind if (finding.lost_ns or 0) >= least_ns]
    return kept


def negligible(findings: Findings, limits: Limits) -> bool:
    """Return True if findings of a kind cost too little: under `least_s` in all, or a fifth of it as a state."""
    findings = list(findings)
    share = A_FIFTH if any(finding.state for finding in findings) else 1
    return sum(finding.lost_ns or 0 for finding in findings) < share * limits["least_s"] * 1e9


def in_many_steps(total_ns: int, top_ns: np.ndarray) -> bool:
    """Return whether many steps share a total: no single one, of at most `top_ns`, holds much of it."""
    return total_ns >= A_TREND * int(top_ns.max())


def shows(run: Run, lost_ns: int) -> bool:
    """Return True if a run without this loss (ns) is faster by more than its scatter explains."""
    gain = lost_ns / max(1, run.wall_ns - lost_ns)
    return gain >= max(LEAST_GAIN - 1, min(SURE_GAIN, DOUBLE * _scatter(run)))


def one_interruption(run: Run, finding: Finding) -> bool:
    """Return whether a loss in a trace of one or two steps may be one interruption of the host."""
    has_few_steps = run.source is not None and run.steps.total_rows < A_FEW
    return has_few_steps and finding.lost_ns is not None and finding.lost_ns < SLICE_MS * 1e6


def _scatter(run: Run) -> float:
    """Return the typical relative deviation of the pace of a run's parts from its median; 0.0 with too few parts.

    Waits, callbacks and compiling are excluded from the pace: they are what is diagnosed.
    """
    steps = run.steps
    # Rows of the array: own ns, number of steps.
    parts = np.array_split(np.stack([steps.own_ns, steps["rows"]]), min(PARTS, len(steps)), axis=1)
    if len(parts) < FEWEST_PARTS:
        return 0.0
    pace = np.array([part[0].sum() / max(1, part[1].sum()) for part in parts])
    low, middle, high = np.percentile(pace, [25, 50, 75])
    # Half of the quartiles' distance, as a share of the median.
    return float((high - low) / 2 / middle) if middle > 0 else 0.0
