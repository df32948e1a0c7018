"""Sums kept as a run grows, at a flat cost: its host account, and distributions.

The host account is the training thread's time by category, disjoint and exact; distributions are of
step times and samples.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_util_callback.recording.manifest_facts import AccountFacts
from gpu_util_callback.recording.schema import ACCOUNTS, FIT_GAP, STEP_PARTS, STEP_SERIES, STOPPED
from gpu_util_callback.recording.segments import AnyTables

_PER_OCTAVE = 64  # buckets: neighbouring ones differ by 1.1 %
_QUANTILES = (5, 25, 50, 75, 95, 99)
_SHARES = np.array(_QUANTILES) / 100


@dataclass(eq=False)
class Distribution:
    """Count, sum, extremes and quantiles of the added values; quantiles within 1 %.

    Values below one (zeros, mostly) share one bucket, number -1; stored values are never negative.

    Attributes:
        total: the sum.
        low, high: infinite without values.
    """

    count: int = 0
    total: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    _buckets: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ascending
    _counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, values: np.ndarray) -> None:
        """Add float[n]; NaN is left out."""
        _add([self], values[np.newaxis])

    def _take(self, at: np.ndarray, total: float, low: float, high: float) -> None:
        """Count values by their buckets; arrays are replaced, not modified, as copies share them.

        Args:
            at: int64[n], the bucket of each value.
            total, low, high: sum and extremes of the values.
        """
        first = int(at.min())
        counts = np.bincount(at - first)
        present = np.flatnonzero(counts)
        buckets, counts = present + first, counts[present]
        self.count += len(at)
        self.total += total
        self.low, self.high = min(self.low, low), max(self.high, high)
        place = np.searchsorted(self._buckets, buckets)
        inside = place < len(self._buckets)  # buckets that have been counted before
        inside[inside] = self._buckets[place[inside]] == buckets[inside]
        counts_after = self._counts.copy()
        counts_after[place[inside]] += counts[inside]
        if not inside.all():
            at = np.concatenate([self._buckets, buckets[~inside]])
            order = np.argsort(at)
            self._buckets = at[order]
            counts_after = np.concatenate([counts_after, counts[~inside]])[order]
        self._counts = counts_after

    def check(self) -> None:
        """Raise ValueError where buckets and counts contradict each other; after they were read from a file."""
        if self._buckets.shape != self._counts.shape or self._counts.sum() != self.count or (self._counts < 0).any():
            raise ValueError("buckets that do not hold what is counted")
        if self.count and self._buckets.max() >= 1024 * _PER_OCTAVE:  # behind that of the largest float64
            raise ValueError("buckets that no value falls into")

    def result(self) -> dict[str, float]:
        """Return {"count", "mean", "min", "max", "p5", "p25", "p50", "p75", "p95", "p99"}."""
        if not self.count:
            return {"count": 0}
        reached = np.cumsum(self._counts)
        figures = {"count": self.count, "mean": self.total / self.count, "min": self.low, "max": self.high}
        ranks = np.minimum(_SHARES * self.count, reached[-1])
        buckets = self._buckets[np.searchsorted(reached, ranks)].tolist()
        for percent, bucket in zip(_QUANTILES, buckets, strict=True):
            middle = 0.0 if bucket < 0 else 2.0 ** ((bucket + 0.5) / _PER_OCTAVE)
            figures[f"p{percent}"] = min(max(middle, self.low), self.high)
        return figures


def _add(distributions: Sequence[Distribution], values: np.ndarray) -> None:
    """Add a row of values to each distribution; NaN is left out.

    Args:
        distributions: as many as rows of values.
        values: float[distributions, n].
    """
    if not values.shape[1]:
        return
    finite = np.isfinite(values)
    has_finite = finite.any(axis=1)
    numbers = values if finite.all() else np.where(finite, values, 0.0)
    totals = numbers.sum(axis=1).tolist()
    lows = np.where(finite, numbers, np.inf).min(axis=1).tolist()
    highs = np.where(finite, numbers, -np.inf).max(axis=1).tolist()
    # bucket of each value; -1 for those below one
    bucket_of_value = np.floor(np.log2(np.maximum(numbers, 1)) * _PER_OCTAVE).astype(np.int64)
    bucket_of_value[numbers < 1] = -1
    for row in np.flatnonzero(has_finite).tolist():
        buckets = bucket_of_value[row] if finite[row].all() else bucket_of_value[row][finite[row]]
        distributions[row]._take(buckets, totals[row], lows[row], highs[row])


def step_series(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return float64[len(STEP_SERIES), n]: the drawn columns of `steps`, absent ones NaN."""
    values = np.stack([steps[name] for name in STEP_SERIES]).astype(np.float64)
    values[values < 0] = np.nan
    return values


@dataclass(eq=False)
class ColumnDistributions:
    """The distributions of every step series and every sampled column."""

    _of: dict[tuple[str, str], Distribution] = field(default_factory=dict)

    def copy(self) -> "ColumnDistributions":
        other = ColumnDistributions()
        other._of = {key: copy(distribution) for key, distribution in self._of.items()}
        return other

    def add(self, tables: AnyTables, samples: AnyTables) -> None:
        """Add rows; of the tables, only steps are used.

        Args:
            samples: group -> column -> values[n].
        """
        if "steps" in tables:
            self._add("steps", STEP_SERIES, step_series(tables["steps"]))
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

    def result(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return {"steps" or group: {column: `Distribution.result()`}}."""
        figures: dict[str, dict[str, dict[str, float]]] = {}
        for (name, column), distribution in self._of.items():
            figures.setdefault(name, {})[column] = distribution.result()
        return figures


@dataclass(eq=False)
class Account:
    """Sums rows up as they come; `result` may be called at any time."""

    _ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACCOUNTS[:-1], 0))  # all but the remainder
    _between_ns: int = 0  # between the fits of a series: not part of the training
    _stopped_ns: int = 0  # in which the process was stopped

    def add_steps(self, steps: Mapping[str, np.ndarray]) -> None:
        """Add rows of the `steps` table; absent parts count nothing."""
        for column, category in STEP_PARTS.items():
            values = steps.get(column)
            if values is not None:
                values = np.asarray(values)
                self._ns[category] += int(values[values > 0].sum())

    def add_phases(self, phases: Mapping[str, Any]) -> None:
        """Add rows of the `phases` table; containers (account "") count nothing."""
        accounts = np.asarray(phases.get("account", ()), object)
        if not len(accounts):
            return
        spent = np.asarray(phases["self_ns"])
        kinds = np.asarray(phases.get("kind", ()), object)
        if len(kinds):
            self._between_ns += int(spent[kinds == FIT_GAP].sum())
            self._stopped_ns += int(spent[kinds == STOPPED].sum())
        for category in self._ns:
            of_category = spent[accounts == category]
            self._ns[category] += int(of_category[of_category > 0].sum())

    def result(self, start_ns: int, end_ns: int) -> AccountFacts:
        """Return seconds by category, and the wall time of a run, to which the categories sum.

        The wall time is that of the training: of all fits of a series together. The time between them
        is "between_fits_s", and that in which the process was stopped "stopped_s", outside all
        categories.

        `other` is the remainder. Rows that overlap by mistake could make it negative; it is then not
        hidden, so that checks see it.
        """
        wall = max(0, end_ns - start_ns - self._between_ns - self._stopped_ns)
        times = {name: ns / 1e9 for name, ns in self._ns.items()}
        times["other"] = (wall - sum(self._ns.values())) / 1e9
        result: AccountFacts = {"wall_s": wall / 1e9, "time_s": times}
        if self._between_ns:
            result["between_fits_s"] = self._between_ns / 1e9
        if self._stopped_ns:
            result["stopped_s"] = self._stopped_ns / 1e9
        return result


def account(steps: Mapping[str, np.ndarray], phases: Mapping[str, Any], start_ns: int, end_ns: int) -> AccountFacts:
    """Return the account of whole tables; see `Account.result`."""
    total = Account()
    total.add_steps(steps)
    total.add_phases(phases)
    return total.result(start_ns, end_ns)
