"""Min, max and mean of growing series at every power-of-sixteen bucket width."""

from collections.abc import Sequence

import numpy as np

from gpu_util_callback.recording.pyramid import extremes, reduce_rows

__all__ = ["FAN_OUT_BITS", "Levels", "Range"]

FAN_OUT_BITS = 4
ALL = slice(None)
# (min, max, mean), each float32[columns, count]
Range = tuple[np.ndarray, np.ndarray, np.ndarray]


class Levels:
    """Min, max and mean of columns in buckets of 2^shift, 2^(shift+4), … keys.

    Rows are appended in the order of their keys; coarser levels are computed on demand.
    A mean is weighted by rows, which several columns of a group share.
    """

    def __init__(self, columns: Sequence[str], shift: int, keys: int = 0):
        self.columns = list(columns)
        self.shift = shift
        # Room for the expected number of keys: growing in small steps would fragment the heap.
        self._levels = [_Level(len(self.columns), keys >> shift)]
        self._stale_from = 0  # base buckets from here on are not in the coarser levels yet

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    @property
    def end(self) -> int:
        """End of the keys: there are no rows at or beyond it."""
        return self._levels[0].used << self.shift

    def add_columns(self, columns: Sequence[str]) -> None:
        """Make room for columns that appeared later; `columns` begins with the existing ones."""
        new = len(columns) - len(self.columns)
        if new > 0:
            self.columns = list(columns)
            for level in self._levels:
                level.add_columns(new)

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Append rows: `keys` int64[n] ≥ 0, not descending; `values` float[columns, n]."""
        if not len(keys):
            return
        numbers, reduced = reduce_rows(keys, values, self.shift)
        rows = np.diff(np.append(np.searchsorted(keys >> self.shift, numbers), len(keys)))
        self._levels[0].merge(numbers, reduced.low, reduced.high, reduced.mean, rows)
        self._stale_from = min(self._stale_from, int(numbers[0]))

    def range(self, level: int, first: int, count: int, rows: Sequence[int] | slice = ALL) -> Range:
        """Return buckets [first, first + count) of 2^level keys, `level` at least `shift`.

        Args:
            rows: the numbers of the requested columns.
        """
        self._complete()
        depth = min((level - self.shift) // FAN_OUT_BITS, len(self._levels) - 1)
        source = self._levels[depth]
        bits = level - self.shift - depth * FAN_OUT_BITS
        return source.fold(first, count, bits, rows)[:3]

    def _complete(self) -> None:
        """Bring the coarser levels up to date from the first stale bucket."""
        stale, base = self._stale_from, self._levels[0]
        if stale >= base.used:
            return
        depth = 0
        while self._levels[depth].used > 64:
            finer = self._levels[depth]
            stale >>= FAN_OUT_BITS
            if depth + 1 == len(self._levels):
                self._levels.append(_Level(len(self.columns), 0))
                stale = 0
            self._levels[depth + 1].replace_from(stale, finer)
            depth += 1
        self._stale_from = base.used


class _Level:
    """One level: `low`, `high`, `mean` float32[columns, capacity], `rows` float32[capacity]."""

    def __init__(self, columns: int, capacity: int):
        self.used = 0
        self.low, self.high, self.mean = (
            np.full((columns, capacity), np.nan, np.float32) for _ in range(3)
        )
        self.rows = np.zeros(capacity, np.float32)

    @property
    def nbytes(self) -> int:
        return self.low.nbytes * 3 + self.rows.nbytes

    def _reserve(self, buckets: int) -> None:
        if buckets > len(self.rows):
            more = max(buckets - len(self.rows), len(self.rows) // 8, 64)
            pad = ((0, 0), (0, more))
            self.low, self.high, self.mean = (
                np.pad(a, pad, constant_values=np.nan) for a in (self.low, self.high, self.mean)
            )
            self.rows = np.pad(self.rows, (0, more))
        self.used = max(self.used, buckets)

    def add_columns(self, new: int) -> None:
        pad = ((0, new), (0, 0))
        self.low, self.high, self.mean = (
            np.pad(a, pad, constant_values=np.nan) for a in (self.low, self.high, self.mean)
        )

    def merge(self, at, low, high, mean, rows) -> None:
        """Merge buckets numbered `at`; only the first of them can have rows already."""
        self._reserve(int(at[-1]) + 1)
        weight = np.where(np.isnan(self.mean[:, at]), 0.0, self.rows[at])
        extra = np.where(np.isnan(mean), 0.0, rows)
        total = np.where(weight > 0, self.mean[:, at], 0) * weight
        total += np.where(extra > 0, mean, 0) * extra
        self.low[:, at] = np.fmin(self.low[:, at], low)
        self.high[:, at] = np.fmax(self.high[:, at], high)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.mean[:, at] = np.where(weight + extra > 0, total / (weight + extra), np.nan)
        self.rows[at] += rows

    def replace_from(self, start: int, finer: "_Level") -> None:
        """Compute the buckets from `start` on from the next finer level."""
        end = -(-finer.used // (1 << FAN_OUT_BITS))
        self._reserve(end)
        low, high, mean, rows = finer.fold(start, end - start, FAN_OUT_BITS)
        self.low[:, start:end], self.high[:, start:end] = low, high
        self.mean[:, start:end], self.rows[start:end] = mean, rows

    def fold(self, first: int, count: int, bits: int, columns: Sequence[int] | slice = ALL):
        """Return (low, high, mean, rows) of `count` buckets, each 2^bits of this level's."""
        width = 1 << bits
        begin, end = first << bits, (first + count) << bits
        known = slice(min(begin, self.used), min(end, self.used))
        inside = known.stop - known.start
        whole = -(-inside // width)  # buckets with data; the last may be partial
        part = self.mean[columns, known]
        low, high, mean = (np.full((len(part), count), np.nan, np.float32) for _ in range(3))
        rows = np.zeros(count, np.float32)
        if whole:
            starts = np.arange(0, inside, width)
            weight = np.where(np.isnan(part), np.float32(0), self.rows[known])
            low[:, :whole], high[:, :whole] = extremes(
                self.low[columns, known], self.high[columns, known], starts
            )
            rows[:whole] = np.add.reduceat(self.rows[known], starts)
            total = np.add.reduceat(np.where(weight > 0, part, 0) * weight, starts, axis=1)
            weight = np.add.reduceat(weight, starts, axis=1)
            with np.errstate(invalid="ignore", divide="ignore"):
                mean[:, :whole] = np.where(weight > 0, total / weight, np.nan)
        return low, high, mean, rows
