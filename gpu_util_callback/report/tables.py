"""Recordings as Parquet files: a file per table, for pandas, Polars, DuckDB or Spark."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import ABSENT_INT, TABLES

__all__ = ["write_parquet"]

# In front of every table's own columns: which recording the row is of.
OWNER = ("run", "recording", "rank")
_TYPES = {"int": "int64", "float": "float64", "text": "string"}


def write_parquet(recordings: Sequence[Recording], folder: str) -> dict[str, int]:
    """Write all tables and samples of recordings into a folder; return the rows of each file.

    Files are `<table>.parquet` for each table of `recording.schema.TABLES`, and `samples.parquet`
    with a row per sampled value (`group`, `time_ns`, `column`, `value`). What is absent is null. A
    recording is read and written segment by segment.

    Raises: UnusableInput where pyarrow is missing or the folder cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UnusableInput(
            f'Parquet needs pyarrow: pip install "gpu-util-callback[parquet]" ({error})'
        ) from None
    schemas = {name: _schema(pa, columns) for name, columns in TABLES.items()}
    schemas["samples"] = _schema(
        pa, {"group": "text", "time_ns": "int", "column": "text", "value": "float"}
    )
    rows = dict.fromkeys(schemas, 0)
    writers: dict[str, Any] = {}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, schema in schemas.items():
            path = Path(folder) / f"{name}.parquet"
            writers[name] = pq.ParquetWriter(path, schema, compression="zstd")
        for one in recordings:
            for name, columns in _blocks(one):
                count = len(next(iter(columns.values())))
                table = _table(pa, schemas[name], one, columns, count)
                writers[name].write_table(table)
                rows[name] += count
    except OSError as error:
        raise UnusableInput(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        for writer in writers.values():
            writer.close()
    return rows


def _schema(pa: Any, columns: Mapping[str, str]) -> Any:
    own = [("run", pa.string()), ("recording", pa.string()), ("rank", pa.int64())]
    return pa.schema(own + [(name, getattr(pa, _TYPES[kind])()) for name, kind in columns.items()])


def _blocks(recording: Recording) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield (table, columns) of each segment, "samples" as rows of one value each."""
    for tables, groups in recording.parts():
        for name, columns in tables.items():
            if name in TABLES and len(next(iter(columns.values()))):
                yield name, columns
        for group, columns in groups.items():
            yield from _values(group, columns)


def _values(
    group: str, columns: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    times = columns["time_ns"]
    for name, values in columns.items():
        known = np.isfinite(values) if name != "time_ns" else np.zeros(0, bool)
        count = int(known.sum())
        if count:
            yield "samples", {
                "group": np.full(count, group, object), "time_ns": times[known],
                "column": np.full(count, name, object), "value": values[known],
            }  # fmt: skip


def _table(
    pa: Any, schema: Any, recording: Recording, columns: Mapping[str, Iterable], count: int
) -> Any:
    owner = {"run": recording.run, "recording": recording.id, "rank": recording.rank}
    arrays = []
    for field in schema:
        if field.name in OWNER:
            arrays.append(pa.array([owner[field.name]] * count, field.type))
            continue
        values = np.asarray(columns[field.name])
        absent = None
        if field.type == pa.int64() and field.name not in ("gpu", "parent"):  # -1 is a value
            absent = values == ABSENT_INT
        elif field.type == pa.float64():
            absent = ~np.isfinite(values)
        arrays.append(pa.array(values, field.type, mask=absent))
    return pa.table(arrays, schema=schema)
