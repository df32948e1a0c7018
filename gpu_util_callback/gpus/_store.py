"""Samples waiting to be drained: appended by the sampler's threads, taken by the recorder."""

import threading
from collections.abc import Sequence

import numpy as np

from gpu_util_callback.gpus._types import SampleBlock

__all__ = ["Store"]

# Nobody drains a sampler whose recorder died; the oldest samples then make room.
MAX_ROWS = 36_000


class Store:
    """Rows by group. Thread safe; a drain takes everything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, tuple[str, ...]], list[tuple[int, Sequence[float]]]] = {}

    def add(
        self, group: str, columns: tuple[str, ...], time_ns: int, values: Sequence[float]
    ) -> None:
        """Append one row."""
        with self._lock:
            rows = self._rows.setdefault((group, columns), [])
            rows.append((time_ns, values))
            if len(rows) > MAX_ROWS:
                del rows[: MAX_ROWS // 10]

    def drain(self) -> list[SampleBlock]:
        """All rows since the last drain, by group and in time order."""
        with self._lock:
            taken, self._rows = self._rows, {}
        blocks = []
        for (group, columns), rows in taken.items():
            times = np.fromiter((row[0] for row in rows), np.int64, len(rows))
            values = np.array([row[1] for row in rows], np.float64).reshape(len(rows), len(columns))
            if (np.diff(times) < 0).any():  # a driver may stamp two reads out of order
                order = np.argsort(times, kind="stable")
                times, values = times[order], values[order]
            blocks.append(SampleBlock(group, columns, times, values))
        return blocks
