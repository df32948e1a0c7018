"""What a rule is: one cause, its thresholds, its sources, and a pure function over a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gpu_util_callback.diagnosis._thresholds import Limits, Threshold

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis._run import Run

__all__ = ["ESTIMATED", "MEASURED", "Advice", "Evidence", "Loss", "Range", "Rule"]

MEASURED = "measured"
ESTIMATED = "estimated"

Evidence = dict[str, object]


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do: a few sentences for a person who does not know the code, and the line.

    Attributes:
        code: to copy; `...` stands for the arguments and statements that are there already.
        saves: share of the lost time (0-1) that doing so saves: `cache()` still reads everything
            once, a callback every hundredth batch still runs a hundredth of the time.
    """

    text: str
    code: str = ""
    saves: float = 1.0


@dataclass(frozen=True, slots=True)
class Range:
    """Where something held: half-open in steps and in nanoseconds since the epoch."""

    start_step: int
    end_step: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Loss:
    """One claim of a rule: a cause held over a range (or, with `where=None`, the whole run).

    Attributes:
        lost_ns: time of the run this cause cost; None = it held, but its cost cannot be known.
        detail: tells several claims of one cause apart ("validation", "gpu1"); part of the id.
        evidence: name -> number or text, in the order to show; units in the names.
        threshold: the limits that fired, under the names of the evidence they apply to.
        pieces: (start, end) in ns of the times in which all of the loss lies, where they are known;
            empty = anywhere in the range.
        state: it was seen so often that more of it will follow, however little it cost by now.
        blocking: nothing else is worth fixing first (the framework does not use the GPU).
    """

    cause: str
    title: str
    where: Range | None
    lost_ns: int | None
    confidence: str
    evidence: Evidence
    threshold: Evidence
    advice: Advice
    gpus: list[int] = field(default_factory=list)
    detail: str = ""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    state: bool = False
    blocking: bool = False

    @property
    def saves_ns(self) -> int | None:
        """What the advice saves of `lost_ns`."""
        return None if self.lost_ns is None else round(self.lost_ns * self.advice.saves)


class Rule:
    """Base of all rules; one subclass per cause, each in its own file.

    A subclass states `cause`, `title`, `sources` (what it needs, for people), `thresholds`, and
    `unknown` (what it says when its sources are missing), and implements `missing` and `find`.
    A rule is silent, never positive, when a source is missing.
    """

    cause: ClassVar[str]
    title: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]
    thresholds: ClassVar[Mapping[str, Threshold]]
    unknown: ClassVar[str]

    def missing(self, run: "Run") -> bool:
        """Whether the sources without which nothing can be said are missing."""
        raise NotImplementedError

    def find(self, run: "Run", limits: Limits) -> Iterable[Loss]:
        """The claims of this cause; called only when nothing is missing."""
        raise NotImplementedError
