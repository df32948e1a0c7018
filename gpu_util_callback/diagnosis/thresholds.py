"""Thresholds of the rules: each number has a name, a default, a unit and a reason."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pkgutil import walk_packages
from typing import Self

Limits = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Threshold:
    """Default value and the reason for it; the unit is part of its name."""

    default: float
    reason: str


class _Explained:
    """A number that decides as a threshold does, but is not to be set: it is no matter of taste."""

    reason: str
    module: str  # that defines it

    def __new__(cls, value: float, reason: str) -> Self:
        """Return the number with the reason for it."""
        self = super().__new__(cls, value)  # type: ignore[call-arg]  # of the number's class
        self.reason, self.module = reason, sys._getframe(1).f_globals["__name__"]
        return self


class Constant(_Explained, float):
    """Such a number."""


class Count(_Explained, int):
    """A whole one."""


# Shares of a whole, where no measurement asks for another number.
A_TWENTIETH = Constant(0.05, "of a whole: by so much runs that are alike differ, and less is not worth a word")
A_TENTH = Constant(0.1, "of a whole is visible at a glance")
A_FIFTH = Constant(0.2, "of a whole is a state of it: less is regulation, bookkeeping or scatter")
A_QUARTER = Constant(0.25, "of a whole is a good part of it")
MOSTLY = Constant(0.5, "what holds for more than half of a whole holds for most of it")
FOUR_FIFTHS = Constant(0.8, "what holds for four fifths of a whole holds for nearly all of it")
THREE_QUARTERS = Constant(1 - A_QUARTER, "of a whole: without the rest, which is a good part of it")
NOTICEABLY = Constant(1 + A_TENTH, "times as much is visible at a glance")
# Numbers of things, likewise.
AGAIN = Count(2, "what came once may have been an accident")
DOUBLE = Count(2, "times as much or as little is no longer alike")
A_FEW = Count(3, "fewer may agree, or have come, by chance")
A_TREND = Count(8, "one after the other; in fewer no state and no trend shows")
# Limits of several rules.
MATTERS_PCT = Threshold(
    5,
    "of the time: XProf calls 3 % of a step outside the model moderate and 15 % high, and suggests to remove "
    "debug prints from 5 % on; runs that are alike, and equal GPUs and ranks, differ by less",
)
TRACED_PCT = Threshold(
    10, "of the traced steps: torch-tb-profiler warns at 10 % communication, TraceLens at 5 % copies per direction"
)
A_FIFTH_PCT = Threshold(20, A_FIFTH.reason)
MOSTLY_PCT = Threshold(50, MOSTLY.reason)
FULL_PCT = Threshold(95, "of a memory: a pool is fine up to its end, and a driver keeps up to 5 % for the screen")
NO_WORK_PCT = Threshold(5, "a desktop, a monitor, contexts and copies take 1-5 % of a GPU; a training step takes more")
SMALL_US = Threshold(100, "starting a kernel or an operation costs 5-30 µs of host time; longer ones hide that")
WARM_UP = Threshold(20, "the first steps fill caches and buffers; as many later ones show what is usual")
MIN_S = Threshold(2, "the driver's utilization is a mean over up to a second; two make a state")
MIN_STEPS = Threshold(16, "fewer steps are an event, not a state of the run")
MIN_SAMPLES = Threshold(20, "of fewer samples one more or less is 5 %")
OP_US = Threshold(1000, "starting an operation costs 10-100 us of Python; above 1 ms compiling hides 10 %")
BUSY_PCT = Threshold(80, "a GPU that idles has another problem first")
MANY_TIMES = MIN_STEPS.default  # at ends of epochs: a state of the run however short that was
ALWAYS_S = Threshold(60, "a lost minute is worth reporting however long the run is")
LEAST_S = Threshold(
    0.5,
    "healthy fits of a few seconds lose 0.1-0.5 s to the ends of their epochs; less is reported "
    f"only if it came in {A_TREND} steps, or {MANY_TIMES} times otherwise",
)
SIGNIFICANT = {  # what `significant` reads
    "min_run_pct": Threshold(2, "below 2 % of the run fixing it does not show; hiccups of a shared machine reach 1"),
    "least_s": LEAST_S,
}


def chosen(limits: Limits, *names: str) -> dict[str, float]:
    """Return the limits of these names."""
    return {name: limits[name] for name in names}


def constants(module: str) -> dict[str, Constant | Count]:
    """Return the constants that a module defines, by name."""
    return {
        name: value
        for name, value in vars(sys.modules[module]).items()
        if isinstance(value, (Constant, Count)) and value.module == module
    }


def shared_constants() -> dict[str, dict[str, Constant | Count]]:
    """Return the constants of all modules of the diagnosis but its rules: module -> name -> constant.

    Modules are named within the package, such as "evidence.spans"; all of them are imported.
    """
    package = __name__.rpartition(".")[0]
    for module in walk_packages(sys.modules[package].__path__, f"{package}."):
        import_module(module.name)
    names = sorted(name for name in sys.modules if name.startswith(f"{package}."))
    by_module = {
        name.removeprefix(f"{package}."): constants(name) for name in names if not name.startswith(f"{package}.rules.")
    }
    return {name: defined for name, defined in by_module.items() if defined}


def meant(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name, or all known names."""
    names = sorted(names)
    close_names = get_close_matches(name, names, 1)
    return f": did you mean {close_names[0]}?" if close_names else f"; available: {', '.join(names) or 'none'}"
