"""One profiler window: its thread stops the profiler, publishes the file and has it read."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpu_util_callback.profiling.planner import PlannedWindow, Planner
from gpu_util_callback.profiling.reader import AllocatorCurve, ReadFailed, WindowRows, cure_for
from gpu_util_callback.profiling.result import WindowResult
from gpu_util_callback.profiling.session import ProfilerFailed, ProfilerSession
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.storage import is_remote, storage_for

__all__ = [
    "Surroundings",
    "Window",
    "keep",
    "publish",
]


def publish(file: Path, log_dir: str, name: str, redact: Callable[[str], str] | None = None) -> str:
    """Copy a trace to where TensorBoard's Profile tab looks for it.

    Args:
        file: `<host>.xplane.pb`.
        log_dir: the run's folder, or an fsspec URL.
        name: of the profile; where a window of that name exists, this one gets a suffix.
        redact: replaces a host name.

    Returns: the profile's name as the Profile tab lists it.

    Raises:
        OSError: it cannot be written.
    """
    host = file.name.removesuffix(".xplane.pb")
    target_name = f"{redact(host) if redact else host}.xplane.pb"
    if is_remote(log_dir):
        return _publish_remote(file, log_dir, name, target_name, bool(redact))
    home = Path(storage_for(log_dir)[1]) / "plugins" / "profile"
    home.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        folder = home / (name if attempt == 1 else f"{name}_{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        break
    else:
        raise FileExistsError(f"{home / name} and 999 more exist")
    # A half-copied file would be shown as damaged: it is renamed when complete.
    partial = folder / f"{target_name}.part"
    try:
        if redact:
            partial.write_bytes(_without_host_names(file.read_bytes()))
        else:
            shutil.copyfile(file, partial)
        partial.replace(folder / target_name)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
            folder.rmdir()
        raise
    return folder.name


def _publish_remote(file: Path, log_dir: str, name: str, target_name: str, strip: bool) -> str:
    name = f"{name}_{os.getpid()}"  # object stores have no exclusive folders
    data = file.read_bytes()
    data = _without_host_names(data) if strip else data
    _put(data, log_dir, f"plugins/profile/{name}/{target_name}")
    return name


def keep(file: Path, log_dir: str) -> None:
    """Copy a `<host>.pt.trace.json.gz` to where PyTorch's own tools put such files.

    Args:
        log_dir: the run's folder, or an fsspec URL.

    Raises:
        OSError: it cannot be written.
    """
    host, _, kind = file.name.partition(".pt.")
    name = f"{host}_{os.getpid()}.{time.time_ns()}.pt.{kind}"
    if is_remote(log_dir):
        _put(file.read_bytes(), log_dir, name)
        return
    home = Path(storage_for(log_dir)[1])
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f"{name}.part"
    try:
        shutil.copyfile(file, partial)
        partial.replace(home / name)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _put(data: bytes, log_dir: str, name: str) -> None:
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(log_dir)
    target = f"{root.rstrip('/')}/{name}"
    try:
        filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(target, data)
    except OSError:
        raise
    except Exception as error:  # each store has its own exceptions
        raise OSError(f"{type(error).__name__}: {error}") from error


def _without_host_names(data: bytes) -> bytes:
    """Return an XSpace without field 4, `hostnames`."""
    from gpu_util_callback.traces import wire

    kept = []
    at = 0
    for number, _, _, end in wire.fields(data, 0, len(data)):
        if number != 4:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


# ---- one window ------------------------------------------------------------------------


WATCH_S = 0.1  # how often an open window checks whether the fit is still there
IDLE_S = 60.0  # an open window is closed after this long without a step


@dataclass
class Surroundings:
    """Callbacks from a window to its fit; see `ProfilerWindows`.

    Args:
        note: takes (reason, cure, source) of whatever is missing; once per cure.
        keep: takes the result.
        abandon: called when the fit turns out to be over.
        yielded: called when other code takes the profiler; returns whether the window was open.
        ended: called when nothing more will come of the window.
    """

    session: ProfilerSession
    clock: Clock
    log_dir: str
    redact: Callable[[str], str] | None
    read: Callable[[Path], WindowRows]
    is_over: Callable[[], bool] | None
    note: Callable[..., None]
    keep: Callable[[WindowResult], None]
    abandon: Callable[[], None]
    yielded: Callable[[Window], bool]
    ended: Callable[[Window], None]


class Window:
    """One window from its start until its rows are available; its thread stops the profiler."""

    def __init__(self, fit: Surroundings, planner: Planner, folder: Path, began_ns: int):
        self.folder = folder
        self._fit = fit
        self._planner = planner
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
        if self._fit.yielded(self):
            self._planner.gave_way(time.perf_counter_ns())
        self.closing.set()

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        fit = self._fit
        try:
            self._wait()
            self._stop_and_read()
        except Exception as error:
            fit.note(f"{type(error).__name__}: {error}", 'trace="off" trains without them')
        finally:
            self.stopped.set()
            self.discard()
            self.done.set()
            self._fit.ended(self)

    def _wait(self) -> None:
        """Wait until the window is to be closed, or nothing is left that would close it."""
        fit = self._fit
        while not self.closing.wait(WATCH_S):
            if fit.is_over is not None:
                over = fit.is_over()
            else:
                over = self._planner.idle_s(time.perf_counter_ns()) > IDLE_S
            if over:
                fit.abandon()
                return

    def _stop_and_read(self) -> None:
        fit, planned = self._fit, self.planned
        before = time.perf_counter()
        try:
            file = fit.session.stop(self.folder)
        except ProfilerFailed as error:
            fit.note(error.reason, error.cure)
            file = None
        stop_s = time.perf_counter() - before + self.halt_s
        end_ns = fit.clock.now()
        self.stopped.set()
        if file is None or planned is None:
            if planned is not None:
                self._planner.finished(planned.index, stop_s, 0.0, 0)
            return
        xplane = file.name.endswith(".xplane.pb")
        profile = self._publish(file, planned) if planned.marked and xplane else None
        rows = self._rows(file)
        if planned.marked and not xplane:
            self._keep(file)
        parse_s = rows.cpu_s if rows else 0.0
        cost = self._planner.finished(planned.index, stop_s, parse_s, rows.events if rows else 0)
        if not planned.marked:
            return
        tables = self._converted(rows, planned) if rows else {}
        fit.keep(
            WindowResult(
                window=planned.index,
                first_step=planned.marked[0],
                stop_step=planned.marked_stop,
                profile=profile,
                start_ns=self._began_ns,
                end_ns=end_ns,
                cost_s=cost.total_s if cost else 0.0,
                events=rows.events if rows else 0,
                traced_steps=tables.get("traced_steps", {}),
                kernels=tables.get("kernels", {}),
                step_kernels=tables.get("step_kernels", {}),
                allocators=self._curves(rows) if rows else [],
            )
        )

    def _publish(self, file: Path, planned: PlannedWindow) -> str | None:
        fit = self._fit
        when = time.strftime("%Y_%m_%d_%H_%M_%S")
        try:
            return publish(file, fit.log_dir, f"{when}_step_{planned.marked[0]}", fit.redact)
        except OSError as error:
            self._not_kept(error, "plugins/profile", "Profile tab")
            return None

    def _keep(self, file: Path) -> None:
        """Keep a trace that the Profile tab cannot read, for Perfetto. It holds process names."""
        packed = file.with_name(f"{file.name}.gz")
        if self._fit.redact is None and packed.is_file():
            try:
                keep(packed, self._fit.log_dir)
            except OSError as error:
                self._not_kept(error, "", "profiler's file")

    def _not_kept(self, error: OSError, place: str, source: str) -> None:
        log_dir = self._fit.log_dir
        self._fit.note(
            f"a window's file cannot be put into {log_dir}/{place}: {error.strerror or error}",
            "make that folder writable, or give another log_dir",
            source=source,
        )

    def _rows(self, file: Path) -> WindowRows | None:
        fit, before = self._fit, self.before
        if before is not None:
            before.done.wait()
            self.before = None
        try:
            rows = fit.read(file)
        except ReadFailed as error:
            fit.note(
                f"a window could not be read: {error}",
                f"`gpu-util trace {fit.log_dir}/plugins/profile` reads its file",
            )
            return None
        for problem in rows.problems:
            if fit.session.traces_device or "no gpu detected" not in problem.lower():
                fit.note(problem, cure_for(problem), source="profiler")
        if fit.session.traces_device and not rows.device_events and not rows.problems:
            fit.note(
                "a window holds no event of any GPU",
                "end other CUDA profilers (nsys, ncu) of this process, and check that the model "
                "runs on the GPU: `gpu-util doctor`",
                source="profiler",
            )
        return rows

    def _curves(self, rows: WindowRows) -> list[AllocatorCurve]:
        clock = self._fit.clock
        return [
            replace(curve, time_ns=clock.from_wall(curve.time_ns, self._began_ns))
            for curve in rows.allocators
            if curve.gpu >= 0
        ]

    def _converted(
        self, rows: WindowRows, planned: PlannedWindow
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return the rows with the window's index and the recording's times."""
        tables = {name: dict(columns) for name, columns in rows.tables.items()}
        traced = tables["traced_steps"]
        if traced:
            keep = np.isin(traced["step"], planned.marked)
            traced = {name: values[keep] for name, values in traced.items()}
            if "start_ns" in traced:
                known = traced["start_ns"] > 0
                traced["start_ns"] = np.where(
                    known,
                    self._fit.clock.from_wall(traced["start_ns"], self._began_ns),
                    traced["start_ns"],
                )
            traced["batches"] = np.full(len(traced["step"]), planned.per_call, np.int64)
            tables["traced_steps"] = traced
        by_step = tables.get("step_kernels")
        if by_step:
            keep = np.isin(by_step["step"], planned.marked)
            tables["step_kernels"] = {name: values[keep] for name, values in by_step.items()}
        for columns in tables.values():
            if columns:
                size = len(next(iter(columns.values())))
                columns["window"] = np.full(size, planned.index, np.int64)
        return tables
