"""Samples in bounded memory: time bins per group that fold by two as a run grows."""

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["SampleBins"]

# How long a sample speaks for the time before it: twice as long as the driver takes means over.
HOLD_NS = 2_000_000_000


class SampleBins:
    """Sum, count and maximum per time bin and column of one group of samples.

    Bins start at `BASE_NS` and double when `CAPACITY` of them no longer reach the newest sample.
    Values are rounded to 1/64 (bytes to whole ones), so that sums are exact in float64 and do not
    depend on how the samples arrived. Bins without a sample are NaN: nothing is interpolated.
    """

    CAPACITY = 4096
    BASE_NS = 100_000_000

    def __init__(self, columns: Sequence[str] | None = None):
        self.bin_ns = self.BASE_NS
        self.origin_ns: int | None = None
        self.last_ns: int | None = None
        self.samples = 0
        self._keep = None if columns is None else frozenset(columns)
        self._sum: dict[str, np.ndarray] = {}
        self._count: dict[str, np.ndarray] = {}
        self._max: dict[str, np.ndarray] = {}
        self._kept: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}
        self._grown: dict[str, tuple[int, np.ndarray]] = {}

    def __contains__(self, column: str) -> bool:
        """Whether this column has at least one value."""
        return column in self._count and len(self.known(column)[0]) > 0

    @property
    def columns(self) -> list[str]:
        return [name for name in self._count if name in self]

    @property
    def used(self) -> int:
        """Bins up to the newest sample."""
        if self.origin_ns is None or self.last_ns is None:
            return 0
        return (self.last_ns - self.origin_ns) // self.bin_ns + 1

    def add(self, block: Mapping[str, np.ndarray]) -> None:
        """New samples: `time_ns` and one array per column, NaN = absent."""
        times = np.asarray(block.get("time_ns", ()), dtype=np.int64)
        if not len(times):
            return
        if self.origin_ns is None:
            self.origin_ns = int(times[0])
        # A sample that arrives late and is older than the first belongs to the first bin.
        offsets = np.maximum(times - self.origin_ns, 0)
        newest = int(offsets.max())
        while newest >= self.CAPACITY * self.bin_ns:
            self._fold()
        self.last_ns = max(self.last_ns or 0, self.origin_ns + newest)
        self.samples += len(times)
        at = offsets // self.bin_ns
        for name, raw in block.items():
            if name == "time_ns" or (self._keep is not None and name not in self._keep):
                continue
            values = np.asarray(raw, dtype=np.float64)
            here = np.isfinite(values)
            if not here.any():
                continue
            if name not in self._sum:
                self._sum[name] = np.zeros(self.CAPACITY)
                self._count[name] = np.zeros(self.CAPACITY)
                self._max[name] = np.full(self.CAPACITY, -np.inf)
            grain = 1.0 if name.endswith("_bytes") else 64.0
            values, where = np.rint(values[here] * grain) / grain, at[here]
            np.add.at(self._sum[name], where, values)
            np.add.at(self._count[name], where, 1.0)
            np.maximum.at(self._max[name], where, values)

    def known(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """The bins with samples of a column, ascending, and the mean in each of them."""
        kept = self._kept.get(column)
        if kept is None or kept[0] != self.samples:
            count = self._count[column][: self.used]
            at = np.flatnonzero(count)
            kept = self._kept[column] = self.samples, at, self._sum[column][at] / count[at]
        return kept[1], kept[2]

    def mean(self, column: str) -> np.ndarray:
        """Mean per bin, NaN where there is no sample; shape `(used,)`."""
        count = self._count[column][: self.used]
        with np.errstate(invalid="ignore"):
            return np.where(count > 0, self._sum[column][: self.used] / count, np.nan)

    def maximum(self, column: str) -> float | None:
        """The largest value ever seen, None without one."""
        return float(self._max[column].max()) if column in self else None

    def over(self, column: str, start_ns: int, end_ns: int) -> tuple[float, int] | None:
        """Mean value over time and number of samples between two times; None without a sample.

        A sample tells of the time since the one before it, up to `HOLD_NS`: the driver's buffer is
        dense while a GPU works and sparse while it idles. Bins that lie across an end count with
        the share that lies inside.
        """
        if column not in self or self.origin_ns is None or end_ns <= start_ns:
            return None
        first = max(0, (start_ns - self.origin_ns) // self.bin_ns)
        last = min(self.used, -(-(end_ns - self.origin_ns) // self.bin_ns))
        if last <= first:
            return None
        at, means = self.known(column)
        a, b = (int(n) for n in np.searchsorted(at, (first, last)))
        if a == b:
            return None
        grown = self._grown_of(column)
        told, weighted, samples = (float(sums[b] - sums[a + 1]) for sums in grown)
        # What lies across an end: the first bin, for whose time before nothing is known, and the
        # last one.
        since = min(int(at[a] - first + 1) * self.bin_ns, self._hold_ns)
        right = self.origin_ns + int(at[a] + 1) * self.bin_ns
        part = min(right, end_ns) - max(right - since, start_ns)
        inside = min(right, end_ns) - max(right - self.bin_ns, start_ns)
        told, weighted = told + part, weighted + part * float(means[a])
        samples += self._count[column][at[a]] * inside / self.bin_ns
        beyond = self.origin_ns + int(at[b - 1] + 1) * self.bin_ns - end_ns
        if b - a > 1 and beyond > 0:
            told, weighted = told - beyond, weighted - beyond * float(means[b - 1])
            samples -= self._count[column][at[b - 1]] * beyond / self.bin_ns
        return weighted / told, max(1, round(samples))

    @property
    def _hold_ns(self) -> int:
        return max(HOLD_NS, self.bin_ns)

    def _grown_of(self, column: str) -> np.ndarray:
        """Of the bins before each one: ns they tell of, value times ns, samples; `(3, n + 1)`."""
        kept = self._grown.get(column)
        if kept is None or kept[0] != self.samples:
            at, means = self.known(column)
            told = np.minimum(np.diff(at, prepend=-1) * self.bin_ns, self._hold_ns).astype(float)
            each = np.stack([told, told * means, self._count[column][at]])
            kept = self._grown[column] = (
                self.samples, np.cumsum(np.pad(each, ((0, 0), (1, 0))), axis=1),
            )  # fmt: skip
        return kept[1]

    def reach(self, column: str, start_ns: int, end_ns: int) -> float:
        """From the first to the last sample between two times, as a share (0-1) of that time."""
        if column not in self or self.origin_ns is None or end_ns <= start_ns:
            return 0.0
        at, _ = self.known(column)
        first = (start_ns - self.origin_ns) // self.bin_ns
        last = -(-(end_ns - self.origin_ns) // self.bin_ns)
        a, b = np.searchsorted(at, (first, last))
        if a == b:
            return 0.0
        ends = self.origin_ns + (at[[a, b - 1]] + 1) * self.bin_ns
        begin = max(start_ns, int(ends[0]) - self._hold_ns)
        return (min(end_ns, int(ends[1]) + self._hold_ns) - begin) / (end_ns - start_ns)

    def over_each(
        self, column: str, start_ns: np.ndarray, end_ns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same for many ranges at once: means (NaN without a sample) and numbers of samples.

        The cost is that of the bins, however many ranges there are.
        """
        if column not in self or self.origin_ns is None:
            return np.full(len(start_ns), np.nan), np.zeros(len(start_ns))
        at, means = self.known(column)
        since = np.minimum(np.diff(at, prepend=-1) * self.bin_ns, self._hold_ns)
        right = (at + 1) * self.bin_ns
        edges = np.stack([right - since, right], axis=1).ravel()

        def within(each: np.ndarray) -> np.ndarray:
            grown = np.concatenate([[0.0], np.cumsum(each)])
            level = np.stack([grown[:-1], grown[1:]], axis=1).ravel()
            last, first = (np.interp(t - self.origin_ns, edges, level) for t in (end_ns, start_ns))
            return last - first

        told = within(since.astype(float))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(told > 0, within(means * since) / told, np.nan)
        return mean, within(self._count[column][at])

    def stamps(self) -> np.ndarray:
        """Start of each bin that holds a sample of any column, ns since the epoch, ascending."""
        count = np.zeros(self.used)
        for column in self._count.values():
            count += column[: self.used]
        return (self.origin_ns or 0) + np.flatnonzero(count) * self.bin_ns

    def starts(self) -> np.ndarray:
        """Start of each used bin, ns since the epoch."""
        return (self.origin_ns or 0) + np.arange(self.used, dtype=np.int64) * self.bin_ns

    def _fold(self) -> None:
        half = self.CAPACITY // 2
        for column in (*self._sum.values(), *self._count.values()):
            column[:half], column[half:] = column[0::2] + column[1::2], 0.0
        for column in self._max.values():
            column[:half], column[half:] = np.maximum(column[0::2], column[1::2]), -np.inf
        self.bin_ns *= 2
