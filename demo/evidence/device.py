"""The GPU of this process: its size, its speed, and its memory taken on purpose. Children only."""

from __future__ import annotations

import os
import time
from typing import Any

import keras
import numpy as np

__all__ = ["FRACTION", "Device"]

FRACTION = "GPU_EVIDENCE_MEMORY_FRACTION"


class Device:
    """What workloads are sized for, by the framework's own means.

    Attributes:
        is_gpu: whether the framework computes on an NVIDIA GPU.
        memory_bytes: of the GPU (0 on the CPU).
    """

    def __init__(self) -> None:
        self.backend = keras.backend.backend()
        self.name = "CPU"
        self.capability = ""
        self.memory_bytes = 0.0
        self._rates: dict[str, float] = {}
        self._set_limit = 0.0
        getattr(self, f"_find_{self.backend}")()
        self.is_gpu = self.memory_bytes > 0

    def _find_jax(self) -> None:
        import jax

        device = jax.local_devices()[0]
        if device.platform == "gpu":
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

    def _find_tensorflow(self) -> None:
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            details = tf.config.experimental.get_device_details(gpus[0])
            self.name = details.get("device_name", "GPU")
            self.capability = ".".join(map(str, details.get("compute_capability", ())))
            self.memory_bytes = float(_memory_of_first_gpu())
            if FRACTION in os.environ:  # TensorFlow takes a limit only before its first use
                self._set_limit = float(os.environ[FRACTION]) * self.memory_bytes
                tf.config.set_logical_device_configuration(
                    gpus[0],
                    [tf.config.LogicalDeviceConfiguration(memory_limit=self._set_limit / 2**20)],
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

    def limit_allocator(self, fraction: float) -> None:
        """Let the allocator have this share of the memory (JAX, TensorFlow: by environment)."""
        if self.backend == "torch":
            import torch

            torch.cuda.set_per_process_memory_fraction(fraction)

    def fill_allocator(self, share: float) -> list[Any]:
        """Allocate until the allocator holds this share of its limit; keep the result."""
        kept: list[Any] = []
        chunk = max(1 << 20, int(self._limit() / 256))
        while True:
            free = share * self._limit() - self._used()
            if free < chunk:
                return kept
            size = int(free) // chunk * chunk
            kept.append(self._allocate(min(size, 1 << 32)))

    def _limit(self) -> float:
        if self.backend == "torch":
            import torch

            return torch.cuda.get_per_process_memory_fraction() * self.memory_bytes
        if self.backend == "jax":
            import jax

            return jax.local_devices()[0].memory_stats()["bytes_limit"]
        return self._set_limit

    def _used(self) -> float:
        if self.backend == "torch":
            import torch

            return torch.cuda.memory_allocated()
        if self.backend == "jax":
            import jax

            return jax.local_devices()[0].memory_stats()["bytes_in_use"]
        import tensorflow as tf

        return tf.config.experimental.get_memory_info("GPU:0")["current"]

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


def _memory_of_first_gpu() -> int:
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
