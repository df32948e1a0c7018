"""The stages of the input pipeline: which one is slow, and how it is written."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Pipeline", "Stage"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage over some time: own work per batch, and the least time a batch needs through it."""

    name: str
    op: str
    work_ms_per_batch: float  # own work, all threads together
    ms_per_batch: float  # divided by its parallelism
    parallelism: float
    buffered: float  # elements waiting in its buffer, NaN = it has none
    flags: frozenset[str]


class Pipeline:
    """Readings of the pipeline's model, folded by two when there are too many to keep.

    A reading tells what each stage did since the one before. Stages are kept under what they are
    (place, name, operation), since ids may change from one iterator to the next.
    """

    CAPACITY = 256

    def __init__(self) -> None:
        self._readings: list[_Reading] = []
        self._per_reading = 1
        self._open: _Reading | None = None

    def add(self, table: Mapping[str, np.ndarray]) -> None:
        """New rows of the `pipeline` table; the rows of one reading share `time_ns`."""
        rows = len(table["time_ns"]) if "time_ns" in table else 0
        for i in range(rows):
            if str(table["which"][i] if "which" in table else "train") != "train":
                continue
            time_ns = int(table["time_ns"][i])
            if self._open is None or self._open.last_ns != time_ns:
                self._begin(time_ns)
            assert self._open is not None
            self._open.add(
                stage=str(table["stage"][i]),
                op=str(table["op"][i]) if "op" in table else "",
                flags=str(table["flags"][i]) if "flags" in table else "",
                root=int(table["parent"][i]) == -1,
                elements=max(0, int(table["elements"][i])),
                work_ns=max(0, int(table["processing_ns"][i])),
                parallelism=_number(table, "parallelism", i, 1.0),
                buffered=_number(table, "buffered", i, np.nan),
                limit=_number(table, "buffer_limit", i, np.nan),
            )

    def _begin(self, time_ns: int) -> None:
        if self._open is not None and self._open.readings < self._per_reading:
            self._open.next(time_ns)
            return
        if len(self._readings) == self.CAPACITY:
            self._readings = [
                a.joined(b) for a, b in zip(self._readings[::2], self._readings[1::2], strict=True)
            ]
            self._per_reading *= 2
        self._open = _Reading(time_ns)
        self._readings.append(self._open)

    def __bool__(self) -> bool:
        return bool(self._readings)

    def stages(self, start_ns: int, end_ns: int) -> list[Stage]:
        """The stages over a time, slowest first; those of the whole run if no reading fits.

        A reading speaks about the time since the one before, so the first one behind the end of
        the asked range is taken when none lies inside.
        """
        inside = [r for r in self._readings if start_ns < r.last_ns <= end_ns]
        # The first reading inside a span mostly describes what was before it.
        chosen = inside[1:] if len(inside) > 2 else inside
        if not chosen:
            chosen = [r for r in self._readings if r.last_ns > end_ns][:1] or self._readings
        total = _Reading(0)
        for reading in chosen:
            total = total.joined(reading)
        return total.stages()


class _Reading:
    __slots__ = ("batches", "last_ns", "nodes", "readings")

    def __init__(self, time_ns: int):
        self.last_ns = time_ns
        self.readings = 1
        self.batches = 0
        # (stage, op, flags) -> [work_ns, elements, parallelism x work, buffered, limit, readings]
        self.nodes: dict[tuple[str, str, str], list[float]] = {}

    def next(self, time_ns: int) -> None:
        self.last_ns, self.readings = time_ns, self.readings + 1

    def add(self, *, stage, op, flags, root, elements, work_ns, parallelism, buffered, limit):
        if root:
            self.batches += elements
        node = self.nodes.setdefault((stage, op, flags), [0.0] * 7)
        node[0] += work_ns
        node[1] += elements
        node[2] += parallelism
        node[3] += 0.0 if np.isnan(buffered) else buffered
        node[4] += 0.0 if np.isnan(limit) else limit
        node[5] += 0 if np.isnan(buffered) else 1
        node[6] += 1

    def joined(self, other: "_Reading") -> "_Reading":
        both = _Reading(max(self.last_ns, other.last_ns))
        both.readings = self.readings + other.readings
        both.batches = self.batches + other.batches
        for nodes in (self.nodes, other.nodes):
            for key, node in nodes.items():
                mine = both.nodes.setdefault(key, [0.0] * 7)
                both.nodes[key] = [a + b for a, b in zip(mine, node, strict=True)]
        return both

    def stages(self) -> list[Stage]:
        batches = self.batches or max((node[1] for node in self.nodes.values()), default=0)
        found = []
        for (name, op, flags), node in self.nodes.items():
            if not batches:
                continue
            work, _elements, parallelism, buffered, _limit, with_buffer, seen = node
            threads = max(1.0, parallelism / max(1.0, seen))
            per_batch = work / batches / 1e6
            found.append(Stage(
                name, op, per_batch, per_batch / threads, threads,
                buffered / with_buffer if with_buffer else float("nan"),
                frozenset(flag.strip() for flag in flags.split(",") if flag.strip()),
            ))  # fmt: skip
        return sorted(found, key=lambda stage: (-stage.ms_per_batch, stage.name))


def _number(table: Mapping[str, np.ndarray], name: str, row: int, absent: float) -> float:
    value = float(table[name][row]) if name in table else np.nan
    return absent if np.isnan(value) or value < 0 else value
