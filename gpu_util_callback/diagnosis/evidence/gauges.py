"""Samples of GPUs and host, with queries on single columns.

They are kept in bounded memory: time bins per group that fold by two as a run grows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property, partial, wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from gpu_util_callback.diagnosis.evidence.memory_tracks import TRACKED, MemoryTrack
from gpu_util_callback.diagnosis.thresholds import A_FEW, MIN_S, Count
from gpu_util_callback.recording.fold import EvenlySpread
from gpu_util_callback.recording.top import SampleCells

_Run = TypeVar("_Run", bound="Gauges")
_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def cached(
    question: Callable[Concatenate[_Run, _Arguments], _Answer],
) -> Callable[Concatenate[_Run, _Arguments], _Answer]:
    """Cache the answers to a question about a run, one for each set of arguments."""

    @wraps(question)
    def answered(run: _Run, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        return run.once((question, *args, *kwargs.items()), lambda: question(run, *args, **kwargs))

    return answered


class Gauges:
    """Samples by group, and the courses of memory.

    Rules repeat the same queries: answers are cached.
    """

    def __init__(self, samples: Mapping[str, SampleBins]) -> None:
        self.samples = samples
        self._answers: dict[Hashable, object] = {}

    def once(self, question: Hashable, answer: Callable[[], _Answer]) -> _Answer:
        """Return the result of `answer`, computed once per question."""
        try:
            return self._answers[question]  # type: ignore[return-value]
        except KeyError:
            result = self._answers[question] = answer()
            return result

    @cached_property
    def memory(self) -> dict[str, MemoryTrack]:
        """The courses of memory, "host:process_held_bytes" -> its track."""
        tracks: dict[str, MemoryTrack] = {}
        for group, bins in self.samples.items():
            kind = name = group
            if group.startswith("gpu"):  # an allocator's columns may be in the GPU's own group, too
                kind, name = "gpu", f"{group.partition('/')[0]}/allocator"
            tracks |= {f"{name}:{column}": bins.track(column) for column in TRACKED.get(kind, ()) if column in bins}
        return tracks

    def gpu_mean(
        self, index: int, column: str, start_ns: int, end_ns: int, at_least: int = A_FEW, reach: float = 0.0
    ) -> Mean | None:
        """Return a GPU's column over a range; None with fewer samples than `at_least`.

        Args:
            reach: the share of the range that must lie between the first and the last of them.
        """
        bins = self.column(index, column)
        if bins is None:
            return None
        arguments = column, start_ns, end_ns
        mean = self.once((bins, *arguments), partial(bins.over, *arguments))
        return None if mean is None or mean.samples < at_least or mean.reach < reach else mean

    @cached
    def host_mean(self, column: str, start_ns: int, end_ns: int) -> float | None:
        """Return the mean of a column of the host over a range; None with less than two of its samples."""
        host = self.samples.get("host")
        mean = host.over(column, start_ns, end_ns) if host is not None else None
        return mean.value if mean is not None and mean.samples >= 2 else None

    @cached
    def column(self, index: int, name: str) -> SampleBins | None:
        """Return a GPU's group with this column, None if no group has it.

        "/utilization", if recorded, has the time of each value; a polled one is up to a second old.
        """
        sources = [
            bins
            for part in ("/utilization", "", "/gpm", "/allocator")
            if (bins := self.samples.get(f"gpu{index}{part}")) is not None and name in bins
        ]
        if len(sources) > 1 and 2 * sources[0].covered_ns(name) < sources[1].covered_ns(name):
            return sources[1]
        return sources[0] if sources else None

    def highest(self, index: int, name: str) -> float | None:
        """Return the largest value of a GPU's column, None if it was not sampled."""
        bins = self.column(index, name)
        return bins.maximum(name) if bins is not None else None

    def highest_of(self, key: str) -> float | None:
        """Return the largest value of a tracked column, "host:process_held_bytes"; None without any."""
        track = self.memory.get(key)
        return track.highest if track is not None else None

    def last_of(self, key: str) -> float | None:
        """Return the latest value; None without any."""
        track = self.memory.get(key)
        return track.last if track is not None else None


HOLD_NS = Count(
    1e9 * MIN_S.default, "utilization is a mean over up to a second, held for another: so much a sample covers"
)


class Mean(NamedTuple):
    """A column over a range: the mean over time, and the number of samples behind it.

    `reach` is the share of the range (0-1) between the first and the last of them.
    """

    value: float
    samples: int
    reach: float


class SampleBins(SampleCells):
    """Sum and count per time bin and column of one group of samples, and each column's maximum.

    Bins widen as the run grows. Those without a sample are NaN: nothing is interpolated.
    """

    _max: dict[str, float]  # column -> its largest value

    def __init__(self, since_ns: int = 0) -> None:
        super().__init__(since_ns)
        self._max = {}
        # Column -> its bins with samples, since the newest one: their numbers, means, and ns that each covers.
        self._bins_by_column: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._spread: dict[str, EvenlySpread] = {}  # column -> ns covered, their sum of values, and number of samples

    def __contains__(self, column: str) -> bool:
        """Return whether this column has at least one value."""
        return column in self._max

    @property
    def origin_ns(self) -> int | None:
        """Start of the first bin, ns since the epoch; None without samples."""
        return self.since_ns + (self.fold.first or 0) * self.fold.width if self.fold.used else None

    @property
    def last_ns(self) -> int:
        """The time of the newest sample."""
        return self.since_ns + int(self.fold.of("last", "time").max())

    @property
    def bin_ns(self) -> int:
        return self.fold.width

    def _add(self, since: np.ndarray, names: list[str], values: np.ndarray) -> None:
        """Add samples of several columns and raise each column's maximum.

        Args:
            since: int64 (n,), ns since `since_ns`.
            names: the m columns.
            values: float64 (m, n); NaN = not sampled.
        """
        super()._add(since, names, values)
        self._bins_by_column, self._spread = {}, {}
        is_sampled = np.isfinite(values)
        highest = np.where(is_sampled, values, -np.inf).max(axis=1, initial=-np.inf).tolist()
        for name, value, is_known in zip(names, highest, is_sampled.any(axis=1).tolist(), strict=True):
            if is_known:
                self._max[name] = max(self._max.get(name, value), value)

    def means(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the bins with samples of a column, ascending, and the mean in each of them."""
        return self._sampled_bins(column)[:2]

    def _sampled_bins(self, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the bins in which a column was sampled, ascending; (n,) each.

        Returns:
            int64 indices of the bins, float64 means in them, and float64 ns that each mean covers: the time since the
            bin before, at most the hold time.
        """
        if column not in self._bins_by_column:
            count, total = (self.fold.of(part, column) for part in ("count", "total"))
            at = np.flatnonzero(count)
            covered_ns = np.minimum(np.diff(at, prepend=-1) * self.bin_ns, self._hold_ns)
            self._bins_by_column[column] = at, total[at] / count[at], covered_ns.astype(np.float64)
        return self._bins_by_column[column]

    def maximum(self, column: str) -> float | None:
        """Return the largest value ever seen, None without any."""
        return self._max.get(column)

    def over(self, column: str, start_ns: int, end_ns: int) -> Mean | None:
        """Return the column's mean between two times; None without a sample.

        A sample covers the time since the one before it, up to `HOLD_NS`: the driver's buffer is
        dense while a GPU works and sparse while it idles. Bins across an end count with the share
        inside.
        """
        if column not in self or self.origin_ns is None or end_ns <= start_ns:
            return None
        sampled, means, covered_ns = self._sampled_bins(column)
        first_bin = max(0, (start_ns - self.origin_ns) // self.bin_ns)
        end_bin = min(self.fold.used, -(-(end_ns - self.origin_ns) // self.bin_ns))
        a, b = sampled.searchsorted((first_bin, end_bin)).tolist()  # the sampled bins within the range
        if a >= b:
            return None
        covered_ns = covered_ns[a:b].copy()
        head, tail = int(sampled[a]), int(sampled[b - 1])
        # Nothing is known about the time before the first bin; both ends may lie within a bin.
        head_hold_ns = min((head - first_bin + 1) * self.bin_ns, self._hold_ns)
        head_end_ns = self.origin_ns + (head + 1) * self.bin_ns
        tail_end_ns = self.origin_ns + (tail + 1) * self.bin_ns
        # The first mean holds from its hold time before, but not from before the range.
        covered_ns[0] = head_end_ns - max(head_end_ns - head_hold_ns, start_ns)
        covered_ns[-1] -= max(0, tail_end_ns - end_ns)
        count = self.fold.of("count", column)[head : tail + 1]
        # Shares (0-1) of the outermost bins that lie outside the range.
        outside_before = max(0, start_ns - (head_end_ns - self.bin_ns)) / self.bin_ns
        outside_after = max(0, tail_end_ns - end_ns) / self.bin_ns
        samples = float(count.sum()) - (float(count[0]) * outside_before + float(count[-1]) * outside_after)
        known_ns = min(end_ns, tail_end_ns + self._hold_ns) - max(start_ns, head_end_ns - self._hold_ns)
        mean = float(covered_ns @ means[a:b]) / float(covered_ns.sum())
        return Mean(mean, max(1, round(samples)), known_ns / (end_ns - start_ns))

    @property
    def _hold_ns(self) -> int:
        return max(HOLD_NS, self.bin_ns)

    def covered_ns(self, column: str) -> float:
        """Return how long a column was sampled, ns."""
        return float(self._sampled_bins(column)[2].sum())

    def over_each(self, column: str, start_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and numbers of samples for many ranges at once.

        The cost is that of the bins, however many ranges there are.

        Args:
            start_ns, end_ns: int64 (n,), ns since the epoch.

        Returns:
            float64 (n,) twice: the mean of the column (NaN without a sample), and the number of samples, which may be a
            fraction.
        """
        if column not in self or self.origin_ns is None:
            return np.full(len(start_ns), np.nan), np.zeros(len(start_ns))
        if column not in self._spread:
            sampled, means, covers_ns = self._sampled_bins(column)
            middle = sampled * self.bin_ns + self.bin_ns // 2  # samples lie anywhere in a bin
            amounts = covers_ns, means * covers_ns, self.fold.of("count", column)[sampled]
            self._spread[column] = EvenlySpread(middle - covers_ns, middle, *amounts)
        # Sums from the beginning to each start and end: their difference is that of the range.
        before = self._spread[column].before(np.concatenate([start_ns, end_ns]) - self.origin_ns)
        covered, summed, count = (each[len(start_ns) :] - each[: len(start_ns)] for each in before)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(covered > 0, summed / covered, np.nan), count

    def times(self, part: str, bins: np.ndarray) -> np.ndarray:
        """Return the time of the "first" or the "last" sample in each of these bins, ns since the epoch."""
        return self.fold.of(part, "time")[bins] + self.since_ns

    def track(self, column: str) -> MemoryTrack:
        """Return the course of a column that was sampled at least once.

        Bins are joined until `MemoryTrack.CAPACITY` suffices.
        """
        sampled, means = self.means(column)
        joined = 1 << ((len(sampled) - 1) // MemoryTrack.CAPACITY).bit_length()  # a power of two: bins for each block
        heads = np.arange(0, len(sampled), joined)
        first, end = self.times("first", sampled)[heads], np.maximum.reduceat(self.times("last", sampled), heads)
        low, high = (self.fold.of(part, column)[sampled].astype(np.float64) for part in ("low", "high"))
        low, high = np.minimum.reduceat(low, heads), np.maximum.reduceat(high, heads)
        return MemoryTrack(first + (end - first) // 2, end, low, high, float(means[-1]), self._max[column])

    def starts(self, bins: np.ndarray) -> np.ndarray:
        """Return when these bins begin, ns since the epoch."""
        return (self.origin_ns or 0) + bins * self.bin_ns

    def stamps(self) -> np.ndarray:
        """Return the start of each bin with a sample of any column, ns since the epoch."""
        return self.starts(np.flatnonzero(self.fold.matrix("count").any(axis=0) if self._max else ()))
