"""The interface between profiler windows and a framework's profiler."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path

from gpu_util_callback.redaction import shortened
from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.frames import uncounted

log = logging.getLogger("gpu_util_callback")


class ProfilerBusy(Exception):
    """The profiler is in use by others. Nothing was started."""


class ProfilerFailed(Exception):
    """The profiler does not work here.

    Args:
        reason: what is wrong, in one line.
        cure: what the user can do about it.
    """

    def __init__(self, reason: str, cure: str):
        super().__init__(f"{reason}; {cure}")
        self.reason = reason
        self.cure = cure


class Marker:
    """Range in the trace, of a training step or of a wait; entered when it is made.

    Args:
        context: the framework's own.
    """

    __slots__ = ("_context",)

    def __init__(self, context: AbstractContextManager[object]):
        self._context = context
        context.__enter__()

    def close(self) -> None:
        self._context.__exit__(None, None, None)


class ProfilerSession:
    """A framework's one profiler of this process, held until anybody else wants it.

    While a window is open, the framework's own function that starts a profile is wrapped: called
    by other code, it first ends our window and then does what was asked. Otherwise a user's
    profiling callback would fail, because of us, in its own code.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held while stopping, so that nothing starts in between
        self._folder: Path | None = None  # not None = a window of ours is open
        self._running: object = None  # the framework's object for it
        self._yielded: Callable[[], None] | None = None
        self._halted: dict[Path, Future[Path | None]] = {}  # outcomes of `halt` for `stop`
        self._wrapped: list[tuple[object, str, object, object]] = []  # module, name, the original function, our wrapper

    def start(self, folder: Path, yielded: Callable[[], None]) -> None:
        """Start profiling into a folder that exists. On the training thread.

        Args:
            yielded: called, on the requesting thread, when other code starts a profile before
                `stop`; the window has then already ended without a file.

        Raises:
            ProfilerBusy, ProfilerFailed.
        """
        with self._lock:
            if self._folder is not None or self._current() is not None:
                raise ProfilerBusy("another profiler is running")
            self._start(folder)
            self._folder, self._yielded = folder, yielded
            self._running = self._current()
            self._watch()
            waits.mark = self.wait

    def halt(self, folder: Path) -> None:
        """End the recording that was started into `folder`; `stop` follows, on another thread.

        On the training thread, which launches nothing meanwhile: XLA's profiler unloads CUPTI as it
        stops, and unloading it beside launches destroyed 5 of 8 trainings (JAX on an H200). Only of
        a fit that ended without notice on the window's thread. Never raises.
        """
        if not self.holds_up:
            return
        outcome = self._halted[folder] = Future()
        try:
            outcome.set_result(self._end(folder))
        except Exception as error:
            outcome.set_exception(error)

    def stop(self, folder: Path) -> Path | None:
        """Stop the profile that was started into `folder`, and return its file.

        Callable on any thread. It may take long, and other threads run meanwhile.

        Returns:
            None if the profile is no longer running.

        Raises:
            ProfilerFailed.
        """
        outcome = self._halted.pop(folder, None)
        return self._end(folder) if outcome is None else outcome.result()

    def _end(self, folder: Path) -> Path | None:
        """End the profile into a folder; return its XSpace file, None if there is none or other code ended it.

        Raises: ProfilerFailed.
        """
        with self._lock:
            if self._folder != folder:  # other code has ended it
                return None
            self._folder = None
            try:
                if self._current() is self._running:  # else other code has stopped ours
                    self._stop(folder)
            finally:
                self._running = None
                self._unwatch()
        return next(iter(sorted(folder.glob("plugins/profile/*/*.xplane.pb"))), None)

    def end(self) -> None:
        """Note that the fit has no more windows; one may still be open. Callable on any thread."""

    def _drop_for_other_profile(self) -> None:
        """End our window: other code is about to start a profile."""
        with self._lock:  # a stop in progress ends first
            if self._folder is None:
                return
            self._folder = self._running = None
            self._unwatch()
            if self.holds_up:
                self.settle()
            try:
                self._drop()
            except Exception:  # already gone: nothing to end
                pass
            yielded = self._yielded
        if yielded is not None:
            yielded()

    def settle(self) -> None:
        """Wait until the GPU has done what was launched so far. Never raises.

        For frameworks whose host runs ahead of the GPU: work launched before the profiler started
        is never traced, and work still unfinished when it stops is lost.
        """
        try:
            self._settle()
        except Exception as error:  # a window that misses some work is better than none
            log.debug("gpu_util_callback: %s", error, exc_info=True)

    def _watch(self) -> None:
        """Wrap the functions with which other code starts a profile, so that ours ends first."""
        wrappers: dict[int, object] = {}
        for module, name in self._entry_points():
            original = getattr(module, name, None)
            if original is None:
                continue
            wrapper = wrappers.setdefault(id(original), self._wrapper(original))
            setattr(module, name, wrapper)
            self._wrapped.append((module, name, original, wrapper))

    @uncounted
    def _wrapper(self, original: Callable) -> Callable:
        """Return a function that ends our profile before it calls the original."""

        @functools.wraps(original)
        def start(*args, **kwargs):
            self._drop_for_other_profile()
            return original(*args, **kwargs)

        return start

    def _unwatch(self) -> None:
        """Remove our wrappers from the framework's functions after a window."""
        waits.mark = None
        for module, name, original, wrapper in self._wrapped:
            if getattr(module, name, None) is wrapper:  # else other code has wrapped it in turn
                setattr(module, name, original)
        self._wrapped.clear()

    # -- per framework -------------------------------------------------------------------------

    @property
    def traces_device(self) -> bool:
        """Return whether a GPU is traced, to which the profiler has to attach."""
        raise NotImplementedError

    @property
    def holds_up(self) -> bool:
        """Return whether the training thread itself has to stop the profiler."""
        return self.traces_device

    def mark(self, step: int) -> Marker:
        """Mark a training step that begins. On the training thread."""
        raise NotImplementedError

    def wait(self) -> Marker | None:
        """Annotate a wait for a batch; None = the trace contains it already. On the training thread."""
        return None

    def _settle(self) -> None:
        """Wait for the GPU; nothing where the host does not run ahead of it."""

    def server(self) -> str | None:
        """Return the profiler server in this process that waits for capture requests, if any."""
        return None

    def _start(self, folder: Path) -> None:
        raise NotImplementedError

    def _stop(self, folder: Path) -> None:
        raise NotImplementedError

    def _drop(self) -> None:
        """Stop without keeping the file."""
        raise NotImplementedError

    def _current(self) -> object:
        """Return the framework's object for the running profile, ours or not, where available."""
        return None

    def _entry_points(self) -> Iterable[tuple[object, str]]:
        """Return (module, name) of the functions with which other code starts a profile."""
        return ()


def one_line(error: BaseException) -> str:
    """Return an error's message, shortened to one readable line."""
    text = getattr(error, "message", None) or str(error)
    return shortened(str(text)) or type(error).__name__


def not_started(framework: str, error: BaseException) -> ProfilerFailed:
    """Return the failure of a profiler that could not be started."""
    return ProfilerFailed(
        f"the {framework} profiler did not start: {one_line(error)}", 'trace="off" trains without profiler windows'
    )


def no_file(framework: str, folder: Path, error: BaseException) -> ProfilerFailed:
    """Return the failure of a profiler that wrote nothing into a window's folder."""
    return ProfilerFailed(
        f"the {framework} profiler wrote no file: {one_line(error)}",
        f"make room in {folder.parent}, or set TMPDIR to a folder that can be written",
    )


def profile_claims(callbacks: Iterable[object]) -> list[tuple[int, int]]:
    """Return the calls of the train function, counted from 0, that other callbacks will profile.

    `keras.callbacks.TensorBoard(profile_batch=(first, last))` counts the calls from 1 and profiles
    the last one too; when the profiler is taken it logs an error and writes nothing.

    Returns: half-open ranges.
    """
    claims = []
    for callback in callbacks:
        nested = getattr(callback, "callbacks", None)
        if isinstance(nested, list | tuple):
            claims += profile_claims(nested)
        if getattr(callback, "_should_trace", False):
            first, last = getattr(callback, "_start_batch", 0), getattr(callback, "_stop_batch", 0)
            if isinstance(first, int) and isinstance(last, int) and last >= first > 0:
                claims.append((first - 1, last))
    return sorted(claims)
