"""The median of a benchmark's rounds, and how well they know it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, and the bounds of its 95 % interval: two of the values.

    How many of n values lie below their true median is binomial. Fewer than 6 values allow no such
    interval: their lowest and highest are given.
    """
    ranked = sorted(values)
    below, at = 0.0, 0  # the lowest `at` of them may be left out
    while at < (len(ranked) - 1) // 2:
        below += math.comb(len(ranked), at) / 2 ** len(ranked)
        if below > 0.025:
            break
        at += 1
    low, high = ranked[max(0, at - 1)], ranked[-max(1, at)]
    return {"median": round(statistics.median(ranked), 4), "low": round(low, 4), "high": round(high, 4)}
