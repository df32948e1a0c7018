"""Tables of advice: condition, words, code and gain of a remedy stand together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_util_callback.diagnosis.rule import EQUAL_RUNS, LEAST_GAIN, MODELLED, Advice

Words = str | Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One remedy.

    Texts and code are templates: `{pace}` stands for the property `pace` of the measure. What a
    property cannot say is a function of the measure.

    Attributes:
        name: what tests call it.
        when: whether its conditions were observed in this run; by default always.
        of: the measure that all the others are asked about, made of the one at hand; by default that itself.
        says: the observation, one or two sentences; by default the property of this name.
        remedy: what to do, an imperative without its full stop; "" for a limit without a remedy.
        code: what to paste; `before`: what it replaces.
        saves: the share (0-1) of the lost time that it saves, predicted from the limits.
        most: the share that may be gone where it leaves out work wholly; None = the prediction's own scatter.
        asks: a question whose answer must be yes, because nothing in the run answers it; "" = nothing to ask.
        alters_training: it changes the computation, not only its speed.
        changes: what else it changes: the order of samples, weights, a metric, memory.
        frees_cores: the input computes next to nothing afterwards, so that steps on a CPU have the cores.
        untried: why `gpu-util try` cannot measure it, where the code reads as if it could.
        proof: what measured its gain: a program of `gauntlet/`, or a test; "" = nothing has yet.
    """

    name: str
    when: Callable[[Any], bool] = lambda measure: True
    of: Callable[[Any], Any] = lambda measure: measure
    says: Words = "{says}"
    remedy: Words = ""
    code: Words = ""
    saves: Callable[[Any], float] = lambda measure: 0.0
    most: Callable[[Any], float] | None = None
    asks: Words = ""
    changes: Words = ""
    alters_training: bool = False
    before: Words = ""
    frees_cores: bool | Callable[[Any], bool] = False
    untried: str = ""
    proof: Words = ""

    def question(self, measure: Any) -> str:
        """Return what a measure leaves open of the conditions; "" where all of them were observed."""
        return _filled(self.asks, self.of(measure))

    def advice(self, measure: Any, saves: float | None = None) -> Advice:
        """Return the advice with its templates filled by a measure's properties.

        Args:
            saves: share (0-1) of the lost time saved, if it was computed before; None = computed here.
        """
        question, measure = self.question(measure), self.of(measure)
        remedy, changes = _filled(self.remedy, measure), _filled(self.changes, measure)
        if question:  # the remedy depends on the answer: it goes behind it
            remedy = f"{question} If so, {remedy[:1].lower()}{remedy[1:]}"
        if changes:
            remedy += f"; this changes {changes}"
        remedy = remedy and f"{remedy}."
        sentences = [_filled(self.says, measure), remedy]
        return Advice(
            " ".join(filter(None, sentences)),
            _filled(self.code, measure),
            self.saves(measure) if saves is None else saves,
            most=1.0 if self.most is None else self.most(measure),
            wholly=self.most is not None,
            before=_filled(self.before, measure),
            question=bool(question),
            remedy=remedy,
            name=self.name,
            alters_training=self.alters_training,
            otherwise=Advice(sentences[0]) if self.alters_training else None,
            changes=changes,
            untried=self.untried,
            proof=_filled(self.proof, measure),
            frees_cores=self.frees_cores(measure) if callable(self.frees_cores) else self.frees_cores,
        )


def choose(entries: Sequence[Entry], measure: Any) -> Advice | None:
    """Return the advice of the best remedy; None if none helps.

    That is the first of those whose gain is about the highest. A question is chosen only where no remedy without one
    helps: an unanswered condition may not hold.

    Args:
        measure: what entries are asked about; its `gain(saves)` is how many times faster its place gets if this share
            of the loss is saved.
    """
    applicable = [(entry, entry.saves(entry.of(measure))) for entry in entries if entry.when(measure)]
    # Gains within the factor `alike` count as equal; of questions the ranges are wider.
    for is_question, tolerance in ((False, EQUAL_RUNS), (True, MODELLED**2)):
        gains = [
            (measure.gain(saves), entry, saves)
            for entry, saves in applicable
            if bool(entry.question(measure)) == is_question and measure.gain(saves) >= LEAST_GAIN
        ]
        highest = max((gain for gain, _, _ in gains), default=0.0)
        for gain, entry, saves in gains:
            if gain * tolerance >= highest:
                return entry.advice(measure, saves)
    return None


def first_holding(entries: Sequence[Entry], measure: Any) -> Advice:
    """Return the advice of the first entry whose condition holds, without comparing gains."""
    return next(entry for entry in entries if entry.when(measure)).advice(measure)


class _Properties:
    def __init__(self, measure: Any):
        self.measure = measure

    def __getitem__(self, name: str) -> Any:
        return getattr(self.measure, name)


def _filled(template: Words, measure: Any) -> str:
    """Return a template with the measure's properties in its fields, or what a function makes of the measure."""
    if not isinstance(template, str):
        return template(measure)
    return template.format_map(_Properties(measure)) if "{" in template else template
