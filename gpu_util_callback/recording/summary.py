"""Distributions of step times and samples, kept as the run grows, at a flat cost."""

from collections.abc import Sequence
from copy import copy

import numpy as np

from gpu_util_callback.recording.facts import MOST_COUNT, MOST_LENGTH_NS, MOST_PCT, encodable
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segments import MOST_VALUE, Rows

__all__ = ["Distribution", "Summary"]

_PER_OCTAVE = 64  # buckets: neighbouring ones differ by 1.1 %
_QUANTILES = (5, 25, 50, 75, 95, 99)
_LAST = 1024 * _PER_OCTAVE  # that of the largest float64
_SHARES = np.array(_QUANTILES) / 100


class Distribution:
    """Count, sum, extremes and quantiles of the added values; quantiles within 1 %.

    Values below one (zeros, mostly) share one bucket; stored values are never negative.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.low = np.inf
        self.high = -np.inf
        self._buckets = np.zeros(0, np.int64)  # ascending
        self._counts = np.zeros(0, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add float[n]; NaN is left out."""
        _add([self], values[np.newaxis])

    def _take(self, at: np.ndarray, total: float, low: float, high: float) -> None:
        """Count values of these buckets; arrays are replaced, not modified: copies share them."""
        first = int(at.min())
        counts = np.bincount(at - first)
        present = np.flatnonzero(counts)
        buckets, counts = present + first, counts[present]
        self.count += len(at)
        self.total += total
        self.low, self.high = min(self.low, low), max(self.high, high)
        place = np.searchsorted(self._buckets, buckets)
        inside = place < len(self._buckets)
        inside[inside] = self._buckets[place[inside]] == buckets[inside]
        known = self._counts.copy()
        known[place[inside]] += counts[inside]
        if not inside.all():
            at = np.concatenate([self._buckets, buckets[~inside]])
            order = np.argsort(at)
            self._buckets = at[order]
            known = np.concatenate([known, counts[~inside]])[order]
        self._counts = known

    def state(self) -> list:
        """Return everything as JSON; `restore` reads it."""
        if not self.count:
            return [0, 0.0, 0.0, 0.0, [], []]
        return [
            self.count, self.total, self.low, self.high, self._buckets.tolist(),
            self._counts.tolist(),
        ]  # fmt: skip

    @classmethod
    def restore(cls, state: list, most: float) -> "Distribution":
        """Restore the result of `state`, with values up to `most`.

        Raises: ValueError, TypeError or OverflowError when it is invalid.
        """
        count, total, low, high, buckets, counts = state
        one = cls()
        if count:
            if type(count) is not int or not all(
                isinstance(value, (int, float)) for value in (total, low, high)
            ):
                raise ValueError("a distribution of what are no numbers")
            one.count, one.total = count, float(total)
            one.low, one.high = float(low), float(high)
            at, numbers = np.array(buckets), np.array(counts)
            if at.shape != numbers.shape or at.ndim != 1 or not len(at):
                raise ValueError("a distribution without buckets")
            if {at.dtype.kind, numbers.dtype.kind} != {"i"} or (np.diff(at) <= 0).any():
                raise ValueError("buckets that are out of order")
            if at[0] < -1 or at[-1] > _LAST:
                raise ValueError("buckets that no value falls into")
            if numbers.min() < 1 or sum(numbers.tolist()) != count or count > MOST_COUNT:
                raise ValueError("buckets that do not hold what is counted")
            apart = 1e-6 * count * max(abs(one.low), abs(one.high))
            if not (
                -most <= one.low <= one.high <= most
                and count * one.low - apart <= one.total <= count * one.high + apart
            ):
                raise ValueError("a mean outside the extremes")
            one._buckets, one._counts = at, numbers
        return one

    def result(self) -> dict[str, float]:
        """Return {"count", "mean", "min", "max", "p5", "p25", "p50", "p75", "p95", "p99"}."""
        if not self.count:
            return {"count": 0}
        reached = np.cumsum(self._counts)
        found = {
            "count": self.count, "mean": self.total / self.count, "min": self.low, "max": self.high,
        }  # fmt: skip
        ranks = np.minimum(_SHARES * self.count, reached[-1])
        buckets = self._buckets[np.searchsorted(reached, ranks)].tolist()
        for percent, bucket in zip(_QUANTILES, buckets, strict=True):
            middle = 0.0 if bucket < 0 else 2.0 ** ((bucket + 0.5) / _PER_OCTAVE)
            found[f"p{percent}"] = min(max(middle, self.low), self.high)
        return found


def _add(to: Sequence[Distribution], values: np.ndarray) -> None:
    """Add float[columns, n], a column to each distribution; NaN is left out."""
    if not values.shape[1]:
        return
    finite = np.isfinite(values)
    some = finite.any(axis=1)
    known = values if finite.all() else np.where(finite, values, 0.0)
    totals = known.sum(axis=1).tolist()
    lows = np.where(finite, known, np.inf).min(axis=1).tolist()
    highs = np.where(finite, known, -np.inf).max(axis=1).tolist()
    at = np.floor(np.log2(np.maximum(known, 1)) * _PER_OCTAVE).astype(np.int64)
    at[known < 1] = -1
    for row in np.flatnonzero(some).tolist():
        buckets = at[row] if finite[row].all() else at[row][finite[row]]
        to[row]._take(buckets, totals[row], lows[row], highs[row])


class Summary:
    """The distributions of every step series and every sampled column."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Distribution] = {}

    def copy(self) -> "Summary":
        """Return an independent copy."""
        other = Summary()
        other._of = {key: copy(one) for key, one in self._of.items()}
        return other

    def add(self, tables: Rows, samples: Rows) -> None:
        """Add rows; of the tables, only steps are used."""
        if "steps" in tables:
            rows = [tables["steps"][column] for column in STEP_SERIES]
            values = np.stack(rows).astype(np.float64)
            self._add("steps", STEP_SERIES, np.where(values < 0, np.nan, values))
        for group, columns in samples.items():
            names = [column for column in columns if column != "time_ns"]
            if names:
                self._add(group, names, np.stack([columns[name] for name in names]))

    def _add(self, group: str, names: Sequence[str], values: np.ndarray) -> None:
        """Add float[columns, n] of one group."""
        for name in names:
            if (group, name) not in self._of:
                self._of[group, name] = Distribution()
        _add([self._of[group, name] for name in names], values)

    def state(self) -> list:
        """Return everything as JSON; `restore` reads it."""
        return [[*key, one.state()] for key, one in self._of.items()]

    @classmethod
    def restore(cls, state: list) -> "Summary":
        """Restore the result of `state`. Raises: as `Distribution.restore`."""
        summary = cls()
        for name, column, one in state:
            most = float(MOST_LENGTH_NS) if name == "steps" else MOST_VALUE
            if str(name).startswith("gpu") and str(column).endswith("_pct"):
                most = MOST_PCT
            key = (encodable(str(name)), encodable(str(column)))
            summary._of[key] = Distribution.restore(one, most)
        return summary

    def result(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return {"steps" or group: {column: `Distribution.result()`}}."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (name, column), distribution in self._of.items():
            found.setdefault(name, {})[column] = distribution.result()
        return found
