"""Stages of the input pipeline: their times, and how they are written."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.diagnosis.thresholds import A_QUARTER, FOUR_FIFTHS

# Flag of a stage that `cache()` skips from the second epoch on.
CACHED = "cached"
# Stages that pass batches on: time taken by them on a busy machine is not work.
_PASSING = re.compile(r"Root$|Prefetch|Model|Options|MaxIntraOp|PrivateThreadPool")
# Stages on threads of their own: downstream stages run at the same time.
_THREADED = re.compile(r"Prefetch|(Legacy)?Parallel|MapAndBatch")


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage over a time range: own work per batch, and the least time a batch needs through it."""

    name: str
    op: str
    work_ms_per_batch: float  # own work, all threads together
    ms_per_batch: float  # divided by its parallelism
    parallelism: float
    flags: frozenset[str]
    elements_per_batch: float = 1.0
    inside: "Stage | None" = None  # the interleave or flat_map that opens it once per file
    place: int = 0  # in the pipeline, from its end: the stage that makes the batches comes first

    @property
    def cached(self) -> bool:
        """True if a cache keeps its output: it works in the first epoch only."""
        return CACHED in self.flags

    @property
    def passing(self) -> bool:
        """True if it only passes on what others make."""
        return _PASSING.match(self.op) is not None

    @property
    def threaded(self) -> bool:
        """True if it works ahead, on threads of its own."""
        return _THREADED.match(self.op) is not None

    @property
    def opens_files(self) -> bool:
        """True if it is an interleave or flat_map, except those inside from_generator."""
        opens = "Interleave" in self.op or "FlatMap" in self.op
        return opens and not self.name.startswith("from_generator")


def chain_ms(stages: Sequence[Stage], changed: Stage | None = None, changed_ms: float = 0.0) -> tuple[float, float]:
    """Return the time of a batch through a pipeline whose threaded stages work in parallel.

    Args:
        stages: all of them, in any order.
        changed: a stage that would work ahead on threads of its own ...
        changed_ms: ... and its time per batch then.
    Returns: the part that the loop itself makes before each step, and the slowest of the parts that
        work during steps (0.0 if none does).
    """
    parts = [0.0]
    alone, at_once = 0.0, 1.0
    for stage in sorted(stages, key=lambda stage: stage.place):
        took = 0.0 if stage.passing else stage.ms_per_batch / at_once
        if stage is changed:
            alone = max(alone, changed_ms)
            parts.append(0.0)
        elif stage.threaded:
            alone = max(alone, took)
            parts.append(0.0)
        else:
            parts[-1] += took
        if stage.op.startswith(("ParallelInterleave", "ParallelFlatMap")):
            at_once = stage.parallelism  # its opened inputs work on this many threads
    return parts[0], max([alone, *parts[1:]])


class Pipeline:
    """Readings of the pipeline's model, folded by two when there are too many to keep.

    A reading covers each stage's work since the previous one. Stages are keyed by (place, name,
    operation), since ids may change from one iterator to the next.
    """

    CAPACITY = 256

    def __init__(self) -> None:
        self._readings: list[_Reading] = []
        self._per_reading = 1
        self._open: _Reading | None = None
        self._caches: dict[str, bool] = {}  # "train" or "validation": whether it has a cache

    def add(self, table: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `pipeline` table; the rows of one reading share `time_ns`."""
        openers, cached, elements = _openers(table), _cached(table), _elements(table)
        for i in range(len(table["time_ns"])):
            phase = str(table["which"][i]) or "train"
            cache = "Cache" in str(table["op"][i])
            self._caches[phase] = self._caches.get(phase, False) or cache
            if phase != "train":
                continue
            time_ns = int(table["time_ns"][i])
            if self._open is None or self._open.last_ns != time_ns:
                self._begin(time_ns)
            assert self._open is not None
            self._open.add(
                stage=str(table["stage"][i]),
                op=str(table["op"][i]),
                flags=str(table["flags"][i]) + cached[i],
                inside=openers[i],
                batches=int(table["elements"][i]) if int(table["parent"][i]) == -1 else 0,
                elements=elements[i],
                work_ns=max(0, int(table["processing_ns"][i])),
                parallelism=_parallelism(table, i),
            )

    def _begin(self, time_ns: int) -> None:
        if self._open is not None and self._open.readings < self._per_reading:
            self._open.next(time_ns)
            return
        if len(self._readings) == self.CAPACITY:
            self._readings = [a.joined(b) for a, b in zip(self._readings[::2], self._readings[1::2], strict=True)]
            self._per_reading *= 2
        since_ns = self._open.last_ns if self._open is not None else time_ns
        self._open = _Reading(time_ns, since_ns)
        self._readings.append(self._open)

    def __bool__(self) -> bool:
        return bool(self._readings)

    def has_cache(self, phase: str) -> bool | None:
        """Return whether the pipeline of "train" or "validation" has a cache; None = not read."""
        return self._caches.get(phase)

    def stages(self, start_ns: int, end_ns: int) -> list[Stage]:
        """Return the stages over a time, slowest first; those of the whole run if no reading fits.

        A reading covers the time since the previous one, so the first one after the end of the
        range is used when none lies inside.
        """
        chosen = self._chosen(start_ns, end_ns)
        return functools.reduce(_Reading.joined, chosen).stages() if chosen else []

    def _chosen(self, start_ns: int, end_ns: int) -> list["_Reading"]:
        inside = [r for r in self._readings if start_ns < r.last_ns <= end_ns]
        # The first reading inside a span mostly describes the time before it.
        chosen = inside[1:] if len(inside) > 2 else inside
        return chosen or [r for r in self._readings if r.last_ns > end_ns][:1] or self._readings

    def reads_elsewhere(self, batches: int, start_ns: int, end_ns: int) -> bool:
        """Return whether much of what `stages` returns was read of other batches than these.

        The mean over faster ones then hides how slow a stage is here.

        Args:
            batches: number of them in this time.
        """
        chosen = self._chosen(start_ns, end_ns)
        # Some batches of the time before belong to any reading.
        if sum(reading.batches for reading in chosen) > (1 + A_QUARTER) * batches:
            return True
        took = sum(reading.last_ns - reading.since_ns for reading in chosen)
        inside = sum(max(0, min(reading.last_ns, end_ns) - max(reading.since_ns, start_ns)) for reading in chosen)
        return inside < FOUR_FIFTHS * took


# Stage, op and flags; and those of the interleave or flat_map that opens it, None if none.
_Written = tuple[str, str, str]
_Node = tuple[str, str, str, _Written | None]


class _Reading:
    __slots__ = ("batches", "last_ns", "nodes", "readings", "since_ns")

    def __init__(self, time_ns: int, since_ns: int):
        self.last_ns = time_ns
        self.since_ns = since_ns  # that of the reading before; its own time if it is the first
        self.readings = 1
        self.batches = 0
        # key -> [work_ns, elements, parallelism, rows]
        self.nodes: dict[_Node, list[float]] = {}

    def next(self, time_ns: int) -> None:
        self.last_ns, self.readings = time_ns, self.readings + 1

    def add(
        self,
        *,
        stage: str,
        op: str,
        flags: str,
        inside: _Written | None,
        batches: int,
        elements: int,
        work_ns: int,
        parallelism: float,
    ) -> None:
        self.batches += max(0, batches)
        node = self.nodes.setdefault((stage, op, flags, inside), [0.0] * 4)
        node[0] += work_ns
        node[1] += elements
        node[2] += parallelism
        node[3] += 1

    def joined(self, other: "_Reading") -> "_Reading":
        reading = _Reading(max(self.last_ns, other.last_ns), min(self.since_ns, other.since_ns))
        reading.readings = self.readings + other.readings
        reading.batches = self.batches + other.batches
        for nodes in (self.nodes, other.nodes):
            for key, node in nodes.items():
                mine = reading.nodes.setdefault(key, [0.0] * 4)
                reading.nodes[key] = [a + b for a, b in zip(mine, node, strict=True)]
        return reading

    def stages(self) -> list[Stage]:
        batches = self.batches or max((node[1] for node in self.nodes.values()), default=0)
        stages = []
        for place, ((name, op, flags, inside), node) in enumerate(self.nodes.items()):
            if not batches:
                continue
            work, elements, parallelism, times_read = node
            threads = max(1.0, parallelism / max(1.0, times_read))
            per_batch = work / batches / 1e6
            stages.append(
                Stage(
                    name,
                    op,
                    per_batch,
                    per_batch / threads,
                    threads,
                    _flags(flags),
                    elements / batches,
                    inside and Stage(inside[0], inside[1], 0.0, 0.0, 1.0, _flags(inside[2])),
                    place,
                )
            )
        return sorted(stages, key=lambda stage: (-stage.ms_per_batch, stage.name))


def _flags(text: str) -> frozenset[str]:
    return frozenset(flag.strip() for flag in text.split(",") if flag.strip())


def _openers(table: Mapping[str, np.ndarray]) -> list[_Written | None]:
    """Return per row the nearest interleave or flat_map that opens this stage per element.

    Stages opened that way have no name of their own (only the chain of datasets has names), which
    excludes a stage with a function's name before it in the chain.
    """
    rows = len(table["time_ns"])
    opens = [any(kind in str(op) for kind in ("Interleave", "FlatMap")) for op in table["op"]]
    consumers = _consumers(table)
    openers: list[_Written | None] = [None] * rows
    for i in range(rows):
        above = () if "(" in str(table["stage"][i]) else consumers(i)
        row = next((row for row in above if opens[row]), None)
        if row is not None:
            openers[i] = str(table["stage"][row]), str(table["op"][row]), str(table["flags"][row])
    return openers


def _cached(table: Mapping[str, np.ndarray]) -> list[str]:
    """Return per row the flag of stages that work until a cache after them is full, else ""."""
    consumers, ops = _consumers(table), [str(op) for op in table["op"]]
    return [f",{CACHED}" if any("Cache" in ops[row] for row in consumers(i)) else "" for i in range(len(ops))]


def _consumers(table: Mapping[str, np.ndarray]) -> Callable[[int], Iterator[int]]:
    """Return a function from a row to those of the stages that consume it, the nearest first."""
    times, nodes, parents = (table[name].tolist() for name in ("time_ns", "node", "parent"))
    row_of = {key: row for row, key in enumerate(zip(times, nodes, strict=True))}

    def consumers(row: int) -> Iterator[int]:
        for _ in times:  # no more than that many, also in a circle
            above = row_of.get((times[row], parents[row]))
            if above is None or parents[row] < 0:
                return
            yield above
            row = above

    return consumers


def _elements(table: Mapping[str, np.ndarray]) -> list[int]:
    """Return each row's processed elements: the input's for stages that also make batches."""
    counts = [max(0, int(count)) for count in table["elements"]]
    worked = list(counts)
    for i, op in enumerate(table["op"]):
        if str(op).startswith("MapAndBatch"):
            same_time = table["time_ns"] == table["time_ns"][i]
            below = np.flatnonzero(same_time & (table["parent"] == table["node"][i]))
            worked[i] = max((counts[row] for row in below), default=counts[i])
    return worked


def _parallelism(table: Mapping[str, np.ndarray], row: int) -> float:
    value = float(table["parallelism"][row])
    return 1.0 if np.isnan(value) or value < 0 else value
