"""Sets of time as sorted, disjoint half-open intervals, used by all accounts.

All operations are vectorised over numpy int64 and exact. Times are picoseconds throughout
`gpu_util_callback.traces`, yet nothing here depends on the unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of points in time: `start[i] <= t < end[i]`, sorted, disjoint, none empty or touching.

    Build one with `union`; the operators keep the form.
    """

    start: np.ndarray  # int64[n]
    end: np.ndarray  # int64[n]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Length of the set."""
        return int((self.end - self.start).sum())

    def __or__(self, other: Intervals) -> Intervals:
        if not len(other):
            return self
        if not len(self):
            return other
        return union(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def __and__(self, other: Intervals) -> Intervals:
        mine, theirs = other.overlaps(self.start, self.end)
        return Intervals(
            np.maximum(self.start[mine], other.start[theirs]), np.minimum(self.end[mine], other.end[theirs])
        )

    def __sub__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self
        return self & other.complement(int(self.start[0]), int(self.end[-1]))

    def overlaps(self, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all pairs of a window `[start[i], end[i])` and an interval of the set that share time.

        Args:
            start, end: int64[n], of the windows in any order.

        Returns:
            Indices of the windows, ascending, and indices of the intervals; int64[pairs] each.
        """
        first = np.searchsorted(self.end, start, side="right")  # first interval that ends after the window's start
        last = np.searchsorted(self.start, end, side="left")  # first interval that starts at the window's end or later
        count = np.maximum(last - first, 0)
        window = np.repeat(np.arange(len(start)), count)
        offset = np.arange(len(window)) - np.repeat(np.cumsum(count) - count, count)
        return window, first[window] + offset

    def clip(self, low: int, high: int) -> Intervals:
        """Return the part inside `[low, high)`."""
        start = np.maximum(self.start, low)
        end = np.minimum(self.end, high)
        keep = start < end
        return Intervals(start[keep], end[keep])

    def complement(self, low: int, high: int) -> Intervals:
        """Return the part of `[low, high)` that is not in the set."""
        inside = self.clip(low, high)
        start = np.concatenate((np.array([low], np.int64), inside.end))
        end = np.concatenate((inside.start, np.array([high], np.int64)))
        keep = start < end
        return Intervals(start[keep], end[keep])

    def covered_before(self, at: np.ndarray) -> np.ndarray:
        """Return the length of the set before each point of `at` (int64[m], any order); int64[m]."""
        if not len(self):
            return np.zeros(at.shape, np.int64)
        length = self.end - self.start
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))
        index = np.searchsorted(self.start, at, side="right")
        last = np.maximum(index - 1, 0)  # last interval that starts by the point
        inside = np.minimum(at - self.start[last], length[last])
        return np.where(index > 0, before[last] + inside, 0)

    def measure(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the length inside each window `[start[i], end[i])`; windows may overlap."""
        return self.covered_before(end) - self.covered_before(start)

    def contains(self, at: np.ndarray) -> np.ndarray:
        """Return a mask (bool[m]) of the points that lie in the set."""
        if not len(self):
            return np.zeros(at.shape, bool)
        index = np.searchsorted(self.start, at, side="right")
        return (index > 0) & (at < self.end[np.maximum(index - 1, 0)])


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """Return the union of any intervals: unsorted, overlapping, touching; empty are dropped."""
    return union_with_first(start, end)[0]


def union_with_first(start: np.ndarray, end: np.ndarray) -> tuple[Intervals, np.ndarray]:
    """Return the union, and int64 for each of its intervals the index of the input that begins it."""
    start = np.asarray(start, np.int64)
    end = np.asarray(end, np.int64)
    indices = np.flatnonzero(start < end)
    if not len(indices):
        return EMPTY, indices
    if len(indices) != len(start):
        start, end = start[indices], end[indices]
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end, indices = start[order], end[order], indices[order]
    reach = np.maximum.accumulate(end)
    fresh = np.concatenate((np.ones(1, bool), start[1:] > reach[:-1]))
    last = np.concatenate((fresh[1:], np.ones(1, bool)))
    return Intervals(start[fresh], reach[last]), indices[fresh]
