"""One segment: the rows of a stretch of time, all tables and sample groups in one file."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpu_util_callback.recording.columns import FrameError, Prediction, decode_frame, encode_frame
from gpu_util_callback.recording.container import Container, Damaged, OtherFormat, pack
from gpu_util_callback.recording.schema import ABSENT_INT, FORMAT_MAJOR, SAMPLE_QUANTA, TABLES

__all__ = [
    "MAX_ROWS", "Rows", "Segment", "complete", "concatenate", "empty_column", "encode_segment",
    "segment_name", "segment_range",
]  # fmt: skip

# The writer starts a new segment at this many rows of any table or group; a reader accepts more
# (merged segments), but not arbitrarily many.
MAX_ROWS = 1 << 16
MAX_ROWS_READ = 1 << 22
MAX_CELLS_READ = 1 << 25

# table or sample group -> column -> values
Rows = dict[str, dict[str, np.ndarray]]

_PREDICTIONS: dict[str, dict[str, Prediction]] = {
    "steps": {
        "start_ns": ("chain", {"duration_ns": 1}),
        "input_get_ns": ("sum", {"input_wait_ns": 1}),
        "body_ns": (
            "sum",
            {
                "duration_ns": 1, "input_wait_ns": -1, "compile_ns": -1, "gpu_wait_ns": -1,
                "callbacks_ns": -1,
            },
        ),
    },
    "phases": {"end_ns": ("sum", {"start_ns": 1}), "self_ns": ("sum", {})},
    "validation_steps": {"start_ns": ("chain", {"duration_ns": 1})},
    "clock": {"wall_ns": ("sum", {"mono_ns": 1})},
}  # fmt: skip


def segment_name(first: int, last: int) -> str:
    """`segment-000007.npz`, or `segment-000000-000007.npz` for eight that were merged."""
    return f"segment-{first:06d}.npz" if first == last else f"segment-{first:06d}-{last:06d}.npz"


def segment_range(name: str) -> tuple[int, int] | None:
    """The numbers of the segments a file holds, None when the name is no segment's."""
    stem, dot, ending = name.partition(".")
    parts = stem.split("-")
    if (dot, ending) != (".", "npz") or parts[0] != "segment" or len(parts) not in (2, 3):
        return None
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts[1:]):
        return None
    first, last = int(parts[1]), int(parts[-1])
    return (first, last) if first <= last else None


def empty_column(kind: str, rows: int) -> np.ndarray:
    """A column of which nothing is known."""
    if kind == "int":
        return np.full(rows, ABSENT_INT, np.int64)
    if kind == "float":
        return np.full(rows, np.nan)
    return np.full(rows, "", object)


def complete(table: str, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The columns of one of the schema's tables, absent ones filled in.

    Raises: ValueError for an unknown table or column, or columns of different lengths.
    """
    if table not in TABLES:
        raise ValueError(f"unknown table {table!r}")
    kinds = TABLES[table]
    unknown = [name for name in columns if name not in kinds]
    if unknown:
        raise ValueError(f"table {table} has no column {', '.join(map(repr, unknown))}")
    made = {name: _column(kinds[name], values) for name, values in columns.items()}
    lengths = {len(values) for values in made.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns of {table} differ in length: {sorted(lengths)}")
    rows = lengths.pop() if lengths else 0
    return {
        name: made[name] if name in made else empty_column(kind, rows)
        for name, kind in kinds.items()
    }


def _column(kind: str, values: Any) -> np.ndarray:
    if kind == "text":
        result = np.empty(len(values), object)
        result[:] = ["" if value is None else str(value) for value in values]
        return result
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"a column has one dimension, not {array.ndim}")
    if kind == "int" and array.dtype.kind == "f":
        known = np.isfinite(array)
        array = np.where(known, np.rint(np.where(known, array, 0)), ABSENT_INT)
    # A copy: the caller may reuse its buffers.
    return array.astype(np.int64 if kind == "int" else np.float64)


def concatenate(table: str | None, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Rows of the parts one after the other; `table` None: a sample group (columns may vary)."""
    if len(parts) == 1:
        return parts[0]
    names: dict[str, None] = {}
    for part in parts:
        names.update(dict.fromkeys(part))
    result = {}
    for name in names:
        kind = _kind(table, name)
        pieces = [
            part[name] if name in part else empty_column(kind, len(next(iter(part.values()))))
            for part in parts
            if part
        ]
        result[name] = np.concatenate(pieces)
    return result


def _kind(table: str | None, name: str) -> str:
    if table is not None:
        return TABLES[table].get(name, "int")
    return "int" if name == "time_ns" else "float"


def _quantum(column: str) -> float | None:
    return next((q for end, q in SAMPLE_QUANTA.items() if column.endswith(end)), None)


def encode_segment(tables: Rows, samples: Rows, level: int) -> bytes:
    """The bytes of a segment; tables and groups without rows are left out."""
    index: dict[str, Any] = {"format": FORMAT_MAJOR, "tables": {}, "samples": {}}
    arrays: dict[str, np.ndarray] = {}
    for table, columns in tables.items():
        kinds = TABLES[table]
        frame, matrix = encode_frame(columns, kinds, _PREDICTIONS.get(table))
        index["tables"][table] = frame
        arrays[f"tables/{table}"] = matrix
    for group, columns in samples.items():
        kinds = {name: _kind(None, name) for name in columns}
        quanta = {name: quantum for name in columns if (quantum := _quantum(name))}
        frame, matrix = encode_frame(columns, kinds, quanta=quanta)
        index["samples"][group] = frame
        arrays[f"samples/{group}"] = matrix
    return pack(index, arrays, level)


class Segment:
    """A segment's bytes, decoded on demand.

    Raises: Damaged from every method, and nothing else.
    """

    def __init__(self, data: bytes):
        self._container = Container(data)
        index = self._container.index
        if index.get("format") != FORMAT_MAJOR:
            raise OtherFormat("segment", index.get("format"), FORMAT_MAJOR)
        self._frames: dict[str, dict[str, Any]] = {}
        for kind in ("tables", "samples"):
            frames = index.get(kind)
            if not isinstance(frames, dict):
                raise Damaged(f"its index lists no {kind}")
            for name, frame in frames.items():
                self._frames[f"{kind}/{name}"] = _checked(frame)
        self.groups = [name for name in index["samples"] if isinstance(name, str)]

    def rows(self, table: str) -> int:
        """How many rows of a table this segment holds."""
        frame = self._frames.get(f"tables/{table}")
        return frame["rows"] if frame else 0

    def table(self, table: str, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Columns of one of the schema's tables; those not stored are filled as absent."""
        wanted = list(TABLES[table] if names is None else names)
        found = self._decode(f"tables/{table}", wanted)
        rows = self.rows(table)
        return {
            name: found[name] if name in found else empty_column(TABLES[table][name], rows)
            for name in wanted
        }

    def samples(self, group: str, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Columns of a sample group, `time_ns` included; {} where the segment has none of it."""
        if names is not None:
            names = ["time_ns", *(name for name in names if name != "time_ns")]
        return self._decode(f"samples/{group}", names)

    def _decode(self, key: str, names: Iterable[str] | None) -> dict[str, np.ndarray]:
        frame = self._frames.get(key)
        if frame is None:
            return {}
        try:
            return decode_frame(frame, self._container.array(key), names)
        except FrameError as error:
            raise Damaged(f"{key}: {error}") from error


def _checked(frame: Any) -> dict[str, Any]:
    """A frame's description, if it does not claim more rows than memory is lent for."""
    try:
        rows, columns = int(frame["rows"]), len(frame["columns"])
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged("its index describes no rows") from error
    if not 0 <= rows <= MAX_ROWS_READ or rows * max(1, columns) > MAX_CELLS_READ:
        raise Damaged(f"{rows} rows of {columns} columns claimed; refused")
    return frame
