"""The first view of a long run: its overview alone, while the pyramids are still being made."""

import numpy as np

from gpu_util_callback.recording.overview import Overview
from gpu_util_callback.recording.pyramid import Marks
from tensorboard_plugin.levels import Levels, Range

__all__ = ["OverviewTiles"]


class OverviewTiles:
    """Answers what `Pyramids` answers, for views no finer than the overview's buckets."""

    def __init__(self, overview: Overview):
        self._overview = overview
        self.times = _MarkTimes(overview.marks["step"], overview.marks["time"])

    def suffices(self, groups: set[str], axis: str, level: int) -> bool:
        """Whether `range` can answer for these groups."""
        marks = self._overview.marks[axis]
        found = self._overview.axes[axis]
        return level >= marks.shift and all(
            found[group].shift <= level for group in groups if group in found
        )

    def columns(self, group: str) -> list[str]:
        """The columns of "steps" or a sample group."""
        folded = self._overview.axes["time"].get(group)
        return folded.columns if folded is not None else []

    def range(self, group: str, axis: str, level: int, first: int, count: int) -> Range | None:
        """Min, max and mean of buckets [first, first + count) of 2^level keys."""
        folded = self._overview.axes[axis].get(group)
        return None if folded is None else Levels.of(folded).range(level, first, count)


class _MarkTimes:
    """The way from one axis to the other by the overview's marks; for bucket edges only."""

    def __init__(self, starts: Marks, steps: Marks):
        self._starts = starts
        self._steps = steps

    def start_of(self, steps: np.ndarray) -> np.ndarray:
        """float64: when steps at the edges of buckets began, ns since the start; NaN beyond."""
        at = steps.astype(np.int64) >> self._starts.shift
        inside = at < len(self._starts.values)
        result = np.full(len(steps), np.nan)
        result[inside] = self._starts.values[at[inside]]
        result[result < 0] = np.nan
        return result

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """int64: the step under way at the edges of buckets, within a bucket's steps."""
        marks = self._steps
        # Where no step begins in a bucket, one that began before it goes on.
        known = np.maximum.accumulate(marks.values)
        at = np.clip(since_ns >> marks.shift, 0, len(known) - 1)
        return np.maximum(known[at] - (marks.values[at] >= 0), 0)
