"""Phases in bounded memory: activity of the training thread outside its steps, by name."""

from collections.abc import Mapping

import numpy as np

MAX_NAMES = 256


class Occurrences:
    """Times of one kind of phase; neighbours are joined when there are too many to keep."""

    CAPACITY = 1024
    COLUMNS = ("start_ns", "end_ns", "self_ns", "step", "count")

    def __init__(self) -> None:
        self._rows = np.zeros((self.CAPACITY, 5), np.int64)
        self._used = 0
        self._per_row = 1
        self._pending = 0  # occurrences already joined into the newest row
        self.count = 0
        self.self_ns = 0
        self.longest_ns = 0  # of a single occurrence
        self._newest_ns = 0

    @property
    def joined(self) -> bool:
        """True if rows cover several occurrences, including the time between them."""
        return self._per_row > 1

    def add(self, start_ns: int, end_ns: int, self_ns: int, step: int, count: int) -> None:
        self.count += count
        self.self_ns += self_ns
        self._newest_ns = self_ns // max(1, count)
        self.longest_ns = max(self.longest_ns, self._newest_ns)
        if self._pending:
            row = self._rows[self._used - 1]
            row[1], row[2], row[4] = max(row[1], end_ns), row[2] + self_ns, row[4] + count
        else:
            if self._used == self.CAPACITY:
                self._fold()
            self._rows[self._used] = (start_ns, end_ns, self_ns, step, count)
            self._used += 1
        self._pending = (self._pending + 1) % self._per_row

    def extend(self, end_ns: int, self_ns: int) -> None:
        """Add a later part to the newest occurrence."""
        row = self._rows[self._used - 1]
        row[1], row[2] = max(row[1], end_ns), row[2] + self_ns
        self.self_ns += self_ns
        self._newest_ns += self_ns
        self.longest_ns = max(self.longest_ns, self._newest_ns)

    def _fold(self) -> None:
        left, right = self._rows[0::2].copy(), self._rows[1::2].copy()
        half = self.CAPACITY // 2
        self._rows[:half, 0], self._rows[:half, 3] = left[:, 0], left[:, 3]
        self._rows[:half, 1] = np.maximum(left[:, 1], right[:, 1])
        self._rows[:half, 2] = left[:, 2] + right[:, 2]
        self._rows[:half, 4] = left[:, 4] + right[:, 4]
        self._used, self._per_row = half, self._per_row * 2

    def __getitem__(self, column: str) -> np.ndarray:
        return self._rows[: self._used, self.COLUMNS.index(column)]

    def __len__(self) -> int:
        return self._used


class Phases:
    """Occurrences by (kind, name, account); epochs and the like are not distinguished by name."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], Occurrences] = {}
        self.end_ns = 0

    def add(self, table: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `phases` table."""
        columns = "kind", "name", "account", "start_ns", "end_ns", "self_ns", "step", "count"
        for kind, phase_name, account, start, end, took, step, count in zip(
            *(table[name].tolist() for name in columns), strict=True
        ):
            # Epochs, validations and gaps are numbered; a number is not a name.
            name = phase_name if kind in ("callback", "checkpoint", "compilation") else ""
            spent = max(0, took)
            self.end_ns = max(self.end_ns, end)
            key = (kind, name, account)
            if kind == "gap" and account == "validation":
                key = ("validation", "", account)  # its tail: mostly closing its input
                if key in self._groups:
                    self._groups[key].extend(end, spent)
                    continue
            if key not in self._groups and len(self._groups) >= MAX_NAMES:
                key = (kind, "others", account)
            self._groups.setdefault(key, Occurrences()).add(start, end, spent, step, max(1, count))

    def of(self, *kinds: str, account: str | None = None) -> dict[str, Occurrences]:
        """Return name -> occurrences of these kinds, in one account or in all."""
        return {
            name: group
            for (kind, name, where), group in self._groups.items()
            if kind in kinds and (account is None or where == account)
        }

    def spent_ns(self, account: str) -> int:
        """Return the time counted in a category of the host account."""
        return sum(group.self_ns for (_, _, where), group in self._groups.items() if where == account)

    def accounted_ns(self, times: np.ndarray) -> np.ndarray:
        """Return the time outside steps that phases account for before each of `times`, ns."""
        total = np.zeros(len(times))
        for (_, _, account), group in self._groups.items():
            if account:
                order = np.argsort(group["start_ns"], kind="stable")
                edges = np.stack([group["start_ns"], group["end_ns"]], axis=1)[order].ravel()
                spent = group["self_ns"][order]
                grown = np.cumsum(spent)
                level = np.stack([grown - spent, grown], axis=1).ravel()
                origin = int(edges[0])
                at = np.maximum.accumulate(edges) - origin
                total += np.interp(times - origin, at, level, left=0.0)
        return total
