"""Phases in bounded memory: activity of the training thread outside its steps, by name."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpu_util_callback.recording.fold import Fold

MAX_NAMES = 256
# Column of an occurrence -> part of the fold.
_PARTS = {"start_ns": "first", "end_ns": "last", "self_ns": "sum", "step": "first", "count": "sum"}
Occurrence = tuple[int, int, int, int, int]  # of COLUMNS


class Occurrences:
    """Times of one kind of phase; neighbours are joined when there are too many to keep.

    Joined ones have the first start and step, the last end, and the sums of the rest.
    """

    CAPACITY = 1024
    COLUMNS = ("start_ns", "end_ns", "self_ns", "step", "count")

    def __init__(self, rows: Sequence[Occurrence] = ()) -> None:
        self._fold = Fold(self.CAPACITY)  # by the number of an occurrence
        self._occurred = 0
        self.count = 0
        self.self_ns = 0
        self.longest_ns = 0  # of a single occurrence
        self._newest_ns = 0
        self.add(rows)

    @property
    def joined(self) -> bool:
        """True if rows cover several occurrences, including the time between them."""
        return self._fold.width > 1

    def add(self, rows: Sequence[Occurrence]) -> None:
        """Add occurrences in order; one with a count of 0 is a later part of the one before it."""
        if not rows:
            return
        numbers = []
        for _, _, self_ns, _, count in rows:
            self._occurred += count > 0
            numbers.append(self._occurred)
            self._newest_ns = self_ns // count if count else self._newest_ns + self_ns
            self.longest_ns = max(self.longest_ns, self._newest_ns)
        values = np.array(rows, np.int64).T
        self._fold.add(
            np.array(numbers) - 1,
            first=(("start_ns", "step"), values[[0, 3]]),
            last=(("end_ns",), values[[1]]),
            sum=(("self_ns", "count"), values[[2, 4]]),
        )
        self.self_ns += int(values[2].sum())
        self.count += int(values[4].sum())

    def __getitem__(self, column: str) -> np.ndarray:
        return self._fold.of(_PARTS[column], column) if len(self) else np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._fold.used


class Phases:
    """Occurrences by (kind, name, account); epochs and the like are not distinguished by name."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], Occurrences] = {}
        self.end_ns = 0

    def add(self, table: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `phases` table."""
        columns = "kind", "name", "account", "start_ns", "end_ns", "self_ns", "step", "count"
        new: dict[tuple[str, str, str], list[Occurrence]] = {}
        for kind, phase_name, account, start, end, took, step, count in zip(
            *(table[name].tolist() for name in columns), strict=True
        ):
            # Epochs, validations and gaps are numbered; a number is not a name.
            name = phase_name if kind in ("callback", "checkpoint", "compilation") else ""
            self.end_ns = max(self.end_ns, end)
            is_tail = kind == "gap" and account == "validation"  # mostly closing its input
            key = ("validation" if is_tail else kind, name, account)
            is_tail = is_tail and key in self._groups
            if key not in self._groups and len(self._groups) >= MAX_NAMES:
                key = (kind, "others", account)
            self._groups.setdefault(key, Occurrences())
            new.setdefault(key, []).append((start, end, max(0, took), step, 0 if is_tail else max(1, count)))
        for key, rows in new.items():
            self._groups[key].add(rows)

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
