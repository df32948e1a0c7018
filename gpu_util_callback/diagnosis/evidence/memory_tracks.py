"""Memory over a run: what was held, in bounded space, and the growth that does not come back."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.thresholds import A_QUARTER, A_TENTH, A_TREND, A_TWENTIETH, MOSTLY, WARM_UP, Constant

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

WARM = Constant(0.06, "of a run: its first steps allocate what the later ones use")
ONE_STEP = Constant(0.4, "of the growth in one step of it is one allocation, not a trend")


@dataclass(frozen=True, slots=True)
class MemoryTrack:
    """The lowest and highest value of a column over a run, in at most `CAPACITY` blocks of readings.

    Attributes:
        time_ns, end_ns: the middle, and the last reading, of each block, ns since the epoch.
        low, high: float64 (n,), bytes or what the column counts.
        last: the newest reading.
        highest: of all of them.
    """

    CAPACITY: ClassVar[int] = 256

    time_ns: np.ndarray
    end_ns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    last: float
    highest: float

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def of_late(self) -> tuple[float, float]:
        """The lowest and the highest value of the last tenth of the blocks."""
        recent = max(1, int(A_TENTH * len(self)))
        return float(self.low[-recent:].min()), float(self.high[-recent:].max())


class Growth(NamedTuple):
    """Memory that grows and is not given back.

    Attributes:
        onset: the step from which it grows.
        per_step: the rate, in bytes (or what the column counts).
        peak_per_step: the rate of its peaks, that meet a limit first: higher where what is kept is
            copied from time to time.
        high_per_step: the highest rate that the readings allow.
        grown: since the onset.
        level: the highest value of late, that meets a limit first.
    """

    onset: float
    per_step: float
    peak_per_step: float
    high_per_step: float
    grown: float
    level: float


def by_step(steps: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one reading for each step; readings taken during validation are ignored.

    Args:
        steps: float64 (n,), training steps done at each reading, not decreasing; whole while a validation runs.
        low, high: float64 (n,), the lowest and the highest value of each reading.

    Returns:
        The steps as whole numbers, and the lowest and highest value in each; (number of steps,) each.
    """
    whole = np.floor(steps)
    heads = np.flatnonzero(np.diff(whole, prepend=-1.0))
    return whole[heads], np.minimum.reduceat(low, heads), np.maximum.reduceat(high, heads)


def grows(steps: np.ndarray, low: np.ndarray, high: np.ndarray, least: float) -> Growth | None:
    """Return the growth of a column, None where there is none apart from a saw-tooth.

    What counts is the memory that was held from then on: the least of all later values. A finished
    saw-tooth or a peak does not raise it.

    Args:
        steps: training steps done at each reading, not decreasing.
        low, high: the lowest and the highest value of each reading.
        least: smaller growth is none.
    """
    # Too few readings, or the whole range is smaller than `least`.
    if len(steps) < A_TREND or high.max() - low.min() < least:
        return None
    first_step = float(steps[0])
    first_warm = np.searchsorted(steps, first_step + WARM * (steps[-1] - first_step))
    steps, low, high = steps[first_warm:], low[first_warm:], high[first_warm:]
    low = np.append(low[:-1], low[-2:].min())  # the last one may be a peak, given back at once
    judged = _readings_to_judge(low)
    span, levels = steps[judged], least_of_later(low[judged])
    if len(span) < A_TREND or levels[-1] - levels[0] < least:
        return None
    onset = _onset_index(span, levels)
    # Grew from the first reading on, as far as can be seen: the onset is the first step.
    from_start = judged.start == 0 and span[onset] - span[0] <= A_TWENTIETH * (span[-1] - span[0])
    growing_steps, levels = span[onset:], levels[onset:]
    per_step, high_per_step = _slope(growing_steps, levels)
    if per_step <= 0 or not _goes_on(growing_steps, levels, least):  # level, one jump, or growth that has ended
        return None
    is_growing = steps >= growing_steps[0]
    recent = max(1, int(A_TENTH * len(high)))
    return Growth(
        onset=first_step if from_start else float(growing_steps[0]),
        per_step=per_step,
        peak_per_step=max(per_step, _slope(steps[is_growing], np.maximum.accumulate(high[is_growing]))[0]),
        high_per_step=high_per_step,
        grown=float(levels[-1] - levels[0]),
        level=float(high[-recent:].max()),
    )


def _readings_to_judge(low: np.ndarray) -> slice:
    """Return the readings to judge: all, or those before or after the last tooth of a saw.

    A tooth that is not finished raises the memory held for as long as it lasts.
    """
    never_below = least_of_later(low)
    released = float((np.maximum.accumulate(low) - low).max())
    # No saw-tooth: hardly anything was given back, compared with what stayed.
    if released <= A_QUARTER * (never_below[-1] - never_below[0]):
        return slice(0, len(low))
    fall = int(np.flatnonzero(low - never_below >= released / 2)[-1])
    trough = fall + int(np.argmin(low[fall:]))
    # Since the last release it grew far beyond the tooth: judge only that.
    if low[-1] - low[trough] >= (1 + MOSTLY) * released:
        return slice(trough, len(low))
    return slice(0, trough + 1)


def least_of_later(values: np.ndarray) -> np.ndarray:
    """Return for each value the least of it and all later ones."""
    return np.minimum.accumulate(values[::-1])[::-1]


def _onset_index(x: np.ndarray, y: np.ndarray) -> int:
    """Return the index from which y rises after being level.

    That is the k whose line a + b·max(0, x - x[k]), b ≥ 0, fits y best (least squares).

    Args:
        x, y: float64 (n,), steps and bytes.
    """
    dy = y - y.mean()
    # (candidates, n): the ramp of each candidate k.
    ramps = np.maximum(x[None, :] - x[: max(1, len(x) - A_TREND // 2), None], 0.0)
    ramps -= ramps.mean(axis=1, keepdims=True)
    # The part of y's variance that each ramp explains.
    explained = np.maximum(ramps @ dy, 0.0) ** 2 / np.maximum((ramps**2).sum(axis=1), 1e-12)
    return int(np.argmax(explained))


def _goes_on(x: np.ndarray, y: np.ndarray, least: float) -> bool:
    """Return True if `y` grew over many of the steps `x` and by `least`, neither in one go nor up to a limit."""
    grown = y[-1] - y[0]
    if len(x) < A_TREND - 2 or x[-1] - x[0] < WARM_UP.default or grown < least or np.diff(y).max() > ONE_STEP * grown:
        return False
    third = np.interp(x[0] + (x[-1] - x[0]) * 2 / 3, x, y)  # where the last one begins
    return bool(y[-1] - third >= MOSTLY * grown / 3)


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the median of the slopes between readings (Theil-Sen) and their 90th percentile; (0, 0) without any.

    Args:
        x, y: float64 (n,), steps and bytes: slopes are bytes a step.
    """
    if len(x) > 96:
        chosen = np.linspace(0, len(x) - 1, 96).astype(int)  # the pairs of 96 readings are enough, and few
        x, y = x[chosen], y[chosen]
    a, b = np.triu_indices(len(x), max(1, len(x) // 4))  # pairs at least a quarter of the readings apart
    step_distance = x[b] - x[a]
    has_length = step_distance > 0
    slopes = (y[b] - y[a])[has_length] / step_distance[has_length]
    if not len(slopes):
        return 0.0, 0.0
    median, highest = np.percentile(slopes, [50, 90])
    return float(median), float(highest)
