"""Distributions of step times and samples, kept as the run grows, at a flat cost."""

import numpy as np

from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segments import Rows

__all__ = ["Distribution", "Summary"]

_PER_OCTAVE = 64  # buckets: neighbouring ones differ by 1.1 %
_QUANTILES = (5, 25, 50, 75, 95, 99)


class Distribution:
    """Count, sum, extremes and quantiles of what was added; quantiles within 1 %.

    Values below one (zeros, mostly) share one bucket; what is stored is never negative.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.low = np.inf
        self.high = -np.inf
        self._buckets: dict[int, int] = {}

    def add(self, values: np.ndarray) -> None:
        """Add float[n]; NaN is left out."""
        values = values[np.isfinite(values)]
        if not len(values):
            return
        self.count += len(values)
        self.total += float(values.sum())
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))
        at = np.where(
            values < 1, -1, np.floor(np.log2(np.maximum(values, 1)) * _PER_OCTAVE)
        ).astype(np.int64)
        for bucket, count in zip(*np.unique(at, return_counts=True), strict=True):
            self._buckets[int(bucket)] = self._buckets.get(int(bucket), 0) + int(count)

    def state(self) -> list:
        """Everything, as JSON; `restore` reads it."""
        if not self.count:
            return [0, 0.0, 0.0, 0.0, [], []]
        buckets = sorted(self._buckets)
        return [
            self.count, self.total, self.low, self.high, buckets,
            [self._buckets[bucket] for bucket in buckets],
        ]  # fmt: skip

    @classmethod
    def restore(cls, state: list) -> "Distribution":
        """What `state` said. Raises: ValueError or TypeError when it is none."""
        count, total, low, high, buckets, counts = state
        one = cls()
        if count:
            one.count, one.total = int(count), float(total)
            one.low, one.high = float(low), float(high)
            one._buckets = {int(bucket): int(n) for bucket, n in zip(buckets, counts, strict=True)}
            if not one._buckets:
                raise ValueError("a distribution without buckets")
        return one

    def result(self) -> dict[str, float]:
        """{"count", "mean", "min", "max", "p5", "p25", "p50", "p75", "p95", "p99"}."""
        if not self.count:
            return {"count": 0}
        buckets = np.array(sorted(self._buckets))
        reached = np.cumsum([self._buckets[int(bucket)] for bucket in buckets])
        found = {
            "count": self.count, "mean": self.total / self.count, "min": self.low, "max": self.high,
        }  # fmt: skip
        for percent in _QUANTILES:
            rank = min(percent / 100 * self.count, reached[-1])
            bucket = buckets[np.searchsorted(reached, rank)]
            middle = 0.0 if bucket < 0 else 2 ** ((bucket + 0.5) / _PER_OCTAVE)
            found[f"p{percent}"] = float(min(max(middle, self.low), self.high))
        return found


class Summary:
    """The distributions of every step series and every sampled column."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Distribution] = {}

    def add(self, tables: Rows, samples: Rows) -> None:
        """Add rows; of the tables, only steps are summed up."""
        if "steps" in tables:
            for column in STEP_SERIES:
                values = tables["steps"][column]
                self._add(("steps", column), np.where(values < 0, np.nan, values))
        for group, columns in samples.items():
            for column, values in columns.items():
                if column != "time_ns":
                    self._add((group, column), values)

    def _add(self, key: tuple[str, str], values: np.ndarray) -> None:
        if key not in self._of:
            self._of[key] = Distribution()
        self._of[key].add(values)

    def state(self) -> list:
        """Everything, as JSON; `restore` reads it."""
        return [[*key, one.state()] for key, one in self._of.items()]

    @classmethod
    def restore(cls, state: list) -> "Summary":
        """What `state` said. Raises: ValueError or TypeError when it is none."""
        summary = cls()
        for name, column, one in state:
            summary._of[(str(name), str(column))] = Distribution.restore(one)
        return summary

    def result(self) -> dict[str, dict[str, dict[str, float]]]:
        """{"steps" or group: {column: `Distribution.result()`}}."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (name, column), distribution in self._of.items():
            found.setdefault(name, {})[column] = distribution.result()
        return found
