"""Thresholds of the rules: each number has a name, a default, a unit and a reason."""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Self

from gpu_util_callback.errors import UnusableInput

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


MOSTLY = Constant(0.5, "what holds for more than half of a whole holds for most of it")
# Limits of several rules.
MIN_S = Threshold(2, "the driver's utilization is a mean over up to a second; two make a state")
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


Declared = Mapping[str, Mapping[str, Threshold]]  # cause -> name -> threshold


def resolve(declared: Declared, given: Mapping | None, before: Mapping | None = None) -> dict[str, dict[str, float]]:
    """Return the thresholds in force: the defaults, overridden by the user's.

    Args:
        given: `{"input_bound": {"wait_pct": 10}}` or `{"input_bound.wait_pct": 10}`.
        before: thresholds that `given` overrides, in the same form.

    Raises:
        UnusableInput: an unknown cause or name (the nearest one is named), or not a number ≥ 0.
    """
    limits = {
        cause: {name: float(threshold.default) for name, threshold in names.items()}
        for cause, names in declared.items()
    }
    for cause, key, value in chain(_flatten(before or {}), _flatten(given or {})):
        if cause not in limits:
            raise UnusableInput(f"no cause {cause!r} to set{meant(cause, limits)}")
        if key not in limits[cause]:
            raise UnusableInput(f"{cause} has no threshold {key!r}{meant(key, limits[cause])}")
        limits[cause][key] = _number(f"{cause}.{key}", value)
    return limits


def changed(declared: Declared, limits: Mapping[str, Limits]) -> dict[str, float]:
    """Return the thresholds that are not the default: `{"input_bound.wait_pct": 10}`."""
    return {
        f"{cause}.{name}": value
        for cause, names in limits.items()
        for name, value in names.items()
        if value != declared[cause][name].default
    }


def still_known(declared: Declared, given: object) -> dict[str, float]:
    """Return those of a recording's thresholds, in the form of `changed`, that still exist."""
    known: dict[str, float] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        try:
            resolve(declared, {name: value})
        except UnusableInput:
            continue  # of other rules, or damaged
        known[str(name)] = float(value)
    return known


def meant(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name, or all known names."""
    known = sorted(known)
    near = get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else f"; available: {', '.join(known) or 'none'}"


def _flatten(given: Mapping) -> Iterable[tuple[str, str, object]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from ((str(name), str(key), inner) for key, inner in value.items())
        else:
            cause, dot, key = str(name).partition(".")
            if not dot:
                raise UnusableInput(f"threshold {name!r}: name it CAUSE.NAME")
            yield cause, key, value


def _number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise UnusableInput(f"threshold {name} must be a non-negative number, got {value!r}")
    return number
