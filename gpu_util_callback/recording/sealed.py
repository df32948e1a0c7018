"""What `overview.npz` says of the sealed segments: which there are, and what is in them."""

from typing import Any

import numpy as np

from gpu_util_callback.recording.columns import FrameError, decode_frame, encode_frame
from gpu_util_callback.recording.container import Container, Damaged
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.recording.segments import Rows, concatenate

__all__ = ["LONGEST", "SealedIndex", "extent", "holds_of", "longest", "stored_phases"]

# Neighbouring sealed segments below SMALL_BYTES are merged, MERGE_COUNT or more at a time.
SMALL_BYTES = 128 << 10
MERGE_COUNT = 8
MERGED_BYTES = 1 << 20
# So many of the longest phases are kept where the first view finds them.
LONGEST = 2048

_MASKS = {table: 1 << at for at, table in enumerate(TABLES)}


class SealedIndex:
    """The list that grows with every sealed segment.

    Attributes:
        entries: [first, last, bytes, steps, first_step, last_step, start_ns, end_ns] of each.
        levels: [first, last] of each levels file.
    """

    def __init__(self) -> None:
        self.entries: list[list[int]] = []
        self.levels: list[list[int]] = []
        self._holds: list[int] = []  # beside `entries`: a bit for each table with rows
        self._phases: dict[str, np.ndarray] = {}

    def add(self, number: int, size: int, tables: Rows, samples: Rows) -> None:
        """Segment `number` was sealed with these rows."""
        first_step = last_step = -1
        rows = 0
        if "steps" in tables:
            steps = tables["steps"]["step"]
            rows, first_step, last_step = len(steps), int(steps[0]), int(steps[-1])
        start, end = extent(tables, samples)
        self.entries.append([number, number, size, rows, first_step, last_step, start, end])
        self._holds.append(sum(_MASKS[table] for table in tables))
        if "phases" in tables:
            known = [self._phases] if self._phases else []
            self._phases = longest(concatenate("phases", [*known, tables["phases"]]), LONGEST)

    @property
    def without_levels(self) -> int:
        """The number of the first segment that no levels file holds."""
        return self.levels[-1][1] + 1 if self.levels else 0

    def small_ones(self) -> int:
        """How many segments at the end of the list are to be merged, 0 for none."""
        count = total = 0
        for entry in reversed(self.entries):
            # What a levels file ends with stays the end of a segment.
            if entry[2] >= SMALL_BYTES or total + entry[2] > MERGED_BYTES:
                break
            if entry[0] < self.without_levels:
                break
            count, total = count + 1, total + entry[2]
        return count if count >= MERGE_COUNT else 0

    def merge(self, count: int, size: int) -> None:
        """The last `count` segments became one of `size` bytes."""
        merged = self.entries[-count:]
        steps = [entry for entry in merged if entry[3]]
        self.entries[-count:] = [[
            merged[0][0], merged[-1][1], size, sum(entry[3] for entry in merged),
            steps[0][4] if steps else -1, steps[-1][5] if steps else -1,
            min(entry[6] for entry in merged), max(entry[7] for entry in merged),
        ]]  # fmt: skip
        self._holds[-count:] = [int(np.bitwise_or.reduce(self._holds[-count:]))]

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(index, arrays) to be stored in `overview.npz`."""
        index: dict[str, Any] = {
            "segments": self.entries, "tables": list(TABLES), "holds": self._holds,
            "levels": self.levels,
        }  # fmt: skip
        frame, planes = encode_frame(self._phases, TABLES["phases"])
        return {**index, "phases": frame}, {"phases": planes}


def longest(rows: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The `count` phases that took longest, in the order in which they came."""
    lengths = rows["end_ns"] - rows["start_ns"]
    if len(lengths) <= count:
        return rows
    kept = np.sort(np.argsort(-lengths, kind="stable")[:count])
    return {name: values[kept] for name, values in rows.items()}


def stored_phases(container: Container) -> dict[str, np.ndarray] | None:
    """The longest phases of an `overview.npz`; None where an older version wrote it."""
    frame = container.index.get("phases")
    if frame is None:
        return None
    try:
        rows = decode_frame(frame, container.array("phases"))
    except FrameError as error:
        raise Damaged(f"phases: {error}") from error
    return rows if set(rows) == set(TABLES["phases"]) else None


def holds_of(index: dict[str, Any]) -> dict[tuple[int, int], set[str]]:
    """(first, last) of each sealed segment -> its tables; {} where an older version wrote it."""
    names, holds, segments = (index.get(key) for key in ("tables", "holds", "segments"))
    if not (isinstance(names, list) and isinstance(holds, list) and isinstance(segments, list)):
        return {}
    if len(holds) != len(segments) or not all(isinstance(mask, int) for mask in holds):
        return {}
    return {
        (entry[0], entry[1]): {str(name) for at, name in enumerate(names) if mask >> at & 1}
        for entry, mask in zip(segments, holds, strict=True)
    }


def extent(tables: Rows, samples: Rows) -> tuple[int, int]:
    """First and last time of steps and samples, for which segments are looked up by time."""
    times = [columns["time_ns"] for columns in samples.values()]
    if "steps" in tables:
        times.append(tables["steps"]["start_ns"])
    return (
        min((int(values.min()) for values in times), default=0),
        max((int(values.max()) for values in times), default=0),
    )
