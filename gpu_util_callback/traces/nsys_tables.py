"""Reads columns of an Nsight Systems export, whichever tables and columns it has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType

import numpy as np

from gpu_util_callback.errors import UnusableInput

__all__ = ["Export"]

_ROWS = 50_000  # fetched at a time
MAX_ROWS = 10_000_000
# SQLite counts its own instructions: a made-up file may hold a query without end.
_STEPS_PER_CHECK = 1_000_000
_MAX_CHECKS = 40_000


class Export:
    """An opened `.sqlite` export; a context manager. All reads are of plain tables, read-only.

    Raises: UnusableInput, from every method, when the file is damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self.tables: dict[str, list[str]] = {}
        self._checks = 0
        try:
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.set_progress_handler(self._check, _STEPS_PER_CHECK)
            listed = self._connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
            for name, sql in listed:
                if not isinstance(sql, str) or "VIRTUAL" in sql[:40].upper():
                    continue
                with closing(self._connection.execute(f"PRAGMA table_info({_quote(name)})")) as c:
                    self.tables[name] = [row[1] for row in c]
        except (sqlite3.Error, UnicodeDecodeError) as error:  # its message quotes what is damaged
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
        self._checks += 1
        return int(self._checks > _MAX_CHECKS)

    def _damaged(self, error: Exception) -> UnusableInput:
        why = error if isinstance(error, sqlite3.Error) else "its tables' definitions are garbled"
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
        count = 0
        try:
            with closing(self._connection.execute(query)) as cursor:
                while rows := cursor.fetchmany(_ROWS):
                    parts.append(np.array(rows, np.int64).T)
                    count += len(rows)
                    if count > MAX_ROWS:
                        raise UnusableInput(
                            f"{self.path}: more than {MAX_ROWS:,} rows in {table}; "
                            "export a shorter range"
                        )
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        except (OverflowError, ValueError):
            raise UnusableInput(f"{self.path}: {table} holds what are no numbers") from None
        if not parts:
            return empty
        joined = np.concatenate(parts, axis=1)
        result = {c: joined[i] for i, c in enumerate(present)}
        for column in columns:
            if column not in result:
                result[column] = np.full(joined.shape[1], -1, np.int64)
        return result

    def rows(self, table: str, columns: tuple[str, ...], where: str = "") -> list[tuple]:
        """Rows of a small table, as they are; [] unless it has all the columns."""
        if not self.has(table, *columns):
            return []
        chosen = ", ".join(_quote(c) for c in columns)
        try:
            with closing(
                self._connection.execute(f"SELECT {chosen} FROM {_quote(table)} {where}")
            ) as cursor:
                return cursor.fetchmany(MAX_ROWS)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._damaged(error) from None


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
