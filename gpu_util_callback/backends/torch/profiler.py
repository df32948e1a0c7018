"""Profiler windows on PyTorch, through `torch.profiler`.

Its recorder (Kineto) is one per process and checks nothing: stopping a profile that another one
has replaced, on any thread, crashes the process; and only the thread that started a profile can
stop it. Hence the care in here. Writing the file is safe on any thread, but holds Python's lock,
as stopping does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import torch
from torch.autograd import profiler as _autograd
from torch.profiler import ProfilerActivity, profile
from torch.torch_version import TorchVersion

from gpu_util_callback.profiling.session import (
    Marker,
    ProfilerBusy,
    ProfilerFailed,
    ProfilerSession,
    no_file,
    not_started,
)
from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.frames import instances, uncounted

LEFT_S = 10.0  # how long a window that was left open waits for the main thread
ASK_S = 0.002  # the interval at which it is asked
THEIRS_S = 60.0  # how long a profile of other code on another thread waits
_QUIET = "6"  # above the level at which Kineto writes two lines about every profile


class TorchProfiler(ProfilerSession):
    """`torch.profiler`, started and stopped by the main thread alone.

    The main thread can be asked at any time: for a window that a fit left open, and by a profile
    that other code starts on another thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._profile: profile | None = None  # recording
        self._stopped: profile | Exception | None = None  # to be written
        self._is_replaced = False  # a profile was replaced, and can never be stopped
        self._recording_over = threading.Event()  # it no longer records
        self._is_abandoned = False  # nothing waits for its recording
        self._last_step_event: torch.cuda.Event | None = None  # recorded behind the last marked step; None = none yet
        self._requests: list[object] = []  # C's side of our requests to the main thread
        self._starting = False  # the main thread is starting ours
        self._ended = False  # no window is to follow
        self._other_profilers: set[int] = set()  # threads on which another profile is prepared or runs
        self._earlier: list[weakref.ref] | None = None  # None = the entry points are not watched

    @property
    def traces_device(self) -> bool:
        # Initialised by the training itself: workers forked later could no longer use it.
        return torch.cuda.is_initialized() and torch.cuda.is_available()

    @property
    def holds_up(self) -> bool:
        return True

    def mark(self, step: int) -> Marker:
        self._keep_one()
        return Marker(torch.profiler.record_function(f"ProfilerStep#{step}"))

    def wait(self) -> Marker:
        return Marker(torch.profiler.record_function(waits.INPUT_WAIT))

    def _settle(self) -> None:
        if self.traces_device:
            torch.cuda.synchronize()
            self._last_step_event = None

    def _keep_one(self) -> None:
        """Keep the host at most one step ahead of the GPU: a marker then describes its step."""
        if self.traces_device:
            behind, self._last_step_event = self._last_step_event, torch.cuda.Event()
            self._last_step_event.record()
            if behind is not None:
                behind.synchronize()

    def server(self) -> str | None:
        if os.environ.get("KINETO_USE_DAEMON"):
            return "the Kineto daemon (KINETO_USE_DAEMON)"
        return None

    # -- start and stop ------------------------------------------------------------------------

    def start(self, folder: Path, yielded: Callable[[], None]) -> None:
        """Start a profile; on the main thread. Raises: ProfilerBusy, ProfilerFailed."""
        if threading.current_thread() is not threading.main_thread():
            raise ProfilerFailed(
                "torch's profiler must be stopped by the thread that started it, which is possible "
                "only in the main thread; this training runs in another one",
                "train in the main thread of a process to get windows",
            )
        on_device = self.traces_device
        if on_device and _old_cuda():
            raise ProfilerFailed(
                f"with CUDA {torch.version.cuda} a second profile can crash a process that uses CUDA graphs",
                "install a PyTorch for CUDA 12.6 or later to get windows",
            )
        if self._is_replaced:
            raise ProfilerFailed(
                "a profile on another thread has replaced a window, while the main thread waited",
                "restart the process to get windows again",
            )
        with self._lock:
            if self._folder is not None or self._other_profile_active() or self._current() is not None:
                raise ProfilerBusy("another profiler is running")
            self._yielded = yielded
            self._record(on_device)
            self._folder = folder
            waits.mark = self.wait  # waits for the input are marked in the profile from here on

    def _record(self, on_device: bool) -> None:
        """Start a profile of the host, and of the GPU if `on_device`. Raises: ProfilerFailed."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
        self._stopped, self._is_abandoned = None, False
        self._recording_over.clear()
        try:
            new_profile = profile(activities=activities, **_options())
            self._starting = True
            with _quiet():
                new_profile.start()
            self._profile = new_profile
        except BaseException as error:
            if torch.autograd._profiler_enabled():
                new_profile.stop()
            self._profile = None
            self._recording_over.set()
            if not isinstance(error, Exception):  # Ctrl+C
                raise
            raise not_started("PyTorch", error) from error
        finally:
            self._starting = False

    def halt(self, folder: Path) -> None:
        with self._lock:
            if self._folder == folder:
                self._halt()

    def _halt(self) -> None:
        """Stop recording, and keep the profile to be written; does nothing on other threads than the main one."""
        if self._profile is None or threading.current_thread() is not threading.main_thread():
            return
        ended_profile, self._profile = self._profile, None
        try:
            if torch.autograd._profiler_enabled():  # else already stopped: no trace is left
                ended_profile.stop()
                self._stopped = ended_profile
        except Exception as error:
            self._stopped = error
        finally:
            waits.mark = None
            if self._is_abandoned:
                self._folder = self._stopped = None
            if self._ended:
                self._unwatch()
            self._recording_over.set()

    def stop(self, folder: Path) -> Path | None:
        """Have the main thread stop the profile, then write its file here and return it; None if there is none.

        Raises: ProfilerFailed.
        """
        late = not self._on_main(lambda: self.halt(folder), self._recording_over, LEFT_S)
        with self._lock:
            if self._folder != folder:
                return None
            if late and not self._recording_over.is_set():  # it still records: no window can open meanwhile
                self._is_abandoned = True
                raise ProfilerFailed(
                    "the main thread did not return in time to stop torch's profiler",
                    'trace="off" trains without profiler windows',
                )
            self._folder = None
            stopped, self._stopped = self._stopped, None
        if isinstance(stopped, Exception):
            raise no_file("PyTorch", folder, stopped) from stopped
        if stopped is None:
            return None
        file = folder / f"{socket.gethostname()}.pt.trace.json"
        try:
            stopped.export_chrome_trace(str(file))
        except Exception as error:
            raise no_file("PyTorch", folder, error) from error
        return file if file.is_file() else None

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._profile is None:
                self._unwatch()

    def _drop_for_other_profile(self) -> None:
        """End this window so that a profile of the program's own can start on this thread."""
        while True:
            with self._lock:
                if self._profile is None:  # a profile being written blocks nothing
                    self._other_profilers.add(threading.get_ident())
                    return
            if not self._on_main(self._drop, self._recording_over, THEIRS_S):
                self._lose()

    def _drop(self) -> None:
        """End this window without its file."""
        with self._lock:
            if self._profile is None:
                return
            self._halt()
            self._folder = self._stopped = None
            yielded = self._yielded
        if yielded is not None:
            yielded()

    def _lose(self) -> None:
        """Give up our profile: the main thread is blocked (on their thread?) and cannot stop it.

        Theirs replaces it now, and stopping a replaced one crashes the process: the rest of ours
        stays, recording nothing, and no further window can open in this process.
        """
        with self._lock:
            lost, self._profile = self._profile, None
            self._is_replaced = self._is_replaced or lost is not None
            self._folder = self._stopped = waits.mark = None
            self._recording_over.set()
        if lost is None:
            return
        finished = threading.Event()

        def quieten() -> None:
            lost.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
            finished.set()

        later = threading.Thread(target=self._on_main, args=(quieten, finished, 3600.0), daemon=True)
        later.start()

    def _on_main(self, function: Callable[[], None], finished: threading.Event, wait_s: float) -> bool:
        """Run a function on the main thread, between two of its Python instructions; return whether it is done.

        Not while the main thread is in torch's own code, which may restore afterwards what we end in there, as
        the backward pass does.

        Args:
            finished: set by the function, or when it need no longer run.
            wait_s: how long it is tried.
        """
        if threading.current_thread() is threading.main_thread():
            function()
            return True

        def called(_: object) -> int:
            try:
                if not finished.is_set() and not _amid_torch():
                    function()
            except Exception:  # it would surface somewhere in the user's code
                finished.set()
            return 0

        request = _CALL(called)
        self._requests = [*self._requests[-7:], request]  # C keeps no reference
        end = time.monotonic() + wait_s
        while not finished.is_set() and time.monotonic() < end:
            ctypes.pythonapi.Py_AddPendingCall(request, None)
            finished.wait(ASK_S)
        return finished.is_set()

    # -- others --------------------------------------------------------------------------------

    def _current(self) -> object:
        """Return the profile that runs, ours or not; None without one."""
        if self._profile is not None:
            return self._profile
        if _autograd._is_profiler_enabled or torch.autograd._profiler_enabled():
            return _autograd
        return None

    def _entry_points(self) -> Iterable[tuple[object, str]]:
        yield _autograd, "_prepare_profiler"
        yield _autograd, "_enable_profiler"
        yield _autograd, "_disable_profiler"

    @uncounted
    def _wrapper(self, original: Callable) -> Callable:
        """Wrap a function of torch that starts or stops a profile, so that a window never meets another profile.

        Before another profile starts, our window is dropped; after it ended, its thread is free for one again.
        """
        ends = original.__name__ == "_disable_profiler"

        @functools.wraps(original)
        def guarded(*args, **kwargs):
            """Call the original, with our window dropped before another profile starts."""
            if not ends and not self._starts_our_profile():
                self._drop_for_other_profile()
            try:
                return original(*args, **kwargs)
            finally:
                if ends:
                    self._other_profilers.discard(threading.get_ident())

        return guarded

    def _starts_our_profile(self) -> bool:
        return self._starting and threading.current_thread() is threading.main_thread()

    def _unwatch(self) -> None:
        super()._unwatch()
        self._earlier = None
        self._other_profilers.clear()

    def _other_profile_active(self) -> bool:
        """Return whether another profile is prepared or runs, on any thread; torch reports neither.

        The entry points are watched from a fit's first window to its end, so that all later
        profiles are known. Earlier ones are searched for once.
        """
        if self._earlier is None:
            self._ended = False
            self._watch()
            kinds = (_autograd.profile, *_autograd.profile.__subclasses__())
            profiles = instances(*kinds)
            self._earlier = [weakref.ref(profile) for profile in profiles]
        self._earlier = [reference for reference in self._earlier if _prepared(reference())]
        return bool(self._earlier or self._other_profilers)


_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_TORCH = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 (compared with code's own names)


def _amid_torch() -> bool:
    """Return whether a function of torch's is under way on this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_TORCH):
            return True
        frame = frame.f_back
    return False


def _old_cuda() -> bool:
    """Return whether CUPTI cannot be loaded twice with CUDA graphs, as torch.profiler reports."""
    return torch.version.cuda is not None and TorchVersion(torch.version.cuda) < "12.6"


def _prepared(profile: object) -> bool:
    """Return whether another profile is between its preparation and its stop."""
    attributes = getattr(profile, "__dict__", {})
    if attributes.get("acc_events"):  # reused again and again: not decidable
        return True
    return bool(attributes.get("entered")) and attributes.get("kineto_results") is None


def _options() -> dict[str, object]:
    """Return options that omit what only torch's tables need, a third of the cost of stopping."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return {"experimental_config": _ExperimentalConfig(trace_only=True)}
    except (ImportError, TypeError):  # before torch 2.13
        return {}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the lines in the terminal for each window. Kineto reads its level once."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = _QUIET
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


SESSION = TorchProfiler()
