"""A trial: two sides in turns until their ratio is told from 1, and what it says."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from gpu_util_callback.trying.changes import Change
from gpu_util_callback.trying.children import Side, Timed
from gpu_util_callback.trying.estimate import FEWEST_PAIRS, MOST_PAIRS, Estimate, estimate, looks
from gpu_util_callback.trying.outcomes import factor_text
from gpu_util_callback.words import between, counted, duration, precise

RESOLVED_SHARE = 0.03  # a change that further pairs are to resolve
LOSS_ROUNDING = 1e-5  # relative difference of losses that is rounding
MEMORY_FACTOR = 1.1  # times as much memory is a difference to name
UNTIMED = "No epoch's end was timed: later passes, validation and what else follows do not count (--seconds)."


@dataclass
class Trial:
    """The measured sides, and the ratio of their times.

    Attributes:
        words: what is changed; "" for two commands.
        line: to paste; "" for two commands.
        between: what passes between epochs counts too, validation included, where all children timed whole ones.
        first, second: what the children of each side measured, in the order of the pairs.
        took_s: wall time of all children, start and warm-up included.
        look_count: how often the growing data may be looked at.
    """

    words: str
    line: str = ""
    between: bool = False
    first: list[Timed] = field(default_factory=list)
    second: list[Timed] = field(default_factory=list)
    took_s: float = 0.0
    look_count: int = 1

    @property
    def estimate(self) -> Estimate:
        """The ratio of seconds a step."""
        return estimate(self.ms(self.first), self.ms(self.second), self.look_count)

    @property
    def counts_between(self) -> bool:
        """True if what passes between epochs counts."""
        return self.between and all(side.epochs for side in (*self.first, *self.second))

    def ms(self, sides: Sequence[Timed]) -> list[float]:
        """Return milliseconds a step of each child."""
        return [side.ms(self.counts_between) for side in sides]

    @property
    def unit(self) -> str:
        """Length of a measurement: "200 steps", "3 epochs"."""
        side = self.first[0]
        whole = side.epochs and (self.counts_between or not self.between)
        return counted(side.epochs, "epoch") if whole else counted(side.steps, "step")

    def sentence(self) -> str:
        """Return the outcome in a line: the times of both sides with their ratio, or that no change is resolved."""
        ratio = self.estimate
        factor = factor_text(ratio.ratio, ratio.low, ratio.high)
        before, after = (fmean(self.ms(sides)) for sides in (self.first, self.second))  # ms a step
        name = f"{self.words}: " if self.words else ""
        pairs = f"{counted(ratio.pairs, 'pair')} of {self.unit}, {duration(self.took_s)}"
        if not ratio.resolved:
            more, share = ratio.pairs_for(RESOLVED_SHARE), f"{100 * RESOLVED_SHARE:.0f} %"
            further = f"{counted(more, 'more pair')} would resolve {share}" if more else f"{share} would show"
            return f"{name}no change resolved: {factor}, {pairs}; {further}. {self.differences()}"
        return f"{name}{precise(before / 1e3)} → {precise(after / 1e3)} a step, {factor}, {pairs}. {self.differences()}"

    def set_up_differences(self) -> list[str]:
        """Return what both sides are known to have computed with, and what differs: "framework: jax, before torch"."""
        before, after = self.first[0].set_up, self.second[0].set_up
        return [f"{n}: {after[n]}, before {before[n]}" for n in after if n in before and after[n] != before[n]]

    def differences(self) -> str:
        """Return what else differs between the sides, losses and memory, and what does not count, in sentences.

        Memory is the highest peak of a side's children, in bytes; 0 = not known, and not compared.
        """
        sentences = [_compared_losses(self.first, self.second)]
        if self.between and not self.counts_between:
            sentences.append(UNTIMED)
        for name, attribute in (("Memory", "host_bytes"), ("GPU memory", "gpu_bytes")):
            before, after = (
                max((getattr(side, attribute) or 0 for side in sides), default=0) for sides in (self.first, self.second)
            )
            if before and after and not 1 / MEMORY_FACTOR <= after / before <= MEMORY_FACTOR:
                sentences.append(f"{name} {before / 2**30:.2f} → {after / 2**30:.2f} GiB.")
        return " ".join(sentences)

    def to_json(self) -> dict[str, Any]:
        """Return what is stored beside a recording, and printed by `--json`: ms a step, the ratio, its interval."""
        ratio = self.estimate
        return {
            "change": self.words,
            "code": self.line,
            **{name: round(getattr(ratio, name), 4) for name in ("ratio", "low", "high")},
            "resolved": ratio.resolved,
            "pairs": ratio.pairs,
            "before_ms": round(fmean(self.ms(self.first)), 4),
            "after_ms": round(fmean(self.ms(self.second)), 4),
            "unit": self.unit,
            "took_s": round(self.took_s, 1),
            "differences": self.differences(),
            "sentence": self.sentence(),
        }


def measure(
    trial: Trial,
    sides: tuple[Side, Side],
    run: Callable[[Side], Timed],
    pairs: tuple[int, int] = (FEWEST_PAIRS, MOST_PAIRS),
    say: Callable[[str], None] = lambda text: None,
    is_void: Callable[[Trial], bool] = lambda trial: False,
) -> Trial:
    """Run two sides in turns, ABBA…, until their ratio is told from 1 or there are enough pairs.

    Args:
        trial: gets what is measured, and is returned.
        sides: as it is, and changed.
        run: runs one side once.
        pairs: the fewest and the most.
        say: is called with a line after each pair: both times, and how long the rest may take.
        is_void: whether the pairs so far show that the rest is not worth measuring.

    Raises: ChildFailed.
    """
    began = time.monotonic()
    stops = looks(*pairs)
    trial.look_count = len(stops)
    for pair in range(stops[-1]):
        order = (0, 1) if pair % 2 == 0 else (1, 0)  # places of the sides
        for side in order:
            (trial.first, trial.second)[side].append(run(sides[side]))
        trial.took_s = time.monotonic() - began
        both = " and ".join(precise(trial.ms(timed)[-1] / 1e3) for timed in (trial.first, trial.second))
        is_last = is_void(trial) or pair + 1 == stops[-1] or (pair + 1 in stops and trial.estimate.resolved)
        # If the next look resolves the ratio, or none does.
        fewest_s, most_s = (trial.took_s / (pair + 1) * max(1, stop - pair - 1) for stop in (stops[0], stops[-1]))
        left = between(duration(fewest_s), duration(most_s))
        say(f"pair {pair + 1}: {both} a step{'' if is_last else f'; {left} left'}")
        if is_last:
            break
    return trial


def sides_of(change: Change, command: Sequence[str]) -> tuple[Side, Side]:
    """Return a program as it is, and with a change."""
    arguments = {"environment": change.environment} if change.environment else {"change": change.for_child()}
    return Side(command, name="as it is"), Side(command, **arguments, name=f"with {change.words}")


def _compared_losses(first: Sequence[Timed], second: Sequence[Timed]) -> str:
    """Return a sentence on whether both sides' first losses are equal, at the steps of which all children have one."""
    steps = set.intersection(*(set(side.losses) for side in (*first, *second)))
    if not steps:
        return "Losses: not known."
    # The unchanged program differs from itself: it has no seed, and the other side's losses tell nothing.
    if not all(_have_equal_losses(side, first[0], steps) for side in first):
        return "Losses differ from run to run as it is (no seed)."
    if all(_have_equal_losses(side, first[0], steps) for side in second):
        return "Losses equal."
    last = max(steps)
    return f"Losses differ: {first[0].losses[last]:.4g} → {second[0].losses[last]:.4g} after {counted(last, 'step')}."


def _have_equal_losses(side: Timed, other: Timed, steps: set[int]) -> bool:
    """Return True if two children's losses at these steps are equal, but for rounding."""
    pairs = [(side.losses[step], other.losses[step]) for step in steps]
    return all(math.isclose(a, b, rel_tol=LOSS_ROUNDING) or (math.isnan(a) and math.isnan(b)) for a, b in pairs)
