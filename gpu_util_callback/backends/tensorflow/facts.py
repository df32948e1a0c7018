"""Facts of TensorFlow, its GPUs and their memory, with or without Keras."""

from __future__ import annotations

import platform
import weakref
from collections.abc import Callable

import tensorflow as tf

from gpu_util_callback.backends.base import ListedGpu
from gpu_util_callback.cgroup import cpus_allowed


def framework() -> dict[str, object]:
    """Return the manifest's `framework`, without Keras."""
    return {
        "name": "tensorflow",
        "version": tf.__version__,
        "backend": "tensorflow",
        "python": platform.python_version(),
        "device": _device(),
        "cuda_build": bool(tf.test.is_built_with_cuda()),
        "cuda": _build("cuda_version"),
        "cudnn": _build("cudnn_version"),
        "eager_by": "tf.config.run_functions_eagerly(True)" if tf.config.functions_run_eagerly() else None,
    }


def _device() -> str | None:
    """Return "cpu" where there is nothing else to compute on; None = not known."""
    kinds = {device.device_type for device in tf.config.get_visible_devices()}
    return "cpu" if kinds == {"CPU"} else None


def _build(key: str) -> str | None:
    try:
        return tf.sysconfig.get_build_info().get(key)
    except Exception:
        return None


def step_threads() -> int | None:
    """Return the number of threads that a step may use on the CPU."""
    return tf.config.threading.get_intra_op_parallelism_threads() or cpus_allowed()  # 0 = all


def devices() -> list[ListedGpu] | None:
    """Return the GPUs that TensorFlow may use, in its own order; None where it has none.

    `cuda_ordinal` is CUDA's number, which `tf.config.set_visible_devices` does not change.
    """
    gpus: list[ListedGpu] = []
    for index, device in enumerate(tf.config.get_visible_devices("GPU")):
        try:
            details = tf.config.experimental.get_device_details(device)
        except Exception:  # a plug-in device without details
            details = {}
        capability = details.get("compute_capability")
        ordinal = device.name.rpartition(":")[2]  # "/physical_device:GPU:1"
        gpus.append(
            {
                "index": index,
                "name": details.get("device_name") or device.name,
                "compute_capability": ".".join(map(str, capability)) if capability else None,
                "cuda_ordinal": int(ordinal) if ordinal.isdigit() else None,
            }
        )
    return gpus or None


def memory() -> dict[int, dict[str, float]]:
    """Return what each GPU's allocator holds, by ordinal. Waits for no device."""
    if not running():
        return {}
    memory_by_gpu = {}
    for index in range(len(tf.config.list_logical_devices("GPU"))):
        info = tf.config.experimental.get_memory_info(f"GPU:{index}")
        memory_by_gpu[index] = {
            "allocator_used_bytes": float(info["current"]),
            "allocator_peak_bytes": float(info["peak"]),
        }
    return memory_by_gpu


_graph: weakref.ref | None = None  # to the graph of a training that is built op by op


def watch_graph() -> None:
    """Note the graph that the calling thread adds operations to, if there is one."""
    global _graph
    _graph = None if tf.executing_eagerly() else weakref.ref(tf.compat.v1.get_default_graph())


def counters() -> dict[str, int]:
    """Return how many functions are traced, and how many operations the watched graph has."""
    counts = {}
    if running():
        from tensorflow.python.eager import context

        counts["functions"] = len(context.context().list_function_names())
    graph = _graph() if _graph is not None else None
    if graph is not None:  # without eager execution, TensorFlow may never be initialised
        counts["graph_operations"] = int(graph.version)
    return counts


def running() -> bool:
    """Return whether TensorFlow is initialised. Doing that here would break later settings."""
    try:
        from tensorflow.python.eager import context

        return context.context()._context_handle is not None
    except (ImportError, AttributeError):
        return False


def local_fetch(iterator: object) -> Callable[[], int] | None:
    """Return a clock of this process's own part of the last batch; None where it fetches all."""
    from gpu_util_callback.backends.tensorflow.distribute import LocalFetch, is_distributed

    if not is_distributed(iterator):
        return None
    local = LocalFetch(iterator)
    return lambda: local.ended


def rendezvous() -> tuple[str, str, int, int] | None:
    """Return None: TensorFlow's workers find each other by TF_CONFIG, which is read anyway."""
    return None


def tf32() -> dict[str, bool]:
    """Return whether float32 is computed in TF32 on GPUs that have it, by kind of work."""
    enabled = bool(tf.config.experimental.tensor_float_32_execution_enabled())
    return {"matmul": enabled, "conv": enabled}
