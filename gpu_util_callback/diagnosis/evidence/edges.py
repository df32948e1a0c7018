"""Where exactly a stretch began and ended: gauges are a second late, steps are not."""

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import StepBlocks

__all__ = ["sharpened"]

# The driver's means are up to a second old, and what is read once a second is another.
LATE_NS = 2_000_000_000
# A change of pace: so much slower inside, so far beyond the scatter on both sides, so many blocks.
SLOWER, SCATTERS, LEAST_BLOCKS = 1.1, 4.0, 2


def sharpened(
    steps: StepBlocks, start_ns: int, end_ns: int, apart_ns: float, room: tuple[int, int]
) -> tuple[int, int]:
    """A stretch seen by samples, its ends moved to where steps near them get slower and fast again.

    What slows the GPU down makes its steps longer; an end stays where it is if they are not.

    Args:
        apart_ns: how far apart the samples are.
        room: the times between which the ends may move.
    """
    late = round(max(LATE_NS, 2 * apart_ns))
    middle = (start_ns + end_ns) // 2
    start = _change(steps, max(room[0], start_ns - late), min(middle, start_ns + late), 1)
    end = _change(steps, max(middle, end_ns - late), min(room[1], end_ns + late), -1)
    return start or start_ns, end or end_ns


def _change(steps: StepBlocks, first_ns: int, last_ns: int, sign: int) -> int | None:
    """Where steps between two times become slower (`sign` 1) or faster (-1); None if nowhere."""
    a, b = (int(np.searchsorted(steps["start_ns"], edge)) for edge in (first_ns, last_ns))
    if b - a < 2 * LEAST_BLOCKS:
        return None
    rows, start, end = (steps[name][a:b] for name in ("rows", "start_ns", "end_ns"))
    own = steps["duration_ns"] - steps["wait_ns"] - steps["callbacks_ns"] - steps["compile_ns"]
    pace = own[a:b] / rows
    count, at = len(pace), np.arange(LEAST_BLOCKS, len(pace) - LEAST_BLOCKS + 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (pace, pace**2))
    left, right = sums[at] / at, (sums[-1] - sums[at]) / (count - at)
    scatter = squares[-1] - at * left**2 - (count - at) * right**2
    best = int(np.argmin(scatter))
    split, before, after = int(at[best]), float(left[best]), float(right[best])
    slow, fast = (after, before) if sign > 0 else (before, after)
    deviation = float(np.sqrt(max(0.0, scatter[best]) / max(1, count - 2)))
    if slow < SLOWER * fast or slow - fast < SCATTERS * deviation:
        return None
    # The blocks on both sides of the split hold some steps of the other side.
    slow_rows = rows * np.clip((pace - fast) / (slow - fast), 0, 1)
    if sign > 0:
        return int(end[split] - slow * slow_rows[split - 1 : split + 1].sum())
    return int(start[split - 1] + slow * slow_rows[split - 1 : split + 1].sum())
