"""What TensorFlow says of itself in a training loop of somebody's own, without Keras."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpu_util_callback.frameworks.python_functions import CompileClock

__all__ = [
    "TensorFlowCompileClock",
    "devices",
    "framework",
    "local_fetch",
    "memory",
    "rendezvous",
]


def framework() -> dict[str, Any]:
    """The manifest's `framework`, without Keras."""
    return {
        "name": "tensorflow",
        "version": tf.__version__,
        "backend": "tensorflow",
        "python": platform.python_version(),
        "cuda_build": bool(tf.test.is_built_with_cuda()),
    }


def devices() -> list[dict[str, Any]] | None:
    """TensorFlow's GPUs in its own order; None where it has none."""
    from gpu_util_callback.frameworks import tensorflow_facts  # imports Keras

    return tensorflow_facts.devices()


def memory() -> dict[int, dict[str, float]]:
    """What each GPU's allocator holds, by ordinal. Waits for no device."""
    if not _running():
        return {}
    found = {}
    for index in range(len(tf.config.list_logical_devices("GPU"))):
        info = tf.config.experimental.get_memory_info(f"GPU:{index}")
        found[index] = {
            "allocator_used_bytes": float(info["current"]),
            "allocator_peak_bytes": float(info["peak"]),
        }
    return found


def _running() -> bool:
    """Whether TensorFlow has begun. To begin for it would take away what must come before that."""
    try:
        from tensorflow.python.eager import context

        return context.context()._context_handle is not None
    except (ImportError, AttributeError):
        return False


def local_fetch(iterator: Any) -> Callable[[], int] | None:
    """Tells when this process had its own part of the last batch; None where it fetches all."""
    from gpu_util_callback.frameworks.tensorflow_distribute import LocalFetch, is_distributed

    if not is_distributed(iterator):
        return None
    local = LocalFetch(iterator)
    return lambda: local.ended


def rendezvous() -> tuple[str, str, int, int] | None:
    """TensorFlow's workers find each other by TF_CONFIG, which is looked at anyway."""
    return None


class TensorFlowCompileClock(CompileClock):
    """Time spent tracing `tf.function`s: TensorFlow keeps the sum itself, for all threads.

    XLA's own compilations are not in it: TensorFlow tells Python nothing of them.
    """

    def __init__(self) -> None:
        self._cell: Any = None
        super().__init__()

    def start(self) -> None:
        from tensorflow.python.eager.polymorphic_function import tracing_compilation

        self._cell = tracing_compilation._graph_building_time_counter.get_cell()

    def explains(self, compiled_ns: int, spent_ns: int) -> bool:
        # A function that was traced is optimised and set up in the same call.
        return 10 * compiled_ns > spent_ns

    @property
    def ns(self) -> int:
        """Nanoseconds so far."""
        return 0 if self._cell is None else int(self._cell.value()) * 1000

    @ns.setter
    def ns(self, value: int) -> None:
        pass  # the sum is TensorFlow's
