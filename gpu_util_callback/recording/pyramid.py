"""Min, max and mean over power-of-two buckets, for a timeline at every zoom."""

from collections.abc import Sequence

import numpy as np

__all__ = ["Folded", "Marks", "extremes", "reduce_rows"]

# Runs of up to this many values are reduced together, longer ones one by one.
SHORT = 16


class Buckets:
    """Min, max, sum and count of `columns` over a run of buckets; NaN/0 where there is no data.

    `low`, `high`: float32[columns, buckets]; `total`: float64; `count`: int64.
    """

    __slots__ = ("count", "high", "low", "total")

    def __init__(self, columns: int, buckets: int):
        self.low = np.full((columns, buckets), np.nan, np.float32)
        self.high = np.full((columns, buckets), np.nan, np.float32)
        self.total = np.zeros((columns, buckets))
        self.count = np.zeros((columns, buckets), np.int64)

    def __len__(self) -> int:
        return self.low.shape[1]

    @property
    def mean(self) -> np.ndarray:
        """float32[columns, buckets]; NaN where there is no data."""
        with np.errstate(invalid="ignore"):
            return np.where(self.count > 0, self.total / np.maximum(self.count, 1), np.nan).astype(
                np.float32
            )

    def put(self, at: np.ndarray, other: "Buckets", rows: Sequence[int] | slice) -> None:
        """Merge `other`'s buckets into those numbered `at` (each once), into columns `rows`."""
        where = (rows, at) if isinstance(rows, slice) else np.ix_(np.asarray(rows), at)
        self.low[where] = np.fmin(self.low[where], other.low)
        self.high[where] = np.fmax(self.high[where], other.high)
        self.total[where] += other.total
        self.count[where] += other.count


def reduce_rows(keys: np.ndarray, values: np.ndarray, shift: int) -> tuple[np.ndarray, Buckets]:
    """Reduce rows to the buckets `key >> shift`.

    Args:
        keys: int64[n], not descending.
        values: float[columns, n], NaN = absent.

    Returns: (int64[k] bucket numbers that have rows, ascending; their k buckets).
    """
    numbers = keys >> shift
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    result = Buckets(len(values), 0)
    known = ~np.isnan(values)
    low, high = extremes(values, values, starts)
    result.low, result.high = low.astype(np.float32), high.astype(np.float32)
    result.total = np.add.reduceat(np.where(known, values, 0.0), starts, axis=1, dtype=np.float64)
    result.count = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
    return numbers[starts], result


def extremes(
    low: np.ndarray, high: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimum of `low` and the maximum of `high` in each run; NaN where all are NaN.

    Equals `fmin.reduceat` and `fmax.reduceat`, in less than half the time for many short runs.

    Args:
        low, high: float[columns, n]; the same array where they are equal.
        starts: int64[k], first index of each run; the first is 0.
    """
    sizes = np.diff(starts, append=low.shape[1])
    long = np.flatnonzero(sizes > SHORT)
    if len(long) > len(starts) // 64:
        return np.fmin.reduceat(low, starts, axis=1), np.fmax.reduceat(high, starts, axis=1)
    # The first value of all runs, then the second of all, …: an exhausted run repeats its last.
    least = np.take(low, starts, axis=1)
    most = least.copy() if high is low else np.take(high, starts, axis=1)
    last = starts + sizes - 1
    for depth in range(1, min(SHORT, int(sizes.max(initial=0)))):
        at = np.minimum(starts + depth, last)
        values = np.take(low, at, axis=1)
        np.fmin(least, values, out=least)
        np.fmax(most, values if high is low else np.take(high, at, axis=1), out=most)
    for run in long.tolist():
        part = slice(int(starts[run]), int(last[run]) + 1)
        least[:, run] = np.fmin.reduce(low[:, part], axis=1)
        most[:, run] = np.fmax.reduce(high[:, part], axis=1)
    return least, most


class Folded:
    """A fixed number of buckets for any number of rows: it folds by two as the keys grow.

    After any number of rows it holds at most `size` buckets and, once folded, at least a quarter
    of that many up to the last key.
    """

    def __init__(self, columns: Sequence[str] = (), shift: int = 0, size: int = 1024):
        self.columns = list(columns)
        self.shift = shift
        self.size = size
        self.used = 0  # buckets up to the last one with rows
        self.buckets = Buckets(len(self.columns), size)

    def add(self, keys: np.ndarray, columns: Sequence[str], values: np.ndarray) -> None:
        """Add rows: `keys` int64[n] ≥ 0 not descending, `values` float[len(columns), n]."""
        if not len(keys):
            return
        for name in columns:
            if name not in self.columns:
                self._grow(name)
        while int(keys[-1]) >> self.shift >= self.size:
            self.fold()
        numbers, reduced = reduce_rows(keys, values, self.shift)
        self.buckets.put(numbers, reduced, [self.columns.index(name) for name in columns])
        self.used = max(self.used, int(numbers[-1]) + 1)

    def fold(self) -> None:
        """Halve the number of buckets in use; each then covers twice as much."""
        folded = Buckets(len(self.columns), self.size)
        half = self.size // 2
        for part in (slice(0, None, 2), slice(1, None, 2)):
            other = Buckets(0, 0)
            other.low, other.high = self.buckets.low[:, part], self.buckets.high[:, part]
            other.total, other.count = self.buckets.total[:, part], self.buckets.count[:, part]
            folded.put(np.arange(half), other, slice(None))
        self.buckets = folded
        self.shift += 1
        self.used = (self.used + 1) // 2

    def _grow(self, name: str) -> None:
        old = self.buckets
        self.columns.append(name)
        self.buckets = Buckets(len(self.columns), self.size)
        for field in Buckets.__slots__:
            getattr(self.buckets, field)[:-1] = getattr(old, field)


class Marks:
    """The first value of every bucket, -1 where there is none; folds as `Folded` does.

    Maps one axis to the other: the start of a bucket's first step, or its number.
    """

    def __init__(self, shift: int = 0, size: int = 1024):
        self.shift = shift
        self.size = size
        self.values = np.full(size, -1, np.int64)

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Add rows: `keys` int64[n] ≥ 0 not descending, `values` int64[n] ≥ 0."""
        if not len(keys):
            return
        while int(keys[-1]) >> self.shift >= self.size:
            even, odd = self.values[0::2], self.values[1::2]
            self.values = np.full(self.size, -1, np.int64)
            self.values[: self.size // 2] = np.where(even >= 0, even, odd)
            self.shift += 1
        numbers, first = np.unique(keys >> self.shift, return_index=True)
        free = self.values[numbers] < 0
        self.values[numbers[free]] = values[first[free]]
