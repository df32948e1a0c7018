"""A custom training loop: its batches, steps and phases as they come, for the timeline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.annotations import Annotation
from gpu_util_callback.steps.callback_list import LONG_NS, SHORT_NS, HookSums
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.dispatch import OperationCount
from gpu_util_callback.steps.rows import UNSEEN, Stamp
from gpu_util_callback.steps.timeline import TRACED, Timeline

_clock = time.perf_counter_ns


@dataclass(slots=True)
class _OpenPhase:
    """A phase that has begun and not ended; times in perf ns.

    Attributes:
        kind: "validation", "checkpoint", "callback", …
        account: part of the fit's time that it is counted as: "validation" or "callbacks"; "" = none, it lies in
            an interval that is counted as a whole (a step, a validation).
        inner_ns: time of nested phases that are counted by themselves.
    """

    kind: str
    name: str
    start: int
    account: str
    inner_ns: int = 0


def _raise(error: BaseException) -> None:
    raise error


class Loop:
    """Steps of a loop without hooks: a step lasts from one request for a batch to the next.

    All methods run on the training thread.

    Args:
        timeline: what the steps and phases are written to.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.compile_clock = CompileClock()
        self.sums: list[HookSums] = []  # the values of `_sums`, which the recorder takes rows from
        self.windows: Any = None  # a `KerasWindows`, where profiler windows are wanted
        self.operations: OperationCount | None = None
        self._sums: dict[str, HookSums] = {}  # by the phase's name: short phases inside steps
        self._phases: list[_OpenPhase] = []  # the open ones, the outermost first
        self._working = False  # within a step's work
        self._in_epoch = False
        self._epochs = 0  # so far
        # of the step's batch: requested, delivered, signature, busy until
        self._stamp: Stamp = (UNSEEN, UNSEEN, 0.0, 0)
        self._work_start = 0  # perf ns: the step's batch was delivered
        self._phases_in_step_ns = 0  # of phases within the step's work so far
        self._compiled_before_ns = 0  # reading of `compile_clock`, ns, at the step's begin
        self._fetching = 0  # perf ns: when the loop's own fetch began
        # requested, delivered (perf ns) of the batch that was fetched last
        self._fetched: tuple[int, int] | None = None
        self._mark: Annotation | None = None  # annotation of that wait in the trace of a window
        self._begin_step = timeline.around_begin(None, None, _raise)
        self._passes = [0, 0]  # passes over datasets so far: training's, validations'

    @property
    def validating(self) -> bool:
        """Return whether batches belong to a validation."""
        return self.timeline.in_test

    @property
    def working(self) -> bool:
        """Return whether a training step's work is under way, outside any named phase."""
        return self._working and not self.timeline.in_test and not self._phases

    # ---- steps -----------------------------------------------------------------------------

    @property
    def current(self) -> tuple[bool, int]:
        """Return the current pass over a dataset: (whether it is a validation's, its number)."""
        return self.validating, self._passes[self.validating]

    def batches_begin(self) -> None:
        """Begin a new pass over a dataset: an epoch, or a validation's.

        A pass that is left early and followed by another one ends here.
        """
        self._end_work(_clock())
        try:
            self.compile_clock.start()  # the compiler may have been imported since
        except Exception:  # then compilations are steps like others, as at the start
            pass
        if not self.validating and self._in_epoch:
            self.batches_end()
        self._passes[self.validating] += 1
        if self.operations is not None:
            self.operations.begin()  # the count of operations begins with a pass
        if self.validating:  # a validation's pass is part of its phase: no epoch
            return
        self.timeline.epoch_begin(self._epochs)
        self.timeline.epoch_begun()
        self._epochs += 1
        self._in_epoch = True

    def step_begin(self, requested: int, delivered: int, signature: float = 0.0, busy: int = 0) -> None:
        """Begin a training or validation step, whose batch was requested and delivered at these times (perf ns).

        The step before ends at the request, or at the delivery if no request was seen.

        Args:
            requested: `UNSEEN` if the request was not seen.
            signature: of the batch's shapes; 0 = unknown.
            busy: until when the device was busy with the step before, perf ns; 0 = unknown.
        """
        timeline = self.timeline
        begin = delivered
        if requested != UNSEEN:
            if timeline.open:  # requested ahead, in the middle of the step before: that one's work ends first
                requested = max(requested, timeline.work_ended)
            begin = requested = min(requested, delivered)
        if self._working:  # no `step_end` was called
            self._end_work(begin)
        begins_epoch = timeline.first and self._in_epoch  # what came before is no code between its steps
        if not timeline.open and not timeline.in_test and not begins_epoch:
            self._leave_own_code(begin)
            timeline.first = False
        timeline.fetch = begin
        if timeline.in_test:
            timeline.test_batch_begin()
        else:
            for phase in self._phases:
                phase.account = ""  # it contains steps, which have an account of their own
            now = self._begin_step(0)  # closes the step before and returns the time
            if self.windows is not None:
                self.windows.batch_begin(now)
                timeline.without_hooks()
        self._stamp = (requested, delivered, signature, busy)
        self._work_start = delivered
        self._compiled_before_ns = self.compile_clock.ns
        self._phases_in_step_ns = 0
        self._working = True

    def count_operations(self, batch: object = None) -> None:
        """Count operations of a step that begins with this batch."""
        if self.operations is None or self.validating:
            return
        if not self.operations.step(batch):  # enough were counted
            self.operations = None

    def step_end(self) -> None:
        """End the step's work."""
        self._end_work(_clock())

    def request(self) -> None:
        """Note that the next batch is about to be requested: a profiler window begins with that."""
        if self.windows is not None and not self.validating:
            self._end_work(_clock())
            self.windows.batch_requested()

    def fetch_begin(self) -> None:
        """Note that the loop requests the next step's batch."""
        self._end_work(_clock())
        self.request()
        self._mark = waits.begin()
        self._fetching = _clock()

    def fetch_end(self, came: bool) -> None:
        """Note that the batch is there, or (not `came`) that the input is exhausted.

        That fetch is input time, no step.
        """
        now = _clock()
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()
        if came:
            self._fetched = (self._fetching, now)
        else:
            timeline = self.timeline
            timeline.leave_steps()
            timeline.phase("input_setup", "end of data", self._fetching, now, "input_wait")
            timeline.cursor = now

    def take_fetched(self) -> tuple[int, int] | None:
        """Return when the next batch was requested and delivered, if `fetch_begin` was called."""
        fetched, self._fetched = self._fetched, None
        return fetched

    def input_ended(self, requested: int, now: int) -> None:
        """End the pass: a batch was requested and there was none."""
        self._end_work(requested)
        self.timeline.input_work("end of data", requested, now)

    def input_taken_down(self, begin: int, end: int) -> None:
        """Note the time in which the iterator of a pass was taken down, unless it is negligible."""
        if end - begin > SHORT_NS:
            self.timeline.input_work("end of data", begin, end)

    def batches_end(self) -> None:
        """End the pass over a dataset, exhausted or left early: its epoch, or the steps of the validation."""
        self._end_work(_clock())
        if self.validating:
            self.timeline.test_end()
        elif self._in_epoch:
            self._in_epoch = False
            self.timeline.epoch_end()
            self.timeline.epoch_ended()
            self.timeline.first = False
            if self.windows is not None:
                self.windows.epoch_end()

    def _end_work(self, end: int) -> None:
        """End the work of the open step at `end` (perf ns), and hand it to the timeline; nothing without an open step.

        The step's own time is what remains without the named phases inside; it counts as a compilation if most of
        it was spent compiling.
        """
        if not self._working:
            return
        self._working = False
        end = max(end, self._work_start)  # a batch requested ahead: the step has no length
        compiled_ns = self.compile_clock.ns - self._compiled_before_ns
        own_ns = end - self._work_start - self._phases_in_step_ns
        flags = TRACED if compiled_ns and self.compile_clock.explains(compiled_ns, own_ns) else 0
        own_end = self._work_start + max(own_ns, 0)  # as if the phases inside came last
        self.timeline.worked(self._work_start, own_end, end, flags, self._stamp)

    def _leave_own_code(self, now: int) -> None:
        """Account for the loop's own code since the last accounted interval."""
        timeline = self.timeline
        if self._in_epoch and now - timeline.cursor > SHORT_NS:
            timeline.phase("gap", "between steps", timeline.cursor, now, "step")
        timeline.cursor = now

    # ---- phases ----------------------------------------------------------------------------

    def phase_begin(self, name: str, kind: str) -> None:
        """Begin a phase of the loop. Validation ends the step it is in; other phases do not.

        Outside steps and validation a phase is counted as callbacks' time; inside, as a part of the step or validation.
        """
        now = _clock()
        timeline = self.timeline
        if self.operations is not None:
            self.operations.begin()
        if kind == "validation" and not self._phases and not self.validating:
            self._end_work(now)
            if not timeline.open:
                self._leave_own_code(now)
            timeline.test_begin()
            if self.windows is not None:
                self.windows.test_begin()
            self._phases.append(_OpenPhase(kind, name, now, "validation"))
            return
        # Inside a step or a validation it has no account: the time is counted there.
        account = "callbacks" if not self._working and not self.validating else ""
        if account and not self._phases:  # the outermost phase between steps
            timeline.leave_steps()
            self._leave_own_code(now)
        self._phases.append(_OpenPhase(kind, name, now, account))
        timeline.inside = kind if kind != "callback" else timeline.inside

    def phase_end(self) -> None:
        """End the innermost phase and record it.

        A phase with an account is counted there, without its nested phases that have one. A phase without one is a
        detail of the step or validation around it.
        """
        if not self._phases:
            return
        timeline = self.timeline
        phase = self._phases.pop()
        # What the thread is in for the watch on stalls: "callback" is none, as a loop may run as a whole in such a
        # phase.
        timeline.inside = next((outer.kind for outer in self._phases if outer.kind != "callback"), "")
        if phase.account == "validation":
            self._end_work(_clock())
            timeline.test_end()
            timeline.test_ended()
            return
        now = _clock()
        spent_ns = now - phase.start
        outer = self._phases[-1] if self._phases else None
        if phase.account and outer is not None and outer.account:  # counted here, so not once more in the outer one
            outer.inner_ns += spent_ns
        if phase.account:  # between steps
            own_ns = spent_ns - phase.inner_ns
            timeline.phase(phase.kind, phase.name, phase.start, now, phase.account, own_ns)
            timeline.cursor = now
        elif self._working and outer is None:  # within a step: subtracted from its own work
            self._phases_in_step_ns += spent_ns
            self._record_in_step(phase, now)
        else:  # within another phase, or a validation: a row, counted nowhere
            timeline.phase(phase.kind, phase.name, phase.start, now, "")

    def _record_in_step(self, phase: _OpenPhase, now: int) -> None:
        """Record a phase within a step that ends now.

        A long one as a row, short ones summed by name as batch hooks are.
        """
        if now - phase.start >= LONG_NS:
            self.timeline.phase(phase.kind, phase.name, phase.start, now, "")
            return
        sums = self._sums.get(phase.name)
        if sums is None:
            sums = self._sums[phase.name] = HookSums(phase.name, phase.kind)
            self.sums.append(sums)
        sums.add(phase.start, now)

    def leave(self) -> None:
        """Leave the monitored block: end the open step, phases, pass and profiler window.

        May be called more than once.
        """
        self._end_work(_clock())
        while self._phases:
            self.phase_end()
        self.batches_end()
        if self.windows is not None:
            self.windows.end()
            self.windows = None
