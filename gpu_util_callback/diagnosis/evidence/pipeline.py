"""Stages of the input pipeline: their times, and how they are written."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.thresholds import A_QUARTER, FOUR_FIFTHS, MOSTLY, Constant
from gpu_util_callback.recording.fold import FAR, Fold

LITTLE = Constant(0.15, "stages that explain less of the wait are not its cause")
# Flags of a stage that `cache()` skips from the second epoch on, and of one whose results a filter drops in part.
CACHED, FILTERED = "cached", "filtered"
# Stages that open an input for each element; `sample_from_datasets` has all of its inputs from the start.
_OPENERS = re.compile("(?!Directed).*(Interleave|FlatMap)")
# Stages that pass batches on: time taken by them on a busy machine is not work.
_REPEATS = re.compile("Repeat|ForeverRepeat|FiniteRepeat|ShuffleAndRepeat")
_PASSING_ON = re.compile(r"Root$|Prefetch|Model|Options|MaxIntraOp|PrivateThreadPool")
_FILTER = "Filter"  # end of the operation of one
# Stages on threads of their own: downstream stages run at the same time.
_THREADED = re.compile(r"Prefetch|(Legacy)?Parallel|MapAndBatch")


class Stage(NamedTuple):
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
    buffered: int = 0  # most elements that were ready

    @property
    def cached(self) -> bool:
        """True if a cache keeps its output: it works in the first epoch only."""
        return CACHED in self.flags

    @property
    def passing(self) -> bool:
        """True if it only passes on what others make."""
        return _PASSING_ON.match(self.op) is not None

    @property
    def random(self) -> bool:
        """True if its function draws random numbers, others in each call."""
        return "random" in self.flags

    @property
    def repeats(self) -> bool:
        """True if it passes its input several times: no cache behind it is ever complete."""
        return _REPEATS.match(self.op) is not None

    @property
    def threaded(self) -> bool:
        """True if it works ahead, on threads of its own."""
        return _THREADED.match(self.op) is not None

    @property
    def shuffles(self) -> bool:
        """True if it gives its elements in random order, out of a buffer that it fills first."""
        return self.op.startswith("Shuffle")

    @property
    def opens_files(self) -> bool:
        """True if it is an interleave or flat_map, except those inside from_generator."""
        return _OPENERS.match(self.op) is not None and not self.name.startswith("from_generator")


def chain_ms(stages: Sequence[Stage], changed: Stage | None = None, changed_ms: float = 0.0) -> tuple[float, float]:
    """Return the time of a batch through a pipeline whose threaded stages work in parallel.

    Args:
        stages: all of them, in any order.
        changed: a stage that would work ahead on threads of its own, as a remedy proposes; None = as it is.
        changed_ms: the changed stage's time per batch then.

    Returns:
        The part in ms that the loop's thread itself makes before each step, and the slowest of the parts that work
        during steps (0.0 if none does).
    """
    # Stages without threads of their own run one after the other in the thread that asks for their batch; a threaded
    # stage begins the next part.
    part_ms = [0.0]
    slowest_threaded_ms, at_once = 0.0, 1.0
    for stage in sorted(stages, key=lambda stage: stage.place):
        stage_ms = 0.0 if stage.passing else stage.ms_per_batch / at_once
        if stage is changed:
            slowest_threaded_ms = max(slowest_threaded_ms, changed_ms)
            part_ms.append(0.0)
        elif stage.threaded:
            slowest_threaded_ms = max(slowest_threaded_ms, stage_ms)
            part_ms.append(0.0)
        else:
            part_ms[-1] += stage_ms
        if stage.op.startswith(("ParallelInterleave", "ParallelFlatMap")):
            at_once = stage.parallelism  # its opened inputs work on this many threads
    return part_ms[0], max([slowest_threaded_ms, *part_ms[1:]])


def fill_ms(stages: Sequence[Stage]) -> float:
    """Return the work in ms that fills the shuffles' buffers before they give a first element; 0.0 without."""
    filling_ms = 0.0
    for shuffle in stages:
        if shuffle.shuffles and shuffle.elements_per_batch:
            # In its buffer; the stages before it (a higher place) made them.
            batches = shuffle.buffered / shuffle.elements_per_batch
            filling_ms += batches * sum(stage.work_ms_per_batch for stage in stages if stage.place > shuffle.place)
    return filling_ms


def dropped_behind(stage: Stage, stages: Sequence[Stage]) -> tuple[Stage, float] | None:
    """Return the filter that drops most of a stage's results, and the share (0-1) it drops; None if none does."""
    chain = [other for other in stages if FILTERED in other.flags or other.op.endswith(_FILTER)]
    filters = [other for other in chain if other.op.endswith(_FILTER) and other.place < stage.place]
    if FILTERED not in stage.flags or not filters:
        return None
    # Places count from the pipeline's end: the filter that follows the stage first.
    nearest = max(filters, key=lambda other: other.place)
    # What feeds that filter.
    feeds_it = min((other for other in chain if other.place > nearest.place), key=lambda other: other.place)
    share = 1 - nearest.elements_per_batch / max(1e-9, feeds_it.elements_per_batch)
    return (nearest, share) if share >= MOSTLY else None


# Stage, op and flags; and those of the interleave or flat_map that opens it, None if none.
_StageKey = tuple[str, str, str]
_Node = tuple[str, str, str, _StageKey | None]


@dataclass(eq=False)
class Pipeline:
    """Readings of the pipeline's model; neighbours are joined when there are too many to keep.

    A reading covers each stage's work since the previous one. Stages are told apart by name and
    operation, since ids may change from one iterator to the next. Of the work for elements that
    are still in a shuffle's buffer, or were there before, none belongs to this reading's batches.
    """

    CAPACITY = 256

    _fold: Fold = field(default_factory=lambda: Fold(Pipeline.CAPACITY))  # by the number of a reading
    _readings: int = 0
    _last_ns: int = -1  # of the newest one
    _nodes: dict[_Node, str] = field(default_factory=dict)  # -> the name of its columns
    # "train" or "validation": whether it has a cache
    _caches: dict[str, bool] = field(default_factory=dict)

    def add(self, table: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `pipeline` table; the rows of one reading share `time_ns`.

        Only the training's pipeline is kept; of a validation's, whether it has a cache.
        """
        phases = [str(which) or "train" for which in table["which"]]
        for phase, op in zip(phases, table["op"], strict=True):
            self._caches[phase] = self._caches.get(phase, False) or "Cache" in str(op)
        rows = np.array([row for row, phase in enumerate(phases) if phase == "train"], np.int64)
        if not len(rows):
            return
        time_ns = table["time_ns"][rows]
        previous_ns = np.concatenate([[self._last_ns], time_ns[:-1]])
        begins_reading, at = time_ns != previous_ns, np.arange(len(rows))
        number = self._readings - 1 + np.cumsum(begins_reading)  # of the reading that each row belongs to
        self._readings, self._last_ns = int(number[-1]) + 1, int(time_ns[-1])
        nodes = _nodes_of_rows(table)
        column_of_row = np.array([self._nodes.setdefault(nodes[row], str(len(self._nodes))) for row in rows.tolist()])
        columns = list(self._nodes.values())
        is_node = column_of_row == np.array(columns)[:, np.newaxis]
        work_ns, elements_made = (np.maximum(table[name][rows], 0) for name in ("processing_ns", "elements"))
        parallelism = table["parallelism"][rows]
        worked_share, given_share = (shares[rows] for shares in _shares_passed_on(table))
        work_ns = np.rint(work_ns * worked_share).astype(np.int64)
        elements = np.rint(_input_elements(table)[rows] * given_share).astype(np.int64)
        buffered = np.nan_to_num(table["buffered"][rows]).astype(np.int64)
        # Batches are the elements of the root, which has no consumer.
        sums = is_node * work_ns, is_node * elements, elements_made * (table["parent"][rows] == -1)
        place = np.empty_like(at)  # numbers of nodes rise from the end on; their rows come in any order
        place[np.lexsort((table["node"][rows], number))] = at - np.maximum.accumulate(np.where(begins_reading, at, 0))
        self._fold.add(
            number,
            sum=([*columns, *(f"{name} elements" for name in columns), "batches"], np.vstack(sums)),
            total=(columns, is_node * np.where(parallelism >= 0, parallelism, 1.0)),
            count=(columns, is_node),
            first=(
                [*columns, "since_ns"],
                np.vstack([np.where(is_node, place, FAR), np.where(previous_ns < 0, time_ns, previous_ns)]),
            ),
            last=([*(f"{name} buffered" for name in columns), "last_ns"], np.vstack([is_node * buffered, time_ns])),
        )

    def has_cache(self, phase: str) -> bool | None:
        """Return whether the pipeline of "train" or "validation" has a cache; None = not read."""
        return self._caches.get(phase)

    def stages(self, start_ns: int, end_ns: int) -> list[Stage]:
        """Return the stages over a time range, slowest first; those of the whole run if no reading fits.

        A reading covers the time since the previous one, so the first one after the end of the range is used when none
        lies inside. [] where the pipeline was never read.

        Args:
            start_ns, end_ns: ns since the epoch.
        """
        if not self._readings:
            return []
        readings, columns = self._readings_of(start_ns, end_ns), list(self._nodes.values())
        work_ns, elements, parallelism, rows = (
            self._fold.matrix(part, names)[:, readings].sum(axis=1).tolist()
            for part, names in (
                ("sum", columns),
                ("sum", [f"{name} elements" for name in columns]),
                ("total", columns),
                ("count", columns),
            )
        )
        places = self._fold.matrix("first", columns)[:, readings].min(axis=1)
        buffered = self._fold.matrix("last", [f"{name} buffered" for name in columns])[:, readings].max(axis=1)
        batches = int(self._fold.of("sum", "batches")[readings].sum()) or max(elements)
        stages = []
        for at, (name, op, flags, inside) in enumerate(self._nodes):
            if not rows[at] or not batches:  # the stage is not in these readings, or no batch was made
                continue
            threads = max(1.0, parallelism[at] / rows[at])  # mean parallelism over the readings
            per_batch = work_ns[at] / batches / 1e6
            stages.append(
                Stage(
                    name,
                    op,
                    per_batch,
                    per_batch / threads,
                    threads,
                    _split_flags(flags),
                    elements[at] / batches,
                    inside and Stage(inside[0], inside[1], 0.0, 0.0, 1.0, _split_flags(inside[2])),
                    int(places[at]),
                    int(buffered[at]),
                )
            )
        return sorted(stages, key=lambda stage: (-stage.ms_per_batch, stage.name))

    def _readings_of(self, start_ns: int, end_ns: int) -> np.ndarray:
        """Return the indices of the readings that describe a time range; all of them if none does.

        Args:
            start_ns, end_ns: ns since the epoch.
        """
        ends = self._fold.of("last", "last_ns")
        inside = np.flatnonzero((start_ns < ends) & (ends <= end_ns))
        # The first reading inside a span mostly describes the time before it.
        chosen = inside[1:] if len(inside) > 2 else inside
        later = np.flatnonzero(ends > end_ns)[:1]
        batches = self._fold.of("sum", "batches")
        # The first of both choices in which batches were made.
        return next((readings for readings in (chosen, later) if batches[readings].any()), np.arange(len(ends)))

    def reads_elsewhere(self, batches: int, start_ns: int, end_ns: int) -> bool:
        """Return True if much of what `stages` returns describes batches outside this time range.

        The mean over those, which may be faster, then hides how slow a stage is in the range.

        Args:
            batches: number of batches that training took in this range.
            start_ns, end_ns: ns since the epoch.
        """
        if not self._readings:
            return False
        chosen = self._readings_of(start_ns, end_ns)
        # Some batches of the time before belong to any reading.
        if self._fold.of("sum", "batches")[chosen].sum() > (1 + A_QUARTER) * batches:
            return True
        since, last = self._fold.of("first", "since_ns")[chosen], self._fold.of("last", "last_ns")[chosen]
        # Or if under four fifths of the readings' time lies in the range.
        inside = np.maximum(np.minimum(last, end_ns) - np.maximum(since, start_ns), 0)
        return bool(inside.sum() < FOUR_FIFTHS * (last - since).sum())


def _split_flags(text: str) -> frozenset[str]:
    """Return the flags of a comma-separated list."""
    return frozenset(flag.strip() for flag in text.split(",") if flag.strip())


def _nodes_of_rows(table: Mapping[str, np.ndarray]) -> list[_Node]:
    """Return for each row its stage, op, flags and opener.

    An opener is the nearest interleave or flat_map that opens the stage for each of its elements. Stages opened that
    way have no name of their own (only the chain of datasets has names), which excludes a stage with a function's name:
    its opener is None. Consumers add flags: a cache behind the stage "cached", a filter "filtered".
    """
    consumers = _consumers(table)
    described = [(str(table["stage"][i]), str(table["op"][i]), str(table["flags"][i])) for i in range(len(table["op"]))]
    nodes: list[_Node] = []
    for i, (stage, op, flags) in enumerate(described):
        downstream = [described[row] for row in consumers(i)]
        opener = next((above for above in downstream if _OPENERS.match(above[1])), None)
        one_by_one = takewhile(lambda op: "Cache" not in op and not _OPENERS.match(op), (op for _, op, _ in downstream))
        flags += f",{CACHED}" * any("Cache" in op for _, op, _ in downstream)
        flags += f",{FILTERED}" * any(op.endswith(_FILTER) for op in one_by_one)
        nodes.append((stage, op, flags, None if "(" in stage else opener))
    return nodes


def _consumers(table: Mapping[str, np.ndarray]) -> Callable[[int], Iterator[int]]:
    """Return a function from a row to those of the stages that consume it, the nearest first.

    "Nearest first" is downstream: the last one is the pipeline's root.
    """
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


def _shares_passed_on(table: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row the share of its work, and of its elements, that shuffles and repeats behind it passed on.

    The share exceeds 1 as a shuffle's buffer runs empty, and behind a repeat: a repeat's input counts from 0 again in
    each pass, so that passes that ended since the last reading are taken to have been like this one. A shuffle's own
    work is for what it takes in; its elements are those that it gives.

    Returns:
        float64 (rows,) twice; 1.0 = all of it.
    """
    consumers, ops = _consumers(table), [str(op) for op in table["op"]]
    counts = [max(0, int(count)) for count in table["elements"]]
    work_share, element_share = np.ones(len(ops)), np.ones(len(ops))
    for i in range(len(ops)):
        below = i
        for above in consumers(i):  # from the row to the pipeline's end
            shuffles, repeats = ops[above].startswith("Shuffle"), _REPEATS.match(ops[above]) is not None
            if (shuffles or repeats) and counts[below]:
                passed_on = counts[above] / counts[below]
                work_share[i] *= passed_on
                element_share[i] *= passed_on
                if shuffles and below == i:  # the shuffle's own work, counted once: for its direct input
                    work_share[above] *= min(1.0, passed_on) if repeats else passed_on
            below = above
    return work_share, element_share


def _input_elements(table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return int64[rows], the elements that each row processed; of stages that also make batches, their input's."""
    elements = np.maximum(table["elements"], 0).astype(np.int64)
    for i, op in enumerate(table["op"]):
        if str(op).startswith("MapAndBatch"):
            # Rows of the same reading that feed this one.
            below = (table["time_ns"] == table["time_ns"][i]) & (table["parent"] == table["node"][i])
            elements[i] = max(elements[below].tolist(), default=elements[i])
    return elements
