"""Takes profiler windows during a fit: opens and closes them, and has their files read."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu_util_callback.frameworks.profiler_session import (
    Marker,
    ProfilerBusy,
    ProfilerFailed,
    ProfilerSession,
    profile_claims,
)
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.trace_schedule import TraceSchedule
from gpu_util_callback.window_files import (
    AllocatorCurve,
    ReadFailed,
    WindowRows,
    cure_for,
    publish,
    read_in_process,
)
from gpu_util_callback.windows import Action, PlannedWindow, Planner

__all__ = ["ProfilerWindows", "WindowResult"]

SOURCE = "profiler windows"
# What the first window is taken to cost, before one was measured. Seen without a GPU: 0.7 s, most
# of it the start of the reading process. Attaching to a GPU loads libraries and slows its steps.
FIRST_GUESS_S = 1.0
FIRST_GUESS_GPU_S = 4.0
WATCH_S = 0.1  # how often an open window looks whether the fit is still there
IDLE_S = 60.0  # no step for so long, and an open window is closed
STOP_WAIT_S = 5.0  # how long a named window waits for the one before it to be stopped

_all: weakref.WeakSet[ProfilerWindows] = weakref.WeakSet()
_reading = threading.Lock()  # one reading process at a time


@dataclass
class WindowResult:
    """One window, read: what goes into the recording.

    Args:
        window: its index within the fit.
        first_step, stop_step: the steps it marked, half-open.
        profile: its name in the Profile tab; None = its file could not be put there.
        start_ns, end_ns: from before the profiler's start to after its stop, recording's clock.
        cost_s: everything it cost.
        traced_steps, kernels: rows as in the recording's schema.
        allocators: curves of the GPUs' allocators, recording's clock.
    """

    window: int
    first_step: int
    stop_step: int
    profile: str | None
    start_ns: int
    end_ns: int
    cost_s: float
    events: int
    traced_steps: dict[str, np.ndarray]
    kernels: dict[str, np.ndarray]
    allocators: list[AllocatorCurve]

    def tables(self) -> dict[str, dict[str, Any]]:
        """The rows for the recording: `traced_steps`, `kernels` and one of `phases`."""
        phases = {
            "kind": ["profiler_window"],
            "name": [f"window {self.window}"],
            "start_ns": [self.start_ns],
            "end_ns": [self.end_ns],
            "step": [self.first_step],
            "account": [""],
            "self_ns": [int(self.cost_s * 1e9)],
            "count": [1],
        }
        tables: dict[str, dict[str, Any]] = {"phases": phases}
        for name, rows in (("traced_steps", self.traced_steps), ("kernels", self.kernels)):
            if rows and len(rows["window"]):
                tables[name] = rows
        return tables

    def kernel_times_ms(self) -> list[tuple[int, int, float]]:
        """(step, gpu, ms in which a kernel ran) of each traced step and GPU, by step.

        Where one call trains several batches it is their mean, at the first of them.
        """
        rows = self.traced_steps
        if not rows:
            return []
        busy = rows["kernel_busy_ns"]
        kernel = np.where(busy >= 0, busy, rows["kernel_ns"])
        found = [
            (int(step), int(gpu), float(ns) / 1e6 / int(batches))
            for step, gpu, ns, batches in zip(
                rows["step"], rows["gpu"], kernel, rows["batches"], strict=True
            )
            if gpu >= 0 and ns >= 0
        ]
        return sorted(found)


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
        fit_is_over: whether the fit has been left, e.g. by an exception; called on any thread.
            None = that cannot be seen, and a minute without a step is taken for its end.
        redact: replaces host names; None = they may stay.
        read: reads a window's file.
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
        read: Callable[..., WindowRows] = read_in_process,
    ):
        self._session = session
        self._schedule = schedule
        self._clock = clock
        self._log_dir = log_dir
        self._share = share
        self._fit_is_over = fit_is_over
        self._redact = redact
        self._read = read
        self._planner: Planner | None = None
        self._marker: Marker | None = None
        self._open: _Window | None = None
        self._running: list[_Window] = []
        self._results: list[WindowResult] = []
        self._unavailable: dict[tuple[str, str], dict[str, str]] = {}
        self._off = False
        self._over = False
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
        """The fit begins.

        Args:
            callbacks: all callbacks of the fit, for those that will want the profiler.
            steps_per_epoch: where it is known.
            steps_per_call: batches in one call of the train function.
        """
        try:
            self._thread_id = threading.get_ident()
            _abandon_left_over(self._thread_id)
            on_device = self._session.traces_device
            planner = Planner(
                self._schedule,
                self._share,
                first_guess_s=FIRST_GUESS_GPU_S if on_device else FIRST_GUESS_S,
                warmup=1 if on_device else 0,
            )
            server = None if self._schedule.beside_server else self._session.server()
            per_call = max(1, steps_per_call)
            claims = [(a * per_call, b * per_call) for a, b in profile_claims(callbacks)]
            planner.begin(time.perf_counter_ns(), steps_per_epoch, per_call, claims)
            self._planner = planner
            _all.add(self)
            if server is not None:
                self._note(
                    f"{server} may be asked for a profile, which a window would make fail",
                    "trace=TraceSchedule(…, beside_server=True) takes windows nevertheless",
                )
                self._switch_off()
        except Exception as error:
            self._failed(error)

    def step_begins(self, step: int) -> None:
        """A call of the train function begins with batch number `step` of the fit."""
        if self._off:
            return
        try:
            marker, self._marker = self._marker, None
            if marker is not None:
                marker.close()
            planner = self._planner
            if planner is None:
                return
            action = planner.boundary(step, time.perf_counter_ns())
            if action is Action.NONE:
                return
            if action is Action.MARK:
                self._marker = self._session.mark(step)
            elif action is Action.OPEN:
                self._open_window(planner, step)
            else:
                self._close_window(planner.closed())
        except Exception as error:
            self._failed(error)

    def steps_pause(self, steps: int | None = None) -> None:
        """No step follows at once: an epoch has ended, or a validation begins.

        Args:
            steps: delivered so far, where that is known: the input may end without notice, and
                its last call of the train function then delivers none.
        """
        try:
            marker, self._marker = self._marker, None
            if marker is not None:
                marker.close()
            if self._planner is not None:
                self._close_window(self._planner.epoch_ended(steps))
        except Exception as error:
            self._failed(error)

    def end(self, steps: int | None = None) -> None:
        """The fit has ended, after so many steps: no more windows. An open one is closed."""
        if self._over:
            return
        self._over = True
        self.steps_pause(steps)
        if self._planner is not None and not self._off:
            why = self._planner.why_none(time.perf_counter_ns())
            if why is not None:
                self._note(*why)
        self._off = True

    # -- on any thread -------------------------------------------------------------------------

    def drain(self) -> list[WindowResult]:
        """The windows read since the last call."""
        with self._lock:
            results, self._results = self._results, []
        return results

    def close(self, timeout_s: float) -> None:
        """End, and wait for windows that are still being stopped or read."""
        self.end()
        deadline = time.monotonic() + timeout_s
        for window in list(self._running):
            window.thread.join(max(0.0, deadline - time.monotonic()))
        for window in list(self._running):
            if window.thread.is_alive():
                window.give_up()
                window.thread.join(0.5)

    @property
    def busy(self) -> bool:
        """Whether windows are open, being stopped or being read."""
        return bool(self._running)

    @property
    def unavailable(self) -> list[dict[str, str]]:
        """Why windows, or parts of them, are missing: source, reason, cure."""
        with self._lock:
            return list(self._unavailable.values())

    @property
    def cost_s(self) -> float:
        """What all windows have cost so far: start, stop, slowed steps, reading."""
        return self._planner.budget.spent_s if self._planner is not None else 0.0

    # -- one window ----------------------------------------------------------------------------

    def _open_window(self, planner: Planner, step: int) -> None:
        began_ns = self._clock.now()
        before = time.perf_counter()
        if self._running and self._schedule.explicit:
            for other in list(self._running):
                other.stopped.wait(STOP_WAIT_S)
        try:
            folder = Path(tempfile.mkdtemp(prefix="gpu-util-window-"))
        except OSError as error:
            self._note(
                f"no temporary folder for a window: {error}", "set TMPDIR to a folder with room"
            )
            self._switch_off()
            return
        window = _Window(self, planner, folder, began_ns)
        try:
            self._session.start(folder, window.yielded)
        except ProfilerBusy:
            planner.refused(time.perf_counter_ns())
            window.discard()
            return
        except ProfilerFailed as error:
            self._note(error.reason, error.cure)
            self._switch_off()
            window.discard()
            return
        marked = planner.opened(time.perf_counter() - before)
        self._open = window
        self._running.append(window)
        window.thread.start()
        if marked:
            self._marker = self._session.mark(step)

    def _close_window(self, planned: PlannedWindow | None) -> None:
        if planned is None:
            return
        window, self._open = self._open, None
        if window is not None:
            window.planned = planned
            window.closing.set()

    def abandon(self) -> None:
        """The fit is over and said nothing: it was left in the middle of a step. Any thread."""
        window = self._planner.window if self._planner is not None else None
        if window is not None and window.marked:
            window.marked.pop()
        self.end()

    # -- notes ---------------------------------------------------------------------------------

    def _note(self, reason: str, cure: str, source: str = SOURCE) -> None:
        with self._lock:
            self._unavailable.setdefault(
                (source, reason), {"source": source, "reason": reason, "cure": cure}
            )

    def _switch_off(self) -> None:
        self._off = True
        if self._planner is not None:
            self._planner.give_up()

    def _failed(self, error: Exception) -> None:
        """A fault of ours, or a framework that is not as we know it."""
        self._note(f"{type(error).__name__}: {error}", 'trace="off" trains without them')
        window, self._open = self._open, None
        self._switch_off()
        if window is not None:
            window.closing.set()  # never leave the profiler running

    def _keep(self, result: WindowResult) -> None:
        with self._lock:
            self._results.append(result)


class _Window:
    """One window from its start until its rows are there; its thread stops the profiler."""

    def __init__(self, windows: ProfilerWindows, planner: Planner, folder: Path, began_ns: int):
        self._windows = windows
        self._planner = planner
        self._folder = folder
        self._began_ns = began_ns
        self._process: subprocess.Popen | None = None
        self._given_up = False
        self.planned: PlannedWindow | None = None  # set before `closing`
        self.closing = threading.Event()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="gpu-util-window", daemon=True)

    def yielded(self) -> None:
        """Somebody else has started the profiler."""
        windows = self._windows
        if windows._open is self:
            windows._open = None
            windows._marker = None
            self._planner.gave_way(time.perf_counter_ns())
        self.closing.set()

    def give_up(self) -> None:
        """Nobody waits for the rows any more."""
        self._given_up = True
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        windows = self._windows
        try:
            self._wait()
            self._stop_and_read()
        except Exception as error:
            windows._note(f"{type(error).__name__}: {error}", 'trace="off" trains without them')
        finally:
            self.stopped.set()
            with contextlib.suppress(ValueError):
                windows._running.remove(self)
            self.discard()

    def _wait(self) -> None:
        """Until the window is to be closed, or nobody is left who would close it."""
        windows = self._windows
        while not self.closing.wait(WATCH_S):
            if windows._fit_is_over is not None:
                over = windows._fit_is_over()
            else:
                over = self._planner.idle_s(time.perf_counter_ns()) > IDLE_S
            if over:
                windows.abandon()
                return

    def _stop_and_read(self) -> None:
        windows, planned = self._windows, self.planned
        before = time.perf_counter()
        try:
            file = windows._session.stop()
        except ProfilerFailed as error:
            windows._note(error.reason, error.cure)
            file = None
        stop_s = time.perf_counter() - before
        end_ns = windows._clock.now()
        self.stopped.set()
        if file is None or planned is None:
            if planned is not None:
                self._planner.finished(planned.index, stop_s, 0.0, 0)
            return
        profile = self._publish(file, planned) if planned.marked else None
        rows = self._rows(file)
        parse_s = rows.cpu_s if rows else 0.0
        cost = self._planner.finished(planned.index, stop_s, parse_s, rows.events if rows else 0)
        if not planned.marked:
            return
        tables = self._converted(rows, planned) if rows else {"traced_steps": {}, "kernels": {}}
        windows._keep(
            WindowResult(
                window=planned.index,
                first_step=planned.marked[0],
                stop_step=planned.marked_stop,
                profile=profile,
                start_ns=self._began_ns,
                end_ns=end_ns,
                cost_s=cost.total_s if cost else 0.0,
                events=rows.events if rows else 0,
                traced_steps=tables["traced_steps"],
                kernels=tables["kernels"],
                allocators=self._curves(rows) if rows else [],
            )
        )

    def _publish(self, file: Path, planned: PlannedWindow) -> str | None:
        windows = self._windows
        when = time.strftime("%Y_%m_%d_%H_%M_%S")
        try:
            return publish(
                file, windows._log_dir, f"{when}_step_{planned.marked[0]}", windows._redact
            )
        except OSError as error:
            windows._note(
                f"a window's file cannot be put into {windows._log_dir}/plugins/profile: "
                f"{error.strerror or error}",
                "make that folder writable, or give another log_dir",
                source="Profile tab",
            )
            return None

    def _rows(self, file: Path) -> WindowRows | None:
        windows = self._windows
        with _reading:
            if self._given_up:
                return None
            try:
                rows = windows._read(file, started=self._started)
            except ReadFailed as error:
                if self._given_up:
                    reason = "the fit ended before its last window was read"
                else:
                    reason = f"a window could not be read: {error}"
                windows._note(
                    reason, f"`gpu-util trace {windows._log_dir}/plugins/profile` reads its file"
                )
                return None
        for problem in rows.problems:
            windows._note(problem, cure_for(problem), source="profiler")
        if windows._session.traces_device and not rows.device_events and not rows.problems:
            windows._note(
                "a window holds no event of any GPU",
                "end other CUDA profilers (nsys, ncu) of this process, and check that the model "
                "runs on the GPU: `gpu-util doctor`",
                source="profiler",
            )
        return rows

    def _started(self, process: subprocess.Popen) -> None:
        self._process = process

    def _curves(self, rows: WindowRows) -> list[AllocatorCurve]:
        clock = self._windows._clock
        return [
            replace(curve, time_ns=clock.from_wall(curve.time_ns, self._began_ns))
            for curve in rows.allocators
            if curve.gpu >= 0
        ]

    def _converted(
        self, rows: WindowRows, planned: PlannedWindow
    ) -> dict[str, dict[str, np.ndarray]]:
        """The rows with the window's index and the recording's times."""
        tables = {name: dict(columns) for name, columns in rows.tables.items()}
        traced = tables["traced_steps"]
        if traced:
            keep = np.isin(traced["step"], planned.marked)
            traced = {name: values[keep] for name, values in traced.items()}
            if "start_ns" in traced:
                known = traced["start_ns"] > 0
                traced["start_ns"] = np.where(
                    known,
                    self._windows._clock.from_wall(traced["start_ns"], self._began_ns),
                    traced["start_ns"],
                )
            traced["batches"] = np.full(len(traced["step"]), planned.per_call, np.int64)
            tables["traced_steps"] = traced
        for columns in tables.values():
            if columns:
                size = len(next(iter(columns.values())))
                columns["window"] = np.full(size, planned.index, np.int64)
        return tables


def _abandon_left_over(thread_id: int) -> None:
    """A new fit on a thread means that the one before it there is over, or waits for this one."""
    for windows in list(_all):
        if windows._open is not None and windows._thread_id == thread_id:
            windows.abandon()


@atexit.register
def _close_all() -> None:
    for windows in list(_all):
        if windows._pid == os.getpid() and windows.busy:
            windows.close(10.0)
