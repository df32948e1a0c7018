"""Segments: the rows of a stretch of time, all tables and groups in one file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged, decode_frame, encode_frame, pack
from gpu_util_callback.recording.manifest_facts import encodable
from gpu_util_callback.recording.schema import ABSENT_INT, TABLES

# The writer starts a new segment at this many rows of any table or group; a reader accepts more,
# but not arbitrarily many.
MAX_ROWS = 1 << 16
MAX_ROWS_READ = 1 << 22
# Of all tables and groups of a segment together: a base number for any size, plus, per byte, the
# number of rows that fit when they hardly differ.
MAX_CELLS_READ = 1 << 25
FEW_CELLS = 1 << 20
CELLS_PER_BYTE = 1024

# table or sample group -> column -> values
Tables = dict[str, dict[str, np.ndarray]]
AnyTables = Mapping[str, Mapping[str, np.ndarray]]  # that are only read
# (tables, samples) of a stretch of time
Part = tuple[Tables, Tables]


@dataclass(frozen=True)
class SampleBlock:
    """New samples of one group.

    time_ns: int64 (n,), on the recording's clock, not decreasing. values: float64 (n, m), one
    column per name in `columns`; NaN is absent.
    """

    group: str
    columns: tuple[str, ...]
    time_ns: np.ndarray
    values: np.ndarray

    def rows(self) -> dict[str, np.ndarray]:
        """Return the columns by name, the times included."""
        return {"time_ns": self.time_ns, **dict(zip(self.columns, self.values.T, strict=True))}


def _predicted(table: str, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what values some columns of a table would have if nothing special happened.

    Only the differences are stored. Steps follow each other without a gap, and the body is what the other parts of
    a step leave.

    Returns: column -> int64[rows]; {} for other tables.
    """
    if table in ("steps", "validation_steps"):
        given = {"start_ns": np.cumsum(rows["duration_ns"]) - rows["duration_ns"]}
        if table == "steps":
            others = ("input_wait_ns", "compile_ns", "gpu_wait_ns", "callbacks_ns")
            given["input_get_ns"] = rows["input_wait_ns"]
            given["body_ns"] = rows["duration_ns"] - np.sum([rows[name] for name in others], axis=0)
        return given
    return {"end_ns": rows["start_ns"]} if table == "phases" else {}


def segment_name(first: int, last: int) -> str:
    """Return `segment-000007.npz`, or `segment-000000-000007.npz` of eight flushes."""
    return f"segment-{first:06d}.npz" if first == last else f"segment-{first:06d}-{last:06d}.npz"


def segment_range(name: str) -> tuple[int, int] | None:
    """Return the numbers of the segments in a file, None when the name is no segment's."""
    stem, dot, ending = name.partition(".")
    parts = stem.split("-")
    if (dot, ending) != (".", "npz") or parts[0] != "segment" or len(parts) not in (2, 3):
        return None
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts[1:]):
        return None
    first, last = int(parts[1]), int(parts[-1])
    return (first, last) if first <= last else None


def empty_column(kind: str, rows: int) -> np.ndarray:
    """Return a column of absent values."""
    if kind == "int":
        return np.full(rows, ABSENT_INT, np.int64)
    if kind == "float":
        return np.full(rows, np.nan)
    return np.full(rows, "", object)


def complete(table: str, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the columns of one of the schema's tables, as they are stored; those that are not given are absent.

    Raises: ValueError for an unknown table or column, or columns of different lengths.
    """
    if table not in TABLES:
        raise ValueError(f"unknown table {table!r}")
    kinds = TABLES[table]
    unknown = [name for name in columns if name not in kinds]
    if unknown:
        raise ValueError(f"table {table} has no column {', '.join(map(repr, unknown))}")
    given_columns = {name: _column(kinds[name], values) for name, values in columns.items()}
    lengths = {len(values) for values in given_columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns of {table} differ in length: {sorted(lengths)}")
    rows = lengths.pop() if lengths else 0
    return {
        name: given_columns[name] if name in given_columns else empty_column(kind, rows) for name, kind in kinds.items()
    }


def _column(kind: str, values: Any) -> np.ndarray:
    """Return a copy of a column's values as they are stored; an absent integer is `ABSENT_INT`. Raises: ValueError.

    Args:
        kind: "int", "float" or "text".
        values: [rows].
    """
    if kind == "text":
        result = np.empty(len(values), object)
        result[:] = ["" if value is None else str(value) for value in values]
        return result
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"a column has one dimension, not {array.ndim}")
    if kind == "int" and array.dtype.kind == "f":
        finite = np.isfinite(array)
        array = np.where(finite, np.rint(np.where(finite, array, 0)), ABSENT_INT)
    # A copy: the caller may reuse its buffers.
    return array.astype(np.int64 if kind == "int" else np.float64)


def concatenate(table: str | None, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenate rows of the parts, each column -> values[rows].

    Args:
        table: None = a sample group, whose columns may vary; where a part lacks one, it is absent.
    """
    if len(parts) == 1:
        return parts[0]
    names: dict[str, None] = {}
    for part in parts:
        names.update(dict.fromkeys(part))
    result = {}
    for name in names:
        kind = _kind(table, name)
        pieces = [
            part[name] if name in part else empty_column(kind, len(next(iter(part.values())))) for part in parts if part
        ]
        result[name] = np.concatenate(pieces)
    return result


def joined(parts: Sequence[Part]) -> Part:
    """Return (tables, samples) of several parts, in order, as those of one."""
    if len(parts) == 1:
        return parts[0]
    result: Part = ({}, {})
    for rows, *all_rows in zip(result, *parts, strict=True):
        for name in dict.fromkeys(name for row in all_rows for name in row):
            table = name if rows is result[0] else None
            rows[name] = concatenate(table, [row[name] for row in all_rows if name in row])
    return result


def _kind(table: str | None, name: str) -> str:
    if table is not None:
        return TABLES[table].get(name, "int")
    return "int" if name == "time_ns" else "float"


def encode_segment(tables: Tables, samples: Tables, level: int) -> bytes:
    """Return the bytes of a segment; tables and groups without rows are left out.

    Args:
        level: of compression; 0 = none, for rows that are encoded again soon.
    """
    index: dict[str, Any] = {"tables": {}, "samples": {}}
    arrays: dict[str, np.ndarray] = {}
    for table, rows in tables.items():
        following = {name: rows[name] - given for name, given in _predicted(table, rows).items()}
        index["tables"][table], arrays[f"tables/{table}"] = encode_frame({**rows, **following}, TABLES[table])
    for group, rows in samples.items():
        kinds = {name: _kind(None, name) for name in rows}
        index["samples"][group], arrays[f"samples/{group}"] = encode_frame(rows, kinds)
    return pack(index, arrays, level)


class Segment:
    """A segment's bytes, decoded on demand; more values than its size can hold are refused at once.

    Attributes:
        groups: of samples that have rows.

    Raises: Damaged from every method, and nothing else.
    """

    def __init__(self, data: bytes):
        self._container = Container(data)
        index = self._container.index
        self._frames: dict[str, dict[str, Any]] = {}
        cells = 0
        for kind in ("tables", "samples"):
            frames = index.get(kind)
            if not isinstance(frames, dict):
                raise Damaged(f"its index lists no {kind}")
            for name, frame in frames.items():
                kinds = TABLES.get(name) if kind == "tables" else _SAMPLED
                self._frames[f"{kind}/{name}"] = checked_frame(name, frame, kinds or {})
                cells += frame["rows"] * max(1, len(frame["columns"]))
        if cells > min(MAX_CELLS_READ, FEW_CELLS + CELLS_PER_BYTE * len(data)):
            raise Damaged(f"{cells} values claimed in {len(data)} bytes; refused")
        self.groups = [name for name, frame in index["samples"].items() if frame["rows"]]

    def rows(self, table: str) -> int:
        """Return the number of rows of a table in this segment."""
        frame = self._frames.get(f"tables/{table}")
        return frame["rows"] if frame else 0

    def table(self, table: str) -> dict[str, np.ndarray]:
        """Return the columns of one of the schema's tables; those not stored are absent. Raises: Damaged."""
        stored, rows = self._decode(f"tables/{table}", None), self.rows(table)
        try:
            derived = _predicted(table, stored) if rows else {}
            stored |= {name: stored[name] + values for name, values in derived.items()}
        except KeyError as error:
            raise Damaged(f"{table[:40]}: no column {error}") from error
        columns = TABLES[table].items()
        return {name: stored[name] if name in stored else empty_column(kind, rows) for name, kind in columns}

    def samples(self, group: str, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Return columns of a sample group, `time_ns` included; {} where the segment has none."""
        if names is not None:
            names = ["time_ns", *(name for name in names if name != "time_ns")]
        stored = self._decode(f"samples/{group}", names)
        return {encodable(name): values for name, values in stored.items()}

    def readable(self, tables: Iterable[str] | None, on_damage: Callable[[Damaged], None]) -> Part:
        """Return (tables, samples) without damaged ones.

        Args:
            tables: names of the wanted ones; None = all.
            on_damage: called with the error of each that is damaged.
        """
        result: Part = ({}, {})
        table_names = [name for name in (TABLES if tables is None else tables) if self.rows(name)]
        reads: tuple[Callable[[str], dict[str, np.ndarray]], ...] = (self.table, self.samples)
        for into, read, names in zip(result, reads, (table_names, self.groups), strict=True):
            for name in names:
                try:
                    into[name] = read(name)
                except Damaged as error:
                    on_damage(error)
        return result

    def _decode(self, key: str, names: Iterable[str] | None) -> dict[str, np.ndarray]:
        """Return the columns of a table, or of a group of samples; {} where the segment has none. Raises: Damaged.

        Args:
            key: "tables/<name>" or "samples/<group>".
            names: columns that are wanted; None = all.
        """
        frame = self._frames.get(key)
        if frame is None:
            return {}
        matrix = self._container.array(key)
        try:
            return decode_frame(frame, matrix, names)
        except Damaged as error:
            raise Damaged(f"{key}: {error}") from error


# Kinds of the columns of a sample group; all others hold floats.
_SAMPLED = {"time_ns": "int"}


def checked_frame(name: str, frame: Any, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return a frame's description if its columns are of the kinds in the schema. Raises: Damaged.

    Args:
        kinds: column -> "int", "float" or "text"; columns that are not in it are of another version.
    """
    rows = frame.get("rows") if isinstance(frame, dict) else None
    columns = frame.get("columns") if isinstance(frame, dict) else None
    if type(rows) is not int or not isinstance(columns, dict):
        raise Damaged("its index describes no rows")
    if not 0 <= rows <= MAX_ROWS_READ:
        raise Damaged(f"{name[:40]}: more than {MAX_ROWS_READ} rows claimed; refused")
    for column, entry in columns.items():
        kind = kinds.get(column, "float" if kinds is _SAMPLED else None)
        stored_kind = entry.get("type") if isinstance(entry, dict) else None
        if kind is not None and stored_kind != kind:
            raise Damaged(f"{name[:40]}: {column[:40]} is not of the kind {kind}")
    if kinds is _SAMPLED and "time_ns" not in columns:
        raise Damaged(f"{name[:40]}: samples without times")
    return frame


class SegmentInfo(NamedTuple):
    """Facts of a segment that are known without opening it; -1 (times: 0) where unknown.

    Attributes:
        first, last: flushes whose rows it holds, counted from 0.
    """

    first: int
    last: int
    size: int = 0  # of its file, bytes
    steps: int = -1  # rows of the steps table; -1: unknown until it is opened
    first_step: int = -1
    last_step: int = -1
    start_ns: int = 0
    end_ns: int = 0
    holds: int = -1  # a bit for each of the schema's tables: whether it may have rows of it

    @classmethod
    def of(cls, first: int, last: int, size: int, tables: Tables, samples: Tables) -> "SegmentInfo":
        """Return the facts of a segment with these rows."""
        steps = tables["steps"]["step"].tolist() if "steps" in tables else []
        ends = steps[0] if steps else -1, steps[-1] if steps else -1
        holds = sum(1 << _PLACES[table] for table in tables)
        return cls(first, last, size, len(steps), *ends, *extent(tables, samples), holds)

    @property
    def name(self) -> str:
        return segment_name(self.first, self.last)

    def may_hold(self, table: str) -> bool:
        """Return whether it has, or may have, rows of a table."""
        return bool(self.holds >> _PLACES[table] & 1)


# Stored bits go by these places: a new table comes last in the schema.
_PLACES = {table: at for at, table in enumerate(TABLES)}


def list_segments(
    names: Iterable[str], known: Sequence[SegmentInfo], written: int
) -> tuple[list[SegmentInfo], list[SegmentInfo]]:
    """Order the segments among a folder's files.

    Args:
        names: the folder's files.
        known: the sealed segments that the top lists.
        written: number of segments according to the manifest.

    Returns:
        (the segments, the missing ones). A small segment whose rows are in a sealed one, but whose
        file was not removed yet, is in neither.
    """
    by_range = {(info.first, info.last): info for info in known}
    ranges = (span for name in names if (span := segment_range(name)))
    infos: list[SegmentInfo] = []
    gaps: list[SegmentInfo] = []
    covered = -1
    for first, last in sorted(ranges, key=lambda span: (span[0], -span[1])):
        if last <= covered:  # its rows are in a sealed one
            continue
        if first > covered + 1:  # numbers between are missing
            gaps.append(_gap(covered + 1, first - 1, known))
        covered = last
        infos.append(by_range.get((first, last)) or SegmentInfo(first, last))
    if covered < written - 1:  # the last ones are missing
        gaps.append(_gap(covered + 1, written - 1, known))
    return infos, gaps


def _gap(first: int, last: int, known: Sequence[SegmentInfo]) -> SegmentInfo:
    """Return what is known of the missing segments `first` to `last`, as one."""
    missing = [info for info in known if first <= info.first and info.last <= last and info.steps > 0]
    if not missing:
        return SegmentInfo(first, last)
    return SegmentInfo(
        first,
        last,
        steps=sum(info.steps for info in missing),
        first_step=min(info.first_step for info in missing),
        last_step=max(info.last_step for info in missing),
    )


def extent(tables: Tables, samples: Tables) -> tuple[int, int]:
    """Return first and last time of steps and samples, ns; (0, 0) without rows. For look-ups of segments by time."""
    times = [columns["time_ns"] for columns in samples.values()]
    if "steps" in tables:
        times.append(tables["steps"]["start_ns"])
    return (
        min((int(values.min()) for values in times), default=0),
        max((int(values.max()) for values in times), default=0),
    )
