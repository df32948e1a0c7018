"""Finds the training steps of a process: by markers, else by calls, else by iterations.

A trace with GPU events or iterations always has steps; `basis` names their source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.traces.intervals import union
from gpu_util_callback.traces.model import HostKind, Names, Process, groups

__all__ = ["Steps", "find_steps"]

# A step extends to the next marker (work between two of them, callbacks for example, belongs to the
# step before), unless the pause is longer than this many typical steps: then it ended.
_MAX_PAUSE_STEPS = 3.0
# A function that trains, by its name; TensorFlow puts "__inference_" in front of all of them.
_TRAINS = re.compile(r"(?<![a-z])(train(?!ed)|update|step)", re.IGNORECASE)
_EVALUATES = re.compile(r"eval|test|valid|predict|infer", re.IGNORECASE)
_CALLED = re.compile(r"^(?:PjitFunction\((.*)\)|EagerLocalExecute: (?:__inference_)?(.*))$")


@dataclass(slots=True)
class Steps:
    """The steps of one process, in order and disjoint.

    `basis` is "marker", "call" (one compiled function after another), "iteration" (one batch after
    another) or "trace" (no structure found: the whole trace as one step). `judged`: they certainly
    are steps, so that the time in them is meaningful: marked, repeated, or a single call which
    fetched its own batch or is of a function that trains.
    """

    label: np.ndarray  # int64[n]: the training step if a marker has it, else 0, 1, 2, …
    start_ps: np.ndarray  # int64[n]
    end_ps: np.ndarray  # int64[n]
    basis: str
    judged: bool = False

    def __len__(self) -> int:
        return len(self.label)


def find_steps(process: Process, names: Names) -> Steps:
    """Return the steps of a process; empty only if nothing at all was recorded."""
    for find in (_by_marker, _by_call, _by_iteration):
        found = find(process, names)
        if found is not None and len(found):
            return found
    start, end = process.extent()
    if start == end:
        empty = np.empty(0, np.int64)
        return Steps(empty, empty, empty, "trace")
    return Steps(np.zeros(1, np.int64), np.array([start]), np.array([end]), "trace")


def _outermost(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return a mask of the intervals (sorted by start, longest first) inside no earlier one."""
    if not len(start):
        return np.empty(0, bool)
    reach = np.maximum.accumulate(end)
    return np.concatenate((np.ones(1, bool), start[1:] >= reach[:-1]))


def _by_marker(process: Process, names: Names) -> Steps | None:
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.STEP)
    if not len(rows):
        return None
    # Several kinds of markers (ours, the framework's): those the profiler calls roots, then the
    # most frequent name; of those the thread with most.
    if events.root[rows].any():
        rows = rows[events.root[rows] > 0]
    for key in (events.name, events.thread):
        values, counts = np.unique(key[rows], return_counts=True)
        rows = rows[key[rows] == values[np.argmax(counts)]]
    rows = rows[_outermost(events.start_ps[rows], events.end_ps[rows])]
    label = events.value[rows]
    if (label < 0).any():  # ranges that are steps by name, without a number
        label = np.arange(len(rows))
    return _tile(process, label, events.start_ps[rows], events.end_ps[rows], "marker")


def _by_call(process: Process, names: Names) -> Steps | None:
    """Return one step per call of the compiled function in which most of the time goes."""
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.RUN)
    if not len(rows):
        return None
    # Functions that the input pipeline runs are not steps, however often it runs them.
    background = np.array(
        [t.name.startswith(("tf_data", "tf.data")) for t in process.threads], bool
    )
    rows = rows[~background[events.thread[rows]]]
    best: np.ndarray | None = None
    best_score = -1
    for _, on_thread in groups(events.thread[rows]):
        mine = rows[on_thread]
        mine = mine[_outermost(events.start_ps[mine], events.end_ps[mine])]
        unique, which = np.unique(events.name[mine], return_inverse=True)
        scores = np.zeros(len(unique), np.int64)
        np.add.at(scores, which, events.end_ps[mine] - events.start_ps[mine])
        top = int(np.argmax(scores))
        if scores[top] > best_score:
            best, best_score = mine[which == top], int(scores[top])
    if best is None:
        return None
    # One call of a function that spans devices is recorded once per device, under one id.
    ids = events.value[best]
    fresh = np.concatenate((np.ones(1, bool), (ids[1:] != ids[:-1]) | (ids[1:] == -1)))
    start = events.start_ps[best][fresh]
    end = np.maximum.reduceat(_call_ends(process, best), np.flatnonzero(fresh))
    steps = _tile(process, np.arange(len(start)), start, end, "call")
    if len(best) == 1:
        call = int(best[0])
        steps.judged |= _fetches(process, int(start[0]), int(end[0]))
        steps.judged |= _trains(process, names, call)
    return steps


def _call_ends(process: Process, calls: np.ndarray) -> np.ndarray:
    """Return the end of each call, including the threads that work for it, under its id."""
    events = process.events
    ends = events.end_ps[calls].copy()
    ids = events.value[calls]
    order = np.argsort(ids, kind="stable")
    rows = np.flatnonzero((events.kind != HostKind.STEP) & (events.value != -1))
    at = np.searchsorted(ids[order], events.value[rows], side="right") - 1
    found = (at >= 0) & (ids[order][np.maximum(at, 0)] == events.value[rows])
    np.maximum.at(ends, order[at[found]], events.end_ps[rows[found]])
    return ends


def _fetches(process: Process, start: int, end: int) -> bool:
    """Return whether a batch was fetched in this time."""
    events = process.events
    fetch = events.kind == HostKind.INPUT_WAIT
    return bool((fetch & (events.start_ps >= start) & (events.end_ps <= end)).any())


def _trains(process: Process, names: Names, call: int) -> bool:
    """Return whether the called function is one that trains, by its name."""
    events = process.events
    around = np.flatnonzero(
        (events.thread == events.thread[call])
        & (events.start_ps <= events.start_ps[call])
        & (events.end_ps >= events.end_ps[call])
    )
    called = [found for row in around.tolist() if (found := _CALLED.match(names[events.name[row]]))]
    functions = [found[1] or found[2] for found in called]
    return any(_TRAINS.search(name) and not _EVALUATES.search(name) for name in functions)


def _by_iteration(process: Process, names: Names) -> Steps | None:
    """Return one step per batch that was fetched."""
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.INPUT_WAIT)
    if not len(rows):
        return None
    # One step per wait that overlaps no other: replicas fetch in parallel for the same step.
    waits = union(events.start_ps[rows], events.end_ps[rows])
    if len(waits) < 2:
        return None
    return _tile(process, np.arange(len(waits)), waits.start, waits.end, "iteration")


def _tile(
    process: Process, label: np.ndarray, start: np.ndarray, end: np.ndarray, basis: str
) -> Steps:
    """Return steps that extend to the next one's start; the last to the end of its GPU work."""
    start = start.astype(np.int64, copy=True)
    end = end.astype(np.int64, copy=True)
    order = np.argsort(start, kind="stable")
    label, start, end = label[order].astype(np.int64), start[order], end[order]
    pitch = np.diff(start)
    typical = float(np.median(pitch)) if len(pitch) else 0.0
    typical = max(typical, float(np.median(end - start)))
    if len(start) > 1:
        pause = start[1:] - end[:-1]
        joined = pause <= _MAX_PAUSE_STEPS * typical
        end[:-1] = np.where(joined, start[1:], np.minimum(end[:-1], start[1:]))
        # Before a pause, and at the end, the GPU may still be at work for the step.
        loose = np.append(np.flatnonzero(~joined), len(start) - 1)
    else:
        loose = np.array([0])
    for at in loose.tolist():
        limit = int(start[at + 1]) if at + 1 < len(start) else np.iinfo(np.int64).max
        # A call returns before its work is launched (by other threads); a marker does not.
        until = int(end[at]) if basis == "marker" else limit
        end[at] = _reach(process, int(start[at]), until, int(end[at]), limit)
    keep = start < end
    judged = bool(keep.any()) and (basis == "marker" or int(keep.sum()) > 1)
    return Steps(label[keep], start[keep], end[keep], basis, judged)


def _reach(process: Process, start: int, until: int, end: int, limit: int) -> int:
    """Return the end of the GPU work launched within `[start, until)`, at least `end`."""
    calls = process.events
    launched = calls.correlation[
        (calls.kind == HostKind.LAUNCH) & (calls.start_ps >= start) & (calls.start_ps < until)
    ]
    launched = launched[launched >= 0]
    for device in process.devices:
        if len(launched):
            mine = device.events.end_ps[np.isin(device.events.correlation, launched)]
            if len(mine):
                end = max(end, int(mine.max()))
    return min(end, limit)
