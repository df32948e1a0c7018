"""Finds the steps of a process: by markers, calls, batches, ranges or graphs that repeat.

A trace with GPU events always has a step: without any of these it is all time between the first and
the last GPU work. `basis` names their source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.traces import limits
from gpu_util_callback.traces.intervals import Intervals, union
from gpu_util_callback.traces.model import KERNELS, DeviceEvents, HostKind, Names, Process, groups

MIN_KERNELS = 20  # on the busiest GPU: fewer, in fewer steps than three, are a fragment

# A step extends to the next marker (work between two of them, callbacks for example, belongs to the
# step before), unless the pause is longer than this many typical steps: then it ended.
_MAX_PAUSE_STEPS = 3.0
# A function that trains, by its name; TensorFlow puts "__inference_" in front of all of them.
_TRAINS = re.compile(r"(?<![a-z])(train(?!ed)|update|step)", re.IGNORECASE)
_EVALUATES = re.compile(r"eval|test|valid|predict|infer", re.IGNORECASE)
# A call that takes less than this share of the usual one, and launches nothing, is no step.
_HELPER = 0.1
_CALLED = re.compile(r"^(?:PjitFunction\((.*)\)|EagerLocalExecute: (?:__inference_)?(.*))$")


@dataclass(slots=True)
class Steps:
    """The steps of one process, in order and disjoint.

    `basis` is "marker", "call" (one compiled function after another), "iteration" (one batch after
    another), "range" (a range around like work repeats), "graph" (a sequence of CUDA graphs
    repeats) or "trace" (no structure found: all GPU work as one step, or the whole trace where
    there is hardly any). `judged`: they certainly are steps: marked, repeated, or a single call
    which fetched its own batch or is of a function that trains.
    """

    label: np.ndarray  # int64[n]: the training step if a marker has it, else 0, 1, 2, …
    start_ps: np.ndarray  # int64[n]
    end_ps: np.ndarray  # int64[n]
    basis: str
    judged: bool = False

    def __len__(self) -> int:
        return len(self.label)

    @property
    def duration_ps(self) -> np.ndarray:
        return self.end_ps - self.start_ps

    @property
    def extent(self) -> tuple[int, int]:
        """Start of the first step and end of the last, in ps."""
        return int(self.start_ps[0]), int(self.end_ps[-1])

    def measure(self, times: Intervals) -> np.ndarray:
        """Return how much of some times lies within each step: int64[steps], ps."""
        return times.measure(self.start_ps, self.end_ps)


def find_steps(process: Process, names: Names) -> Steps:
    """Return the steps of a process; empty only if nothing at all was recorded.

    Those of the surest source that has any; without one, one step over all work.
    """
    for find in (_steps_by_marker, _steps_by_call, _steps_by_iteration, _steps_by_range, _steps_by_graph):
        steps = find(process, names)
        if steps is not None and len(steps) and steps.judged:
            return _without_ends(process, names, steps)
    start, end = _extent_of_work(process)
    if start == end:
        empty = np.empty(0, np.int64)
        return Steps(empty, empty, empty, "trace")
    return Steps(np.zeros(1, np.int64), np.array([start]), np.array([end]), "trace")


def _extent_of_work(process: Process) -> tuple[int, int]:
    """Return the first and the last time of work on the GPUs at work, ps; without any, of all events.

    What precedes the first work is start-up, and what follows the last one is no wait for the GPU.
    A fragment of a few kernels is too little to tell what is between its ends.
    """
    spans = [d.events for d in process.active_devices]
    if max((int(events.of(*KERNELS).sum()) for events in spans), default=0) < MIN_KERNELS:
        return process.extent
    return min(int(e.start_ps.min()) for e in spans), max(int(e.end_ps.max()) for e in spans)


def _outermost(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return a mask of the intervals (at least one, sorted by start, longest first) inside no earlier one."""
    reach = np.maximum.accumulate(end)
    return np.concatenate((np.ones(1, bool), start[1:] >= reach[:-1]))


def _steps_by_marker(process: Process, names: Names) -> Steps | None:
    """Return one step per marker, of the thread and the kind of marker that hold most; None without any."""
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.STEP)
    if not len(rows):
        return None
    # Several kinds of markers (ours, the framework's): those the profiler calls roots, then the longest
    # of the most frequent names; of those the thread with most.
    if events.root[rows].any():
        rows = rows[events.root[rows] > 0]
    _, inverse, counts = np.unique(events.name[rows], return_inverse=True, return_counts=True)
    spent = np.bincount(inverse, events.end_ps[rows] - events.start_ps[rows])
    rows = rows[inverse == np.argmax(np.where(2 * counts >= counts.max(), spent, -1))]
    values, counts = np.unique(events.thread[rows], return_counts=True)
    rows = rows[events.thread[rows] == values[np.argmax(counts)]]
    rows = rows[_outermost(events.start_ps[rows], events.end_ps[rows])]
    label = events.value[rows]
    if ((label < 0) | (label > limits.MAX_STEP)).any():  # ranges that are steps by name, without a number
        label = np.arange(len(rows))
    return _tile(process, label, events.start_ps[rows], events.end_ps[rows], "marker")


def _steps_by_call(process: Process, names: Names) -> Steps | None:
    """Return one step per call of the compiled function in which most of the time goes; None without any call.

    Of each thread the outermost calls are summed by their function's name; `best`: rows of the name with most time.
    """
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.RUN)
    if not len(rows):
        return None
    # Functions that the input pipeline runs are not steps, however often it runs them.
    rows = rows[~process.of_pipeline(rows)]
    # Python calls the step; what other threads call meanwhile are parts of it.
    python = np.array([name.startswith("python") for name in process.threads], bool)
    is_from_python = python[events.thread[rows]]
    rows = rows[is_from_python] if is_from_python.any() else rows
    best: np.ndarray | None = None
    best_score = -1
    for _, on_thread in groups(events.thread[rows]):
        mine = rows[on_thread]
        mine = mine[_outermost(events.start_ps[mine], events.end_ps[mine])]
        unique, inverse = np.unique(events.name[mine], return_inverse=True)
        scores = np.zeros(len(unique), np.int64)
        np.add.at(scores, inverse, events.end_ps[mine] - events.start_ps[mine])
        top = int(np.argmax(scores))
        if scores[top] > best_score:
            best, best_score = mine[inverse == top], int(scores[top])
    if best is None:
        return None
    start, end = _calls(process, best)
    steps = _tile(process, np.arange(len(start)), start, end, "call")
    if len(steps) == 1:  # a single call is a step only if something says so
        low, high = int(steps.start_ps[0]), int(steps.end_ps[0])
        steps.judged |= _fetches(process, low, high)
        steps.judged |= _trains(process, names, int(best[0]))
        steps.judged &= _holds_work(process, low, high)
    return steps


def _calls(process: Process, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end (int64[calls], ps, by start) of each call of a function, which may be several events.

    A call is recorded once per device or part of it, under one id. Short ones without GPU work,
    beside others that have some, are of a helper and no steps.
    """
    events = process.events
    ids = events.value[rows]
    call_ids = np.where(ids == -1, np.iinfo(np.int64).min + np.arange(len(rows)), ids)
    _, first, inverse = np.unique(call_ids, return_index=True, return_inverse=True)
    start = events.start_ps[rows][first]
    end = np.zeros(len(first), np.int64)
    np.maximum.at(end, inverse, _call_ends(process, rows))
    order = np.argsort(start, kind="stable")
    start, end, has_id = start[order], end[order], (ids[first] != -1)[order]
    following = np.append(start[1:], np.iinfo(np.int64).max)
    launched = np.sort(events.start_ps[events.kind == HostKind.LAUNCH])
    until = np.where(has_id, np.minimum(end, following), following)
    works = np.searchsorted(launched, until) > np.searchsorted(launched, start)
    if not works.any():
        return start, end
    steps = works | (end - start >= _HELPER * np.median((end - start)[works]))
    return start[steps], end[steps]


def _holds_work(process: Process, start: int, end: int) -> bool:
    """Return whether most of the GPUs' work, if there is any, lies in this time."""
    busy = [d.busy() for d in process.active_devices if len(d.events)]
    inside = sum(work.clip(start, end).total for work in busy)
    return 2 * inside >= sum(work.total for work in busy)


def _call_ends(process: Process, calls: np.ndarray) -> np.ndarray:
    """Return the end of each call (int64[calls], ps), including the threads that work for it, under its id.

    Args:
        calls: rows of events; of equal ids the last one is extended.
    """
    events = process.events
    ends = events.end_ps[calls].copy()
    ids = events.value[calls]
    order = np.argsort(ids, kind="stable")
    rows = np.flatnonzero((events.kind != HostKind.STEP) & (events.value != -1))
    at = np.searchsorted(ids[order], events.value[rows], side="right") - 1
    matched = (at >= 0) & (ids[order][np.maximum(at, 0)] == events.value[rows])
    np.maximum.at(ends, order[at[matched]], events.end_ps[rows[matched]])
    return ends


def _fetches(process: Process, start: int, end: int) -> bool:
    """Return whether a batch was fetched in this time."""
    events = process.events
    fetch = events.kind == HostKind.INPUT_WAIT
    return bool((fetch & (events.start_ps >= start) & (events.end_ps <= end)).any())


def _trains(process: Process, names: Names, call: int) -> bool:
    """Return whether the called function is one that trains, by its name."""
    events = process.events
    matches = [match for row in events.around(call).tolist() if (match := _CALLED.match(names[events.name[row]]))]
    functions = [match[1] or match[2] for match in matches]
    return any(_TRAINS.search(name) and not _EVALUATES.search(name) for name in functions)


# What follows a fetch is no step if it has less than this share of the usual amount of work.
_HARDLY_ANY = 0.1
_FROM_WORKERS = re.compile(r"Multi(Process|Worker)")
_DOES_WORK = (HostKind.OP, HostKind.LAUNCH, HostKind.CALL, HostKind.SYNC, HostKind.COLLECTIVE)
# Inside of a fetch these take place whether a batch comes or the data have ended.
_SEARCHES = (HostKind.PYTHON, HostKind.FRAMEWORK, HostKind.INPUT_WAIT)


def _without_ends(process: Process, names: Names, steps: Steps) -> Steps:
    """Return the steps without those that only found the end of the data, or that of the profile.

    Masks of steps: `fetched` a batch was asked for in it, `empty` each of these fetches found the end; `amount` of
    work that begins in it.
    """
    events = process.events
    fetches = np.flatnonzero(events.kind == HostKind.INPUT_WAIT)
    if len(steps) < 2:
        return steps
    works = np.isin(events.kind, _DOES_WORK)
    works &= ~process.of_pipeline(np.arange(len(events)))
    works &= ~union(events.start_ps[fetches], events.end_ps[fetches]).contains(events.start_ps)
    work = events.start_ps[works]
    is_end = _finds_end(process, names, fetches, work) if len(fetches) else np.zeros(0, bool)
    step = np.searchsorted(steps.start_ps, events.start_ps[fetches], "right") - 1
    fetched = np.bincount(step[step >= 0], minlength=len(steps)) > 0
    empty = fetched & (np.bincount(step[step >= 0], ~is_end[step >= 0], len(steps)) == 0)
    amount = _between_times(work, steps.start_ps, steps.end_ps)
    if steps.basis != "iteration":  # another thread may find the end during the last steps
        # TensorFlow runs what needs no batch beside the fetch, about a third of a small model's operations.
        empty &= 2 * amount <= np.median(amount)
    # As PyTorch's profiler stops, it has marked the beginning of a step behind the last one.
    empty[-1] |= steps.basis == "marker" and not fetched[-1] and amount[-1] == 0 < np.median(amount)
    if not empty.any() or empty.all():
        return steps
    keep = ~empty
    label = np.arange(keep.sum()) if steps.basis in ("iteration", "call") else steps.label[keep]
    return Steps(label, steps.start_ps[keep], steps.end_ps[keep], steps.basis, steps.judged)


def _finds_end(process: Process, names: Names, fetches: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Return a mask of the fetches (rows of events) that found the end of the data.

    Such a fetch neither builds nor receives a batch, as most others do on their own thread, and is
    followed by no step, though perhaps by a validation.

    Args:
        work: begins of all work outside of fetches, sorted.
    """
    events = process.events
    builds = ~np.isin(events.kind, _SEARCHES) & ~names.matching(lambda name: name.startswith("Iterator::"))[events.name]
    inside, built = np.zeros(len(fetches), np.int64), np.zeros(len(fetches), np.int64)
    for thread, mine in groups(events.thread[fetches]):
        rows = np.flatnonzero(events.thread == thread)
        start, end = events.start_ps[fetches[mine]], events.end_ps[fetches[mine]]
        inside[mine] = _between_times(events.start_ps[rows], start, end)
        built[mine] = _between_times(events.start_ps[rows[builds[rows]]], start, end)
    start = events.start_ps[fetches]
    following = np.append(start[1:], np.iinfo(np.int64).max)
    amount = _between_times(work, events.end_ps[fetches], np.maximum(following, events.end_ps[fetches]))
    idle = amount <= _HARDLY_ANY * np.median(amount)
    # Most fetches build nothing on their own thread: those at the end take few events, and no work follows.
    if 2 * np.count_nonzero(built) <= len(fetches):
        short = 2 * inside <= np.median(inside)
        return idle & (short if np.median(inside) > 1 else np.full(len(fetches), not idle.all()))
    none = built == 0
    # Two in a row that work follows are fetches of another loader, whose batches are made without
    # operations. A batch from a worker may have come during an earlier fetch.
    delivers = none & ~idle
    beside = np.append(delivers[1:], False) | np.insert(delivers[:-1], 0, False)
    beside |= names.matching(_FROM_WORKERS.search)[events.name[fetches]]
    return none & ~(delivers & beside)


def _between_times(at: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return how many of the sorted times `at` lie in each `[start[i], end[i])`."""
    return np.searchsorted(at, end) - np.searchsorted(at, start)


def _steps_by_iteration(process: Process, names: Names) -> Steps | None:
    """Return one step per batch that was fetched; None with fewer than two."""
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.INPUT_WAIT)
    if not len(rows):
        return None
    # One step per wait that overlaps no other: replicas fetch in parallel for the same step.
    waits = union(events.start_ps[rows], events.end_ps[rows])
    if len(waits) < 2:
        return None
    return _tile(process, np.arange(len(waits)), waits.start, waits.end, "iteration")


# Ranges that one iteration of a loop has once: PyTorch's own of an optimizer's step, vLLM's of a
# forward pass.
_ONCE_EACH = re.compile(r"^Optimizer\.step#|execute_model$")
# A range that repeats is a step only if its times hold a like amount of work: a quarter more or
# fewer kernels than usual, in four of five of them, and most of the kernels of the trace.
_LEAST_REPEATS = 4
_LIKE, _MOSTLY = 0.25, 0.8


def _steps_by_range(process: Process, names: Names) -> Steps | None:
    """Return one step from each beginning of a range to its next one, where like work repeats; None where none does.

    Of the names of ranges in one thread the one that spans most time is taken.
    """
    events = process.events
    calls = (events.kind == HostKind.LAUNCH) & (events.correlation >= 0)
    launched = np.sort(events.start_ps[calls])
    is_marker = names.matching(_ONCE_EACH.search)[events.name]
    annotated = np.flatnonzero((events.kind == HostKind.RANGE) | (is_marker & (events.kind == HostKind.OP)))
    if not len(annotated) or not len(launched):  # no range, or no work to compare
        return None
    best: np.ndarray | None = None
    best_length = 0
    for _, mine in groups(events.thread[annotated]):
        rows = annotated[mine]
        for _, of_name in groups(events.name[rows]):
            start = events.start_ps[rows[of_name]]
            if len(start) < _LEAST_REPEATS:  # too few to say what is usual
                continue
            alike = _alike(launched, start)
            length = int(start[-1] - start[0])
            if alike.mean() >= _MOSTLY and _holds_most(launched, start) and length > best_length:
                best, best_length = start, length
    return None if best is None else _between(process, best, "range")


def _steps_by_graph(process: Process, names: Names) -> Steps | None:
    """Return one step from each replay of the graph that ran first to its next replay.

    In the time of the GPUs, as the host may queue many replays. No step may differ in its
    sequence of graphs, nor in its amount of other work: layers that share a graph, and
    micro-batches, are no steps. None where no graph ran, an id is unknown, or nothing repeats so.
    """
    of_gpus = [device.events for device in process.active_devices]
    work = DeviceEvents.concat((events.take(events.correlation >= 0) for events in of_gpus), sum(map(len, of_gpus)))
    _, first, launch = np.unique(work.correlation, return_index=True, return_inverse=True)
    start, graph = work.start_ps[first], work.graph[first]
    np.minimum.at(start, launch, work.start_ps)
    np.maximum.at(graph, launch, work.graph)  # a copy in a graph may lack the graph's id
    order = np.argsort(start, kind="stable")
    start, graph = start[order], graph[order]
    replays = np.flatnonzero(graph)
    replayed = graph[replays]  # ids of graphs, in the order in which they ran
    if not len(replays) or (replayed < 0).any():
        return None
    at = np.flatnonzero(replayed == replayed[0])
    if len(at) < _LEAST_REPEATS or (np.diff(at) != at[1]).any():
        return None
    sequences = replayed[: at[-1]].reshape(-1, at[1])
    begin, ran = start[replays[at]], np.sort(work.start_ps)
    alike = _alike(start, begin) & _alike(ran, begin)
    if (sequences != sequences[0]).any() or not alike.all() or not _holds_most(ran, begin):
        return None
    return _between(process, begin, "graph")


def _alike(work: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return a mask of the times between two starts that hold about the usual amount of work; bool[starts - 1].

    Args:
        work, start: times in ps, sorted.
    """
    amount = np.diff(np.searchsorted(work, start))
    usual = float(np.median(amount))
    return (amount > 0) & (np.abs(amount - usual) <= _LIKE * usual)


def _holds_most(work: np.ndarray, start: np.ndarray) -> bool:
    """Return whether most of the work lies between the first and the last start."""
    low, high = np.searchsorted(work, start[[0, -1]])
    return bool(high - low >= _MOSTLY * len(work))


def _between(process: Process, start: np.ndarray, basis: str) -> Steps:
    """Return one step from each start to the next; the end of the last one is not in the trace."""
    steps = _tile(process, np.arange(len(start) - 1), start[:-1], start[1:], basis)
    steps.end_ps[-1] = start[-1]
    return steps


def _tile(process: Process, label: np.ndarray, start: np.ndarray, end: np.ndarray, basis: str) -> Steps:
    """Return steps that extend to the next one's start; the last, and one before a pause, to the end of its GPU work.

    Args:
        label, start, end: of what marks each step, in any order; ps.
        basis: of `Steps`.
    """
    start = start.astype(np.int64, copy=True)
    end = end.astype(np.int64, copy=True)
    order = np.argsort(start, kind="stable")
    label, start, end = label[order].astype(np.int64), start[order], end[order]
    pitch = np.diff(start)
    typical = float(np.median(pitch)) if len(pitch) else 0.0
    typical = max(typical, float(np.median(end - start)))
    joined = start[1:] - end[:-1] <= _MAX_PAUSE_STEPS * typical
    end[:-1] = np.where(joined, start[1:], np.minimum(end[:-1], start[1:]))
    # Before a pause, and at the end, the GPU may still be at work for the step.
    loose = np.append(np.flatnonzero(~joined), len(start) - 1)
    for at in loose.tolist():
        limit = int(start[at + 1]) if at + 1 < len(start) else np.iinfo(np.int64).max
        # A call returns before its work is launched (by other threads), but launches no more than
        # the others do in their time; a marker ends after its launches.
        until = int(end[at])
        if basis != "marker":
            until = min(limit, max(until, int(start[at] + typical)))
        end[at] = _reach(process, int(start[at]), until, int(end[at]), limit)
    keep = start < end
    judged = bool(keep.any()) and (basis == "marker" or int(keep.sum()) > 1)
    return Steps(label[keep], start[keep], end[keep], basis, judged)


def _reach(process: Process, start: int, until: int, end: int, limit: int) -> int:
    """Return the end of the GPU work launched within `[start, until)`, at least `end`, at most `limit`; all in ps."""
    calls = process.events
    launched = calls.correlation[(calls.kind == HostKind.LAUNCH) & (calls.start_ps >= start) & (calls.start_ps < until)]
    launched = launched[launched >= 0]
    for device in process.devices:
        if len(launched):
            mine = device.events.end_ps[np.isin(device.events.correlation, launched)]
            if len(mine):
                end = max(end, int(mine.max()))
    return min(end, limit)
