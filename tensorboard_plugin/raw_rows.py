"""Rows of the segments in view, decoded column by column; what was read lately stays in memory."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.overview import step_series
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segment_list import SegmentInfo
from gpu_util_callback.recording.segments import Segment

__all__ = ["RawRows"]

MAX_BYTES = 12 << 20
# What it takes, roughly: opening a segment, its steps, a group of its samples; and either at hand.
OPEN_MS, STEPS_MS, SAMPLES_MS, AT_HAND_MS = 0.8, 3.0, 0.25, 0.08

_STEP_COLUMNS = ("step", "start_ns", *STEP_SERIES)


class RawRows:
    """Rows of a recording's sealed and open segments by time; thread safe."""

    def __init__(self, recording: Recording, max_bytes: int = MAX_BYTES):
        self._recording = recording
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        # (segment, group, column) -> its values; column "" holds the times.
        self._kept: OrderedDict[tuple[str, str, str], np.ndarray] = OrderedDict()
        self.nbytes = 0

    def cost_ms(self, wanted: Mapping[str, Sequence[str]], since: int, until: int) -> float:
        """About how long it takes to `read` these groups."""
        with self._lock:
            infos = self._between(since, until)
            total = AT_HAND_MS * len(infos) * len(wanted)
            for info in infos:
                missing = [g for g, columns in wanted.items() if self._missing(info, g, columns)]
                if missing:
                    total += OPEN_MS
                    total += sum(STEPS_MS if g == "steps" else SAMPLES_MS for g in missing)
            return total

    def read(
        self, group: str, columns: Sequence[str], since: int, until: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None, np.ndarray]]:
        """(time, step, float32[columns, n]) of each segment; `step` None for samples."""
        for info in self._between(since, until):
            with self._lock:
                self._fetch_from(info, {group: columns})
                key = self._key(info)
                time = self._get(key, group, "")
                step = self._get(key, group, "step") if group == "steps" else None
                parts = [self._get(key, group, column) for column in columns]
            if time is not None and len(time):
                absent = np.full(len(time), np.nan, np.float32)
                yield time, step, np.stack([absent if one is None else one for one in parts])

    def _fetch_from(self, info: SegmentInfo, wanted: Mapping[str, Sequence[str]]) -> None:
        with self._lock:
            missing = {
                group: lacking
                for group, columns in wanted.items()
                if (lacking := self._missing(info, group, columns))
            }
            if missing:
                self._decode(info, missing)

    def steps_at_hand(self, since: int, until: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(starts in ns since the epoch, numbers) of the steps between two times, if decoded."""
        starts, numbers = [], []
        with self._lock:
            for info in self._between(since, until):
                key = self._key(info)
                time, number = (self._kept.get((key, "steps", name)) for name in ("", "step"))
                if time is None or number is None:
                    return None
                starts.append(time)
                numbers.append(number)
        if not sum(map(len, starts)):
            return None
        return np.concatenate(starts), np.concatenate(numbers)

    def _between(self, since: int, until: int) -> list[SegmentInfo]:
        return [
            info
            for info in self._recording.segments
            if info.steps < 0 or (info.start_ns < until and info.end_ns >= since)
        ]

    def _key(self, info: SegmentInfo) -> str:
        # The open segment is another one after each flush.
        return info.name if info.sealed else f"{info.name} {self._recording.revision}"

    def _missing(self, info: SegmentInfo, group: str, columns: Sequence[str]) -> list[str]:
        key = self._key(info)
        if (key, group, "") not in self._kept:
            return list(columns)
        return [column for column in columns if (key, group, column) not in self._kept]

    def _get(self, segment: str, group: str, column: str) -> np.ndarray | None:
        found = self._kept.get((segment, group, column))
        if found is not None:
            self._kept.move_to_end((segment, group, column))
        return found

    def _decode(self, info: SegmentInfo, missing: dict[str, list[str]]) -> None:
        segment = self._recording.open_segment(info)
        key = self._key(info)
        for group, columns in missing.items():
            try:
                found = {} if segment is None else _columns(segment, group, columns)
            except Damaged:
                found = {}  # named in the recording's problems when it was first read
            found.setdefault("", np.zeros(0, np.int64))
            if group == "steps":
                found.setdefault("step", found[""])
            for column in columns:
                found.setdefault(column, np.full(len(found[""]), np.nan, np.float32))
            for column, values in found.items():
                old = self._kept.pop((key, group, column), None)
                self.nbytes += values.nbytes - (old.nbytes if old is not None else 0)
                self._kept[key, group, column] = values
        while self.nbytes > self._max_bytes and next(iter(self._kept))[0] != key:
            _, dropped = self._kept.popitem(last=False)
            self.nbytes -= dropped.nbytes


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
