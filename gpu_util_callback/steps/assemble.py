"""Rows of the recording's tables from clock readings of the training thread.

Pure functions of numpy arrays, run on the recorder's thread: no framework, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np

from gpu_util_callback.steps.compilations import ABSENT, Compilations
from gpu_util_callback.steps.rows import ENDED_MEANWHILE, UNSEEN, InputRows
from gpu_util_callback.steps.timeline import (
    CALL,
    FIRST,
    ONE_PIECE,
    TESTING,
    TRACED,
    Call,
    Function,
    Phase,
    SkippedCalls,
)


def delays(requested: np.ndarray, delivered: np.ndarray, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how far each batch of a call delayed its step, and when each step ended: int64[batches] ns, both.

    All steps of the call are taken to last equally long: as long as fits between each delivery and the call's end.

    Args:
        requested, delivered: int64[batches], perf ns; at least one.
        end_ns: when the call ended, the device included.
    """
    n = len(delivered)
    step_ns = float(np.min((max(end_ns, int(delivered[-1])) - delivered) / np.arange(n, 0, -1)))
    wait, ends = np.empty(n, np.int64), np.empty(n, np.int64)
    device_free_ns = int(requested[0])  # when the device is done with the batch before
    for k in range(n):
        delivered_ns = int(delivered[k])
        # A wait is never longer than the time spent fetching.
        wait[k] = min(max(delivered_ns - device_free_ns, 0), delivered_ns - int(requested[k]))
        device_free_ns = int(max(delivered_ns, device_free_ns) + step_ns)
        ends[k] = device_free_ns
    ends[-1] = end_ns
    return wait, np.minimum(np.maximum.accumulate(ends), end_ns)


def share_rows(rows: InputRows, calls: int, most: int) -> list[slice] | None:
    """Return which rows each call wrote, as slices in the order of the calls; None if they do not fit together.

    A call fetches until it has `most` batches or the input ends. Fetches without a batch follow the
    last batch of their call (an unrolled loop asks several times). Remaining rows are those of
    calls under way.
    """
    n = len(rows.delivered_ns)
    is_delivered = rows.delivered_ns >= 0
    slices = []
    first = 0
    for _ in range(calls):
        while first < n and not is_delivered[first]:  # a call that found the input exhausted is no step
            first += 1
        # The batches of this call, then its fetches without one.
        last = first
        while last < n and last - first < most and is_delivered[last]:
            last += 1
        while last < n and not is_delivered[last]:
            last += 1
        if last == first:  # no rows are left for this call
            return None
        slices.append(slice(first, last))
        first = last
    return slices


Columns = dict[str, np.ndarray]


_STAMP = 4  # columns of a `Stamp`


@dataclass
class _Block:
    """Consecutive calls of one function.

    Args:
        table: int64[calls, len(CALL)], perf ns but for the flags.
        function: what was called.
        stamps: int64[batches, 4]: requested, delivered, signature, device busy until, of the batches that Python
            fetched.
        counts: int64[calls], how many of `stamps` each call has.
        rows: what is known of their batches; None = nothing. One row a call where calls take one batch.
        per_call: the slice of `rows` of each call, where calls take several; else empty.
    """

    table: np.ndarray
    function: Function
    stamps: np.ndarray
    counts: np.ndarray
    rows: InputRows | None = None
    per_call: list[slice] = field(default_factory=list)


Item = Call | Function | Phase | SkippedCalls

_Calls = tuple[np.ndarray, np.ndarray, np.ndarray]  # table, stamps and counts of a `_Block`


def _numbers(calls: list[Call]) -> _Calls:
    """Return the table, stamps and counts of calls, read as one block: a fit has a million of them.

    Each call is a flat tuple: the columns of `CALL`, then four numbers for each of its batches.
    """
    lengths = np.fromiter(map(len, calls), np.int64, len(calls))
    flat = np.fromiter(chain.from_iterable(calls), np.int64, int(lengths.sum()))
    begins = np.cumsum(lengths) - lengths  # of each call in `flat`
    columns = begins[:, None] + np.arange(len(CALL))
    is_stamp = np.ones(len(flat), bool)
    is_stamp[columns] = False
    return flat[columns], flat[is_stamp].reshape(-1, _STAMP), (lengths - len(CALL)) // _STAMP


def _split_by_function(calls: list[Call]) -> list[tuple[bool, _Calls]]:
    """Split calls where the function changes; return (whether it is the test function, its calls) in order."""
    table, stamps, counts = _numbers(calls)
    tests = (table[:, CALL["flags"]] & TESTING) > 0
    cuts = np.flatnonzero(np.diff(tests)) + 1  # first call of each run but the first
    stamp_cuts = np.cumsum(counts)[cuts - 1]
    parts = zip(
        np.split(tests, cuts), np.split(table, cuts), np.split(stamps, stamp_cuts), np.split(counts, cuts), strict=True
    )
    return [(bool(test[0]), (calls, stamps_of_calls, n)) for test, calls, stamps_of_calls, n in parts]


@dataclass
class Assembler:
    """Rows of `steps`, `validation_steps` and `phases` from a timeline's queue, in order.

    Args:
        offset_ns: added to `time.perf_counter_ns` to get the recording's clock.
        compilations: of the train function.
        device_done: number of a training call -> when the device had done it, perf ns; filled elsewhere, in time.
        failed: called with an error in reading a graph's rows, which are left alone then.
    """

    offset_ns: int
    compilations: Compilations = field(default_factory=Compilations)
    device_done: dict[int, int] = field(default_factory=dict)
    failed: Callable[[BaseException], None] = lambda error: None
    steps: int = 0  # training steps delivered so far
    lost_rows: int = 0  # calls whose input rows were missing
    skipped: int = 0  # of the steps: those without a row
    compiled: tuple[int, int] = (0, 0)  # training calls that compiled, and how long, in ns
    stops: list[tuple[int, int]] = field(default_factory=list)  # in which nothing ran, on its clock
    _calls: int = 0  # training calls so far, those without a row included
    # phases whose step is not known yet: their calls are still to come
    _waiting: list[Phase] = field(default_factory=list)
    _functions: dict[str, Function] = field(  # the latest by "train" and "validation"
        default_factory=lambda: {which: Function(which) for which in ("train", "validation")}
    )
    _early: dict[str, InputRows] = field(default_factory=dict)  # of calls yet to come

    def skip(self, queue: deque[Any], count: int) -> tuple[list[Item], int]:
        """Take up to `count` items off a queue that is too long, without making rows of their training calls.

        Calls of a graph that writes rows stay: the rows would match other calls. Such calls take
        too long to outrun the recorder.

        Returns: what to `add` instead (consecutive training calls as one `SkippedCalls`; validation calls, phases and
            functions as they are), and how many items were taken.
        """
        items: list[Item] = []
        if any(function.rows is not None for function in self._functions.values()):
            return items, 0
        start, end, flags = CALL["start"], CALL["end"], CALL["flags"]
        skipped, count_taken = None, 0
        while count_taken < count:
            item = queue.popleft()
            if isinstance(item, Function) and item.rows is not None:  # from here on a graph writes rows
                queue.appendleft(item)
                break
            count_taken += 1
            # a phase or a function; the skipped calls before a new function are its predecessor's
            if not isinstance(item, tuple):
                if isinstance(item, Function) and skipped is not None:
                    items.append(skipped)
                    skipped = None
                items.append(item)
            elif not item[flags] & TESTING:  # a training call; one of validation is dropped
                skipped = SkippedCalls(item[start]) if skipped is None else skipped
                skipped.end = item[end]
                skipped.calls += 1
                skipped.own += item[end] - item[start]
        return items if skipped is None else [*items, skipped], count_taken

    def add(self, items: Sequence[Item], last: bool = False) -> dict[str, list[Columns]]:
        """Return the rows of all that is complete: a list of column dictionaries for each table.

        Raises: MemoryError; the same items may be added again.
        """
        before = (self.steps, self.lost_rows, self.skipped, self._calls)
        waiting, functions, early = [*self._waiting], {**self._functions}, {**self._early}
        try:
            return self._add(items, last)
        except MemoryError:
            self.steps, self.lost_rows, self.skipped, self._calls = before
            self._waiting, self._functions, self._early = waiting, functions, early
            raise

    def _add(self, items: Sequence[Item], last: bool) -> dict[str, list[Columns]]:
        """Return new rows by table, in pieces of one kind each.

        Args:
            items: what the timeline collected, in the order of time.
            last: no more will come, so that phases after the last step have no step to wait for.
        """
        tables: dict[str, list[Columns]] = {}

        def put(table: str, columns: Columns | None) -> None:
            """Add columns of a table, if they have rows, without the times in which the process was stopped."""
            if columns is not None and len(next(iter(columns.values()))):
                for start, end in self.stops:
                    leave_out_stop(columns, start + self.offset_ns, end + self.offset_ns)
                tables.setdefault(table, []).append(columns)

        phases: list[tuple[Phase, int]] = []
        calls: list[Call] = []

        def complete() -> None:
            """Turn the calls collected so far into rows, and let phases that waited for them have their step."""
            for testing, calls_of_function in _split_by_function(calls) if calls else ():
                block = self._block("validation" if testing else "train", calls_of_function)
                if testing:
                    put("validation_steps", self._validation(block, phases))
                else:
                    columns, steps_before = self._train(block, phases)
                    put("steps", columns)
                    self._release(phases, steps_before)
            calls.clear()

        for kind, run in groupby(items, type):
            if kind is Phase:  # between calls, which stay one block
                self._waiting.extend(run)  # type: ignore[arg-type]
                continue
            if kind is tuple:  # calls of either function
                calls.extend(run)  # type: ignore[arg-type]
                continue
            complete()
            for item in run:  # calls before a new function, or before skipped ones, are the earlier function's
                if isinstance(item, Function):
                    self._use(item)
                else:
                    self._skip(item, phases)  # type: ignore[arg-type]
        complete()
        self._release(phases, np.array([self.steps]))
        if last:
            phases += [(phase, self.steps) for phase in self._waiting]
            self._waiting = []
        put("phases", self._phases(phases))
        return tables

    # ---- calls and their batches ---------------------------------------------------------

    def _use(self, function: Function) -> None:
        if function.rows is not self._functions[function.which].rows:
            self._early.pop(function.which, None)
        self._functions[function.which] = function

    def _block(self, phase: str, calls: _Calls) -> _Block:
        """Return calls of one function in a row, with what its graph or stamps say about their batches."""
        table, stamps, counts = calls
        block = _Block(table, self._functions[phase], stamps, counts)
        if len(stamps):
            self._set_rows_from_stamps(block)
        elif block.function.rows is not None:
            self._set_rows_from_graph(block)
        return block

    def _set_rows_from_stamps(self, block: _Block) -> None:
        """Set the rows of batches that Python fetched: the stamps in the calls' own tuples.

        Where the device became idle between request and delivery (`ENDED_MEANWHILE`), it was busy until it was done
        with the call before, at most until the delivery. Training calls older than the newest leave `device_done`.
        """
        stamps, counts = block.stamps, block.counts
        first_stamp = np.cumsum(counts) - counts
        if block.function.batches == 1:  # exactly one row a call; unseen where it has no stamp
            has_batch = counts > 0
            stamps = np.zeros((len(counts), _STAMP), np.int64)  # without a stamp: delivered as the call began
            stamps[:, 0], stamps[:, 1] = UNSEEN, block.table[:, CALL["call"]]
            stamps[has_batch] = block.stamps[first_stamp[has_batch]]
        else:  # several batches a call: which rows are whose
            ends = (first_stamp + counts).tolist()
            block.per_call = [slice(*ends) for ends in zip(first_stamp.tolist(), ends, strict=True)]
        requested, delivered, signature, busy_until = stamps.T
        ended_meanwhile = np.flatnonzero(busy_until == ENDED_MEANWHILE)
        if len(ended_meanwhile):  # the device's end is seen a little late, never early
            busy_until = busy_until.copy()
            calls = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))  # of each row: its call in this block
            for at in ended_meanwhile.tolist():
                delivered_ns, call_before = int(delivered[at]), self._calls + int(calls[at]) - 1
                busy_until[at] = min(self.device_done.get(call_before, delivered_ns), delivered_ns)
        if block.function.which == "train":  # validation calls are not in `device_done`
            newest = self._calls + len(counts) - 1
            for call in [call for call in tuple(self.device_done) if call < newest]:
                del self.device_done[call]
        block.rows = InputRows(requested, delivered, signature.astype(np.float64), busy_until)

    def _set_rows_from_graph(self, block: _Block) -> None:
        """Set the rows that the graph of the calls wrote; those of calls under way are kept for later.

        Where rows and calls do not match, the block stays without rows, which counts as `lost_rows` of training;
        rows of later calls are kept.
        """
        function, n = block.function, len(block.table)
        assert function.rows is not None
        try:
            rows = function.rows.take()
        except Exception as error:
            self.failed(error)
            function.rows = None
            return
        earlier = self._early.pop(function.which, None)
        if earlier is not None:
            rows = earlier.followed_by(rows)
        if function.batches == 1:  # a call that found no batch is no step
            rows = rows[rows.delivered_ns >= 0]
        per_call: list[slice] | None = []
        used = n  # rows that belong to this block's calls
        if function.batches > 1:
            per_call = share_rows(rows, n, function.batches)
            used = per_call[-1].stop if per_call else len(rows) + 1
        if per_call is None or used > len(rows):  # rows are missing
            if function.which == "train":
                self.lost_rows += n
            self._early[function.which] = rows[rows.requested_ns >= int(block.table[-1, CALL["call_end"]])]
            return
        block.rows, block.per_call = rows[:used], per_call
        self._early[function.which] = rows[used:]

    def _skip(self, skipped: SkippedCalls, phases: list[tuple[Phase, int]]) -> None:
        """Count calls without rows, as one phase "steps that were not kept": the time belongs to no part of a step."""
        batches, title = self._functions["train"].batches, "steps that were not kept"
        of_calls = skipped.own, self._calls, skipped.calls
        phases.append((Phase("gap", title, skipped.start, skipped.end, "other", *of_calls), self.steps))
        steps_before = self.steps + batches * np.arange(skipped.calls + 1)
        self._calls += skipped.calls
        self.steps = int(steps_before[-1])
        self.skipped += batches * skipped.calls
        self._release(phases, steps_before)

    # ---- phases --------------------------------------------------------------------------

    def _release(self, phases: list[tuple[Phase, int]], steps_before: np.ndarray) -> None:
        """Append waiting phases whose calls have come to `phases`, each with the number of steps before it.

        Args:
            phases: (phase, its step); is extended.
            steps_before: int64[calls + 1], steps before each of the newest calls and after the last.
        """
        waiting = []
        for phase in self._waiting:
            calls_since = self._calls - phase.calls
            if calls_since < 0:  # it follows calls that are not rows yet
                waiting.append(phase)
            else:
                at = max(0, len(steps_before) - 1 - calls_since)  # of older ones: before the first of these calls
                phases.append((phase, int(steps_before[at])))
        self._waiting = waiting

    def _phases(self, phases: list[tuple[Phase, int]]) -> Columns | None:
        """Return rows of `phases`, each (phase, its step), in ns since the epoch; None without any."""
        if not phases:
            return None
        types = dict.fromkeys(("kind", "name", "account"), object)
        types |= dict.fromkeys(("start", "end", "self_ns", "count"), np.int64)
        columns = {name: np.array([getattr(phase, name) for phase, _ in phases], of) for name, of in types.items()}
        columns |= {f"{name}_ns": columns.pop(name) + self.offset_ns for name in ("start", "end")}
        return columns | {"step": np.array([step for _, step in phases], np.int64)}

    # ---- training ------------------------------------------------------------------------

    def _train(self, block: _Block, phases: list[tuple[Phase, int]]) -> tuple[Columns | None, np.ndarray]:
        """Return rows of `steps` (None without any), and int64[calls + 1].

        The steps before each call and after the last. Compilations and first batches are added to `phases`.
        """
        calls, rows = block.table, block.rows
        before = self.steps
        self._calls += len(calls)
        if block.function.batches == 1:
            singles = self._single(calls, rows, phases)
            self.steps += len(calls)
            return singles, np.arange(before, self.steps + 1)
        parts = []
        steps_before = [before]
        for i, call in enumerate(calls):
            batch = None if rows is None else (rows, block.per_call[i])
            columns = self._several(call, batch, block.function, phases)
            if columns is not None:
                parts.append(columns)
                self.steps += len(columns["step"])
            steps_before.append(self.steps)
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else None
        return joined, np.array(steps_before)

    def _single(self, calls: np.ndarray, rows: InputRows | None, phases: list[tuple[Phase, int]]) -> Columns:
        """Return the rows of calls with one batch each: every part is exact.

        All times in ns, `ABSENT` where not seen.
        """
        n = len(calls)
        at = {name: calls[:, column] for name, column in CALL.items()}
        was_called = at["call"] > 0
        call_ns = np.where(was_called, at["call_end"] - at["call"], 0)  # inside the train function
        shape = np.full(n, ABSENT, np.int64)
        new_shape = np.zeros(n, bool)
        if rows is not None:
            # Some loops fetch before the begin hooks run, others inside the train function.
            fetched_before = rows.delivered_ns <= at["call"]
            # a fetch lies in that part of the step
            most_ns = np.where(fetched_before, at["hooks"] - at["start"], call_ns)
            get = np.clip(rows.delivered_ns - rows.requested_ns, 0, most_ns)  # request to delivery
            wait = get  # of that, the time in which the device had nothing to do
            if rows.busy_until_ns is not None:  # a busy device waits for no batch
                late = rows.delivered_ns - np.maximum(rows.requested_ns, rows.busy_until_ns)
                wait = np.clip(late, 0, get)
            unseen = rows.requested_ns < 0  # the request was not observed
            get, wait = np.where(unseen, ABSENT, get), np.where(unseen, ABSENT, wait)
            shape, new_shape = self.compilations.shape_ids(rows.signature)
        else:
            # Nothing is known of the batches.
            get = wait = np.full(n, ABSENT, np.int64)
            fetched_before = np.zeros(n, bool)
        # A fetch before the call is no part of it, but for what the device still computed meanwhile.
        compute_ns = np.where(fetched_before, call_ns + get - wait, call_ns - np.maximum(wait, 0))
        compiles = self.compilations.among((at["flags"] & TRACED) > 0, new_shape, compute_ns)
        for i in np.flatnonzero(compiles):
            self._compilation(phases, calls[i], int(compute_ns[i]), bool(at["flags"][i] & TRACED), int(i))
        if rows is not None:
            for i in np.flatnonzero(((at["flags"] & FIRST) > 0) & ~unseen):
                self._first_batch(phases, int(rows.requested_ns[i]), int(rows.delivered_ns[i]), self.steps + int(i))
        has_end = was_called & (at["logs"] > 0)  # the end hooks were seen
        # the wait for the device lies between the call and the end hooks
        apart = has_end & ((at["flags"] & ONE_PIECE) == 0)
        return {
            "step": np.arange(self.steps, self.steps + n),
            "start_ns": at["start"] + self.offset_ns,
            "duration_ns": at["end"] - at["start"],
            "input_get_ns": get,
            "input_wait_ns": wait,
            "compile_ns": np.where(compiles, compute_ns, 0),
            "body_ns": np.where(was_called, np.where(compiles, 0, compute_ns), ABSENT),
            "gpu_wait_ns": np.where(apart, at["logs"] - at["call_end"], ABSENT),
            "callbacks_ns": np.where(has_end, at["hooks_end"] - at["hooks"] + at["logs_end"] - at["logs"], ABSENT),
            "batches": np.ones(n, np.int64),
            "estimated": np.zeros(n, np.int64),
            "shape_id": shape,
        }

    def _compilation(self, phases: list[tuple[Phase, int]], call: np.ndarray, ns: int, traced: bool, i: int) -> None:
        """Add a compilation of `ns` in a call as a phase of step `i` of this block."""
        name = "train function traced" if traced else "new input shape compiled"
        self.compiled = (self.compiled[0] + 1, self.compiled[1] + ns)
        phase = Phase("compilation", name, int(call[CALL["call"]]), int(call[CALL["call_end"]]), "", ns, 0)
        phases.append((phase, self.steps + i))

    def _first_batch(self, phases: list[tuple[Phase, int]], start: int, end: int, step: int) -> None:
        # A detail: the time is counted in its step's input wait.
        phases.append((Phase("input_setup", "first batch", start, end, "", end - start, 0), step))

    def _several(
        self,
        call: np.ndarray,
        batch: tuple[InputRows, slice] | None,
        function: Function,
        phases: list[tuple[Phase, int]],
    ) -> Columns | None:
        """Return the rows of a call with several batches, None if none came; with prefetching the parts are estimates.

        A batch delayed its step by as much as it came after the previous step ended. The ends of
        steps inside a call cannot be seen (a GPU runs asynchronously), but the last one ended
        with the call. With steps of equal length s the call ends at max over k of (delivery of
        batch k + s x batches from k on): that gives s, and s gives the end of every step.

        Args:
            call: int64[len(CALL)].
            batch: the block's rows, and which of them are the call's; None = nothing is known of its batches.
        """
        at = {name: int(call[column]) for name, column in CALL.items()}
        traced = bool(at["flags"] & TRACED)
        end_ns = at["logs"] or at["call_end"]  # the device is done when the logs are there
        if batch is None:  # equal parts
            n, new_shape = function.batches, False
            shapes = np.full(n, ABSENT, np.int64)
            get = wait = np.full(n, ABSENT, np.int64)
            ends = at["start"] + (np.arange(1, n + 1) * (end_ns - at["start"])) // n
        else:
            rows, part = batch
            received = rows.delivered_ns[part] >= 0
            n = int(received.sum())
            if not n:  # the input was exhausted
                return None
            requested, delivered = (
                np.clip(column[part][received], at["call"], end_ns) for column in (rows.requested_ns, rows.delivered_ns)
            )
            shapes, new = self.compilations.shape_ids(rows.signature[part][received])
            new_shape = bool(new.any())
            get = np.maximum(delivered - requested, 0)
            if function.serial:  # a fetch begins when the step before it has returned
                wait, ends = get, np.append(requested[1:], end_ns)
            else:  # prefetched: a batch that came early delays nothing
                wait, ends = delays(requested, delivered, end_ns)
            if at["flags"] & FIRST:
                self._first_batch(phases, int(requested[0]), int(delivered[0]), self.steps)
        parts = _divided(at, np.maximum(wait, 0), ends)
        of_call = np.array([traced]), np.array([new_shape]), np.array([parts.compute_ns // max(n, 1)])
        compiles = bool(self.compilations.among(*of_call)[0])
        if compiles:
            self._compilation(phases, call, parts.compute_ns, traced, 0)
        has_end, unknown = at["logs"] > 0, np.full(n, ABSENT, np.int64)
        body, none = parts.of(parts.compute_ns), np.zeros(n, np.int64)
        return {
            "step": np.arange(self.steps, self.steps + n),
            "start_ns": parts.starts + self.offset_ns,
            "duration_ns": parts.stops - parts.starts,
            "input_get_ns": get,
            "input_wait_ns": wait,
            "compile_ns": body if compiles else none,
            "body_ns": none if compiles else body,
            "gpu_wait_ns": parts.of(max(end_ns - at["call_end"], 0)) if has_end else unknown,
            "callbacks_ns": parts.callbacks if has_end else unknown,
            "batches": np.full(n, n, np.int64),
            "estimated": np.full(n, int(not function.serial), np.int64),
            "shape_id": shapes,
        }

    # ---- validation ----------------------------------------------------------------------

    def _validation(self, block: _Block, phases: list[tuple[Phase, int]]) -> Columns | None:
        """Return rows of `validation_steps`.

        Start, duration and input wait in ns, `ABSENT` (-1) where a wait is not known. Traced test functions are
        added to `phases` as compilations.
        """
        calls, rows = block.table, block.rows
        for i in np.flatnonzero(calls[:, CALL["flags"]] & TRACED):
            start, end = int(calls[i, CALL["call"]]), int(calls[i, CALL["call_end"]])
            phases.append((Phase("compilation", "test function traced", start, end, "", end - start, 0), self.steps))
        starts, ends = calls[:, CALL["start"]], calls[:, CALL["end"]]
        durations = ends - starts
        waits = np.full(len(calls), ABSENT, np.int64)
        if rows is not None and block.function.batches == 1:  # one row a call
            waits = np.clip(rows.delivered_ns - rows.requested_ns, 0, durations)
            waits[rows.requested_ns < 0] = ABSENT  # the request was not observed
        elif rows is not None:  # several batches a call
            shared = [self._shared(*each, rows) for each in zip(starts, ends, block.per_call, strict=True)]
            starts, durations, waits = (np.concatenate(column) for column in zip(*shared, strict=True))
        return {
            "step": np.full(len(starts), self.steps, np.int64),
            "start_ns": starts + self.offset_ns,
            "duration_ns": durations,
            "input_wait_ns": waits,
        }

    def _shared(self, start: int, end: int, part: slice, rows: InputRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return start, duration and wait (ns) of a validation call's batches, which share its time equally."""
        keep = rows.delivered_ns[part] >= 0
        get = (rows.delivered_ns[part] - rows.requested_ns[part])[keep]
        edges = np.linspace(start, end, len(get) + 1).astype(np.int64)
        return edges[:-1], np.diff(edges), np.clip(get, 0, end - start)


class _Division(NamedTuple):
    """A call divided among its batches; int64[batches] ns unless noted.

    Attributes:
        starts, stops, callbacks: of each batch's row.
        share: float64[batches], sums to 1: of each batch in what is known of the call as a whole.
        compute_ns: of the call, without waits.
    """

    starts: np.ndarray
    stops: np.ndarray
    callbacks: np.ndarray
    share: np.ndarray
    compute_ns: int

    def of(self, ns: int) -> np.ndarray:
        return np.floor(ns * self.share).astype(np.int64)


def _divided(at: Mapping[str, int], waits: np.ndarray, ends: np.ndarray) -> _Division:
    """Return how one call that ran several batches is divided among them.

    The begin hooks count for the first batch, the end hooks for the last; the rest is shared in proportion to the
    time that remains of each row.

    Args:
        at: times of the call in ns, by name of `CALL`.
        waits: int64[batches] input wait in ns.
        ends: int64[batches] end of each batch in ns; the last one ends with the call.
    """
    starts = np.concatenate([[at["start"]], ends[:-1]])
    stops = np.concatenate([ends[:-1], [at["end"]]])
    callbacks = np.zeros(len(ends), np.int64)
    callbacks[0] += at["hooks_end"] - at["hooks"]
    callbacks[-1] += at["logs_end"] - at["logs"] if at["logs"] else 0
    room = np.maximum(stops - starts - waits - callbacks, 0)
    # A wait cannot be longer than its row: the ends are estimates, the sum is not.
    compute_ns = max(at["call_end"] - at["call"] - int(waits.sum()), 0)
    return _Division(starts, stops, callbacks, room / max(int(room.sum()), 1), compute_ns)


# The parts of a row, in one of which a stop of the process lies.
_PARTS = ("input_wait_ns", "body_ns", "compile_ns", "gpu_wait_ns", "callbacks_ns")


def leave_out_stop(columns: Columns, start_ns: int, end_ns: int) -> None:
    """Subtract the time in which the process was stopped from the rows of any table, in place.

    The longest part of a step holds it: a stop lasts longer than anything else in a step.

    Args:
        start_ns, end_ns: of the stop, on the clock of `columns`.
    """
    begins = columns["start_ns"]
    length_column = "duration_ns" if "duration_ns" in columns else "self_ns"
    # `phases` have an end of their own
    ends = begins + columns[length_column] if length_column == "duration_ns" else columns["end_ns"]
    stopped_ns = np.minimum(ends, end_ns) - np.maximum(begins, start_ns)
    if "kind" in columns:  # sums of short hooks hold no stop
        stopped_ns[(columns["kind"] == "stopped") | (columns["self_ns"] < stopped_ns)] = 0
    for row in np.flatnonzero(stopped_ns > 0):
        columns[length_column][row] -= stopped_ns[row]
        parts = [name for name in _PARTS if name in columns]  # taken from the longest part first, then from the next
        ns_left = int(stopped_ns[row])
        for name in sorted(parts, key=lambda part: -columns[part][row]):
            part_ns = min(ns_left, max(0, int(columns[name][row])))
            columns[name][row] -= part_ns
            ns_left -= part_ns
            if name == "input_wait_ns" and "input_get_ns" in columns:
                columns["input_get_ns"][row] = max(0, columns["input_get_ns"][row] - part_ns)
