"""Memory over a run: what was held, in bounded space, and the growth that does not come back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.thresholds import Constant, Count
from gpu_util_callback.recording.fold import Fold

# Columns whose lowest and highest values are kept, by the kind of their group.
TRACKED = {
    "host": (
        "process_held_bytes",
        "process_memory_bytes",
        "workers_memory_bytes",
        "container_memory_bytes",
        "memory_available_bytes",
        "process_address_space_bytes",
        "python_blocks",
        "workers",
    ),
    "gpu": (
        "allocator_used_bytes",
        "allocator_peak_bytes",
        "allocator_limit_bytes",
        "allocator_reserved_bytes",
        "allocator_live_allocations",
    ),
}

POINTS = Count(8, "a trend shows in no fewer readings")
STEPS = Count(20, "a run's first steps allocate what the later ones use")
RELEASED = Constant(0.25, "of the growth: what was given back once is no growth ...")
TROUGHS = Count(4, "... unless as many lows in a row each lie above the last")
AGAIN = Constant(1.5, "growth past all that was ever given back is not of the same kind")
STEADY = Constant(0.6, "of the growth of its first half comes in its second, or it ends by itself")
LATEST = Constant(0.5, "of the mean rate is that of the last third, or it has ended")
ONE_STEP = Constant(0.4, "of the growth in one step of it is one allocation, not a trend")
LEAP = Constant(0.05, "of the growth at once: it grows in leaps, now and then")
LEAPING = Constant(0.5, "of the growth came in such leaps")
FIRST_LEAP = Constant(1.2, "times their distance, or less: a first leap this early was due then")
FIRST_TOOTH = Constant(2.0, "times their distance: teeth that begin later than that began later")
ALIKE = Constant(0.5, "of the rate: growth before the onset is the same growth")
EARLY = Constant(0.05, "of the run after its first steps is no onset of its own")
LATE = Count(10, "parts: the last of as many is what a column reaches of late")
PEAKS = Count(12, "parts of the growth, whose peaks show how fast these rise")
PEAKS_RISE = Constant(1.2, "times the rate of what is kept: temporary memory grows as well")
NOISE = Constant(6.0, "a trend is larger than this many times the scatter around it")
BETTER = Constant(12.0, "in log-likelihood: a separate beginning explains clearly more")


_TRACK = ("time", "value")


class MemoryTrack:
    """The lowest and highest value of a column over a run: blocks of readings that fold by two."""

    CAPACITY = 256

    def __init__(self) -> None:
        self._fold = Fold(self.CAPACITY)  # by the number of a reading
        self._readings = 0
        self.last: float | None = None
        self.highest: float | None = None

    def add(self, time_ns: np.ndarray, values: np.ndarray) -> None:
        """Add readings in order, whole numbers; NaN = absent."""
        is_reading = np.isfinite(values)
        rows = np.stack([time_ns[is_reading], values[is_reading].astype(np.int64)])
        count = rows.shape[1]
        if not count:
            return
        self._fold.add(self._readings + np.arange(count), first=(_TRACK, rows), last=(_TRACK, rows))
        self._readings += count
        self.last = float(rows[1, -1])
        self.highest = float(self.high.max())

    def __len__(self) -> int:
        return self._fold.used

    def _of(self, part: str, column: str) -> np.ndarray:
        return self._fold.of(part, column) if len(self) else np.zeros(0, np.int64)

    @property
    def time_ns(self) -> np.ndarray:
        """The middle of each block."""
        first, last = self._of("first", "time"), self._of("last", "time")
        return first + (last - first) // 2

    @property
    def end_ns(self) -> np.ndarray:
        """The last reading of each block."""
        return self._of("last", "time")

    @property
    def low(self) -> np.ndarray:
        return self._of("first", "value").astype(np.float64)

    @property
    def high(self) -> np.ndarray:
        return self._of("last", "value").astype(np.float64)

    @property
    def of_late(self) -> tuple[float, float]:
        """The lowest and the highest value of the last tenth of the blocks."""
        recent = max(1, len(self) // LATE)
        return float(self.low[-recent:].min()), float(self.high[-recent:].max())


def tracks_of(tracks: dict[str, MemoryTrack], group: str, block: Mapping[str, np.ndarray]) -> None:
    """Add a group's new samples to the tracks of its columns, "host:process_held_bytes"."""
    kind = group
    if group.startswith("gpu"):  # an allocator's columns may be in the GPU's own group, too
        kind, group = "gpu", f"{group.partition('/')[0]}/allocator"
    for column in TRACKED.get(kind, ()):
        if column in block:
            track = tracks.setdefault(f"{group}:{column}", MemoryTrack())
            track.add(np.asarray(block["time_ns"]), np.asarray(block[column], np.float64))


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that grows and is not given back.

    Attributes:
        onset: the step from which it grows.
        per_step: the rate, in bytes (or what the column counts).
        peak_per_step: the rate of its peaks, that meet a limit first: higher where what is kept is
            copied from time to time.
        low_per_step, high_per_step: the range of rates that the readings allow.
        grown: since the onset.
        level: the highest value of late, that meets a limit first.
        from_start: it grows since the first steps.
    """

    onset: float
    per_step: float
    peak_per_step: float
    low_per_step: float
    high_per_step: float
    grown: float
    level: float
    from_start: bool


def by_step(steps: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one reading for each step; readings taken during validation are ignored.

    Args:
        steps, low, high: as for `grows`, at any times.
    """
    whole = np.floor(steps)
    heads = np.flatnonzero(np.diff(whole, prepend=-1.0))
    return whole[heads], np.minimum.reduceat(low, heads), np.maximum.reduceat(high, heads)


def grows(steps: np.ndarray, low: np.ndarray, high: np.ndarray, least: float) -> Growth | None:
    """Return the growth of a column, None where there is none apart from a saw-tooth.

    What counts is the memory that was held from then on: the least of all later values. A finished
    saw-tooth or a peak does not raise it. A tooth that is not finished does: growth has to exceed
    what was given back before, or to show in the lows between.

    Args:
        steps: training steps done at each reading, not decreasing.
        low, high: the lowest and the highest value of each reading.
        least: smaller growth is none.
    """
    if len(steps) < POINTS or high.max() - low.min() < least:
        return None
    first = float(steps[0])
    warm = np.searchsorted(steps, first + min(STEPS, 0.1 * (steps[-1] - first)))
    lasting = _lasting_levels(steps[warm:], low[warm:], least)
    if lasting is None:
        return None
    onset = _onset(lasting.steps, lasting.levels)
    span, levels = lasting.steps[onset:], lasting.levels[onset:]
    if not _steady(span, levels, least):
        return None
    slope, low_slope, high_slope = _slope(span, levels)
    grown = float(levels[-1] - levels[0])
    if slope <= 0 or grown < _noise(span, levels):
        return None
    recent = max(1, len(high[warm:]) // LATE)
    early = lasting.whole and span[0] - lasting.steps[0] <= EARLY * (span[-1] - lasting.steps[0])
    from_start = bool(early) and not _level_before(steps, low, float(span[0]), slope)
    return Growth(
        onset=first if from_start else float(span[0]),
        per_step=slope,
        peak_per_step=_peak_slope(steps[warm:], high[warm:], float(span[0]), slope),
        low_per_step=low_slope,
        high_per_step=high_slope,
        grown=grown,
        level=float(high[-recent:].max()),
        from_start=from_start,
    )


class _LastingLevels(NamedTuple):
    """The memory held since each of the readings that show growth apart from a saw-tooth."""

    steps: np.ndarray
    levels: np.ndarray
    whole: bool  # they begin with the run


def _lasting_levels(steps: np.ndarray, low: np.ndarray, least: float) -> _LastingLevels | None:
    """Return the memory held, None where the readings are too few or it grew by less than `least`."""
    if len(steps) < POINTS:
        return None
    low = np.append(low[:-1], low[-2:].min())  # the last one may be a peak, given back at once
    lasting = _without_teeth(steps, low, least)
    if lasting is None or len(lasting.steps) < POINTS or lasting.levels[-1] - lasting.levels[0] < least:
        return None
    return lasting


def _without_teeth(steps: np.ndarray, low: np.ndarray, least: float) -> _LastingLevels | None:
    released = float((np.maximum.accumulate(low) - low).max())
    levels = least_of_later(low)
    if released <= RELEASED * (levels[-1] - levels[0]):
        return _LastingLevels(steps, levels, True)
    troughs = _troughs(low, released / 2)
    if len(troughs) >= TROUGHS:
        begin = troughs[0]
        lows = np.interp(np.arange(begin, troughs[-1] + 1), troughs, low[troughs])
        if begin > FIRST_TOOTH * np.median(np.diff(troughs)):  # nothing was given back until then
            begin, lows = 0, np.concatenate([levels[:begin], lows])
        floor = least_of_later(lows)
        risen = float(floor[-1] - floor[0])
        if risen >= least and np.diff(least_of_later(low[troughs])).max() <= ONE_STEP * risen:  # not one low alone
            return _LastingLevels(steps[begin : troughs[-1] + 1], floor, True)
    if troughs and low[-1] - low[troughs[-1]] >= AGAIN * released:
        return _LastingLevels(steps[troughs[-1] :], levels[troughs[-1] :], False)
    return None


def least_of_later(values: np.ndarray) -> np.ndarray:
    """Return the least of each value and all later ones."""
    return np.minimum.accumulate(values[::-1])[::-1]


def _troughs(low: np.ndarray, depth: float) -> list[int]:
    """Return where the lows lie that follow a fall of at least `depth`."""
    troughs: list[int] = []
    top, bottom, falling = low[0], 0, False
    for at, value in enumerate(low.tolist()):
        if falling:
            if value < low[bottom]:
                bottom = at
            elif value - low[bottom] >= depth / 2:
                troughs.append(bottom)
                top, falling = value, False
        elif value > top:
            top = value
        elif top - value >= depth:
            bottom, falling = at, True
    if falling:
        troughs.append(bottom)
    return troughs


def _onset(x: np.ndarray, y: np.ndarray) -> int:
    """Return the index from which it grows: the earliest with the same growth after it."""
    onset = _bend(x, y)
    later = _slope(x[onset:], y[onset:])[0]
    while onset and _slope(x[: onset + 1], y[: onset + 1])[0] >= ALIKE * later:
        # It grew as fast before: its beginning is there.
        onset = _bend(x[: onset + 1], y[: onset + 1]) if onset >= POINTS else 0
    leap = LEAP * (y[-1] - y[onset])
    if onset and np.diff(y[onset:]).max() >= leap:
        return _first_leap(x, y, onset, leap)
    return onset


def _first_leap(x: np.ndarray, y: np.ndarray, bend: int, leap: float) -> int:
    """Return the index of the first leap, not where the line through all of them begins.

    0 where the first leap was due as the later ones were: each ends a number of steps.
    """
    level = np.median(y[:bend]) + leap / 2
    first = max(0, int(np.searchsorted(y, level, side="right")) - 1)
    rises = np.diff(y)
    leaps = rises >= leap
    at = x[1:][leaps]
    due = (
        len(at) > 1
        and rises[leaps].sum() >= LEAPING * (y[-1] - y[0])
        and x[first] - x[0] <= FIRST_LEAP * np.median(np.diff(at))
    )
    return 0 if due else first


def _bend(x: np.ndarray, y: np.ndarray) -> int:
    """Return where the growth begins: the hinge of a line that was level before.

    The first readings may be something else: a run's warm-up, whose end is searched, too.
    """
    best, where = np.inf, 0
    n = len(x)
    scale = max(float(y[-1] - y[0]), 1.0)
    flat = (1e-4 * scale) ** 2 * n  # below this, no difference counts
    for share in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6):
        start = int(share * n)
        if n - start < POINTS - 2:
            break
        before = _residual(x[:start], y[:start]) if start else 0.0
        hinge, after = _hinge(x[start:], y[start:])
        criterion = n * np.log(before + after + flat) + (BETTER if start else 0.0)
        if criterion < best:
            best, where = criterion, start + hinge
    return where


def _residual(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squares left over by the best line."""
    if len(x) < 3:
        return 0.0
    dx, dy = x - x.mean(), y - y.mean()
    spread = float(dx @ dx)
    slope = float(dx @ dy) / spread if spread else 0.0
    return float(((dy - slope * dx) ** 2).sum())


def _hinge(x: np.ndarray, y: np.ndarray) -> tuple[int, float]:
    """Return the index from which y rises after being level, and the squares left over.

    The best fit of a + b·max(0, x - x[k]), with b ≥ 0, over all k.
    """
    n = len(x)
    y0 = y.mean()
    dy = y - y0
    beyond_hinge = x[None, :] - x[: max(1, n - POINTS // 2), None]
    h = np.maximum(beyond_hinge, 0.0)
    h -= h.mean(axis=1, keepdims=True)
    norm = (h**2).sum(axis=1)
    slope = np.maximum((h @ dy) / np.maximum(norm, 1e-12), 0.0)
    squares_left = (dy @ dy) - slope * (h @ dy)
    k = int(np.argmin(squares_left))
    return k, float(max(0.0, squares_left[k]))


def _steady(x: np.ndarray, y: np.ndarray, least: float) -> bool:
    """Return whether growth is long and large, and neither one allocation nor coming to its end."""
    grown = y[-1] - y[0]
    if len(x) < POINTS - 2 or x[-1] - x[0] < STEPS or grown < least or np.diff(y).max() > ONE_STEP * grown:
        return False
    half, third = np.interp([x[0] + (x[-1] - x[0]) * at for at in (0.5, 2 / 3)], x, y)
    later = y[-1] - half
    return bool(later >= STEADY * (grown - later) and y[-1] - third >= LATEST * grown / 3)


def _noise(x: np.ndarray, y: np.ndarray) -> float:
    """Return the growth that the scatter around a straight line may look like."""
    scatter = float(np.median(np.abs(y - np.interp(x, x[[0, -1]], y[[0, -1]]))))
    return NOISE * scatter / max(1.0, np.sqrt(len(x)) / 4)


def _level_before(steps: np.ndarray, low: np.ndarray, onset: float, slope: float) -> bool:
    """Return whether it was level before: for longer than it ever is once it grows.

    Of the first steps the later half counts, since the earlier ones allocate.
    """
    never_below = least_of_later(low)
    span = (onset - float(steps[0])) / 2
    ends = np.append(onset, steps[steps >= onset + span])
    rises = np.interp(ends, steps, never_below) - np.interp(ends - span, steps, never_below)
    least = ALIKE * slope * span
    return bool(rises[0] < least <= rises[1:].min(initial=np.inf))


def _peak_slope(steps: np.ndarray, high: np.ndarray, onset: float, slope: float) -> float:
    """Return the rate of the peaks if they clearly rise faster than what is kept, else that."""
    since = steps >= onset
    if since.sum() < 2 * PEAKS:
        return slope
    parts = zip(*(np.array_split(values[since], int(PEAKS)) for values in (steps, high)), strict=True)
    tops = np.array([(x[np.argmax(y)], y.max()) for x, y in parts])
    rising = _slope(tops[:, 0], tops[:, 1])[0]
    return rising if rising >= PEAKS_RISE * slope else slope


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return the median of the slopes between readings (Theil-Sen), and their middle half."""
    if len(x) > 96:
        chosen = np.linspace(0, len(x) - 1, 96).astype(int)
        x, y = x[chosen], y[chosen]
    a, b = np.triu_indices(len(x), max(1, len(x) // 4))
    across = x[b] - x[a]
    some = across > 0
    slopes = (y[b] - y[a])[some] / across[some]
    if not len(slopes):
        return 0.0, 0.0, 0.0
    lowest, middle, highest = np.percentile(slopes, [10, 50, 90])
    return float(middle), float(lowest), float(highest)
