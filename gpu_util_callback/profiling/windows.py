"""Profiler windows of a fit: opens and closes them, and has their files read."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_util_callback.profiling.planner import Action, PlannedWindow, Planner
from gpu_util_callback.profiling.reader import WindowReader
from gpu_util_callback.profiling.result import WindowResult
from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.profiling.session import (
    Marker,
    ProfilerBusy,
    ProfilerFailed,
    ProfilerSession,
    profile_claims,
)
from gpu_util_callback.profiling.window import Surroundings, Window
from gpu_util_callback.recording.clock import Clock

__all__ = ["ProfilerWindows"]

log = logging.getLogger("gpu_util_callback")

SOURCE = "profiler windows"
# Assumed cost of the first window, before one was measured. Measured without a GPU: 0.15 to
# 0.3 s, most of it the start of the reading process. Attaching to a GPU loads libraries and slows
# its steps.
FIRST_GUESS_S = 0.6
FIRST_GUESS_GPU_S = 3.0
_NONE = Action.NONE
STOP_WAIT_S = 5.0  # how long a named window waits for the previous one to be stopped

_all: weakref.WeakSet[ProfilerWindows] = weakref.WeakSet()


class ProfilerWindows:
    """The profiler windows of one fit.

    `begin`, `step_begins`, `steps_pause` and `end` run on the training thread and never raise;
    what may take long runs on a thread of each window, and reading in a process of its own.

    Args:
        session: the framework's profiler.
        schedule: which steps.
        clock: the recording's.
        log_dir: where the Profile tab will look; a path or an fsspec URL.
        share: the overhead budget, a share of wall time.
        fit_is_over: returns whether the fit has been left, e.g. by an exception; called on any
            thread. None = unknown, and a minute without a step is taken for its end.
        redact: replaces host names; None = they may stay.
        reader: reads the windows' files.
    """

    def __init__(
        self,
        session: ProfilerSession,
        schedule: TraceSchedule,
        clock: Clock,
        log_dir: str,
        share: float,
        fit_is_over: Callable[[], bool] | None = None,
        redact: Callable[[str], str] | None = None,
        reader: WindowReader | None = None,
    ):
        self._session = session
        self._schedule = schedule
        self._clock = clock
        self._share = share
        self._reader = reader or WindowReader()
        self._surroundings = Surroundings(
            session=session,
            clock=clock,
            log_dir=log_dir,
            redact=redact,
            read=self._reader.read,
            is_over=fit_is_over,
            note=self._note,
            keep=self._keep,
            abandon=self.abandon,
            yielded=self._yielded,
            ended=self._ended,
        )
        self._planner: Planner | None = None
        self._marker: Marker | None = None
        self._open: Window | None = None
        self._running: list[Window] = []
        self._latest: Window | None = None
        self._results: list[WindowResult] = []
        self._unavailable: dict[tuple[str, str], dict[str, str]] = {}
        self._off = False
        self._over = False
        self._abandoned = False
        self._lock = threading.Lock()
        self._thread_id = 0
        self._pid = os.getpid()

    # -- on the training thread ----------------------------------------------------------------

    def begin(
        self,
        callbacks: Iterable[Any] = (),
        steps_per_epoch: int | None = None,
        steps_per_call: int = 1,
    ) -> None:
        """Begin the fit.

        Args:
            callbacks: all callbacks of the fit, for those that will use the profiler.
            steps_per_epoch: where it is known.
            steps_per_call: batches in one call of the train function.
        """
        try:
            self._thread_id = threading.get_ident()
            _abandon_left_over(self._thread_id)
            on_device = self._session.traces_device
            planner = Planner(
                _cut(self._schedule, self._session.max_events),
                self._share,
                first_guess_s=FIRST_GUESS_GPU_S if on_device else FIRST_GUESS_S,
                warmup=1 if on_device else 0,
            )
            per_call = max(1, steps_per_call)
            claims = [(a * per_call, b * per_call) for a, b in profile_claims(callbacks)]
            planner.begin(time.perf_counter_ns(), steps_per_epoch, per_call, claims)
            self._planner = planner
            _all.add(self)
        except Exception as error:
            self._failed(error)

    def step_begins(self, step: int) -> bool:
        """Begin a call of the train function with batch number `step` of the fit.

        Returns: whether there was anything to do.
        """
        planner = self._planner
        if self._off or planner is None:
            return False
        now = time.perf_counter_ns()
        try:
            action = planner.boundary(step, now)
            if action is _NONE and self._marker is None:
                return False
            marker, self._marker = self._marker, None
            if action is Action.CLOSE:
                self._settle()  # within the last step's marker: its work belongs to that step
            if marker is not None:
                marker.close()
            if action is Action.MARK:
                self._marker = self._session.mark(step)
            elif action is Action.OPEN:
                self._open_window(planner, step)
            elif action is Action.CLOSE:
                self._close_window(planner.closed())
        except Exception as error:
            self._failed(error)
        return True

    def steps_pause(self, steps: int | None = None) -> None:
        """Handle a pause in the steps: an epoch has ended, or a validation begins.

        Args:
            steps: delivered so far, where known: the input may be exhausted without notice, and its
                last call of the train function then delivers none.
        """
        try:
            marker, self._marker = self._marker, None
            planned = None
            if self._planner is not None:
                planned = self._planner.epoch_ended(steps)
            if planned is not None:
                self._settle()
            if marker is not None:
                marker.close()
            self._close_window(planned)
        except Exception as error:
            self._failed(error)

    def end(self, steps: int | None = None) -> None:
        """End the fit after this many steps: no more windows. An open one is closed."""
        if self._over:
            return
        self._over = True
        self.steps_pause(steps)
        if self._planner is not None and not self._off:
            why = self._planner.why_none(time.perf_counter_ns())
            if why is not None:
                self._note(*why)
        self._off = True
        self._session.end()

    # -- on any thread -------------------------------------------------------------------------

    def drain(self) -> list[WindowResult]:
        """Return the windows read since the last call."""
        with self._lock:
            results, self._results = self._results, []
        return results

    def close(self, timeout_s: float) -> None:
        """End, and wait for windows that are still being stopped or read."""
        self.end()
        deadline = time.monotonic() + timeout_s
        for window in list(self._running):
            window.thread.join(max(0.0, deadline - time.monotonic()))
        if self._running:
            self._reader.give_up()
            for window in list(self._running):
                window.thread.join(0.5)
        self._reader.close()

    @property
    def busy(self) -> bool:
        """Return whether windows are open, being stopped or being read."""
        return bool(self._running)

    @property
    def unavailable(self) -> list[dict[str, str]]:
        """Return why windows, or parts of them, are missing: source, reason, cure."""
        with self._lock:
            return list(self._unavailable.values())

    @property
    def cost_s(self) -> float:
        """Return the cost of all windows so far: start, stop, slowed steps, reading."""
        return self._planner.budget.spent_s if self._planner is not None else 0.0

    # -- one window ----------------------------------------------------------------------------

    def _open_window(self, planner: Planner, step: int) -> None:
        began_ns = self._clock.now()
        before = time.perf_counter()
        server = None if self._schedule.beside_server else self._session.server()
        if server is not None:
            self._give_up(
                f"{server} may be used to take a profile, and a window would make that fail",
                "trace=TraceSchedule(…, beside_server=True) takes windows anyway",
            )
            return
        if self._running and self._schedule.explicit:
            for other in list(self._running):
                other.stopped.wait(STOP_WAIT_S)
        try:
            folder = Path(tempfile.mkdtemp(prefix="gpu-util-window-"))
        except OSError as error:
            self._give_up(
                f"no temporary folder for a window: {error}", "set TMPDIR to a folder with room"
            )
            return
        window = Window(self._surroundings, planner, folder, began_ns)
        asked = time.perf_counter()
        self._settle()
        waited = time.perf_counter() - asked
        planner.waited(int(waited * 1e9))
        before += waited
        try:
            self._session.start(folder, window.yielded)
        except ProfilerBusy:
            planner.refused(time.perf_counter_ns())
            window.discard()
            return
        except ProfilerFailed as error:
            self._give_up(error.reason, error.cure)
            window.discard()
            return
        except BaseException:
            window.discard()
            raise
        try:
            window.thread.start()
        except BaseException:  # no more threads, or Ctrl+C: nothing else would stop the profiler
            self._session.halt(folder)
            self._session.stop(folder)
            window.discard()
            raise
        self._open = window
        window.before, self._latest = self._latest, window
        self._running.append(window)
        if planner.opened(time.perf_counter() - before):
            self._marker = self._session.mark(step)

    def _settle(self) -> None:
        try:
            if not self._abandoned:  # else the GPU may have failed, and never answer
                self._session.settle()
        except Exception as error:  # a window that misses some work is better than none
            log.debug("gpu_util_callback: %s", error, exc_info=True)

    def _close_window(self, planned: PlannedWindow | None) -> None:
        if planned is None:
            return
        window, self._open = self._open, None
        if window is not None:
            before = time.perf_counter()
            try:
                self._session.halt(window.folder)
            finally:  # whatever becomes of the recording, its thread has to end
                window.halt_s = time.perf_counter() - before
                window.planned = planned
                window.closing.set()

    def abandon(self) -> None:
        """Abandon a fit that ended without notice, left in the middle of a step. Any thread."""
        window = self._planner.window if self._planner is not None else None
        if window is not None and window.marked:
            window.marked.pop()
        self._abandoned = True
        self.end()

    # -- notes ---------------------------------------------------------------------------------

    def _note(self, reason: str, cure: str, source: str = SOURCE) -> None:
        with self._lock:
            # By its cure: a reason may contain figures that differ from window to window.
            self._unavailable.setdefault(
                (source, cure), {"source": source, "reason": reason, "cure": cure}
            )

    def _give_up(self, reason: str, cure: str) -> None:
        self._note(reason, cure)
        self._switch_off()

    def _switch_off(self) -> None:
        self._off = True
        self._session.end()
        if self._planner is not None:
            self._planner.give_up()

    def _failed(self, error: Exception) -> None:
        """Handle an error of ours, or a framework with unexpected internals."""
        self._note(f"{type(error).__name__}: {error}", 'trace="off" trains without them')
        window, self._open = self._open, None
        self._switch_off()
        if window is not None:
            try:
                self._session.halt(window.folder)
            finally:
                window.closing.set()  # never leave the profiler running

    def _yielded(self, window: Window) -> bool:
        if self._open is not window:
            return False
        self._open = self._marker = None
        return True

    def _ended(self, window: Window) -> None:
        with contextlib.suppress(ValueError):
            self._running.remove(window)

    def _keep(self, result: WindowResult) -> None:
        with self._lock:
            self._results.append(result)


def _cut(schedule: TraceSchedule, max_events: int | None) -> TraceSchedule:
    """Apply the profiler's own event limit to a schedule without an explicit one."""
    if max_events is None or schedule.max_events != TraceSchedule.max_events:
        return schedule
    return replace(schedule, max_events=max_events)


def _abandon_left_over(thread_id: int) -> None:
    """Abandon windows of an earlier fit on this thread, or close them while that fit waits."""
    for windows in list(_all):
        if windows._open is not None and windows._thread_id == thread_id:
            is_over = windows._surroundings.is_over
            if is_over is None or is_over():
                windows.abandon()
            else:
                windows.steps_pause()


@atexit.register
def _close_all() -> None:
    for windows in list(_all):
        if windows._pid == os.getpid() and windows.busy:
            windows.close(10.0)
