"""Rows of the segments in view, decoded column by column, with a cache of recent ones."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.overview import step_series
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segment_list import SegmentInfo
from gpu_util_callback.recording.segments import Segment

__all__ = ["Part", "RawRows"]

MAX_BYTES = 12 << 20
# Approximate costs: opening a segment, its steps, a group of its samples; and either from memory.
OPEN_MS, STEPS_MS, SAMPLES_MS, AT_HAND_MS = 0.8, 2.0, 0.25, 0.05
# And of making buckets from decoded rows: per group, and per value.
GROUP_MS, VALUE_MS = 0.2, 8e-6
# A slow disk multiplies these: upper bound of that factor, and the ratio of waiting to work on a
# thread from which the disk is taken to be the cause.
MOST_SLOWNESS = 20.0
DISK_WAITS = 10

# Group -> columns; column -> values; (time, step, float32[n] of each), `step` None for samples.
Wanted = Mapping[str, Sequence[str]]
Columns = dict[str, np.ndarray]
Part = tuple[np.ndarray, np.ndarray | None, list[np.ndarray]]

_STEP_COLUMNS = ("step", "start_ns", *STEP_SERIES)


class RawRows:
    """Rows of a recording's sealed and open segments by time; thread safe."""

    def __init__(self, recording: Recording, max_bytes: int = MAX_BYTES):
        self._recording = recording
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # never held while a file is read
        # (segment, group, column) -> its values; column "" holds the times.
        self._kept: OrderedDict[tuple[str, str, str], np.ndarray] = OrderedDict()
        self._slowness = 1.0  # recent slowdown of reading
        self._open = ("", 0, 0)
        none = np.zeros(0, np.int64)
        self._extents: tuple[list[SegmentInfo], np.ndarray, np.ndarray] = ([], none, none)
        self.nbytes = 0

    def cost_ms(
        self, wanted: Wanted, since: int, until: int, enough: float = math.inf, pace: float = 1.0
    ) -> float:
        """Return about how long it takes to `read` these groups and make buckets of their rows.

        Args:
            enough: above this, a lower bound suffices.
            pace: the current slowdown of making buckets.
        """
        infos = self._between(since, until)
        total = AT_HAND_MS * len(infos) * len(wanted) + pace * GROUP_MS * len(wanted)
        for info in infos:
            if total > enough:
                break
            found, missing = self._at_hand(info, wanted)
            total += self._slowness * _reading_ms(missing)
            at_hand = (len(wanted[g]) * len(values[""]) for g, values in found.items() if values)
            total += pace * VALUE_MS * sum(at_hand)
        return total

    def read(self, wanted: Wanted, since: int, until: int) -> Iterator[dict[str, Part]]:
        """Yield what each segment has of some groups; each is opened once at most."""
        for info in self._between(since, until):
            found, missing = self._at_hand(info, wanted)
            if missing:
                for group, values in self._decode(info, missing).items():
                    found[group].update(values)
            yield {
                group: (
                    found[group][""],
                    found[group].get("step"),
                    [found[group][column] for column in columns],
                )
                for group, columns in wanted.items()
                if len(found[group][""])
            }

    def _at_hand(self, info: SegmentInfo, wanted: Wanted) -> tuple[dict[str, Columns], Wanted]:
        """Return (cached values of each group, columns left to decode) of a segment."""
        key, found, missing = self._key(info), dict[str, Columns](), dict[str, list[str]]()
        with self._lock:
            for group, columns in wanted.items():
                values = {}
                for column in ("", "step", *columns):
                    kept = self._kept.get((key, group, column))
                    if kept is not None:
                        self._kept.move_to_end((key, group, column))
                        values[column] = kept
                if "" not in values:
                    values = {}
                found[group] = values
                lacking = [column for column in columns if column not in values]
                if lacking or not values:
                    missing[group] = lacking
        return found, missing

    def steps_at_hand(self, since: int, until: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (starts in ns since the epoch, numbers) of decoded steps between two times."""
        starts, numbers = [], []
        for info in self._between(since, until):
            key = self._key(info)
            with self._lock:
                begun, number = (self._kept.get((key, "steps", name)) for name in ("", "step"))
            if begun is None or number is None:
                return None
            starts.append(begun)
            numbers.append(number)
        if not sum(map(len, starts)):
            return None
        return np.concatenate(starts), np.concatenate(numbers)

    def segments(self, since: int, until: int) -> list[str]:
        """Return the names of what `read` reads; the same names stand for the same rows."""
        return [self._key(info) for info in self._between(since, until)]

    def _between(self, since: int, until: int) -> list[SegmentInfo]:
        infos = self._recording.segments
        known, begin, end = self._extents
        if known is not infos:
            far = 2**62  # a segment of unknown extent may hold any time
            begin = np.array([-far if one.steps < 0 else one.start_ns for one in infos], np.int64)
            end = np.array([far if one.steps < 0 else one.end_ns for one in infos], np.int64)
            self._extents = (infos, begin, end)
        found = [infos[at] for at in np.flatnonzero((begin < until) & (end >= since)).tolist()]
        if found and not found[-1].sealed:
            key, first, last = self._open
            if key == self._key(found[-1]) and not (first < until and last >= since):
                del found[-1]
        return found

    def learn(self, name: str, revision: str, begin: int, end: int) -> None:
        """Set the first and the last time in the open segment, for a revision of the recording."""
        self._open = (f"{name} {revision}", begin, end)

    def _key(self, info: SegmentInfo) -> str:
        # The open segment is a different one after each flush.
        return info.name if info.sealed else f"{info.name} {self._recording.revision}"

    def _decode(self, info: SegmentInfo, missing: Wanted) -> dict[str, Columns]:
        """Decode and cache the missing values."""
        began, worked = time.perf_counter(), time.thread_time()
        segment = self._recording.open_segment(info)
        decoded: dict[str, Columns] = {}
        for group, columns in missing.items():
            try:
                values = {} if segment is None else _columns(segment, group, columns)
            except Damaged as error:
                values = {}
                self._recording.damaged(info.name, error)
            values.setdefault("", np.zeros(0, np.int64))
            if group == "steps":
                values.setdefault("step", values[""])
            for column in columns:
                values.setdefault(column, np.full(len(values[""]), np.nan, np.float32))
            decoded[group] = values
        worked = time.thread_time() - worked
        waited = time.perf_counter() - began - worked
        # Waiting counts as the disk's if long; on a busy machine all requests wait their turn.
        took = worked + (waited if waited > DISK_WAITS * worked else 0.0)
        took = min(1e3 * took / _reading_ms(missing), MOST_SLOWNESS)
        # Adapt quickly when it is fast: single reads take long now and then.
        self._slowness += (0.5 if took < self._slowness else 0.1) * (took - self._slowness)
        self._keep(self._key(info), decoded)
        return decoded

    def _keep(self, key: str, decoded: Mapping[str, Columns]) -> None:
        with self._lock:
            for group, columns in decoded.items():
                for column, values in columns.items():
                    old = self._kept.pop((key, group, column), None)
                    self.nbytes += values.nbytes - (old.nbytes if old is not None else 0)
                    self._kept[key, group, column] = values
            while self.nbytes > self._max_bytes and next(iter(self._kept))[0] != key:
                _, dropped = self._kept.popitem(last=False)
                self.nbytes -= dropped.nbytes


def _reading_ms(missing: Wanted) -> float:
    if not missing:
        return 0.0
    return OPEN_MS + sum(STEPS_MS if group == "steps" else SAMPLES_MS for group in missing)


def _columns(segment: Segment, group: str, columns: Sequence[str]) -> dict[str, np.ndarray]:
    if group == "steps":
        if not segment.rows("steps"):
            return {}
        rows = segment.table("steps", dict.fromkeys(_STEP_COLUMNS))
        values = step_series(rows).astype(np.float32)
        found = dict(zip(STEP_SERIES, values, strict=True))
        return {**found, "": rows["start_ns"], "step": np.maximum(rows["step"], 0)}
    if group not in segment.groups:
        return {}
    rows = segment.samples(group, columns)
    return {
        **{name: rows[name].astype(np.float32) for name in columns if name in rows},
        "": rows["time_ns"],
    }
