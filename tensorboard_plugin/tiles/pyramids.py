"""Pyramids of a recording's series in memory: any zoom from a bounded number of cells."""

import threading
from collections.abc import Sequence

import numpy as np

from gpu_util_callback.recording.overview import step_series
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from tensorboard_plugin.tiles.following import IncrementalReader
from tensorboard_plugin.tiles.levels import FAN_OUT_BITS, Levels, Range
from tensorboard_plugin.tiles.merging import empty, reduced_rows
from tensorboard_plugin.tiles.rows import Growing, NewRows, StepTimes

__all__ = ["Pyramids"]

AXES = ("step", "time")


class Pyramids(IncrementalReader):
    """All series and rows of one recording on both axes, brought up to date on demand.

    For recordings whose rows fit into memory; see `LongRun` for the others. Keys are step
    numbers, or nanoseconds since the recording's start.
    """

    def __init__(self, recording: Recording):
        super().__init__()
        self.recording = recording
        self.origin_ns = recording.start_ns
        self.times = StepTimes()
        self._lock = threading.Lock()
        self._new = NewRows(recording)
        self._levels: dict[str, dict[str, Levels]] = {axis: {} for axis in AXES}
        self._raw: dict[str, _Raw] = {}
        self._waiting: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._known_until = 0

    @property
    def nbytes(self) -> int:
        """Return about how much memory this takes."""
        levels = sum(one.nbytes for axis in self._levels.values() for one in axis.values())
        return levels + sum(one.nbytes for one in self._raw.values()) + self.times.nbytes

    def _take_in(self, revision: str) -> None:
        for tables, samples in self._new.read():
            with self._lock:
                if "steps" in tables:
                    self._add_steps(tables["steps"])
                for group, columns in samples.items():
                    self._add_samples(group, columns)
        with self._lock:
            self._place_waiting()

    def columns(self, group: str) -> list[str]:
        """Return the columns of "steps" or a sample group, in the order of `range`'s rows."""
        raw = self._raw.get(group)
        return raw.columns if raw is not None else []

    def range(
        self, group: str, columns: Sequence[str], axis: str, level: int, first: int, count: int
    ) -> Range:
        """Return min, max and mean, float32[columns, count], of buckets of 2^level keys.

        Args:
            columns: some of `columns` of the group.
        """
        with self._lock:
            raw = self._raw[group]
            rows = [raw.columns.index(column) for column in columns]
            levels = self._level(group, axis)
            if level >= levels.shift:
                return levels.range(level, first, count, rows)
            return raw.range(rows, axis, level, first, count)

    # --- adding rows ------------------------------------------------------------------------------

    def _add_steps(self, steps: dict[str, np.ndarray]) -> None:
        numbers, since = self._step_keys(steps)
        self.times.add(numbers, since)
        self._known_until = int(since[-1]) + max(0, int(steps["duration_ns"][-1]))
        values = self._add("steps", STEP_SERIES, since, step_series(steps))
        self._place("steps", numbers, values)

    def _add_samples(self, group: str, columns: dict[str, np.ndarray]) -> None:
        since = self._sample_keys(columns)
        names, values = _values(columns)
        values = self._add(group, names, since, values)
        self._waiting.setdefault(group, []).append((since, values))

    def _place_waiting(self) -> None:
        """Place samples on the step axis, as far as the steps they fall into are known.

        Steps reach the disk a little later than samples do: a sample taken after the last known
        step belongs to a later one, or, once the run is over, to the last.
        """
        ended = self.recording.status != "live"
        for group, waiting in self._waiting.items():
            held: list[tuple[np.ndarray, np.ndarray]] = []
            for since, values in waiting:
                raw = self._raw[group]
                values = raw.widen(values)
                end = len(since) if ended else int(np.searchsorted(since, self._known_until))
                if held:
                    end = 0  # keep the order: no group overtakes
                if end:
                    self._place(group, self.times.step_at(since[:end]), values[:, :end])
                if end < len(since):
                    held.append((since[end:], values[:, end:]))
            self._waiting[group] = held

    def _step_keys(self, steps: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.maximum.accumulate(np.maximum(steps["step"], 0))
        return numbers, np.maximum.accumulate(np.maximum(steps["start_ns"] - self.origin_ns, 0))

    def _sample_keys(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        return np.maximum.accumulate(np.maximum(columns["time_ns"] - self.origin_ns, 0))

    def _add(
        self,
        group: str,
        names: Sequence[str],
        times: np.ndarray,
        values: np.ndarray,
    ) -> np.ndarray:
        """Add rows on the time axis; return their values as the group's columns."""
        raw = self._raw.setdefault(group, _Raw(names))
        values = raw.arrange(names, values.astype(np.float32))
        self._level(group, "time").add(raw.add(times, values), values)
        return values

    def _place(self, group: str, steps: np.ndarray, values: np.ndarray) -> None:
        """Add the same rows on the step axis, in the same order."""
        self._level(group, "step").add(self._raw[group].place(steps), values)

    def _level(self, group: str, axis: str) -> Levels:
        columns = self._raw[group].columns
        levels = self._levels[axis].get(group)
        if levels is None:
            keys = self.recording.step_count
            if axis == "time":
                keys = max(0, self.recording.end_ns - self.origin_ns)
            shift = self._base_shift(group, axis)
            levels = self._levels[axis][group] = Levels(columns, shift, keys)
        levels.add_columns(columns)
        return levels

    def _base_shift(self, group: str, axis: str) -> int:
        """Return the width of a group's finest stored buckets: about 16 rows each."""
        if (group, axis) == ("steps", "step"):
            return FAN_OUT_BITS
        recording = self.recording
        extent = max(1, recording.end_ns - recording.start_ns)
        if axis == "step":
            extent = recording.step_count
        known = recording.summary.get(group, {}).values()
        rows = max((column.get("count", 0) for column in known), default=0)
        buckets = max(1024, rows >> FAN_OUT_BITS)
        return max(FAN_OUT_BITS if axis == "step" else 16, (extent // buckets).bit_length())


def _values(columns: dict[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
    names = [name for name in columns if name != "time_ns"]
    if not names:
        return names, np.zeros((0, len(columns["time_ns"])))
    return names, np.stack([columns[name] for name in names])


class _Raw:
    """Raw rows of a group: float32[columns, n] with both keys."""

    def __init__(self, columns: Sequence[str]):
        self.columns = list(columns)
        self._keys = {axis: Growing() for axis in AXES}
        self._parts: list[np.ndarray] = []

    @property
    def nbytes(self) -> int:
        keys = sum(one.array.nbytes for one in self._keys.values())
        return keys + sum(part.nbytes for part in self._parts)

    def arrange(self, names: Sequence[str], values: np.ndarray) -> np.ndarray:
        """Return `values` in the order of `columns`, to which new names are added."""
        new = [name for name in names if name not in self.columns]
        if new:
            self.columns += new
            self._parts = [
                np.pad(part, ((0, len(new)), (0, 0)), constant_values=np.nan)
                for part in self._parts
            ]
        if list(names) == self.columns:
            return values
        return self._arranged(names, values)

    def widen(self, values: np.ndarray) -> np.ndarray:
        """Return values arranged before further columns appeared, with those added."""
        more = len(self.columns) - len(values)
        return np.pad(values, ((0, more), (0, 0)), constant_values=np.nan) if more else values

    def _arranged(self, names: Sequence[str], values: np.ndarray) -> np.ndarray:
        arranged = np.full((len(self.columns), values.shape[1]), np.nan, values.dtype)
        for row, name in enumerate(names):
            arranged[self.columns.index(name)] = values[row]
        return arranged

    def add(self, times: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Add rows; return their times as stored."""
        self._parts.append(values)
        return self._added("time", times)

    def place(self, steps: np.ndarray) -> np.ndarray:
        """Set the step numbers of rows added before; the newest rows may still lack theirs."""
        return self._added("step", steps)

    def _added(self, axis: str, keys: np.ndarray) -> np.ndarray:
        self._keys[axis].add(keys)
        return self._keys[axis].last(len(keys))

    def range(self, columns: Sequence[int], axis: str, level: int, first: int, count: int) -> Range:
        """Return min, max and mean of columns by number, by reducing the rows in the range."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts, axis=1)]
        if not self._parts:
            return empty(len(columns), count)
        keys = self._keys[axis].array
        begin, end = np.searchsorted(keys, [first << level, (first + count) << level])
        return reduced_rows(
            (keys[begin:end] >> level) - first, count, self._parts[0][columns, begin:end]
        )
