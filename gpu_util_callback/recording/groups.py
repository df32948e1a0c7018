"""The groups of an overview on one axis: made, unpacked from a file, or with rows added to them."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged
from gpu_util_callback.recording.facts import MOST_LENGTH_NS, MOST_PCT, encodable
from gpu_util_callback.recording.pyramid import Folded
from gpu_util_callback.recording.segments import MOST_VALUE

__all__ = [
    "SIZE",
    "Cells",
    "Groups",
    "GrownGroups",
    "StoredGroups",
    "check_buckets",
    "checked_shift",
]

SIZE = 1024
MOST_COLUMNS = 4096


@dataclass(frozen=True)
class Cells:
    """The buckets of a group that are in use: [columns, buckets] each, to be read only."""

    columns: list[str]
    shift: int
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    count: np.ndarray


class Groups:
    """Group -> its buckets. `first_shift`: the width of those of a new group."""

    def __init__(self, first_shift: int):
        self.first_shift = first_shift
        self._made: dict[str, Folded] = {}

    def __getitem__(self, group: str) -> Folded:
        return self._made[group]

    def __contains__(self, group: object) -> bool:
        return group in self._made

    def get(self, group: str) -> Folded | None:
        """A group's buckets; None for an unknown group."""
        return self[group] if group in self else None  # noqa: SIM401

    def cells(self, group: str) -> Cells:
        """What is in a group's buckets; cheaper than the buckets where those are in a file."""
        folded = self[group]
        buckets, used = folded.buckets, slice(0, folded.used)
        return Cells(
            folded.columns, folded.shift, buckets.low[:, used], buckets.high[:, used],
            buckets.mean[:, used], buckets.count[:, used],
        )  # fmt: skip

    def names(self) -> list[str]:
        """All groups, whether they are in memory or not."""
        return list(self._made)

    def about(self, group: str) -> tuple[list[str], int]:
        """(columns, bits of a bucket's width) of a group, without unpacking it."""
        folded = self._made[group]
        return folded.columns, folded.shift

    def add(self, group: str, keys: np.ndarray, names: Sequence[str], values: np.ndarray) -> None:
        """Add rows, as `Folded.add` does."""
        if group not in self:
            self._made[group] = Folded(names, self.first_shift, SIZE)
        self[group].add(keys, names, values)

    @property
    def in_memory(self) -> int:
        """How many groups are."""
        return len(self._made)

    def release(self) -> None:
        """Forget what can be made again."""


class StoredGroups(Groups):
    """Those of a file, to be read only: each is unpacked when it is first asked for."""

    def __init__(
        self,
        container: Container,
        axis: str,
        stored: Mapping[str, Any],
        on_damage: Callable[[Damaged], None] | None,
    ):
        super().__init__(0)
        self._container, self._axis, self._on_damage = container, axis, on_damage
        self._stored = {str(group): _described(about) for group, about in stored.items()}
        self._cells: dict[str, Cells] = {}

    def __getitem__(self, group: str) -> Folded:
        made = self._made.get(group)
        if made is None:
            made = self._made[group] = self._unpacked(group)
        return made

    def __contains__(self, group: object) -> bool:
        return group in self._stored

    def names(self) -> list[str]:
        return list(self._stored)

    def about(self, group: str) -> tuple[list[str], int]:
        return self._stored[group][:2]

    @property
    def in_memory(self) -> int:
        return len({*self._made, *self._cells})

    def release(self) -> None:
        self._made, self._cells = {}, {}

    def cells(self, group: str) -> Cells:
        found = self._cells.get(group)
        if found is None:
            found = self._cells[group] = self._read(group)
        return found

    def _read(self, group: str) -> Cells:
        columns, shift, used = self._stored[group]
        try:
            arrays = [
                self._container.array(f"{self._axis}/{group}/{name}")
                for name in ("min", "max", "mean", "count")
            ]
            if any(array.shape != (len(columns), used) for array in arrays):
                raise Damaged(f"{group}: buckets of another shape than {len(columns)} × {used}")
            check_buckets(group, columns, *arrays)
        except Damaged as error:
            if self._on_damage is None:
                raise
            self._on_damage(error)
            nothing = np.zeros((len(columns), 0), np.float32)
            arrays = [nothing] * 4
        return Cells(columns, shift, *arrays)

    def _unpacked(self, group: str) -> Folded:
        cells = self.cells(group)
        folded = Folded(cells.columns, cells.shift, SIZE)
        folded.used = used = cells.low.shape[1]
        buckets = folded.buckets
        buckets.low[:, :used], buckets.high[:, :used] = cells.low, cells.high
        buckets.count[:, :used] = cells.count
        np.multiply(cells.mean, cells.count, out=buckets.total[:, :used], where=cells.count > 0)
        return folded


class GrownGroups(Groups):
    """Others and rows that came later, which are folded into a group when it is asked for."""

    def __init__(self, before: Groups, first_shift: int):
        super().__init__(first_shift)
        self._before = before
        self._rows: dict[str, tuple[np.ndarray, Sequence[str], np.ndarray]] = {}

    def __getitem__(self, group: str) -> Folded:
        made = self._made.get(group)
        if made is not None:
            return made
        before = self._before.get(group)
        if group not in self._rows:
            if before is None:
                raise KeyError(group)
            return before
        keys, names, values = self._rows[group]
        made = Folded(names, self.first_shift, SIZE) if before is None else deepcopy(before)
        made.add(keys, names, values)
        self._made[group] = made
        return made

    def __contains__(self, group: object) -> bool:
        return group in self._rows or group in self._before

    def names(self) -> list[str]:
        return list(dict.fromkeys([*self._before.names(), *self._rows]))

    def about(self, group: str) -> tuple[list[str], int]:
        columns: list[str] = []
        shift = self.first_shift
        if group in self._before:
            columns, shift = self._before.about(group)
        if group in self._rows:
            keys, names, _ = self._rows[group]
            columns = list(dict.fromkeys([*columns, *names]))
            while int(keys[-1]) >> shift >= SIZE:
                shift += 1  # as `Folded.add` will
        return columns, shift

    def add(self, group: str, keys: np.ndarray, names: Sequence[str], values: np.ndarray) -> None:
        self._rows[group] = (keys, list(names), values)

    def release(self) -> None:
        self._made = {}
        self._before.release()


def check_buckets(
    group: str, columns: Sequence[str], low: np.ndarray, high: np.ndarray, mean: np.ndarray,
    count: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Raises: Damaged where buckets cannot be those of what is recorded."""
    if any(values.dtype != np.float32 for values in (low, high, mean)):
        raise Damaged(f"{group[:40]}: buckets of another kind of number")
    if count is not None and count.dtype.kind not in "iu":
        raise Damaged(f"{group[:40]}: counts that are no integers")
    if not low.size:
        return
    most = np.full(len(columns), MOST_LENGTH_NS if group == "steps" else MOST_VALUE)
    if group.startswith("gpu"):
        most[[name.endswith("_pct") for name in columns]] = MOST_PCT
    apart = np.float32(1e-3) * np.fmax(np.abs(low), np.abs(high))
    # What holds no data is NaN, which is neither more nor less than anything.
    odd = (low > high) | (mean < low - apart) | (mean > high + apart)
    odd |= (most.astype(np.float32) < np.fmax(high, -low).T).T
    if odd.any():
        raise Damaged(f"{group[:40]}: values that cannot be")


def checked_shift(value: Any) -> int:
    """A bucket's width in bits. Raises: Damaged where it is none."""
    if type(value) is not int or not 0 <= value < 63:
        raise Damaged("a bucket width that is none")
    return value


def _described(about: Any) -> tuple[list[str], int, int]:
    """(columns, shift, buckets in use) of a group."""
    columns, used = [encodable(str(name)) for name in about["columns"]], about["used"]
    if type(used) is not int or not 0 <= used <= SIZE or len(columns) > MOST_COLUMNS:
        raise Damaged(f"more than {SIZE} buckets claimed, or {MOST_COLUMNS} columns")
    return columns, checked_shift(about["shift"]), used
