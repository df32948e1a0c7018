"""The timeline of a custom training loop: batches, steps and phases as they come."""

from __future__ import annotations

from typing import Any

from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.callback_list import LONG_NS, SHORT_NS, HookSums
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.dispatch import OperationCount
from gpu_util_callback.steps.rows import UNSEEN, Stamp
from gpu_util_callback.steps.timeline import ONE_PIECE, TRACED, Timeline

__all__ = ["LoopTimeline"]


class _Phase:
    """An open phase."""

    __slots__ = ("account", "inner_ns", "kind", "name", "start")

    def __init__(self, kind: str, name: str, start: int, account: str):
        self.kind = kind
        self.name = name
        self.start = start
        self.account = account
        self.inner_ns = 0  # of nested phases with an account of their own


class LoopTimeline(Timeline):
    """Steps of a loop without hooks: a step lasts from one request for a batch to the next.

    All methods run on the training thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.compile_clock = CompileClock()
        self.sums: list[HookSums] = []
        self._sums: dict[str, HookSums] = {}
        self._phases: list[_Phase] = []
        self._working = False  # within a step's work
        self._in_epoch = False
        self._stamp: Stamp = (UNSEEN, UNSEEN, 0.0, 0)
        self._work_start = 0
        self._inside_ns = 0  # phases within the step's work
        self._compiled = 0
        self._fetching = 0
        self._fetched: tuple[int, int] | None = None
        self._mark: Any = None  # annotation of that wait in the trace of a window
        self.windows: Any = None  # a `KerasWindows`, where profiler windows are wanted
        self.operations: OperationCount | None = None
        self._passes = [0, 0]  # passes over datasets so far: training's, validations'

    @property
    def validating(self) -> bool:
        """Return whether batches belong to a validation."""
        return self._in_test

    @property
    def working(self) -> bool:
        """Return whether a training step's work is under way, outside any named phase."""
        return self._working and not self._in_test and not self._phases

    # ---- steps -----------------------------------------------------------------------------

    @property
    def current(self) -> tuple[bool, int]:
        """Return the current pass over a dataset: (whether it is a validation's, its number)."""
        return self._in_test, self._passes[self._in_test]

    def batches_begin(self) -> None:
        """Begin a new pass over a dataset: an epoch, or a validation's."""
        self._end_work(self._perf())
        try:
            self.compile_clock.start()  # the compiler may have been imported since
        except Exception:  # then compilations are steps like others, as at the start
            pass
        if not self._in_test and self._in_epoch:
            self.batches_end()
        self._passes[self._in_test] += 1
        if self.operations is not None:
            self.operations.begin()
        if self._in_test:
            return
        self.epoch_begin(self._epoch + 1)
        self.epoch_begun()
        self._in_epoch = True

    def step_begin(
        self, requested: int, delivered: int, signature: float = 0.0, busy: int = 0
    ) -> None:
        """Begin a step; its batch was requested and delivered (`UNSEEN`, now: request not seen).

        Args:
            busy: until when the device was busy with the step before; 0 = unknown.
        """
        if requested != UNSEEN:
            requested = min(max(requested, self._logs_end if self._open else 0), delivered)
        begin = delivered if requested == UNSEEN else requested
        self._end_work(begin)
        if not self._open and not self._in_test and not (self._first and self._in_epoch):
            self._leave_own_code(begin)
            self._first = False
        self.fetched(begin)
        self._tested = False
        if self._in_test:
            self.test_batch_begin()
        else:
            for phase in self._phases:
                phase.account = ""  # it contains steps, which have an account of their own
            self.batch_begin()
            if self.windows is not None:
                self.windows.batch_begin()
                self._hooks = self._hooks_end = self._perf()
        self._stamp = (requested, delivered, signature, busy)
        self._work_start = delivered
        self._compiled = self.compile_clock.ns
        self._inside_ns = 0
        self._working = True

    def count_operations(self, batch: Any = None) -> None:
        """Count operations of a step that begins with this batch."""
        if self.operations is not None and not self._in_test:
            self.operations.step(batch)

    def step_end(self) -> None:
        """End the step's work."""
        self._end_work(self._perf())

    def request(self) -> None:
        """Note that the next batch is about to be requested: a profiler window begins with that."""
        if self.windows is not None and not self._in_test:
            self._end_work(self._perf())
            self.windows.batch_requested()

    def fetch_begin(self) -> None:
        """Note that the loop requests the next step's batch."""
        self._end_work(self._perf())
        self.request()
        self._mark = waits.begin()
        self._fetching = self._perf()

    def fetch_end(self, came: bool) -> None:
        """Note that the batch is there, or (not `came`) that there is none."""
        now = self._perf()
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()
        if came:
            self._fetched = (self._fetching, now)
        else:
            self._leave_steps()
            self._phase(
                "input_setup",
                "end of data",
                self._fetching,
                now,
                "input_wait",
                now - self._fetching,
            )
            self._cursor = now

    def take_fetched(self) -> tuple[int, int] | None:
        """Return when the next batch was requested and delivered, if `fetch_begin` was called."""
        fetched, self._fetched = self._fetched, None
        return fetched

    def input_ended(self, requested: int, now: int) -> None:
        """End the pass: a batch was requested and there was none."""
        self._end_work(requested)
        self.input_work("end of data", requested, now)

    def batches_end(self) -> None:
        """End the pass over a dataset, exhausted or left early."""
        self._end_work(self._perf())
        if self._in_test:
            if self._open:
                self._close_test(self._logs_end)
        elif self._in_epoch:
            self._in_epoch = False
            self.epoch_end()
            self.epoch_ended()
            self._first = False
            if self.windows is not None:
                self.windows.epoch_end()

    def _end_work(self, end: int) -> None:
        if not self._working:
            return
        self._working = False
        end = max(end, self._work_start)
        compiled = self.compile_clock.ns - self._compiled
        own = end - self._work_start - self._inside_ns
        self._call = self._work_start
        # Phases within the step count as callbacks; they are placed last by convention.
        self._call_end = self._logs = self._work_start + max(own, 0)
        self._logs_end = end
        self._flags |= ONE_PIECE
        if self.compile_clock.explains(compiled, own):
            self._flags |= TRACED
        self._open = True
        self._stamps = self._stamp

    def _leave_own_code(self, now: int) -> None:
        """Account for the loop's own code since the last accounted interval."""
        if self._in_epoch and now - self._cursor > SHORT_NS:
            self._phase("gap", "between steps", self._cursor, now, "step", now - self._cursor)
        self._cursor = now

    # ---- phases ----------------------------------------------------------------------------

    def phase_begin(self, name: str, kind: str) -> None:
        """Begin a phase of the loop. Validation ends the step it is in; other phases do not."""
        now = self._perf()
        if self.operations is not None:
            self.operations.begin()
        if kind == "validation" and not self._phases and not self._in_test:
            self._end_work(now)
            if not self._open:
                self._leave_own_code(now)
            self.test_begin()
            if self.windows is not None:
                self.windows.test_begin()
            self._phases.append(_Phase(kind, name, now, "validation"))
            return
        counted = "callbacks" if not self._working and not self._in_test else ""
        if counted and not self._phases:
            self._leave_steps()
            self._leave_own_code(now)
        self._phases.append(_Phase(kind, name, now, counted))

    def phase_end(self) -> None:
        """End the innermost phase."""
        if not self._phases:
            return
        phase = self._phases.pop()
        if phase.account == "validation":
            self._end_work(self._perf())
            self.test_end()
            self.test_ended()
            return
        now = self._perf()
        spent = now - phase.start
        outer = self._phases[-1] if self._phases else None
        if phase.account and outer is not None and outer.account:
            outer.inner_ns += spent
        if phase.account:
            self._phase(
                phase.kind, phase.name, phase.start, now, phase.account, spent - phase.inner_ns
            )
            self._cursor = now
        elif self._working and outer is None:
            self._inside_ns += spent
            self._sum_up(phase, now)
        else:
            self._phase(phase.kind, phase.name, phase.start, now, "", spent)

    def _sum_up(self, phase: _Phase, now: int) -> None:
        """Record a phase within a step: short ones are summed by name, as batch hooks are."""
        spent = now - phase.start
        if spent >= LONG_NS:
            self._phase(phase.kind, phase.name, phase.start, now, "", spent)
            return
        sums = self._sums.get(phase.name)
        if sums is None:
            sums = self._sums[phase.name] = HookSums(phase.name, phase.kind)
            self.sums.append(sums)
        if not sums.count:
            sums.start = phase.start
        sums.end = now
        sums.total += spent
        sums.count += 1

    def leave(self) -> None:
        """Leave the monitored block: end what is still open."""
        self._end_work(self._perf())
        while self._phases:
            self.phase_end()
        self.batches_end()
        if self.windows is not None:
            self.windows.end()
            self.windows = None

    def finish(self) -> None:
        self.leave()
        super().finish()
