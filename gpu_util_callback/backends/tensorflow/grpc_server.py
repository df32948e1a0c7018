"""Whether a gRPC server written in C++, such as a profiler server, runs in this process."""

from __future__ import annotations

from pathlib import Path

__all__ = ["listening_grpc_server"]

# gRPC's synchronous C++ servers name their polling threads so (cut to the kernel's 15 letters).
# TensorFlow keeps no trace of `tf.profiler.experimental.server.start` that Python could read.
_THREAD = "grpcpp_sync_ser"


def listening_grpc_server() -> str | None:
    """One line about such a server; None = there is none, or it cannot be seen on this system."""
    try:
        threads = list(Path("/proc/self/task").iterdir())
    except OSError:
        return None
    for thread in threads:
        try:
            name = (thread / "comm").read_text().strip()
        except OSError:  # it has ended meanwhile
            continue
        if name == _THREAD:
            return "a gRPC server in this process, such as tf.profiler.experimental.server.start"
    return None
