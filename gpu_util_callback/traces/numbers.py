"""Numbers as trace files state them, and the facts of a GPU that are made of them.

What is no number, or an impossible one, is absent: -1 in columns of integers, in which any negative
number means that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpu_util_callback.traces import limits

_MAX_DIGITS = 1_000


def integer(value: Any) -> int:
    """Return a number of a file as int64: -1 for no number, -2 for one that does not fit."""
    if type(value) is str:
        value = number(value)
    try:
        whole = int(value)
    except (TypeError, ValueError):
        return -1
    except OverflowError:  # infinite
        return -2
    return whole if -(1 << 62) < whole < 1 << 62 else -2


def number(value: Any) -> float | None:
    """Return a number of a file: None for no number, infinite for too large or "NaN"."""
    if type(value) is str and len(value) > _MAX_DIGITS:
        return math.inf
    try:
        parsed = float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None
    return math.inf if math.isnan(parsed) else parsed


def ordinal(digits: str) -> int | None:
    """Return the number of a GPU as written in a name; None if no machine has so many."""
    if len(digits) > 6:
        return None
    index = int(digits)
    return index if index <= limits.MAX_ORDINAL else None


def epoch(value: Any) -> int | None:
    """Return a time in nanoseconds since the epoch; None for anything else."""
    return value if isinstance(value, int) and 0 < value < limits.MAX_EPOCH_NS else None


def gpu_facts(numbers: Mapping[str, Any], major: Any, minor: Any) -> dict[str, Any]:
    """Return the facts of a GPU that are possible, with its compute capability."""
    facts: dict[str, Any] = {
        name: value for name, value in numbers.items() if isinstance(value, int) and 0 < value <= limits.MAX_FACT
    }
    if isinstance(major, int) and 0 <= major < 1000:
        facts["compute_capability"] = [major, minor if isinstance(minor, int) and 0 <= minor < 1000 else 0]
    return facts
