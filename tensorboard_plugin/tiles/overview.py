"""Tiles of a recording's overview alone: a first view while anything finer is being read."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpu_util_callback.recording.overview import Marks, Overview
from tensorboard_plugin.tiles.merging import Range, View, reduced, spread

__all__ = ["OverviewTiles"]


class OverviewTiles:
    """The interface of `EntryTiles`, for views no finer than the overview's buckets."""

    def __init__(self, overview: Overview):
        self._overview = overview
        self._starts, self._steps = overview.marks["step"], overview.marks["time"]

    def columns(self, group: str) -> list[str]:
        """Return the columns of "steps" or a sample group."""
        groups = self._overview.axes["time"]
        return groups.about(group)[0] if group in groups else []

    def level_of(self, group: str, axis: str) -> int:
        """Return the finest level available for a group."""
        groups = self._overview.axes[axis]
        return groups.about(group)[1] if group in groups else 0

    @property
    def last_step(self) -> int:
        return self._overview.last_step

    def ranges(self, wanted: Mapping[str, Sequence[str]], view: View) -> dict[str, Range]:
        """Return min, max and mean, float32[columns, count], of each group in a view's buckets."""
        return {group: self._range(group, columns, view) for group, columns in wanted.items()}

    def _range(self, group: str, columns: Sequence[str], view: View) -> Range:
        groups = self._overview.axes[view.axis]
        if group not in groups:
            return spread(None, columns, [], view.count)
        cells = groups.cells(group)
        bits, ends = view.level - cells.shift, (view.first, view.first + view.count)
        begin, end = (min(at << bits, cells.low.shape[1]) for at in ends)
        known = [column for column in columns if column in cells.columns]
        rows, part = [cells.columns.index(column) for column in known], slice(begin, end)
        numbers = (np.arange(begin, end) >> bits) - view.first
        found = reduced(
            numbers, view.count, cells.low[rows, part], cells.high[rows, part],
            cells.mean[rows, part], cells.count[rows, part].astype(np.int64),
        )  # fmt: skip
        return spread(found, columns, known, view.count)

    def edges(self, view: View) -> np.ndarray:
        """Return the other axis at each bucket's start: float64[count] ns, or step numbers."""
        at = view.edges[:-1]
        return self._step_at(at) if view.axis == "time" else self._start_of(at)

    def _start_of(self, steps: np.ndarray) -> np.ndarray:
        """Return when the bucket of these steps began, ns since the start; NaN beyond the last."""
        values = _filled(self._starts)
        at = steps >> self._starts.shift
        inside = (at < len(values)) & (steps <= self._overview.last_step)
        result = np.full(len(steps), np.nan)
        result[inside] = values[at[inside]]
        result[result < 0] = np.nan
        return result

    def _step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return the step under way at these times, within a bucket's steps."""
        marks = self._steps
        # Where no step begins in a bucket, an earlier one is still under way.
        known = _filled(marks)
        at = np.clip(since_ns >> marks.shift, 0, len(known) - 1)
        found = np.maximum(known[at] - (marks.values[at] >= 0), 0).astype(np.float64)
        if self._overview.last_step >= 0:
            begun = np.flatnonzero(marks.values >= 0)
            found[at > begun[-1]] = self._overview.last_step
        return found


def _filled(marks: Marks) -> np.ndarray:
    return np.maximum.accumulate(marks.values)
