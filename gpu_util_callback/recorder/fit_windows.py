"""Profiler windows of a Keras fit: the first batch of each call of the train function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpu_util_callback.backends.base import profiler_session_for
from gpu_util_callback.profiling.profiler_windows import SOURCE, ProfilerWindows
from gpu_util_callback.profiling.schedule import Planner, TraceSchedule
from gpu_util_callback.redaction import hashed_host
from gpu_util_callback.steps.timeline import Timeline

if TYPE_CHECKING:
    from gpu_util_callback.recorder.recorder import Recorder

# Backend -> why it takes windows only on request. A PyTorch profile can only be stopped by the training thread
# itself, which it holds up, and two at a time crash the process.
ON_REQUEST = {
    "torch": "on PyTorch they are taken only on request: each delays training, by 0.3 to 3.5 s on an H200",
    "jax": "JAX's profiler has crashed processes with several GPUs as it stopped (jax#40260): "
    "with several they are taken only on request",
}


def open_windows(
    recorder: Recorder, backend: str, callbacks: Iterable[object], steps_per_epoch: int | None, epochs: int = 0
) -> KerasWindows | None:
    """Return the profiler windows of a fit; on the training thread, as it begins.

    Where the framework takes them only on request, that is listed as unavailable.

    Args:
        backend: "tensorflow", "jax" or "torch".
        callbacks: of the fit: another profiler may be among them.
        steps_per_epoch: None = not known.
        epochs: that the fit is to have; 0 = not known.

    Returns: None where none are requested.
    """
    settings = recorder.settings
    if settings.trace is None:  # switched off
        return None
    devices = recorder.adapter.runtime.devices
    # the default schedule: nobody asked for windows
    if settings.trace == TraceSchedule() and (backend == "torch" or (backend == "jax" and len(devices() or ()) > 1)):
        cure = "trace=[(100, 105)] takes these steps"
        recorder.unavailable.append({"source": SOURCE, "reason": ON_REQUEST[backend], "cure": cure})
        return None
    recorder.windows = ProfilerWindows(
        profiler_session_for(backend),
        settings.trace,
        recorder.clock,
        settings.log_dir,
        settings.overhead_budget,
        fit_is_over=recorder.watch.over,
        redact=hashed_host if settings.redact else None,
    )
    windows = KerasWindows(
        recorder.windows, recorder.timeline, callbacks, steps_per_epoch, recorder.timeline.steps_per_execution, epochs
    )
    recorder.adapter.before_fetch(windows.batch_requested)
    return windows


class KerasWindows:
    """Step numbers of a fit's train function calls, passed to its windows.

    Args:
        windows: the fit's.
        timeline: counts the calls that had a batch.
        steps_per_epoch: where it is known.
        steps_per_call: batches in one call; the last call of an epoch may have fewer.
        epochs: that the fit is to have; 0 = not known.
    """

    def __init__(
        self,
        windows: ProfilerWindows,
        timeline: Timeline,
        callbacks: Iterable[object],
        steps_per_epoch: int | None,
        steps_per_call: int,
        epochs: int = 0,
    ):
        self._windows = windows
        self._timeline = timeline
        self._per_epoch = steps_per_epoch
        self._per_call = max(1, steps_per_call)
        self._epoch_first_step = 0  # step at which the epoch began
        self._calls_before_epoch = timeline.calls  # calls before it
        self._calls_begun = 0  # calls of the epoch that have begun, where each is looked at
        self._worked = False  # whether a window had to be opened, marked or closed as the last one began
        # While no boundary of steps is looked at: who says until when (`attends_ns`).
        self.away: Planner | None = None
        windows.begin(callbacks, steps_per_epoch, self._per_call, epochs * (steps_per_epoch or 0) or None)
        self._planner: Planner | None = windows.planner

    def batch_requested(self) -> None:
        """Note that the next batch is requested before its call; the request begins the step."""
        self._planner = None  # these calls are counted, so that none may be left out
        self._step_begins(self._calls_begun)

    def batch_begin(self, now: int) -> None:
        """Begin a call of the train function, at `now` (perf ns).

        Its step may have begun before, with `batch_requested`.
        """
        timeline, planner = self._timeline, self._planner
        call = timeline.calls - self._calls_before_epoch
        same_calls = timeline.steps_per_execution == self._per_call
        # no window is due before `attends_ns`: look at no step
        if planner is not None and call and same_calls and now < planner.attends_ns:
            if self.away is None:
                self.away = planner
                planner.skip_boundaries()
            return
        self.away = None
        if not same_calls:  # begin a new count where calls take another number of batches
            self._epoch_first_step += call * self._per_call
            self._calls_before_epoch, self._per_call = timeline.calls, timeline.steps_per_execution
            self._calls_begun = call = 0
        if call >= self._calls_begun:  # it begins here
            self._step_begins(call)
        else:  # it began with its request
            self._calls_begun = call + 1
            timeline.sampled = timeline.sampled and not self._worked

    def _step_begins(self, call: int) -> None:
        """Pass on to the profiler windows that the first step of a call begins.

        Args:
            call: its number in the epoch. Where a window had work to do, the step is no sample of our own cost.
        """
        self._calls_begun = call + 1
        self._worked = self._windows.step_begins(self._epoch_first_step + call * self._per_call)
        if self._worked:
            self._timeline.sampled = False  # windows have an account of their own

    def test_begin(self) -> None:
        """Begin a validation: its steps are not training's."""
        self._windows.steps_pause(self._delivered())

    def epoch_end(self) -> None:
        """Note that steps pause, and count calls from 0 again in the next epoch."""
        delivered = self._delivered()
        self._windows.steps_pause(delivered)
        self.away = None
        self._epoch_first_step = delivered
        self._calls_before_epoch = self._timeline.calls
        self._calls_begun = 0

    def end(self) -> None:
        self._windows.end(self._delivered())

    def _delivered(self) -> int:
        """Return the number of steps of the fit so far."""
        steps = (self._timeline.calls - self._calls_before_epoch) * self._per_call
        if self._per_epoch is not None:
            steps = min(steps, self._per_epoch)
        return self._epoch_first_step + steps
