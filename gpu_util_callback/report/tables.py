"""Recordings for other programs.

- `trace_text`: a trace of Chrome's JSON format, for ui.perfetto.dev and chrome://tracing. A
  process per recording, with tracks for its steps, phases and spans, and counters for its samples.
  All times are microseconds since the first of them, on one clock: those of a job's workers are
  shifted by the offsets of their clocks, where these are known.
- `write_parquet`: a Parquet file per table, for pandas, Polars, DuckDB or Spark.
- `write_runs`: a row a recording, of thousands.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.alignment import session_clocks
from gpu_util_callback.recording.manifest_facts import Span
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import ABSENT_INT, ACCOUNTS, STEP_PARTS, TABLES
from gpu_util_callback.words import what_to_do

if TYPE_CHECKING:
    import pyarrow

Event = dict[str, object]
Shift = Callable[[int], int]


def trace_text(recordings: Sequence[Recording]) -> Iterator[str]:
    """Yield recordings as one trace in Chrome's JSON, in pieces: events are not kept in memory."""
    origin_ns, shifts = _one_clock(recordings)
    head = {
        "displayTimeUnit": "ms",
        "otherData": {"origin_ns": str(origin_ns), "made_by": "gpu-util export --perfetto"},
    }
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    comma = ""
    for pid, recording in enumerate(recordings, 1):
        for event in trace_events(recording, pid, _since(origin_ns, shifts[recording.id])):
            yield comma + json.dumps(event, allow_nan=False)
            comma = ",\n"
    yield "\n]}\n"


def _since(origin_ns: int, shift: Shift) -> Shift:
    return lambda ns: shift(int(ns)) - origin_ns


def _one_clock(recordings: Sequence[Recording]) -> tuple[int, dict[str, Shift]]:
    """Return the earliest start (ns), and for each recording's id a function from its times to those of one clock."""
    sessions: dict[str, list[Recording]] = {}
    for recording in recordings:
        sessions.setdefault(recording.session, []).append(recording)
    shifts: dict[str, Shift] = {}
    for members in sessions.values():
        clocks = session_clocks(members)
        for recording in members:
            offset = clocks.of(recording.id)
            shifts[recording.id] = int if offset is None else offset.on_reference
    return min(shifts[recording.id](recording.start_ns) for recording in recordings), shifts


def trace_events(recording: Recording, pid: int, since: Shift) -> Iterator[Event]:
    """Yield the events of one recording.

    Args:
        pid: the process that stands for it.
        since: converts its times to nanoseconds since the trace's origin.
    """
    rank = f" rank {recording.rank}" if recording.rank else ""
    yield _metadata("process_name", pid, 0, name=f"{recording.run}{rank} ({recording.id})")
    tracks = _Tracks(pid, since)
    yield from tracks.slices("steps", _step_slices(recording.steps))
    yield from _phase_events(tracks, recording.phases)
    report = run_report(recording)
    for cause in dict.fromkeys(span["cause"] for span in report["spans"]):
        spans = [span for span in report["spans"] if span["cause"] == cause]
        yield from tracks.slices(f"finding: {cause}", map(_span, spans))
    for group, columns in recording.samples.items():
        yield from _counters(pid, since, group, columns)


Slice = tuple[int, int, str, Mapping[str, object]]  # start and end in ns, name, arguments
_OF_STEP = ("step", "start_ns", "duration_ns")


class _Tracks:
    """Tracks of one process, numbered as they come.

    Slices of a track must nest, or a viewer drops them: one that begins while another is under way
    goes to a track of the same name below it.
    """

    def __init__(self, pid: int, since: Shift):
        self._pid, self._since = pid, since
        self._count = 0

    def slices(self, name: str, slices: Iterable[Slice]) -> Iterator[Event]:
        """Yield the events of slices, on as many tracks of one name as overlap."""
        lanes: list[tuple[int, int]] = []  # (track, end of its last slice)
        for start, end, title, arguments in sorted(slices, key=lambda entry: entry[:2]):
            place = next((i for i, (_, until) in enumerate(lanes) if until <= start), len(lanes))
            if place == len(lanes):
                self._count += 1
                lanes.append((self._count, 0))
                yield _metadata("thread_name", self._pid, self._count, name=name)
                yield _metadata("thread_sort_index", self._pid, self._count, sort_index=self._count)
            tid = lanes[place][0]
            lanes[place] = (tid, end)
            at = self._since(start)
            yield {
                "ph": "X",
                "name": title,
                "cat": name,
                "pid": self._pid,
                "tid": tid,
                "ts": at / 1e3,
                "dur": max(0, self._since(end) - at) / 1e3,
                "args": arguments,
            }


def _metadata(kind: str, pid: int, tid: int, **arguments: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments}


def _rows(table: Mapping[str, np.ndarray], *columns: str) -> Iterator[tuple]:
    """Yield the rows of some columns of a table."""
    return zip(*(table[name].tolist() for name in columns), strict=True)


def _step_slices(steps: Mapping[str, np.ndarray]) -> Iterator[Slice]:
    """Yield a slice for each row of `steps`: start and end in ns, name, and its parts in ms."""
    parts = (*STEP_PARTS, "input_get_ns")
    for number, start, duration, estimated, *values in _rows(steps, *_OF_STEP, "estimated", *parts):
        arguments = {
            f"{name.removesuffix('_ns')}_ms": ns / 1e6 for name, ns in zip(parts, values, strict=True) if ns >= 0
        }
        if estimated:
            arguments["estimated"] = True
        yield start, start + duration, f"step {number}", arguments


def _phase_events(tracks: _Tracks, phases: Mapping[str, np.ndarray]) -> Iterator[Event]:
    """Yield the events of phases, on a track for each kind."""
    kinds: dict[str, list[Slice]] = {}
    for kind, name, start, end, count, spent_ns in _rows(
        phases, "kind", "name", "start_ns", "end_ns", "count", "self_ns"
    ):
        arguments = {"spent_ms": spent_ns / 1e6, "count": count}
        # Calls of a batch hook are summed up: their slice lasts from the first to the last.
        track = f"{kind}: {name}" if count > 1 else kind
        kinds.setdefault(track, []).append((start, end, name or kind, arguments))
    for track, slices in kinds.items():
        yield from tracks.slices(track, slices)


def _span(span: Span) -> Slice:
    arguments = {"lost_s": span["lost_s"], "confidence": span["confidence"], "advice": span["advice"]["text"]}
    return span["start_ns"], span["end_ns"], span["title"], {**arguments, **span["evidence"]}


def _counters(pid: int, since: Shift, group: str, columns: Mapping[str, np.ndarray]) -> Iterator[Event]:
    """Yield a counter per column; a viewer holds a value until the next, so only changes count."""
    times = columns["time_ns"]
    for name, values in columns.items():
        if name == "time_ns":
            continue
        measured = np.flatnonzero(np.isfinite(values))
        if not len(measured):
            continue
        changed = np.append(True, np.diff(values[measured]) != 0)
        changed[-1] = True  # shows how far it was sampled
        for row in measured[changed].tolist():
            yield {
                "ph": "C",
                "name": f"{group} {name}",
                "pid": pid,
                "tid": 0,
                "ts": since(times[row]) / 1e3,
                "args": {"value": float(values[row])},
            }


_TYPES = {"int": "int64", "float": "float64", "text": "string"}


def write_parquet(recordings: Sequence[Recording], folder: str) -> None:
    """Write all tables and samples of recordings into a folder.

    Files are `<table>.parquet` for each table of `recording.schema.TABLES`, and `samples.parquet`
    with a row per sampled value (`group`, `time_ns`, `column`, `value`). What is absent is null. A
    recording is read and written segment by segment.

    Raises: UnusableInput where pyarrow is missing or the folder cannot be written.
    """
    pa, pq = _pyarrow()
    schemas = {name: _schema(pa, columns) for name, columns in TABLES.items()}
    schemas["samples"] = _schema(pa, {"group": "text", "time_ns": "int", "column": "text", "value": "float"})
    writers: dict[str, Any] = {}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, schema in schemas.items():
            path = Path(folder) / f"{name}.parquet"
            writers[name] = pq.ParquetWriter(path, schema, compression="zstd")
        for recording in recordings:
            for name, columns in _table_blocks(recording):
                writers[name].write_table(_table(pa, schemas[name], recording, columns))
    except OSError as error:
        raise UnusableInput(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        for writer in writers.values():
            writer.close()


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    """Return pyarrow and its Parquet module. Raises: UnusableInput where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UnusableInput(f"Parquet needs pyarrow: pip install pyarrow ({error})") from None
    return pyarrow, pyarrow.parquet


def _schema(pa: ModuleType, columns: Mapping[str, str]) -> pyarrow.Schema:
    """Return a table's schema: in front of its own columns, which recording a row is of."""
    run_columns = [("run", pa.string()), ("recording", pa.string()), ("rank", pa.int64())]
    return pa.schema(run_columns + [(name, getattr(pa, _TYPES[kind])()) for name, kind in columns.items()])


def _table_blocks(recording: Recording) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield (table, columns) of each segment, "samples" as rows of one value each."""
    for tables, groups in recording.parts():
        for name, columns in tables.items():
            if name in TABLES and len(next(iter(columns.values()))):
                yield name, columns
        for group, columns in groups.items():
            yield from _value_rows(group, columns)


def _value_rows(group: str, columns: Mapping[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield the measured values of a sample group as rows of one value each."""
    times = columns["time_ns"]
    for name, values in columns.items():
        measured = np.isfinite(values) if name != "time_ns" else np.zeros(0, bool)
        count = int(measured.sum())
        if count:
            texts = {"group": np.full(count, group, object), "column": np.full(count, name, object)}
            yield "samples", {**texts, "time_ns": times[measured], "value": values[measured]}


def _table(
    pa: ModuleType, schema: pyarrow.Schema, recording: Recording, columns: Mapping[str, np.ndarray]
) -> pyarrow.Table:
    """Return columns of a recording as an Arrow table; absent values are null.

    Args:
        pa: the module pyarrow.
    """
    owner = {"run": recording.run, "recording": recording.id, "rank": recording.rank}
    count, arrays = len(next(iter(columns.values()))), []
    for field in schema:
        if field.name in owner:
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


def write_runs(rows: Sequence[Mapping[str, Any]], folder: str) -> int:
    """Write a row a recording into `folder/month=YYYY-MM/runs-0.parquet`, for DuckDB, Spark, Athena or Polars.

    Months that are written are replaced. Columns: name, owner and program of the run, `start`, `end`, `wall_s`,
    `steps`, `gpus`, `gpu_model`, `gpu_hours`, `active_pct` (NVML's, a mean), the parts of the host account in seconds
    (`input_wait_s`, …), and `causes`, a list of (cause, title, lost_s, saves_s, fix). What is unknown is null.

    Args:
        rows: of a `survey`.

    Returns: how many recordings were written.
    Raises: UnusableInput where pyarrow is missing or the folder cannot be written.
    """
    pa, pq = _pyarrow()
    # Types of the columns; others are text.
    kinds = dict.fromkeys(("rank", "world_size", "parameters", "batch_size", "steps", "gpus"), pa.int64())
    kinds |= dict.fromkeys(("wall_s", "gpu_hours", "active_pct", *_ACCOUNT_COLUMNS), pa.float64())
    kinds |= dict.fromkeys(("start", "end"), pa.timestamp("us", "UTC"))
    of_cause = dict.fromkeys(("cause", "title"), pa.string()) | dict.fromkeys(("lost_s", "saves_s"), pa.float64())
    kinds["causes"] = pa.list_(pa.struct({**of_cause, "fix": pa.string()}))
    flat = [_run_row(row) for row in rows if not row["imported"]]
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in _run_row(rows[0])]) if rows else pa.schema([])
    try:
        pq.write_to_dataset(
            pa.Table.from_pylist(flat, schema),
            folder,
            partition_cols=["month"],
            basename_template="runs-{i}.parquet",
            existing_data_behavior="delete_matching",
        )
    except OSError as error:
        raise UnusableInput(f"cannot write {folder}: {error.strerror or error}") from error
    return len(flat)


_ACCOUNT_COLUMNS = tuple(f"{name}_s" for name in ACCOUNTS)


def _run_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of one recording, as `write_runs` describes them."""
    begun = datetime.fromtimestamp(row["start_ns"] / 1e9, UTC)
    wall_s, scheduler = row["wall_s"] or 0.0, row["scheduler"] or {}
    models = Counter(row["gpus"].values())
    names = ("logdir", "run", "id", "host", "user", "script", "job", "rank", "world_size", "trial", "backend")
    return {
        "month": f"{begun:%Y-%m}",
        **{name: row[name] for name in names},
        "scheduler": scheduler.get("name"),
        "scheduler_job": scheduler.get("job"),
        **{name: row[name] for name in ("parameters", "batch_size", "status")},
        "start": begun,
        "end": datetime.fromtimestamp(row["end_ns"] / 1e9, UTC),
        "wall_s": wall_s,
        "steps": row["steps"],
        "gpus": len(row["gpus"]),
        "gpu_model": models.most_common(1)[0][0] if models else None,
        "gpu_hours": wall_s * len(row["gpus"]) / 3600,
        "active_pct": 100 * sum(row["active"]) / len(row["active"]) if row["active"] else None,
        **{column: row["time_s"].get(column[:-2]) for column in _ACCOUNT_COLUMNS},
        "causes": [
            {"cause": cause, **loss, "fix": what_to_do(row["advice"][cause]) if cause in row["advice"] else None}
            for cause, loss in row["lost"].items()
        ],
    }
