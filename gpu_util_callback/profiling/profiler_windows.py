"""Profiler windows of a fit: opens and closes them, and has their files read.

A `Window` has a thread of its own, which stops the profiler (with a GPU the training thread does),
publishes the file and has it read; `WindowResult` is what comes of it, for the recording and the
scalars.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_util_callback.profiling.schedule import Action, PlannedWindow, Planner, TraceSchedule
from gpu_util_callback.profiling.session import Marker, ProfilerBusy, ProfilerFailed, ProfilerSession, profile_claims
from gpu_util_callback.profiling.window_reader import ReadFailed, WindowReader, WindowRows, cure_for
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.manifest_facts import Unavailable, WindowFacts
from gpu_util_callback.recording.segments import Tables, concatenate
from gpu_util_callback.recording.storage import put
from gpu_util_callback.redaction import redacted_file

SOURCE = "profiler windows"
# Assumed cost of the first window, before one was measured. Measured without a GPU: 0.15 to 0.3 s
# with three steps or five, most of it the start of the reading process; on an H200, whose profiler
# loads libraries, 0.4 to 1.5 s in 19 trainings, with three.
FIRST_COST_S = 0.6
FIRST_COST_GPU_S = 1.5
_NONE = Action.NONE
STOP_WAIT_S = 5.0  # how long a named window waits for the previous one to be stopped

# Of a window that `gpu-util look` asks for: its events grow with them, and so does the delay.
MOST_LOOK_STEPS = 20

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
            thread. Where nobody can know, the recorder ends a fit without steps, and its windows.
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
        fit_is_over: Callable[[], bool] = lambda: False,
        redact: Callable[[str], str] | None = None,
        reader: WindowReader | None = None,
    ):
        self.session = session
        self._schedule = schedule
        self.clock = clock
        self.log_dir = log_dir
        self.fit_is_over = fit_is_over
        self.redact = redact
        self.reader = reader or WindowReader()
        on_device = session.traces_device
        first_cost_s = FIRST_COST_GPU_S if on_device else FIRST_COST_S
        self.planner = Planner(schedule, share, first_cost_s, warmup=1 if on_device else 0)
        self._marker: Marker | None = None  # of the step under way, in the open window
        self._open: Window | None = None
        self._unfinished: list[Window] = []  # open, being stopped or read
        self._last_window: Window | None = None
        self._results: list[WindowResult] = []
        self._unavailable: dict[tuple[str, str], Unavailable] = {}
        self._off = False  # no more windows
        self._over = False
        self._abandoned = False  # the fit was left: the GPU may not answer
        self._lock = threading.Lock()
        self._thread_id = 0
        self._pid = os.getpid()

    # -- on the training thread ----------------------------------------------------------------

    def begin(
        self,
        callbacks: Iterable[object] = (),
        steps_per_epoch: int | None = None,
        steps_per_call: int = 1,
        planned_steps: int | None = None,
    ) -> None:
        """Begin the fit.

        Args:
            callbacks: all callbacks of the fit, for those that will use the profiler.
            steps_per_epoch: where it is known.
            steps_per_call: batches in one call of the train function.
            planned_steps: of all epochs, where they are known.
        """
        try:
            self._thread_id = threading.get_ident()
            _close_open(self._thread_id)
            per_call = max(1, steps_per_call)
            claims = [(a * per_call, b * per_call) for a, b in profile_claims(callbacks)]
            self.planner.begin(time.perf_counter_ns(), steps_per_epoch, per_call, claims, planned_steps)
            _all.add(self)
        except Exception as error:
            self._handle_error(error)

    def step_begins(self, step: int) -> bool:
        """Begin a call of the train function with batch number `step` of the fit.

        Returns: whether there was anything to do.
        """
        planner = self.planner
        if self._off:
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
                self._marker = self.session.mark(step)
            elif action is Action.OPEN:
                self._open_window(step)
            elif action is Action.CLOSE:
                self._close_window(planner.closed())
        except Exception as error:
            self._handle_error(error)
        return True

    def steps_pause(self, steps: int | None = None) -> None:
        """Handle a pause in the steps: an epoch has ended, or a validation begins.

        Args:
            steps: delivered so far, where known: the input may be exhausted without notice, and its
                last call of the train function then delivers none.
        """
        try:
            marker, self._marker = self._marker, None
            planned = self.planner.epoch_ended(steps)
            if planned is not None:
                self._settle()
            if marker is not None:
                marker.close()
            self._close_window(planned)
        except Exception as error:
            self._handle_error(error)

    def end(self, steps: int | None = None) -> None:
        """End the fit after this many steps: no more windows. An open one is closed."""
        if self._over:
            return
        self._over = True
        self.steps_pause(steps)
        if not self._off:
            why = self.planner.why_none(time.perf_counter_ns())
            if why is not None:
                self.note(*why)
        self._off = True
        self.session.end()

    # -- on any thread -------------------------------------------------------------------------

    def drain(self) -> list[WindowResult]:
        """Return the windows read since the last call."""
        with self._lock:
            results, self._results = self._results, []
        return results

    def look(self, request: str, steps: int) -> str | None:
        """Take a window at the next step. Returns: why not, None where it will be tried."""
        if self._off:
            return self._why_off()
        return self.planner.look(request, steps)

    def look_refused(self, request: str) -> str | None:
        """Return why a window that was to be tried will not come, None where it may."""
        refused = self.planner.look_refused
        if refused is not None and refused[0] == request:
            return refused[1]
        return self._why_off() if self._off and not self.busy else None

    def _why_off(self) -> str:
        reasons = [entry["reason"] for entry in self.unavailable if entry["source"] == SOURCE]
        return reasons[-1] if reasons else "this training takes no more windows"

    def close(self, timeout_s: float) -> None:
        """End, and wait for windows that are still being stopped or read."""
        self.end()
        deadline = time.monotonic() + timeout_s
        for window in list(self._unfinished):
            window.thread.join(max(0.0, deadline - time.monotonic()))
        if self._unfinished:
            self.reader.give_up()
            for window in list(self._unfinished):
                window.thread.join(0.5)

    @property
    def busy(self) -> bool:
        """Return whether windows are open, being stopped or being read."""
        return bool(self._unfinished)

    @property
    def unavailable(self) -> list[Unavailable]:
        """Return why windows, or parts of them, are missing: source, reason, cure."""
        with self._lock:
            return list(self._unavailable.values())

    @property
    def cost_s(self) -> float:
        """Return the cost of all windows so far: start, stop, slowed steps, reading."""
        return self.planner.spent_s

    # -- one window ----------------------------------------------------------------------------

    def _open_window(self, step: int) -> None:
        """Start the profiler before a step, unless a server, another profile or a lack of room prevents it.

        The time it takes is the window's cost; a wait for the GPU's earlier work is not.
        """
        planner = self.planner
        began_ns = self.clock.now()
        server = None if self._schedule.beside_server else self.session.server()
        if server is not None:
            self._give_up(
                f"{server} may be used to take a profile, and a window would make that fail",
                "trace=TraceSchedule(…, beside_server=True) takes windows anyway",
            )
            return
        if self._unfinished and self._schedule.explicit:
            for other in list(self._unfinished):
                other.stopped.wait(STOP_WAIT_S)
        try:
            folder = Path(tempfile.mkdtemp(prefix="gpu-util-window-"))
        except OSError as error:
            self._give_up(f"no temporary folder for a window: {error}", "set TMPDIR to a folder with room")
            return
        window = Window(self, folder, began_ns)
        self.session.settle()
        before_ns = time.perf_counter_ns()
        try:
            self.session.start(folder, window.yielded)
        except ProfilerBusy:
            planner.refused(time.perf_counter_ns())
            window.discard()
            return
        except BaseException:
            window.discard()
            raise
        try:
            window.thread.start()
        except BaseException:  # no more threads, or Ctrl+C: nothing else would stop the profiler
            self._settle()
            self.session.halt(folder)
            self.session.stop(folder)
            window.discard()
            raise
        self._open = window
        window.before, self._last_window = self._last_window, window
        self._unfinished.append(window)
        if planner.opened(before_ns, (time.perf_counter_ns() - before_ns) / 1e9):
            self._marker = self.session.mark(step)

    def _settle(self) -> None:
        if not self._abandoned:  # else the GPU may have failed, and never answer
            self.session.settle()

    def _close_window(self, planned: PlannedWindow | None) -> None:
        """Halt the profiler of the open window, if there is one; its thread stops it and reads the file.

        Args:
            planned: None = nothing of it is of use.
        """
        window, self._open = self._open, None
        if window is not None:
            before = time.perf_counter()
            try:
                self.session.halt(window.folder)
            finally:  # whatever becomes of the recording, its thread has to end
                window.halt_s = time.perf_counter() - before
                window.planned = planned
                window.closing.set()

    def abandon(self) -> None:
        """Abandon a fit that ended without notice, left in the middle of a step. Callable on any thread."""
        window = self.planner.window
        if window is not None and window.marked:
            window.marked.pop()
        self._abandoned = True
        self.end()

    # -- notes ---------------------------------------------------------------------------------

    def note(self, reason: str, cure: str, source: str = SOURCE) -> None:
        """Note what is missing, once per cure."""
        with self._lock:
            # By its cure: a reason may contain figures that differ from window to window.
            self._unavailable.setdefault((source, cure), {"source": source, "reason": reason, "cure": cure})

    def note_error(self, error: Exception) -> None:
        """Note an error of the profiler, or of ours."""
        if isinstance(error, ProfilerFailed):
            self.note(error.reason, error.cure)
        else:
            self.note(f"{type(error).__name__}: {error}", 'trace="off" trains without them')

    def _give_up(self, reason: str, cure: str) -> None:
        self.note(reason, cure)
        self._end_windows()

    def _end_windows(self) -> None:
        """Take no windows any longer."""
        self._off = True
        self.session.end()
        self.planner.give_up()

    def _handle_error(self, error: Exception) -> None:
        """Handle an error of ours, or a framework with unexpected internals."""
        self.note_error(error)
        self._end_windows()
        if self._open is not None:
            self._settle()
        self._close_window(None)  # never leave the profiler running

    def yielded(self, window: Window) -> bool:
        """Leave the profiler to other code; return whether the window was open."""
        if self._open is not window:
            return False
        self._open = self._marker = None
        return True

    def ended(self, window: Window) -> None:
        """Forget a window of which nothing more will come."""
        with contextlib.suppress(ValueError):
            self._unfinished.remove(window)

    def keep(self, result: WindowResult) -> None:
        """Keep the result of a window until `drain`."""
        with self._lock:
            self._results.append(result)


def requested(data: bytes) -> tuple[str, int]:
    """Return the identity and the steps of a request of `gpu-util look`.

    Raises:
        ValueError, KeyError, TypeError: the data is not a request.
    """
    request = json.loads(data)
    return str(request["look"])[:64], min(max(int(request["steps"]), 1), MOST_LOOK_STEPS)


def _close_open(thread_id: int) -> None:
    """Close the open window of an outer fit on this thread, whose callback runs the fit that begins."""
    for windows in list(_all):
        if windows._open is not None and windows._thread_id == thread_id:
            windows.steps_pause()


@atexit.register
def _close_all() -> None:
    """Close the windows of all fits of this process, waiting at most ten seconds for each."""
    for windows in list(_all):
        if windows._pid == os.getpid() and windows.busy:
            windows.close(10.0)


def publish(file: Path, log_dir: str, step: int, redact: Callable[[str], str] | None = None) -> str:
    """Copy a trace to where TensorBoard's Profile tab looks for it.

    Args:
        file: `<host>.xplane.pb`.
        log_dir: the run's folder, or an fsspec URL.
        step: the first one that it marks.
        redact: replaces a host name.

    Returns: the profile's name as the Profile tab lists it: to the nanosecond, as windows may end in one second.

    Raises:
        OSError: it cannot be written.
    """
    host, data = file.name.removesuffix(".xplane.pb"), file.read_bytes()
    if redact:
        host, data = redact(host), _without_names(data)
    seconds, ns = divmod(time.time_ns(), 10**9)
    published = f"{time.strftime('%Y_%m_%d_%H_%M_%S', time.localtime(seconds))}_{ns:09}_step_{step}"
    folder = f"{log_dir.rstrip('/')}/plugins/profile/{published}"
    try:
        put(folder, f"{host}.xplane.pb", data)
    except OSError:
        with contextlib.suppress(OSError):  # a store has no folders
            Path(folder).rmdir()
        raise
    return published


def keep(file: Path, log_dir: str) -> None:
    """Copy a `<host>.pt.trace.json.gz` to where PyTorch's own tools put such files.

    Args:
        log_dir: the run's folder, or an fsspec URL.

    Raises:
        OSError: it cannot be written.
    """
    host, _, kind = file.name.partition(".pt.")
    put(log_dir, f"{host}_{os.getpid()}.{time.time_ns()}.pt.{kind}", file.read_bytes())


def _without_names(data: bytes) -> bytes:
    """Return an XSpace (protobuf bytes) without field 4, `hostnames`, and the names of folders and user."""
    from gpu_util_callback.traces import wire

    data = redacted_file(data)
    fields_kept = []
    at = 0
    for number, _, _, end in wire.fields(data, 0, len(data)):
        if number != 4:
            fields_kept.append(data[at:end])
        at = end
    return b"".join(fields_kept)


# ---- one window ------------------------------------------------------------------------


WATCH_S = 0.1  # how often an open window checks whether the fit is still there


class Window:
    """One window from its start until its rows are available; its thread stops the profiler."""

    def __init__(self, windows: ProfilerWindows, folder: Path, began_ns: int):
        self.folder = folder
        self._windows = windows
        self._planner = windows.planner
        self._began_ns = began_ns
        self.planned: PlannedWindow | None = None  # set before `closing`
        self.halt_s = 0.0  # time the training thread spent stopping, likewise
        self.closing = threading.Event()
        self.stopped = threading.Event()
        self.done = threading.Event()
        self.before: Window | None = None  # read first: a scalar's steps must not go back
        self.thread = threading.Thread(target=self._run, name="gpu-util-window", daemon=True)

    def yielded(self) -> None:
        """Close after other code has started the profiler."""
        if self._windows.yielded(self):
            self._planner.release_window(time.perf_counter_ns())
        self.closing.set()

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        """Wait for the window's end, stop the profiler and read its file; on the window's own thread."""
        windows = self._windows
        try:
            self._wait()
            self._stop_and_read()
        except Exception as error:
            windows.note_error(error)
        finally:
            self.stopped.set()
            self.discard()
            self.done.set()
            self._windows.ended(self)

    def _wait(self) -> None:
        """Wait until the window is to be closed, or nothing is left that would close it."""
        windows = self._windows
        while not self.closing.wait(WATCH_S):
            if windows.fit_is_over():
                windows.abandon()
                return

    def _stop_and_read(self) -> None:
        """Stop the profiler, read its file, and hand on the window's rows and cost."""
        windows, planned = self._windows, self.planned
        before = time.perf_counter()
        try:
            file = windows.session.stop(self.folder)
        except Exception as error:
            windows.note_error(error)
            file = None
        stop_s = time.perf_counter() - before + self.halt_s
        end_ns = windows.clock.now()
        self.stopped.set()
        if file is None or planned is None:  # there is nothing to read
            if planned is not None:
                self._planner.finished(planned.index, stop_s, 0.0)
            return
        rows = self._read_rows(file)
        profile = self._keep_file(file, planned.marked[0]) if planned.marked else None
        cost_s = self._planner.finished(planned.index, stop_s, rows.cpu_s if rows else 0.0)
        if not planned.marked:
            return
        facts: WindowFacts = {
            "window": planned.index,
            "first_step": planned.marked[0],
            "stop_step": planned.marked[-1] + planned.per_call,
            "start_ns": self._began_ns,
            "end_ns": end_ns,
            "events": rows.events if rows else 0,
            "cost_s": round(cost_s, 4),
        }
        if profile:
            facts["profile"] = profile
        if planned.look:
            facts["look"] = planned.look
        windows.keep(WindowResult(facts, self._marked_rows(rows, planned) if rows else {}))

    def _keep_file(self, file: Path, step: int) -> str | None:
        """Put the trace of a window where the Profile tab looks, or one that it cannot read beside the events.

        Returns: its name in the Profile tab, if it is there.
        """
        log_dir, redact = self._windows.log_dir, self._windows.redact
        packed = file.with_name(f"{file.name}.gz")
        place, source = "", "profiler's file"
        try:
            if file.name.endswith(".xplane.pb"):
                place, source = "plugins/profile", "Profile tab"
                return publish(file, log_dir, step, redact)
            if redact is None and packed.is_file():  # it holds process names
                keep(packed, log_dir)
        except OSError as error:
            self._windows.note(
                f"a window's file cannot be put into {log_dir}/{place}: {error.strerror or error}",
                "make that folder writable, or give another log_dir",
                source=source,
            )
        return None

    def _read_rows(self, file: Path) -> WindowRows | None:
        """Read the window's file after that of the window before; None if it cannot be read. Problems are noted."""
        windows, before = self._windows, self.before
        if before is not None:
            before.done.wait()
            self.before = None
        try:
            rows = windows.reader.read(file)
        except ReadFailed as error:
            windows.note(
                f"a window could not be read: {error}",
                f"`gpu-util trace {windows.log_dir}/plugins/profile` reads its file",
            )
            return None
        for problem in rows.problems:
            if windows.session.traces_device or "no gpu detected" not in problem.lower():
                windows.note(problem, cure_for(problem), source="profiler")
        if windows.session.traces_device and not rows.device_events and not rows.problems:
            windows.note(
                "a window holds no event of any GPU",
                "end other CUDA profilers (nsys, ncu) of this process, and check that the model "
                "runs on the GPU: `gpu-util doctor`",
                source="profiler",
            )
        return rows

    def _marked_rows(self, rows: WindowRows, planned: PlannedWindow) -> Tables:
        """Return the rows of the marked steps, with the window's index and the recording's times."""
        tables = {}
        for name, columns in rows.tables.items():
            keep = np.isin(columns["step"], planned.marked) if "step" in columns else slice(None)
            tables[name] = {column: values[keep] for column, values in columns.items()}
            if columns:
                tables[name]["window"] = np.full_like(tables[name]["gpu"], planned.index, np.int64)
        if traced := tables["traced_steps"]:
            start = traced["start_ns"]
            traced["start_ns"] = np.where(start > 0, self._windows.clock.from_wall(start, self._began_ns), start)
            traced["batches"] = np.full_like(start, planned.per_call)
        return tables


@dataclass
class WindowResult:
    """The result of one window, for the recording.

    Args:
        facts: for the manifest: the steps it marked, half-open; the time from before the profiler's start to after
            its stop, by the recording's clock; its whole cost; its name in the Profile tab, where its file could be
            put there; the request that it answers, if any.
        tables: rows of `traced_steps`, `kernels` and `step_kernels`.
    """

    facts: WindowFacts
    tables: Tables

    def points(self) -> list[tuple[int, dict[str, float], int]]:
        """Return the scalars of its steps: (step, {tag: value}, time in ns), by step.

        They are the times in which a kernel ran, by GPU. Where one call trains several batches it is
        their mean, at the first of them.
        """
        rows = self.tables.get("traced_steps")
        if not rows:
            return []
        busy = rows["kernel_busy_ns"]
        kernel_ms = np.where(busy >= 0, busy, rows["kernel_ns"]) / 1e6 / rows["batches"]
        ends = dict(zip(rows["step"].tolist(), (rows["start_ns"] + rows["duration_ns"]).tolist(), strict=True))
        points: dict[int, dict[str, float]] = {}
        for step, gpu, ms in sorted(zip(*(c.tolist() for c in (rows["step"], rows["gpu"], kernel_ms)), strict=True)):
            if gpu >= 0 and ms >= 0:
                points.setdefault(step, {})[f"gpu_util/gpu{gpu}/kernel_time_ms"] = ms
        return [(step, values, ends[step]) for step, values in points.items()]

    def add_to(self, tables: Tables) -> None:
        """Add its rows to `tables`, those about to be written, and a phase "profiler_window"."""
        phases = {
            "kind": ["profiler_window"],
            "name": [f"window {self.facts['window']}"],
            "start_ns": [self.facts["start_ns"]],
            "end_ns": [self.facts["end_ns"]],
            "step": [self.facts["first_step"]],
            "account": [""],
            "self_ns": [int(self.facts["cost_s"] * 1e9)],
            "count": [1],
        }
        rows_by_table: Mapping[str, Mapping] = {"phases": phases, **self.tables}
        for name, rows in rows_by_table.items():
            if rows and len(next(iter(rows.values()))):
                earlier = [tables[name]] if name in tables else []
                tables[name] = concatenate(name, [*earlier, {c: np.asarray(values) for c, values in rows.items()}])
