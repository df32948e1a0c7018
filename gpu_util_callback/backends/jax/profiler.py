"""Profiler windows on JAX, through `jax.profiler`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import jax

from gpu_util_callback.profiling.session import Marker, ProfilerBusy, ProfilerSession, no_file, not_started
from gpu_util_callback.steps.annotations import INPUT_WAIT

_internals: object = None
with contextlib.suppress(ImportError):  # JAX's record of the running profile, and its server
    _internals = import_module("jax._src.profiler")


class _Queue:
    """Progress of each local device through the work launched on it, which it runs in order.

    Up to 32 computations are in flight. A host marker describes the GPU's step only where the host
    is at most one step ahead.
    """

    def __init__(self) -> None:
        self._ones = [jax.device_put(1.0, device) for device in jax.local_devices()]
        self._last: object = None  # follows everything that was launched when it was made

    def drain(self) -> None:
        """Wait until the devices have done everything."""
        jax.block_until_ready([array + array for array in self._ones])

    def keep_one(self) -> None:
        """Wait until the devices have done everything but what was launched since the last call."""
        last, self._last = self._last, [array + array for array in self._ones]
        if last is not None:
            jax.block_until_ready(last)


class JaxProfiler(ProfilerSession):
    """`jax.profiler`, without its Python tracer, which doubles the cost of stopping."""

    _queue: _Queue | None = None  # of the open window, on an accelerator

    @property
    def traces_device(self) -> bool:
        return jax.default_backend() != "cpu"

    @property
    def holds_up(self) -> bool:
        return jax.default_backend() == "gpu"  # on a TPU there is no CUPTI

    def mark(self, step: int) -> Marker:
        if self._queue is not None:
            self._queue.keep_one()
        # The name that XProf's and our own tools look for; JAX sets `_r=1` itself.
        return Marker(jax.profiler.StepTraceAnnotation("train", step_num=step))

    def wait(self) -> Marker:
        return Marker(jax.profiler.TraceAnnotation(INPUT_WAIT))

    def _settle(self) -> None:
        if self.traces_device:
            if self._folder is None:  # a window is about to open
                self._queue = _Queue()
            if self._queue is not None:
                self._queue.drain()

    def server(self) -> str | None:
        if getattr(_internals, "_profiler_server", None) is not None:
            return "jax.profiler.start_server"
        return None

    def _start(self, folder: Path) -> None:
        try:
            jax.profiler.start_trace(str(folder), **_options())
        except Exception as error:
            if "one profile" in str(error).lower() or "already" in str(error).lower():
                raise ProfilerBusy("another profiler is running") from error
            raise not_started("JAX", error) from error

    def _stop(self, folder: Path) -> None:
        """Stop the trace and remove the files that nobody reads. Raises: ProfilerFailed."""
        try:
            jax.profiler.stop_trace()
        except RuntimeError as error:
            if "no profile" not in str(error).lower():  # other code has stopped it
                raise no_file("JAX", folder, error) from error
        except Exception as error:
            raise no_file("JAX", folder, error) from error
        for needless in folder.glob("plugins/profile/*/*.trace.json.gz"):
            needless.unlink(missing_ok=True)

    def _drop(self) -> None:
        jax.profiler.stop_trace()  # JAX cannot stop without a file

    def _current(self) -> object:
        state = getattr(_internals, "_profile_state", None)
        return getattr(state, "profile_session", None)

    def _entry_points(self) -> Iterable[tuple[object, str]]:
        yield jax.profiler, "start_trace"
        if _internals is not None:
            yield _internals, "start_trace"  # jax.profiler.trace


def _options() -> dict[str, object]:
    """Return the options of a window: no Python calls, and a folder name of its own."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    if hasattr(options, "session_id"):  # the folder's name, else the second it was stopped in
        options.session_id = "window"
    return {"profiler_options": options}


SESSION = JaxProfiler()
