"""Rows as CSV and JSON, streamed segment by segment."""

import csv
import io
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import ABSENT_INT, TABLES

__all__ = ["csv_lines", "step_columns"]


def step_columns(recording: Recording, first: int, last: int) -> dict[str, list]:
    """Return columns of the steps `first` to `last`, both included; absent values are None."""
    parts: dict[str, list] = {name: [] for name in TABLES["steps"]}
    for rows in _steps_between(recording, first, last):
        for name, values in rows.items():
            parts[name] += _plain("steps", name, values)
    return parts


def csv_lines(
    recording: Recording, table: str, first: int | None = None, last: int | None = None,
    run: str | None = None, header: bool = True,
) -> Iterator[str]:  # fmt: skip
    """Yield a table as CSV, header first; `first` and `last` (included) select by step number.

    With `run` the first column holds it, so that tables of several runs can follow each other.
    """
    # A name may be any text, and must not be taken for a formula.
    own = [] if run is None else ["'" + run if run[:1] in "=+-@" else run]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")

    def taken() -> str:
        text = out.getvalue()
        out.seek(0)
        out.truncate()
        return text

    if header:
        writer.writerow(["run"] * len(own) + list(TABLES[table]))
        yield taken()
    by_step = table == "steps"
    parts = _steps_between(recording, first, last) if by_step else _rows(recording, table)
    for rows in parts:
        if not by_step and "step" in rows:
            rows = _selected(rows, first, last)
        columns = [_plain(table, name, values) for name, values in rows.items()]
        writer.writerows(
            own + ["" if value is None else value for value in row]
            for row in zip(*columns, strict=True)
        )
        yield taken()


def _rows(recording: Recording, table: str) -> Iterator[dict[str, np.ndarray]]:
    for info, segment in recording.opened(table=table):
        tables, _ = segment.readable((table,), partial(recording.damaged, info.name))
        yield from tables.values()


def _steps_between(
    recording: Recording, first: int | None, last: int | None
) -> Iterator[dict[str, np.ndarray]]:
    for info in recording.segments:
        if info.steps == 0:
            continue
        if info.steps > 0 and (
            (first is not None and info.last_step < first)
            or (last is not None and info.first_step > last)
        ):
            continue
        segment = recording.open_segment(info)
        if segment is None:
            continue
        tables, _ = segment.readable(("steps",), partial(recording.damaged, info.name))
        if "steps" in tables:
            yield _selected(tables["steps"], first, last)


def _selected(
    rows: dict[str, np.ndarray], first: int | None, last: int | None
) -> dict[str, np.ndarray]:
    numbers = rows["step"]
    inside = np.ones(len(numbers), bool)
    if first is not None:
        inside &= numbers >= first
    if last is not None:
        inside &= numbers <= last
    return {name: values[inside] for name, values in rows.items()}


def _plain(table: str, name: str, values: np.ndarray) -> list[Any]:
    kind = TABLES[table][name]
    if kind == "int":
        return [None if value == ABSENT_INT else value for value in values.tolist()]
    if kind == "float":
        return [None if value != value else value for value in values.tolist()]
    return [_harmless(value) for value in values.tolist()]


def _harmless(text: str) -> str:
    """Escape names from untrusted sources: a spreadsheet must not take one for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
