"""The top of the pyramid: a whole run in a thousand buckets, on both axes, at a fixed size.

`overview.npz` is rewritten when a segment is sealed and covers exactly the sealed segments; it
also lists them, so that the first view of a long run reads the manifest and this file alone. A
reader adds the one open segment with the same code.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged, OtherFormat, checked_ns, pack
from gpu_util_callback.recording.facts import MOST_COUNT, MOST_LENGTH_NS
from gpu_util_callback.recording.groups import (
    SIZE,
    Groups,
    GrownGroups,
    StoredGroups,
    checked_shift,
)
from gpu_util_callback.recording.pyramid import Marks
from gpu_util_callback.recording.schema import FORMAT_MAJOR, STEP_SERIES
from gpu_util_callback.recording.segments import Rows

__all__ = ["Overview", "step_series"]

# Time buckets start at 2^16 ns (65 µs), step buckets at single steps; both fold as the run grows.
FIRST_SHIFT = {"step": 0, "time": 16}
AXES = ("step", "time")


def step_series(steps: dict[str, np.ndarray]) -> np.ndarray:
    """float64[len(STEP_SERIES), n]: the drawn columns of `steps`, absent ones NaN."""
    values = np.stack([steps[name] for name in STEP_SERIES]).astype(np.float64)
    values[values < 0] = np.nan
    return values


class Overview:
    """Folded series of a recording: "steps" and every sample group, by step and by time.

    `axes[axis][group]` is a `Folded`; its keys are step numbers, or nanoseconds since
    `origin_ns`. `marks[axis]` leads to the other axis: on the step axis it holds the start of
    each bucket's first step (ns since the origin), on the time axis the number of its first step.
    """

    def __init__(self, origin_ns: int):
        self.origin_ns = origin_ns
        self.axes = {axis: Groups(FIRST_SHIFT[axis]) for axis in AXES}
        self.marks = {axis: Marks(FIRST_SHIFT[axis], SIZE) for axis in AXES}
        self.last_step = -1
        self._last_start_ns = origin_ns

    def add(self, tables: Rows, samples: Rows) -> None:
        """Add rows that follow those added before."""
        steps = tables.get("steps")
        number = start = np.zeros(0, np.int64)
        if steps is not None and len(steps["step"]):
            number, start = steps["step"], steps["start_ns"]
            values = step_series(steps)
            order = _ascending(number)
            self._add("step", "steps", number[order], STEP_SERIES, values[:, order])
            self.marks["step"].add(
                np.maximum(number[order], 0), np.maximum(start[order] - self.origin_ns, 0)
            )
            order = _ascending(start)
            since = np.maximum(start[order] - self.origin_ns, 0)
            self._add("time", "steps", since, STEP_SERIES, values[:, order])
            self.marks["time"].add(since, np.maximum(number[order], 0))
        # Times at which steps began, the last known one of the rows before included.
        starts = np.concatenate([[self._last_start_ns], start])
        numbers = np.concatenate([[max(0, self.last_step)], number])
        for group, columns in samples.items():
            times = columns["time_ns"]
            if not len(times):
                continue
            order = _ascending(times)
            times = times[order]
            names = [name for name in columns if name != "time_ns"]
            values = np.stack([columns[name][order] for name in names]).astype(np.float64)
            self._add("time", group, times - self.origin_ns, names, values)
            if len(number) or self.last_step >= 0:
                # The step under way at each sample; sorted, for a step's start can be an estimate.
                at = np.clip(np.searchsorted(starts, times, "right") - 1, 0, None)
                keys = np.maximum.accumulate(numbers[at])
                self._add("step", group, keys, names, values)
        if len(number):
            self.last_step = int(number[-1])
            self._last_start_ns = int(start[-1])

    def _add(self, axis: str, group: str, keys, names, values) -> None:
        self.axes[axis].add(group, np.maximum(keys, 0), names, values)

    def with_rows(self, tables: Rows, samples: Rows) -> "Overview":
        """Another overview that has these rows, too; this one stays as it is.

        They are folded into a group only when that is asked for: the newest rows of a live run
        come with every flush, and mostly nobody looks at the overview of them.
        """
        other = Overview(self.origin_ns)
        other.last_step, other._last_start_ns = self.last_step, self._last_start_ns
        for axis in AXES:
            other.marks[axis].shift = self.marks[axis].shift
            other.marks[axis].values = self.marks[axis].values.copy()
            other.axes[axis] = GrownGroups(self.axes[axis], FIRST_SHIFT[axis])
        other.add(tables, samples)
        return other

    def release(self) -> None:
        """Forget what was unpacked and can be unpacked again."""
        for groups in self.axes.values():
            groups.release()

    def pack(self, index: dict[str, Any], beside: Mapping[str, np.ndarray] | None = None) -> bytes:
        """The bytes of `overview.npz`; `index` and arrays `beside` are stored with it."""
        about: dict[str, Any] = {
            "format": FORMAT_MAJOR,
            "origin_ns": self.origin_ns,
            "last_step": self.last_step,
            "last_start_ns": self._last_start_ns,
            "axes": {},
            "marks": {},
            **index,
        }
        arrays: dict[str, np.ndarray] = dict(beside or {})
        for axis in AXES:
            about["marks"][axis] = self.marks[axis].shift
            arrays[f"{axis}/marks"] = self.marks[axis].values
            about["axes"][axis] = {}
            for group in self.axes[axis].names():
                folded = self.axes[axis][group]
                about["axes"][axis][group] = {
                    "columns": folded.columns, "shift": folded.shift, "used": folded.used,
                }  # fmt: skip
                used, buckets = folded.used, folded.buckets
                key = f"{axis}/{group}"
                arrays[f"{key}/min"] = buckets.low[:, :used]
                arrays[f"{key}/max"] = buckets.high[:, :used]
                arrays[f"{key}/mean"] = buckets.mean[:, :used]
                arrays[f"{key}/count"] = buckets.count[:, :used].astype(np.uint32)
        # These floats hardly compress; a higher level would only cost time.
        return pack(about, arrays, level=1)

    @classmethod
    def unpack(
        cls, container: Container, on_damage: Callable[[Damaged], None] | None = None
    ) -> "Overview":
        """The overview of an `overview.npz`.

        Args:
            on_damage: called when a group turns out to be damaged, once it is asked for; the
                group is empty then. Without it the error is raised there.

        Raises: Damaged.
        """
        index = container.index
        if index.get("format") != FORMAT_MAJOR:
            raise OtherFormat("overview", index.get("format"), FORMAT_MAJOR)
        try:
            overview = cls(checked_ns(index["origin_ns"]))
            overview.last_step = index["last_step"]
            if type(overview.last_step) is not int or not -1 <= overview.last_step <= MOST_COUNT:
                raise Damaged("a last step that is none")
            overview._last_start_ns = checked_ns(index["last_start_ns"])
            for axis in AXES:
                marks = overview.marks[axis]
                marks.shift = checked_shift(index["marks"][axis])
                most = MOST_LENGTH_NS if axis == "step" else max(0, overview.last_step)
                stored_marks = container.array(f"{axis}/marks")
                marks.values = _marks(stored_marks, overview.last_step, most)
                if axis == "step" and overview.last_step >= 0:
                    first = int(np.flatnonzero(marks.values >= 0)[0])
                    if first << marks.shift > overview.last_step:
                        raise Damaged("a first step behind the last one")
                stored = index["axes"][axis]
                overview.axes[axis] = StoredGroups(container, axis, stored, on_damage)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, Damaged):
                raise
            raise Damaged(f"not an overview: {error!r}") from error
        return overview


def _marks(values: np.ndarray, last_step: int, most: int) -> np.ndarray:
    """int64[SIZE]: marks as stored. Raises: Damaged where they cannot be those of the steps."""
    if values.shape != (SIZE,) or values.dtype.kind != "i":
        raise Damaged(f"marks of {values.dtype}{list(values.shape)}")
    if last_step >= 0 and not (values >= 0).any():
        raise Damaged(f"steps up to {last_step}, but no mark of one")
    if values.min() < -1 or values.max() > most:
        raise Damaged("marks beyond the recording")
    return values.astype(np.int64)


def _ascending(keys: np.ndarray) -> np.ndarray | slice:
    """What puts `keys` in order; they nearly always are."""
    if (keys[1:] >= keys[:-1]).all():
        return slice(None)
    return np.argsort(keys, kind="stable")
