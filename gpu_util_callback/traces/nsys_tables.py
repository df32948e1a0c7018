"""Reads columns of an Nsight Systems export, whichever tables and columns it has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType

import numpy as np

from gpu_util_callback.errors import UnusableInput

__all__ = ["Export"]

_ROWS = 5_000  # fetched at a time
MAX_ROWS = 10_000_000
# What a file can hold: a row takes a pointer of two bytes and a record of three or more. Pages that
# name one page again and again, as no writer does, would hold rows without end.
_ROW_BYTES = 5
# SQLite counts its own instructions: a made-up file may hold a query without end. An honest one
# needs about one for each byte of the file.
_STEPS_PER_CHECK = 50_000
_MIN_STEPS = 20_000_000
_STEPS_PER_BYTE = 30
_MAX_VALUE = 64 << 20  # bytes of one text


class Export:
    """An opened `.sqlite` export; a context manager. All reads are of plain tables, read-only.

    Raises: UnusableInput, from every method, when the file is damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self.tables: dict[str, list[str]] = {}
        self._steps = 0
        size = path.stat().st_size
        self._max_steps = _MIN_STEPS + _STEPS_PER_BYTE * size
        self._max_rows = min(MAX_ROWS, size // _ROW_BYTES)
        self._max_text = size  # of one query: what a page holds is in it once
        try:
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(_MAX_VALUE, size))
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.set_progress_handler(self._check, _STEPS_PER_CHECK)
            query = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            for name, sql in self._fetched(query):
                if not isinstance(sql, str) or "VIRTUAL" in sql[:40].upper():
                    continue
                with closing(self._connection.execute(f"PRAGMA table_info({_quote(name)})")) as c:
                    self.tables[name] = [row[1] for row in c]
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def __enter__(self) -> Export:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def _check(self) -> int:
        self._steps += _STEPS_PER_CHECK
        return int(self._steps > self._max_steps)

    def _damaged(self, error: Exception) -> UnusableInput:
        if self._steps > self._max_steps:
            why = "it takes longer to read than a file of its size can"
        elif isinstance(error, MemoryError):  # SQLite asked for what its pages say
            why = "it asks for more memory than a file of its size needs"
        elif isinstance(error, sqlite3.Error | _Overfull):
            why = " ".join(str(error).split())[:200]
        else:
            why = "its tables' definitions are garbled"
        return UnusableInput(
            f"{self.path}: damaged Nsight Systems export ({why}); export it again with "
            "`nsys export --type sqlite`"
        )

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and all(c in self.tables[table] for c in columns)

    def integers(
        self, table: str, columns: tuple[str, ...], where: str = ""
    ) -> dict[str, np.ndarray]:
        """Columns as int64; absent columns and NULL are -1. Empty without the table."""
        empty = {c: np.empty(0, np.int64) for c in columns}
        present = [c for c in columns if self.has(table, c)]
        if not present:
            return empty
        chosen = ", ".join(f"CAST(COALESCE({_quote(c)}, -1) AS INTEGER)" for c in present)
        query = f"SELECT {chosen} FROM {_quote(table)} {where}"
        parts: list[np.ndarray] = []
        try:
            for rows in self._chunks(query):
                parts.append(np.array(rows, np.int64).T)
        except (OverflowError, ValueError):
            raise UnusableInput(f"{self.path}: {table} holds what are no numbers") from None
        except _DAMAGE as error:
            raise self._damaged(error) from None
        if not parts:
            return empty
        joined = np.concatenate(parts, axis=1)
        result = {c: joined[i] for i, c in enumerate(present)}
        for column in columns:
            if column not in result:
                result[column] = np.full(joined.shape[1], -1, np.int64)
        return result

    def rows(self, table: str, columns: tuple[str, ...], where: str = "") -> Iterator[tuple]:
        """Rows of a table, as they are; none unless it has all the columns."""
        if not self.has(table, *columns):
            return
        chosen = ", ".join(_quote(c) for c in columns)
        try:
            yield from self._fetched(f"SELECT {chosen} FROM {_quote(table)} {where}")
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def _fetched(self, query: str) -> Iterator[tuple]:
        """Rows of a query, and no more text than the file can hold."""
        left = self._max_text
        for rows in self._chunks(query):
            for row in rows:
                left -= sum(len(value) for value in row if isinstance(value, str | bytes))
                if left < 0:
                    raise _Overfull("its pages hold more text than they can")
                yield row

    def _chunks(self, query: str) -> Iterator[list[tuple]]:
        """Rows of a query, some at a time, and no more of them than the file can hold."""
        left = self._max_rows
        with closing(self._connection.execute(query)) as cursor:
            while rows := cursor.fetchmany(_ROWS):
                left -= len(rows)
                if left < 0 and self._max_rows == MAX_ROWS:
                    raise UnusableInput(
                        f"{self.path}: more than {MAX_ROWS:,} rows in a table; export a shorter "
                        "range"
                    )
                if left < 0:
                    raise _Overfull("its pages hold more rows than they can")
                yield rows


class _Overfull(Exception):
    """A table that holds more than its pages can."""


# UnicodeDecodeError: SQLite's message quotes what is damaged.
_DAMAGE = (sqlite3.Error, UnicodeDecodeError, MemoryError, _Overfull)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
