"""The GPU of this process: its size, its speed, and its memory taken on purpose. Children only."""

from __future__ import annotations

import os
import time
from typing import Any

import keras
import numpy as np

from evidence.machine import gpu_memory_bytes

PIECE = 1 << 30  # bytes taken at a time: the same shape compiles once
BESIDE = 2 << 30  # what CUDA, its libraries and the profiler take beside the allocator


class Device:
    """What workloads are sized for, by the framework's own means.

    Args:
        whole: let the framework's allocator have nearly all of the GPU's memory.

    Attributes:
        is_gpu: whether the framework computes on an NVIDIA GPU.
        memory_bytes: of the GPU, or what the framework's pool has of it (0 on the CPU).
    """

    def __init__(self, whole: bool = False) -> None:
        self.backend = keras.backend.backend()
        self.name = "CPU"
        self.capability = ""
        self.memory_bytes = 0.0
        self._rates: dict[str, float] = {}
        self._whole = whole
        self._limit_bytes = 0.0  # TensorFlow does not tell
        getattr(self, f"_find_{self.backend}")()
        self.is_gpu = self.memory_bytes > 0

    def _find_jax(self) -> None:
        if self._whole:  # read when JAX first looks for its devices
            fraction = _share(gpu_memory_bytes(dict(os.environ)))
            os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{fraction:.4f}"
        import jax

        device = jax.local_devices()[0]
        if device.platform in ("gpu", "cuda"):
            stats = device.memory_stats() or {}
            self.name = device.device_kind
            self.capability = str(getattr(device, "compute_capability", ""))
            self.memory_bytes = float(stats.get("bytes_limit", 0)) or 8e9

    def _find_torch(self) -> None:
        import torch

        if torch.cuda.is_available():
            found = torch.cuda.get_device_properties(0)
            self.name = found.name
            self.capability = f"{found.major}.{found.minor}"
            self.memory_bytes = float(found.total_memory)
            if self._whole:
                torch.cuda.set_per_process_memory_fraction(_share(self.memory_bytes))

    def _find_tensorflow(self) -> None:
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            details = tf.config.experimental.get_device_details(gpus[0])
            self.name = details.get("device_name", "GPU")
            self.capability = ".".join(map(str, details.get("compute_capability", ())))
            self.memory_bytes = gpu_memory_bytes(dict(os.environ))
            if self._whole:  # TensorFlow takes a limit only before its first use
                mib = int(_share(self.memory_bytes) * self.memory_bytes / 2**20)
                self._limit_bytes = float(mib << 20)
                tf.config.set_logical_device_configuration(
                    gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=mib)]
                )

    def flops(self, policy: str) -> float:
        """Multiply-adds x 2 a second of a large product, measured once per type."""
        if not self.is_gpu:
            return 5e10  # two CPU cores
        if policy not in self._rates:
            self._rates[policy] = self._measured("bfloat16" if "bfloat16" in policy else "float32")
        return self._rates[policy]

    def _measured(self, dtype: str, size: int = 4096, rounds: int = 10) -> float:
        ops = keras.ops
        rng = np.random.default_rng(1)
        a = ops.cast(ops.convert_to_tensor(rng.standard_normal((size, size), "float32")), dtype)
        for _ in range(3):
            b = ops.matmul(a, a)
        self.wait(b)
        began = time.perf_counter()
        for _ in range(rounds):
            b = ops.matmul(a, a)
        self.wait(b)
        return rounds * 2 * size**3 / (time.perf_counter() - began)

    def wait(self, value: Any = None) -> None:
        """Until the GPU has done everything up to `value`."""
        if self.backend == "torch":
            import torch

            if torch.cuda.is_available():
                torch.cuda.synchronize()
        elif self.backend == "jax":
            import jax

            jax.block_until_ready(value)
        elif value is not None:
            keras.ops.convert_to_numpy(keras.ops.ravel(value)[:1])

    def wait_for_model(self, model: keras.Model) -> None:
        """Until the GPU has done all training steps of a model that were started."""
        variables = model.trainable_variables
        state = getattr(model, "_jax_state", None)  # during fit JAX' weights live here
        if self.backend == "jax" and state:
            self.wait(state["trainable_variables"][-1])
        else:
            self.wait(variables[-1].value)

    def fill_allocator(self, share: float) -> list[Any]:
        """Allocate until the allocator holds this share of its limit; keep the result.

        A training step's passing needs come on top of what it holds between steps: they are kept
        free, in one piece, by a block that is held meanwhile.
        """
        if self.backend == "torch":
            import torch

            torch.cuda.empty_cache()  # what it kept of the steps so far, in many pieces
        passing = max(0, self._used(peak=True) - self._used())
        ballast = self._allocate(int(1.1 * passing) + (64 << 20))
        kept: list[Any] = []
        while (free := int(share * self._limit() - self._used())) > PIECE // 4:
            kept.append(self._allocate(PIECE if free >= PIECE else PIECE // 4))
        del ballast
        return kept

    def _limit(self) -> float:
        if self.backend == "torch":
            import torch

            return torch.cuda.get_per_process_memory_fraction() * self.memory_bytes
        if self.backend == "jax":
            import jax

            return jax.local_devices()[0].memory_stats()["bytes_limit"]
        return self._limit_bytes

    def _used(self, peak: bool = False) -> int:
        """Bytes in use now, or the most so far."""
        if self.backend == "torch":
            import torch

            return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
        if self.backend == "jax":
            import jax

            stats = jax.local_devices()[0].memory_stats()
            return stats["peak_bytes_in_use" if peak else "bytes_in_use"]
        import tensorflow as tf

        info = tf.config.experimental.get_memory_info("GPU:0")
        return info["peak" if peak else "current"]

    def _allocate(self, size: int) -> Any:
        if self.backend == "torch":
            import torch

            return torch.empty(size, dtype=torch.uint8, device="cuda")
        if self.backend == "jax":
            import jax.numpy as jnp

            return jnp.zeros(size, jnp.uint8).block_until_ready()
        import tensorflow as tf

        with tf.device("GPU:0"):
            return tf.zeros(size, tf.uint8)


def _share(memory_bytes: float) -> float:
    """Of a GPU's memory, for the allocator."""
    return max(0.8, 1 - BESIDE / memory_bytes)
