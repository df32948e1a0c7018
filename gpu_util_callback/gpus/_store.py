"""Samples waiting to be drained: appended by the sampler's threads, drained by the recorder."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.recording.segments import SampleBlock


@dataclass(frozen=True)
class FrameworkGpu:
    """A GPU as the framework names it.

    Attributes:
        index: the framework's ordinal (`gpu<i>`).
        uuid, pci_bus_id: identify it reliably, with or without the prefixes and leading zeros that NVML prints.
        cuda_ordinal: the CUDA runtime's number where it differs from `index` (after
            `tf.config.set_visible_devices`); None = the same.
    """

    index: int
    name: str = ""
    uuid: str | None = None
    pci_bus_id: str | None = None
    compute_capability: Sequence[int] | str | None = None
    cuda_ordinal: int | None = None


# If the recorder died, nothing drains the sampler; the oldest samples are then dropped.
MAX_ROWS = 36_000


class Store:
    """Rows by group. Thread safe; a drain takes everything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # (group, columns) -> (ns, values) in the order of arrival
        self._rows: dict[tuple[str, tuple[str, ...]], list[tuple[int, Sequence[float]]]] = {}

    def add(self, group: str, columns: tuple[str, ...], time_ns: int, values: Sequence[float]) -> None:
        """Append one row."""
        with self._lock:
            rows = self._rows.setdefault((group, columns), [])
            rows.append((time_ns, values))
            if len(rows) > MAX_ROWS:
                del rows[: MAX_ROWS // 10]

    def drain(self) -> list[SampleBlock]:
        """Return all rows since the last drain, a block for each group and set of columns, in time order."""
        with self._lock:
            rows_by_group, self._rows = self._rows, {}
        blocks = []
        for (group, columns), rows in rows_by_group.items():
            times = np.fromiter((row[0] for row in rows), np.int64, len(rows))
            values = np.array([row[1] for row in rows], np.float64).reshape(len(rows), len(columns))
            if (np.diff(times) < 0).any():  # a driver may stamp two reads out of order
                order = np.argsort(times, kind="stable")
                times, values = times[order], values[order]
            blocks.append(SampleBlock(group, columns, times, values))
        return blocks
