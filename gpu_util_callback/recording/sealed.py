"""The index of sealed segments in `overview.npz`: their list and contents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_util_callback.recording.columns import FrameError, decode_frame, encode_frame
from gpu_util_callback.recording.container import Container, Damaged, checked_ns
from gpu_util_callback.recording.facts import MOST_NS
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.recording.segments import (
    Extent,
    Rows,
    check_rows,
    checked_frame,
    concatenate,
)

__all__ = [
    "LONGEST", "SealedIndex", "StoredIndex", "extent", "longest", "stored_index", "stored_phases",
]  # fmt: skip

# Neighbouring sealed segments below SMALL_BYTES are merged, MERGE_COUNT or more at a time.
SMALL_BYTES = 128 << 10
MERGE_COUNT = 8
MERGED_BYTES = 1 << 20
# This many of the longest phases are kept where the first view finds them.
LONGEST = 2048

# The largest number that the digits of a file's name can hold.
_MOST_SEGMENTS = 10**9

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
        self._holds: list[int] = []  # parallel to `entries`: a bit for each table with rows
        self._phases: dict[str, np.ndarray] = {}

    def add(self, number: int, size: int, tables: Rows, samples: Rows) -> None:
        """Add segment `number`, sealed with these rows."""
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
        """The number of the first segment that is in no levels file."""
        return self.levels[-1][1] + 1 if self.levels else 0

    def small_ones(self) -> int:
        """Return the number of segments at the end of the list to merge, 0 for none."""
        count = total = 0
        for entry in reversed(self.entries):
            # The last segment of a levels file must stay the end of a segment.
            if entry[2] >= SMALL_BYTES or total + entry[2] > MERGED_BYTES:
                break
            if entry[0] < self.without_levels:
                break
            count, total = count + 1, total + entry[2]
        return count if count >= MERGE_COUNT else 0

    def merge(self, count: int, size: int) -> None:
        """Replace the last `count` segments by one of `size` bytes."""
        merged = self.entries[-count:]
        steps = [entry for entry in merged if entry[3]]
        self.entries[-count:] = [[
            merged[0][0], merged[-1][1], size, sum(entry[3] for entry in merged),
            steps[0][4] if steps else -1, steps[-1][5] if steps else -1,
            min(entry[6] for entry in merged), max(entry[7] for entry in merged),
        ]]  # fmt: skip
        self._holds[-count:] = [int(np.bitwise_or.reduce(self._holds[-count:]))]

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (index, arrays) to be stored in `overview.npz`."""
        index: dict[str, Any] = {
            "segments": self.entries, "tables": list(TABLES), "holds": self._holds,
            "levels": self.levels,
        }  # fmt: skip
        frame, planes = encode_frame(self._phases, TABLES["phases"])
        return {**index, "phases": frame}, {"phases": planes}


def longest(rows: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Return the `count` longest phases, in their original order."""
    lengths = rows["end_ns"] - rows["start_ns"]
    if len(lengths) <= count:
        return rows
    kept = np.sort(np.argsort(-lengths, kind="stable")[:count])
    return {name: values[kept] for name, values in rows.items()}


def stored_phases(container: Container, extent: Extent) -> dict[str, np.ndarray] | None:
    """Return the longest phases of an `overview.npz`; None if an older version wrote it."""
    frame = container.index.get("phases")
    if frame is None:
        return None
    frame = checked_frame("phases", frame, TABLES["phases"])
    try:
        rows = decode_frame(frame, container.array("phases"))
    except FrameError as error:
        raise Damaged(f"phases: {error}") from error
    if set(rows) != set(TABLES["phases"]):
        return None
    check_rows("phases", rows, extent)
    return rows


@dataclass(frozen=True)
class StoredIndex:
    """The list as stored in an `overview.npz`.

    Attributes:
        entries: (first, last) of each sealed segment -> its entry as in `SealedIndex.entries`.
        tables: the tables with rows of each; {} if an older version wrote it.
        levels: (first, last) of each levels file, in order.
        origin_ns: the recording's start.
    """

    entries: dict[tuple[int, int], list[int]]
    tables: dict[tuple[int, int], set[str]]
    levels: list[tuple[int, int]]
    origin_ns: int

    @property
    def covered(self) -> int:
        """The number of the last sealed segment, -1 without any."""
        return max((last for _, last in self.entries), default=-1)


def stored_index(container: Container) -> StoredIndex:
    """Return the list of an `overview.npz`. Raises: Damaged where it is invalid."""
    index = container.index
    listed, levels = index.get("segments"), index.get("levels", [])
    if not isinstance(listed, list) or not isinstance(levels, list):
        raise Damaged("not an overview: it lists no segments")
    entries: dict[tuple[int, int], list[int]] = {}
    before = -1
    for entry in listed:
        if not _is_entry(entry) or entry[0] <= before:
            raise Damaged("not an overview: its list of segments makes no sense")
        before = entry[1]
        entries[entry[0], entry[1]] = entry
    if not all(_are_numbers(pair, 2) and 0 <= pair[0] <= pair[1] for pair in levels):
        raise Damaged("not an overview: its list of levels makes no sense")
    return StoredIndex(
        entries, _tables(index, list(entries)), sorted({(one[0], one[1]) for one in levels}),
        checked_ns(index.get("origin_ns")),
    )  # fmt: skip


def _is_entry(entry: Any) -> bool:
    if not _are_numbers(entry, 8):
        return False
    first, last, size, steps, first_step, last_step, start_ns, end_ns = entry
    return (
        0 <= first <= last < _MOST_SEGMENTS and size >= 0 and steps >= 0
        and -1 <= first_step <= last_step and 0 <= start_ns <= end_ns <= MOST_NS
    )  # fmt: skip


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list) and len(values) == count
        and all(type(value) is int and abs(value) <= MOST_NS for value in values)
    )  # fmt: skip


def _tables(index: dict[str, Any], of: list[tuple[int, int]]) -> dict[tuple[int, int], set[str]]:
    names, holds = index.get("tables"), index.get("holds")
    if names is None or holds is None:
        return {}
    if not isinstance(names, list) or not _are_numbers(holds, len(of)):
        raise Damaged("not an overview: what its segments hold makes no sense")
    return {
        segment: {str(name) for at, name in enumerate(names[:64]) if mask >> at & 1}
        for segment, mask in zip(of, holds, strict=True)
    }


def extent(tables: Rows, samples: Rows) -> tuple[int, int]:
    """Return first and last time of steps and samples, for look-ups of segments by time."""
    times = [columns["time_ns"] for columns in samples.values()]
    if "steps" in tables:
        times.append(tables["steps"]["start_ns"])
    return (
        min((int(values.min()) for values in times), default=0),
        max((int(values.max()) for values in times), default=0),
    )
