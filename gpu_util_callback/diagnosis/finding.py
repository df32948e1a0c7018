"""Results of rules: ranges, findings and advice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpu_util_callback.diagnosis.thresholds import A_TWENTIETH, Constant

Confidence = Literal["measured", "estimated"]
MEASURED: Confidence = "measured"
ESTIMATED: Confidence = "estimated"

Evidence = dict[str, object]
LEAST_GAIN = 1 + A_TWENTIETH  # times faster
MODELLED = Constant(1.35, "predicted durations of 84 % of the cures that were applied lie within this factor")
EQUAL_RUNS = Constant(1.2, "predicted gains of equal runs differ by 1.18 in the median: closer ones are equal")


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedy: a few sentences for a person who does not know the code, and the line.

    Attributes:
        code: to copy, and to run: no part of the change hides in a comment; `...` stands for
            arguments and statements that are there already.
        saves: share of the lost time (0-1) that it saves: `cache()` still reads everything once, a
            callback every hundredth batch still runs a hundredth of the time.
        alters_training: it changes the computation (batch size, precision), not only its speed.
        before: what the code replaces, where that is known.
        question: a condition was not observed: it helps if the answer is yes, and promises nothing.
        changes: what else it changes, as it is said in the text; "" = nothing.
        name: of its entry in a table of advice: equal names are one remedy.
        leaves_out: the advice is to do measured work less often, which saves that work's time; else
            it makes work faster, and a model predicts how long the rest takes then.
        frees_cores: the input computes next to nothing afterwards: steps on a CPU get quicker, too.
        otherwise: the advice if this one is not worth altering the training for.
    """

    text: str
    code: str = ""
    saves: float = 1.0
    alters_training: bool = False
    otherwise: "Advice | None" = None
    before: str = ""
    question: bool = False
    changes: str = ""
    name: str = ""
    leaves_out: bool = False
    frees_cores: bool = False

    def worth_altering(self, gain: float, least: float) -> "Advice":
        """Return its alternative if it alters the training for less than `least`, else itself."""
        if not self.alters_training or gain >= least:
            return self
        if self.otherwise is not None:
            return self.otherwise.worth_altering(gain, least)
        return Advice(
            "What helps here is a change of the training itself, of its batch size or precision, "
            f"and gains less than {100 * (least - 1):.0f} %: leave it as it is.",
            "",
            0.0,
        )


@dataclass(frozen=True, slots=True)
class Range:
    """Extent of a finding: half-open in steps and in nanoseconds since the epoch."""

    start_step: int
    end_step: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Finding:
    """Finding of a rule: a cause held over a range (or, with `where=None`, the whole run).

    Attributes:
        lost_ns: time of the run this cause cost; None = it held, but its cost cannot be known.
        detail: distinguishes findings of one cause ("validation", "gpu1"); part of the id.
        evidence: name -> number or text, in the order to show; units in the names.
        threshold: the limits that fired, under the names of the evidence they apply to.
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
    threshold: Evidence
    advice: Advice
    gpus: list[int] = field(default_factory=list)
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

    def saves_range_ns(self, present_ns: int, on_cpu: bool) -> tuple[int, int] | None:
        """Return the least and the most time that the advice saves; None if nothing is promised.

        No more is saved than is lost, but for advice which frees cores that the steps share.

        Args:
            present_ns: duration of the steps that it concerns, which end up shorter by the saving.
            on_cpu: whether the steps share the cores, the caches and Python's lock with their input.
        """
        if not self.lost_ns or not self.advice.saves:
            return None
        saved = self.lost_ns * self.advice.saves
        if self.advice.leaves_out:
            return round(saved / EQUAL_RUNS), round(min(saved * EQUAL_RUNS, self.lost_ns))
        slack_ns = self.slack_ns if on_cpu and self.advice.frees_cores else 0
        after = max(0.0, present_ns - saved)
        least = max(0.0, present_ns - after * MODELLED)
        most = min(present_ns - max(0.0, after - slack_ns) / MODELLED, self.lost_ns + slack_ns)
        return round(min(least, saved)), round(max(saved, most))


def all_findings(report: Mapping) -> list[Mapping]:
    """Return the findings in a report of one run: about the run, and about its spans."""
    return [*report["findings"], *report["spans"]]


def own_findings(report: Mapping) -> list[Mapping]:
    """Return those about the recording alone, not about all fits of a script."""
    return [finding for finding in all_findings(report) if not finding.get("of_s")]
