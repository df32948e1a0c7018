"""Rows reduced to a bounded number of cells, however many they are: the one way of folding."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_FIRST_CELLS = 256  # allocated at first; doubled as needed


class _Reduction(NamedTuple):
    ufunc: np.ufunc
    dtype: type
    empty: float  # the value of a cell without rows


FAR = np.iinfo(np.int64).max
# Part of a cell -> how its rows are reduced. `low`, `high`, `total` and `count` are of measured
# values, of which NaN is absent; the others are of integers, and exact.
REDUCTIONS = {
    "low": _Reduction(np.fmin, np.float32, np.nan),
    "high": _Reduction(np.fmax, np.float32, np.nan),
    "total": _Reduction(np.add, np.float64, 0.0),
    "count": _Reduction(np.add, np.int64, 0),
    "first": _Reduction(np.minimum, np.int64, FAR),
    "last": _Reduction(np.maximum, np.int64, 0),
    "sum": _Reduction(np.add, np.int64, 0),
}

# Columns, and their values: [columns, rows] or [columns, cells].
Columns = tuple[Sequence[str], np.ndarray]


class Fold:
    """Cells of equal width along a key; when `size` of them no longer reach, neighbours join.

    The content depends on the rows alone, not on the pieces in which they came.

    Args:
        size: number of cells, even.
        width: keys per cell at first; doubles with each join.
        first: number of the first cell, whose keys are from `first * width` on; None: that of the
            first row's key. Older keys go into the first cell.

    Attributes:
        used: number of cells from the first one up to the last one with rows.
    """

    def __init__(self, size: int, width: int = 1, first: int | None = 0):
        self.size = size
        self.width = width
        self.first = first
        self.used = 0
        self._allocated = min(size, _FIRST_CELLS)  # cells of the arrays, `used` to `size`: a short run needs few
        self._parts: dict[str, tuple[dict[str, int], np.ndarray]] = {}  # -> (row of a column, [columns, allocated])

    def add(self, keys: np.ndarray, **parts: Columns) -> None:
        """Add rows: in each cell, each column is reduced with what was there.

        Args:
            keys: int64[rows], 0 or more.
            parts: name of a reduction (see `REDUCTIONS`) -> the columns to reduce by it, with their
                values[columns, rows].
        """
        if not len(keys):
            return
        order: slice | np.ndarray = slice(None)
        if (keys[1:] < keys[:-1]).any():  # not ascending: `reduceat` needs the rows of a cell together
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
        if self.first is None:
            self.first = int(keys[0]) // self.width
        while int(keys[-1]) // self.width - self.first >= self.size:  # beyond the last cell
            self._allocate(self.size)
            self._join(self.first % 2)
        cells = np.maximum(keys // self.width - self.first, 0)
        first_rows = np.flatnonzero(np.diff(cells, prepend=-1))  # where each cell's rows begin
        cells = cells[first_rows]
        self.used = max(self.used, int(cells[-1]) + 1)
        self._allocate(self.used)
        for part, (columns, values) in parts.items():
            ufunc, dtype, _ = REDUCTIONS[part]
            rows, data = self._room(part, columns)
            reduced = ufunc.reduceat(values[:, order], first_rows, axis=1, dtype=dtype)
            at = np.array([rows[column] for column in columns])[:, np.newaxis], cells
            data[at] = ufunc(data[at], reduced)

    def _room(self, part: str, columns: Sequence[str]) -> tuple[dict[str, int], np.ndarray]:
        """Return (row of each column, data[columns, cells]) of a part, extended by these columns where they are new."""
        _, dtype, empty = REDUCTIONS[part]
        rows, data = self._parts.get(part, ({}, np.empty((0, self._allocated), dtype)))
        new = [column for column in columns if column not in rows]
        if new:
            data = np.concatenate([data, np.full((len(new), self._allocated), empty, dtype)])
            rows = {**rows, **{column: len(rows) + at for at, column in enumerate(new)}}
            self._parts[part] = rows, data
        return rows, data

    def _allocate(self, cells: int) -> None:
        """Make the arrays hold at least this many cells."""
        if cells <= self._allocated:
            return
        more = min(self.size, max(cells, 2 * self._allocated)) - self._allocated
        for part, (rows, data) in self._parts.items():
            _, dtype, empty = REDUCTIONS[part]
            self._parts[part] = rows, np.concatenate([data, np.full((len(data), more), empty, dtype)], axis=1)
        self._allocated += more

    def _join(self, odd: int) -> None:
        """Join pairs of neighbouring cells, which halves the number of cells in use.

        Args:
            odd: 1 where the first cell is the later half of its pair, else 0.
        """
        half = self.size // 2
        for part, (_, data) in self._parts.items():
            ufunc, _, empty = REDUCTIONS[part]
            if odd:
                last = data[:, -1].copy()
                data[:, 2::2] = ufunc(data[:, 1:-1:2], data[:, 2::2])
                data[:, :half] = data[:, 0::2]
                data[:, half] = last
                data[:, half + 1 :] = empty
            else:
                data[:, :half] = ufunc(data[:, 0::2], data[:, 1::2])
                data[:, half:] = empty
        self.width *= 2
        self.first = (self.first or 0) // 2
        self.used = (self.used + odd + 1) // 2

    @property
    def nbytes(self) -> int:
        return sum(data.nbytes for _, data in self._parts.values())

    def columns(self, part: str) -> list[str]:
        """Return the columns reduced in this way, in the order of their arrival."""
        return list(self._parts[part][0]) if part in self._parts else []

    def of(self, part: str, column: str) -> np.ndarray:
        """Return a column's cells in use (a view). Raises: KeyError."""
        rows, data = self._parts[part]
        return data[rows[column], : self.used]

    def matrix(self, part: str, columns: Sequence[str] | None = None) -> np.ndarray:
        """Return [columns, used]: all columns, or those named; a column that is not there has empty cells."""
        rows, data = self._parts[part]
        if columns is None:
            return data[:, : self.used]
        selected = data[[rows.get(column, -1) for column in columns], : self.used]
        selected[[column not in rows for column in columns]] = REDUCTIONS[part].empty
        return selected

    def cells_with_rows(self) -> np.ndarray:
        """Return int64[n]: the cells in use that have rows, ascending; all where no column says which."""
        has_rows = (self.matrix("first") < FAR).any(axis=0) if "first" in self._parts else np.ones(self.used)
        return np.flatnonzero(has_rows)

    def restore(
        self, used: int, cells: np.ndarray | None, part: str, columns: Sequence[str], values: np.ndarray
    ) -> None:
        """Fill an empty part with cells as `matrix` returned them.

        Args:
            used: number of cells in use.
            cells: int64[n], the numbers of the cells in `values`, where all others are empty; None = all are there.
            part: name of its reduction.
            values: [columns, n] or [columns, used].
        """
        data = values
        if cells is not None:
            data = np.full((len(columns), used), REDUCTIONS[part].empty, REDUCTIONS[part].dtype)
            data[:, cells] = values
        self.used = self._allocated = used
        self._parts[part] = {column: at for at, column in enumerate(columns)}, data


class EvenlySpread:
    """Amounts that are spread evenly, each from a begin to its end.

    Where stretches overlap, the later one begins where the earlier one ends.

    Args:
        begin, end: int64[n] ns.
        amounts: arrays [n].
    """

    def __init__(self, begin: np.ndarray, end: np.ndarray, *amounts: np.ndarray):
        order = np.argsort(begin, kind="stable")
        edges = np.maximum.accumulate(np.array([begin, end])[:, order].T.ravel())
        self._origin = edges[0] if len(edges) else 0  # ns since the epoch are no exact floats
        self._edges = edges - self._origin
        grown = [(np.cumsum(each[order]), each[order]) for each in amounts]
        self._levels = [np.array([level - each, level]).T.ravel() for level, each in grown]

    def before(self, times: np.ndarray) -> list[np.ndarray]:
        """Return how much of each amount lies before each of `times`."""
        if not len(self._edges):
            return [np.zeros(len(times)) for _ in self._levels]
        times = times - self._origin
        return [np.interp(times, self._edges, level, left=0.0) for level in self._levels]
