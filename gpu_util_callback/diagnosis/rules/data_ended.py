"""Data ended: epochs or validations after the first had few of its batches, or none."""

import numpy as np

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice, Finding, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold


class DataEnded(Rule):
    """An iterator that can be read once was used up in the first epoch.

    Keras keeps the first two batches of a generator, from which it learns the shapes, and puts them before
    the rest in each epoch: once the generator is used up, an epoch trains on these two alone. In a loop of
    one's own such an epoch has no step at all. The cost is no time, but a model trained on other data than
    was meant: before this is fixed, no speed is worth a look.
    """

    cause = "data_ended"
    title = "The data are used up"
    look = "∅", "red"
    blocking = True
    voids = True
    part = "input_wait"
    sources = ("the steps of each epoch", "the batches of each validation", "the kind of the input")
    thresholds = {"batches_then": Threshold(2, "Keras keeps the first two batches of a generator, and repeats them")}
    unknown = "no epoch or validation was followed by another"

    def part_of(self, detail: str) -> str:
        return detail or self.part

    def missing(self, run: Run) -> bool:
        several = max(len(run.epoch_steps), len(run.validation_batches)) > 1
        return run.source is not None or bool(run.trainer) or not several

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield a finding for epochs, and one for validations, of which later ones had hardly a batch."""
        first_epoch = int(run.fit.get("first_epoch") or 0) + 1
        ended = run.phases.of("validation", account="validation").get("")
        count = ended.count if ended is not None else 0
        validations = np.array(list(run.validation_batches.values())[:count], np.int64)
        # Of a given number of steps only an epoch that another one follows is known to have found no more.
        may_be_stopped = not run.custom_loop and bool(run.fit.get("input_one_iterator"))
        # `first`: number of the first one; `cut`: the last one may have been stopped.
        for name, kind, batches, first, cut in (
            ("epoch", run.input_kind, run.epoch_steps, first_epoch, may_be_stopped),
            ("validation", str(run.fit.get("validation_kind", "")).lower(), validations, 1, False),
        ):
            most = int(limits["batches_then"]) if kind == "generator" and not run.custom_loop else 0
            short = np.flatnonzero(batches <= most)
            longest = int(batches.max(initial=0))
            # A loop may poll a source that gives nothing for a while.
            at_the_end = len(short) and short[0] == len(batches) - len(short)
            # All are short, none is, or not those at the end.
            if longest <= most or not len(short) or (run.custom_loop and not at_the_end):
                continue
            if cut and len(short) == 1 and at_the_end:
                continue
            yield self._finding(run, name, kind, short + first, int(batches[short].max()), longest)

    def _finding(self, run: Run, name: str, kind: str, numbers: np.ndarray, then: int, longest: int) -> Finding:
        """Return the finding that data were used up.

        Args:
            name: "epoch" or "validation".
            numbers: int64 (n,), of the short ones, from 1.
            then: most batches of a short one.
            longest: batches of the longest one.
        """
        in_turn = len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
        which = f"{numbers[0]}–{numbers[-1]}" if in_turn else ", ".join(map(str, numbers[:3].tolist()))
        more = ", …" if not in_turn and len(numbers) > 3 else ""
        place = f"{name.capitalize()}{'s' if len(numbers) > 1 else ''} {which}{more}"
        unit = "steps" if name == "epoch" else "batches"
        what = "generator" if kind == "generator" else "dataset that it reads"
        repeats = "; Keras repeats its first two batches" if then else ""
        return self.finding(
            title=f"{place} had {then} of {longest:,} {unit}: the {what} is used up{repeats}",
            evidence={f"short_{name}s": len(numbers), "batches_then": then, "batches_first": longest},
            advice=_advice(run, name, what, longest),
            detail="" if name == "epoch" else name,
        )


def _advice(run: Run, name: str, what: str, batches: int) -> Advice:
    """Return the advice to let data begin again.

    Args:
        name: "epoch" or "validation".
        what: of the program is used up, such as "generator".
        batches: number of them in each.
    """
    if run.custom_loop:
        return Advice(f"A {what} gives its batches once: make another for each {name}.")
    each, passed, steps, function = "an epoch", "", "steps_per_epoch", str(run.fit.get("input_class") or "")
    if name == "validation":
        each, passed, steps, function = "a validation", "..., validation_data=", "validation_steps", ""
    function = function if function.isidentifier() else "make_batches"
    return Advice(
        f"A {what} gives its batches once. Let it begin again when it has ended, and say how many batches {each} has.",
        f"def endless():\n    while True:\n        yield from {function}(...)\n"
        f"model.fit({passed}endless(), {steps}={batches}, ...)",
    )
