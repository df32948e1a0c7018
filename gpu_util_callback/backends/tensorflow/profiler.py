"""Profiler windows on TensorFlow, through `tf.profiler.experimental`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf
from tensorflow.python.eager import context as _context
from tensorflow.python.profiler import profiler_v2 as _profiler_v2  # its record of the running profile

from gpu_util_callback.cgroup import text_of
from gpu_util_callback.profiling.session import Marker, ProfilerBusy, ProfilerSession, no_file, not_started

# Name of the polling threads of gRPC's synchronous C++ servers (cut to the kernel's 15 letters), one an idle server.
# TensorFlow keeps no trace of `tf.profiler.experimental.server.start` that Python could read.
_THREAD = "grpcpp_sync_ser"


def _servers_of_a_job() -> int:
    """Return how many such servers Ray's worker and TensorFlow's cluster run in this process: one each."""
    ray, context = sys.modules.get("ray"), _context.context()
    in_ray = ray is not None and ray.is_initialized()
    in_cluster = getattr(context, "_collective_ops_server_def", None) or context.get_server_def()
    return bool(in_ray) + bool(in_cluster)


class TensorFlowProfiler(ProfilerSession):
    """`tf.profiler.experimental`; its options are not used, since TensorFlow ignores them."""

    @property
    def traces_device(self) -> bool:
        return bool(tf.config.list_physical_devices("GPU"))

    def mark(self, step: int) -> Marker:
        # `_r=1` makes it the root of a step; without it the Profile tab finds no step markers.
        return Marker(tf.profiler.experimental.Trace("train", step_num=step, _r=1))

    def _settle(self) -> None:
        if self.traces_device:
            tf.test.experimental.sync_devices()

    def server(self) -> str | None:
        try:
            threads = list(Path("/proc/self/task").iterdir())
        except OSError:
            return None
        if sum(text_of(thread / "comm").strip() == _THREAD for thread in threads) > _servers_of_a_job():
            return "a gRPC server in this process, such as tf.profiler.experimental.server.start"
        return None

    def _start(self, folder: Path) -> None:
        """Start the profiler. Raises: ProfilerBusy, ProfilerFailed."""
        try:
            tf.profiler.experimental.start(str(folder))
        except tf.errors.AlreadyExistsError as error:
            # A session that C++ code has started, such as the profiler's server. TensorFlow keeps the
            # session that it has just failed to start, and would refuse each later one: drop it.
            with contextlib.suppress(Exception):  # none is kept
                self._drop()
            raise ProfilerBusy("another profiler is running") from error
        except Exception as error:
            raise not_started("TensorFlow", error) from error

    def _stop(self, folder: Path) -> None:
        try:
            with contextlib.suppress(tf.errors.UnavailableError):  # other code has stopped it, and the file is there
                tf.profiler.experimental.stop()
        except Exception as error:
            raise no_file("TensorFlow", folder, error) from error

    def _drop(self) -> None:
        tf.profiler.experimental.stop(save=False)

    def _current(self) -> object:
        return getattr(_profiler_v2, "_profiler", None)

    def _entry_points(self) -> Iterable[tuple[object, str]]:
        yield tf.profiler.experimental, "start"
        yield _profiler_v2, "start"  # tf.profiler.experimental.Profile


SESSION = TensorFlowProfiler()
