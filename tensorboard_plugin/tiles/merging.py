"""Views, and the merging of parts' min, max and mean into their buckets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_util_callback.recording.overview import extremes

# (min, max, mean), each float32[columns, count]
Range = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class View:
    """A requested view: `count` buckets of 2^level keys from number `first` on.

    Keys are step numbers, or nanoseconds since the recording's start.
    """

    axis: str
    level: int
    first: int
    count: int

    @property
    def edges(self) -> np.ndarray:
        """int64[count + 1]: where each bucket begins, and where the last one ends."""
        return np.arange(self.first, self.first + self.count + 1, dtype=np.int64) << self.level

    @property
    def begin(self) -> int:
        return self.first << self.level

    @property
    def end(self) -> int:
        return (self.first + self.count) << self.level

    def begun(self, end: int) -> int:
        """Return how many of its buckets begin before a key."""
        return max(0, min(self.count, -(-end >> self.level) - self.first))

    def widened(self, level: int) -> "View":
        """Return the buckets of a level at least as wide that hold these."""
        bits = level - self.level
        first = self.first >> bits
        count = ((self.first + self.count - 1) >> bits) - first + 1
        return replace(self, level=level, first=first, count=count)


def empty(columns: int, count: int) -> Range:
    """Return buckets without data: float32[columns, count], three times."""
    low, high, mean = (np.full((columns, count), np.nan, np.float32) for _ in range(3))
    return low, high, mean


def reduced(
    numbers: np.ndarray,
    count: int,
    low: np.ndarray,
    high: np.ndarray,
    mean: np.ndarray,
    rows: np.ndarray,
) -> Range:
    """Merge the parts that fall into the same bucket.

    Args:
        numbers: int64[n], each part's bucket, not descending, in [0, count).
        low, high, mean: float[columns, n].
        rows: the weight of each part: int64[n] or [columns, n].
    """
    result = empty(len(low), count)
    if not len(numbers) or not len(low):
        return result
    starts, at = _runs(numbers)
    if len(starts) == len(numbers):  # a part for each bucket
        for whole, values in zip(result, (low, high, mean), strict=True):
            whole[:, at] = values
        return result
    result[0][:, at], result[1][:, at] = extremes(low, high, starts)
    known = ~np.isnan(mean)
    if known.all():
        total = np.add.reduceat(mean * rows.astype(np.float64), starts, axis=1)
        result[2][:, at] = total / np.add.reduceat(rows, starts, axis=-1)
        return result
    weights = np.where(known, rows, 0).astype(np.float64)
    total = np.add.reduceat(np.where(known, mean, 0) * weights, starts, axis=1)
    weights = np.add.reduceat(weights, starts, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        result[2][:, at] = np.where(weights > 0, total / weights, np.nan)
    return result


def reduced_rows(numbers: np.ndarray, count: int, values: np.ndarray) -> Range:
    """Merge rows likewise, float32[columns, n], with a weight of one each."""
    result = empty(len(values), count)
    if not len(numbers) or not len(values):
        return result
    starts, at = _runs(numbers)
    if len(starts) == len(numbers):
        for whole in result:
            whole[:, at] = values
        return result
    result[0][:, at], result[1][:, at] = extremes(values, values, starts)
    known = ~np.isnan(values)
    if known.all():
        weights = np.diff(starts, append=len(numbers))
    else:
        values = np.where(known, values, np.float32(0))
        weights = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
    total = np.add.reduceat(values, starts, axis=1, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        result[2][:, at] = np.where(weights > 0, total / weights, np.nan)
    return result


def _runs(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
    """Return (where each bucket's parts begin, which buckets they are)."""
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    found = numbers[starts]
    if found[-1] - found[0] + 1 == len(found):
        return starts, slice(int(found[0]), int(found[-1]) + 1)  # no gap between them
    return starts, found


def spread(found: Range | None, columns: Sequence[str], known: Sequence[str], count: int) -> Range:
    """Return `found`, of the `known` columns, with all `columns`; those without data are NaN."""
    if found is not None and len(known) == len(columns):
        return found
    wider = empty(len(columns), count)
    at = [columns.index(column) for column in known]
    for part, values in zip(wider, found or (), strict=False):
        part[at] = values
    return wider
