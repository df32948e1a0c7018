"""The thresholds of all rules, as the user sets them."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain

from gpu_util_callback.diagnosis.rules import RULES
from gpu_util_callback.diagnosis.thresholds import Limits, meant
from gpu_util_callback.errors import UnusableInput

DECLARED = {rule.cause: rule.thresholds for rule in RULES}


def thresholds_in_force(given: Mapping | None, before: Mapping | None = None) -> dict[str, dict[str, float]]:
    """Return the thresholds in force: the defaults, overridden by the user's.

    Args:
        given: `{"input_bound": {"wait_pct": 10}}` or `{"input_bound.wait_pct": 10}`.
        before: thresholds that `given` overrides, in the same form.

    Raises:
        UnusableInput: an unknown cause or name (the nearest one is named), or not a number ≥ 0.
    """
    limits = {
        cause: {name: float(threshold.default) for name, threshold in names.items()}
        for cause, names in DECLARED.items()
    }
    for cause, key, value in chain(_flatten(before or {}), _flatten(given or {})):
        if cause not in limits:
            raise UnusableInput(f"no cause {cause!r} to set{meant(cause, limits)}")
        if key not in limits[cause]:
            raise UnusableInput(f"{cause} has no threshold {key!r}{meant(key, limits[cause])}")
        limits[cause][key] = _number(f"{cause}.{key}", value)
    return limits


def thresholds_set(limits: Mapping[str, Limits]) -> dict[str, float]:
    """Return the thresholds that are not the default: `{"input_bound.wait_pct": 10}`."""
    return {
        f"{cause}.{name}": value
        for cause, names in limits.items()
        for name, value in names.items()
        if value != DECLARED[cause][name].default
    }


def still_known(given: object) -> dict[str, float]:
    """Return those of a recording's thresholds, in the form of `thresholds_set`, that still exist."""
    existing: dict[str, float] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        try:
            thresholds_in_force({name: value})
        except UnusableInput:
            continue  # of other rules, or damaged
        existing[str(name)] = float(value)
    return existing


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
