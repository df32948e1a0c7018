"""Thresholds of the rules: each number has a name, a default, a unit and a reason."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
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
A_QUARTER = Constant(0.25, "of a whole is a good part of it")
MOSTLY = Constant(0.5, "what holds for more than half of a whole holds for most of it")
FOUR_FIFTHS = Constant(0.8, "what holds for four fifths of a whole holds for nearly all of it")
# Limits of several rules.
MIN_S = Threshold(2, "the driver's utilization is a mean over up to a second; two make a state")
MIN_STEPS = Threshold(16, "fewer steps are an event, not a state of the run")
MIN_SAMPLES = Threshold(20, "two seconds of samples at 10 Hz")
MIN_LOOKS = Threshold(20, "of fewer samples one more or less is 5 %")
BUSY_PCT = Threshold(80, "a GPU that idles has another problem first")


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
    """Return the constants of all modules of the diagnosis but its rules: `evidence.spans` etc."""
    package = __name__.rpartition(".")[0]
    names = sorted(name for name in sys.modules if name.startswith(f"{package}."))
    by_module = {
        name.removeprefix(f"{package}."): constants(name) for name in names if not name.startswith(f"{package}.rules.")
    }
    return {name: defined for name, defined in by_module.items() if defined}


def meant(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name, or all known names."""
    names = sorted(names)
    near = get_close_matches(name, names, 1)
    return f": did you mean {near[0]}?" if near else f"; available: {', '.join(names) or 'none'}"
