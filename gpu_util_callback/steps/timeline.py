"""The training thread's timeline, recorded with a few clock readings a step.

Everything here runs on the training thread and only reads clocks and appends to a queue: no lock,
no call of a framework, none that gives up Python's lock. The recorder's thread empties the queue
and has `assemble` turn it into rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import HandedOver, InputRows

# The columns of a call of the train (or test) function. Times are `time.perf_counter_ns`.
CALL = {
    name: column
    for column, name in enumerate(
        (
            "start",  # the step begins; the previous one ends here
            "hooks",  # the callbacks' begin hooks start
            "hooks_end",
            "call",  # the train function is called; 0 = not seen
            "call_end",
            "logs",  # the first end hook starts: the logs are Python numbers; 0 = not seen
            "logs_end",  # the last callback's end hook has returned
            "end",  # the next step begins, or the epoch's last step is over
            "flags",
        )
    )
}
TRACED = 1  # the function was traced in this call
FIRST = 2  # the first call of an epoch
ONE_PIECE = 4  # the call includes the wait for the device, if there was one
TESTING = 8  # a call of the test function

# A call in the queue: the columns of `CALL`, and those of a `Stamp` for each batch that Python
# fetched. One flat tuple of numbers: the garbage collector leaves it alone after its first look.
Call = tuple[object, ...]

# Steps: our own cost is measured in one of this many, not in a fit's first. It shares no divisor
# with `functions._QUERIED_EVERY`, or that query would be in all of them or in none.
SAMPLED_EVERY = 15


class Rows(Protocol):
    """Input rows that a function writes where Python does not see them: in its graph."""

    def take(self) -> InputRows:
        """Return the rows since the last call of `take`; on the recorder's thread."""


@dataclass
class Function:
    """The function that the queue's next calls are of."""

    which: str  # "train" or "validation"
    batches: int = 1  # that a call takes
    rows: Rows | None = None  # None = the calls' own stamps, if there are any
    serial: bool = False  # batches are fetched one by one between the steps, without prefetching


@dataclass
class Phase:
    """Row of the `phases` table, in `time.perf_counter_ns`.

    Attributes:
        kind: "callback", "checkpoint", "validation", "input_setup", "gap", "epoch", "compilation", …
        account: part of the fit's time that it is counted as; "" = none, it is part of something that is counted.
        self_ns: how much of it is counted.
        calls: training calls before it.
        count: calls of a hook that the row sums up.
    """

    kind: str
    name: str
    start: int
    end: int
    account: str
    self_ns: int
    calls: int
    count: int = 1


@dataclass
class SkippedCalls:
    """Training calls taken off the queue without a row; times as in a `Phase`."""

    start: int
    end: int = 0
    calls: int = 0
    own: int = 0  # ns, the durations of the calls


class Timeline:
    """Clock readings of the training thread, in the order in which a fit makes them.

    A fit is a sequence of intervals: callbacks' hooks, input set-up, steps, what follows the last
    step of an epoch, validation. `cursor` is the end of the last interval that is accounted for.
    """

    def __init__(self, perf: Callable[[], int] = time.perf_counter_ns):
        self.queue: deque[Call | Function | Phase] = deque()
        self.calls = 0  # training calls so far, those without a batch left out
        self.handed = HandedOver()  # which training batches were ready when requested
        self.steps_per_execution = 1  # batches that a call of the train function takes
        self.batches_per_hook = 1  # unit of the hooks' counts: fixed by Keras at the fit's begin
        self.serial = False
        # Our own cost, from clock readings around our own code in some of the steps.
        self.sampled = False  # whether this step is one of them
        self.own_step_ns = 0  # of this step so far
        self.own_ns = 0
        self.own_steps = 0
        self._perf = perf
        self._append = self.queue.append
        self.device_done: dict[int, int] = {}  # when the device had done a call, by its number
        self._epoch_call = 0  # calls before this epoch
        self._epoch = -1  # number of the epoch, from 0; -1 = before the first
        self._computed: tuple[int, int] | None = None  # the device's steps within a validation
        self._epoch_start = 0  # perf ns: its begin hooks started
        self.cursor = perf()
        self.first = True  # the next batch is the first of its epoch
        self.in_test = self._tested = False  # a validation is under way; `_tested`: was the last thing
        self.inside = ""  # "checkpoint" or "validation" while a loop is in a phase of that kind
        self._test_start = 0  # perf ns: the validation's begin
        self._input_ns = 0  # input set-up timed since `cursor`
        self.open = False  # a step has not ended yet
        self.fetch = 0  # when the next step's batch was requested, where that is before its hooks
        self._start = self._hooks = self._hooks_end = 0  # of the open step, as in `CALL`
        self._logs = self._logs_end = self._phase_end = 0  # `_phase_end`: of the last phase
        # Of the step's call, set by who times it: when it ran, its flags, and the stamps of its
        # batches one after the other, where they were taken in Python.
        self.call = self.call_end = self.flags = 0
        self.stamps: Sequence[float] = ()

    def begin(self) -> None:
        """Begin the account, or continue it with another fit."""
        self.cursor = self._perf()
        self.first, self.in_test, self._tested = True, False, False
        self._epoch, self._epoch_call = -1, self.calls
        self.open = self.sampled = False
        self.fetch = self.flags = 0

    def takes(self, which: str, batches: int, rows: Rows | None) -> None:
        """Announce the function of the queue's next calls.

        Args:
            which: "train" or "validation".
            batches: that a call takes.
            rows: which its graph writes; None = it writes none.
        """
        if which == "train":
            self.steps_per_execution = batches
        self._append(Function(which, batches, rows, self.serial))

    # ---- training steps ------------------------------------------------------------------

    def no_batch(self, start: int, end: int) -> None:
        """Note a call of the train function that found the input exhausted.

        Input time from the step's begin, no step.
        """
        begin = self._start
        self.phase("input_setup", "end of data", begin, end, "input_wait")
        self.cursor = end
        self._start = 0

    def logs_ready(self, batch: int = 0, logs: object = None) -> None:
        """Note that the first end hook is about to run: the logs are Python numbers by now."""
        self._logs = self._perf()

    def device_reached(self, batch: int, logs: object = None) -> None:
        """Note that the device finished the call ending with this epoch's batch; any thread."""
        call = self._epoch_call + batch // self.batches_per_hook
        self.device_done[call] = self._perf()

    # Around the list's hooks, in as few calls as possible: these run every step.

    @uncounted
    def around_begin(
        self, hook: Callable | None, begun: Callable[[int], None] | None, failed: Callable[[BaseException], None]
    ) -> Callable:
        """Return a list's `on_train_batch_begin` that closes the step before and begins a new one first, and is timed.

        Args:
            hook: the list's own; None = a loop, which has none: the result is the time, perf ns.
            begun: the rest of our own work at a step's begin; given the time, perf ns. None = nothing.
            failed: called with an error of ours.
        """
        timeline, perf, close = self, self._perf, self._close_step

        def timed(batch: int, logs: object = None) -> object:
            """Begin a step, then call the list's hook; an error of ours is only reported."""
            try:
                now = perf()
                begin = timeline.fetch or now
                if timeline.open:  # a step before this one
                    close(begin)
                elif timeline.first:  # no step before it in this epoch: the time since was input set-up
                    timeline._input_set_up(begin)
                timeline._start = begin
                timeline.fetch = timeline.call = timeline.call_end = timeline._logs = 0
                timeline.stamps = ()
                timeline.sampled = timeline.calls % SAMPLED_EVERY == 3
                timeline._hooks = timeline._hooks_end = now
                if begun is not None:  # our own work, not the hooks'
                    begun(now)
                    timeline._hooks = timeline._hooks_end = perf()
                timeline.own_step_ns = timeline._hooks - now
            except Exception as error:
                failed(error)
            if hook is None:
                return now
            result = hook(batch) if logs is None else hook(batch, logs)
            timeline._hooks_end = perf()
            return result

        return timed

    @uncounted
    def around_end(self, hook: Callable, logs_are_ready: bool) -> Callable:
        """Return a list's `on_train_batch_end` that is timed, and after which a step may end.

        Args:
            logs_are_ready: Note here when the logs were ready, as nothing else calls `logs_ready`.
        """
        perf = self._perf

        def timed(batch: int, logs: object = None) -> object:
            """Call the list's hook, and note when it was called and returned (perf ns)."""
            if logs_are_ready:
                self._logs = perf()
            result = hook(batch, logs)
            self._logs_end = perf()
            self.open = True
            return result

        return timed

    def worked(self, start: int, own_end: int, end: int, flags: int, stamps: Sequence[float]) -> None:
        """Note the work of a step without hooks: one piece, a wait for the device included.

        Args:
            start, end: of the work, perf ns.
            own_end: when it would have ended without the named phases within, which count as
                callbacks and are placed last by convention.
            flags: `TRACED` or 0.
            stamps: a `Stamp` for each of its batches, one after the other.
        """
        self.call = start
        self.call_end = self._logs = own_end
        self._logs_end = end
        self.flags |= ONE_PIECE | flags
        self.stamps = stamps
        self.open = True

    def without_hooks(self) -> None:
        """Note that our own work at a step's begin is done, and there are no hooks to call."""
        self._hooks = self._hooks_end = self._perf()

    @property
    def working(self) -> bool:
        """Return whether a training step of a fit is under way; readable on any thread."""
        return self._hooks_end > self._logs_end and not self.in_test

    @property
    def work_ended(self) -> int:
        """Return when the work of the step that has not ended yet was done; 0 without one."""
        return self._logs_end if self.open else 0

    def _close(self, hooks_end: int, end: int, flags: int) -> None:
        """Append a step as one tuple in the order of `CALL`."""
        times = self._start, self._hooks, hooks_end, self.call, self.call_end, self._logs, self._logs_end, end
        self._append((*times, flags, *self.stamps))

    def _close_step(self, end: int) -> None:
        """Append the training step, which ends at `end` (perf ns), and add our own cost in it if it was sampled."""
        self._close(self._hooks_end, end, self.flags)
        self.calls += 1
        self.flags = 0
        self.open = self._tested = False
        if self.sampled:
            self.sampled = False
            self.own_ns += self.own_step_ns
            self.own_steps += 1

    def _input_set_up(self, now: int) -> None:
        """Note the time since the last event, up to `now` (perf ns), as the set-up of an epoch's iterator."""
        self.first = False
        self.flags = FIRST
        name = f"epoch {self._epoch + 1}: iterator"
        self.phase("input_setup", name, self.cursor, now, "input_wait")
        self.cursor = now
        self._input_ns = 0

    # ---- what surrounds them -------------------------------------------------------------

    def input_work(self, name: str, start: int, end: int) -> None:
        """Note input set-up or tear-down outside steps (a new iterator, workers that stop), perf ns."""
        if self.first or self.in_test:
            return  # inside an interval that counts as a whole
        self.leave_steps()
        self.phase("input_setup", name, start, end, "input_wait")
        self._input_ns += end - start

    def waited(self, name: str, kind: str, start: int, end: int, count: int) -> None:
        """Note a wait outside the steps for `count` calls of a callback's hook on other threads.

        Args:
            name, kind: of the hook, as of a `Phase`.
            start, end: perf ns.
        """
        self.leave_steps()
        self._phase_end = end
        self._append(Phase(kind, name, start, end, "callbacks", end - start, self.calls, count))
        self._input_ns += end - start

    def epoch_begin(self, epoch: int) -> None:
        """Note that the callbacks' epoch-begin hooks are about to run."""
        self.leave_steps()
        self._epoch = epoch
        self._epoch_call = self.calls
        self._epoch_start = self._perf()

    def epoch_begun(self) -> None:
        """Note that the epoch-begin hooks have returned; the input is set up next."""
        self.cursor = self._perf()
        self.first = True
        self._input_ns = 0

    def test_begin(self) -> None:
        """Begin a validation: the callbacks' test-begin hooks are about to run."""
        self.leave_steps()
        self.in_test = True
        self._test_start = self.cursor
        self._computed = None
        self.first = False

    def test_batch_begin(self) -> None:
        """Begin a validation step, with its fetch where that was seen; close the one before."""
        now = self._perf()
        begin = self.fetch or now
        self.fetch = 0
        if self.open:
            self._close_test(begin)
        self._start = begin
        self._hooks = now
        self.call = self.call_end = self.flags = self._logs = 0
        self.stamps = ()

    def test_batch_end(self) -> None:
        """Note that a validation batch's end hooks have returned."""
        self._logs_end = self._perf()
        self.open = True

    def test_no_batch(self, start: int, end: int) -> None:
        """Note that the validation's input was exhausted: no step."""
        self.open = False

    def _close_test(self, end: int) -> None:
        """Append the validation step, which ends now (perf ns)."""
        self._close(self._hooks, end, self.flags | TESTING)
        self.open = False

    def test_end(self) -> None:
        """Note that the callbacks' test-end hooks are about to run."""
        if self.open:
            self._close_test(self._logs_end)

    def steps_computed(self, start: int, end: int) -> None:
        """Note that from `start` to `end` (perf ns) a validation waited for earlier training steps.

        Callable on any thread.
        """
        self._computed = (start, end)

    def test_ended(self) -> None:
        """End the validation: the test-end hooks have returned.

        Training steps that the device still computed when it began are a gap, not validation.
        """
        now = self._perf()
        start = self._test_start
        if self._computed is not None and self._computed[0] >= start:  # noted in this validation
            begun, computed_end = self._computed
            self.phase("gap", "steps of the epoch", begun, computed_end, "step")
            self._input_ns += computed_end - begun
        self.phase("validation", "validation", start, now, "validation", now - start - self._input_ns)
        self.in_test = False
        self._tested = True
        self._input_ns = 0
        self.cursor = now

    def epoch_end(self) -> None:
        """Note that the callbacks' epoch-end hooks are about to run: the time since the last step is a gap."""
        self.leave_steps()
        now = self._perf()
        # Metrics are read here, which waits for the device; after a validation this is the time in
        # which evaluate() returns.
        account = "validation" if self._tested else "step"
        own_ns = now - self.cursor - self._input_ns
        self.phase("gap", "end of epoch", self.cursor, now, account, own_ns)
        self._tested = False
        self.cursor = now
        self._input_ns = 0

    def epoch_ended(self) -> None:
        """Note that the epoch-end hooks have returned."""
        now = self._perf()
        start = self._epoch_start
        self.phase("epoch", f"epoch {self._epoch + 1}", start, now, "")
        self.cursor = now

    def leave_steps(self) -> None:
        """End the step that has not ended yet: something other than a step follows."""
        if self.open:
            self._close_step(self._logs_end)
            self.cursor = self._logs_end

    def phase(self, kind: str, name: str, start: int, end: int, account: str, own_ns: int | None = None) -> None:
        """Note an interval outside the steps, or a part of one that deserves a row of its own.

        Args:
            kind, name: as of a `Phase`.
            start, end: perf ns.
            account: what it is counted as; "" = nothing, it is part of something that is counted.
            own_ns: how much of it is counted (less than 0 = 0); None = all.
        """
        own_ns = max(end - start if own_ns is None else own_ns, 0)
        self._phase_end = end
        self._append(Phase(kind, name, start, end, account, own_ns, self.calls))

    def latest(self) -> int:
        """Return the last moment at which the training thread was seen, perf ns."""
        return max(self._start, self._logs_end, self.call_end, self.cursor, self._phase_end)

    def forget(self) -> None:
        """Drop everything from now on, in a forked process, where no thread takes it."""
        self.queue = deque(maxlen=0)
        self._append = self.queue.append

    def finish(self) -> None:
        """End the timeline, however the training ended."""
        if self.open:
            (self._close_test if self.in_test else self._close_step)(self._logs_end)
