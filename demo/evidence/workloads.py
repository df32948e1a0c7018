"""Keras models and their data, sized for the GPU at hand. Imports Keras: children only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from evidence.device import Device

FEATURES = 256  # 16 x 16 pixels of one channel
STEP_S = 0.03  # what a large step should take: ten times what the host needs for it


class Batches(keras.utils.PyDataset):
    """The same batch again and again, each after `delay_s` of making it."""

    def __init__(self, x: np.ndarray, y: np.ndarray, steps: int, delay_s: float = 0.0) -> None:
        super().__init__()
        self.x, self.y, self.steps, self.delay_s = x, y, steps, delay_s

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if self.delay_s:
            time.sleep(self.delay_s)
        return self.x, self.y


@dataclass
class Workload:
    """A compiled model and its batch.

    Attributes:
        delay: the time each batch takes to make, given the time a step takes alone, in seconds.
        validation: (batches, delay_s) of a validation after each epoch, given the epoch's length.
        beside: what runs while it trains.
        in_tensors: whether TensorFlow gets tensors instead of arrays, which it would copy first.
    """

    model: keras.Model
    x: np.ndarray
    y: np.ndarray
    epochs: int = 1
    delay: Callable[[float], float] = lambda step_s: 0.0
    validation: Callable[[float], tuple[int, float]] | None = None
    beside: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    window_steps: int = 5
    in_tensors: bool = False
    kept: list[Any] = field(default_factory=list)  # memory that stays taken

    def batches(self, steps: int, delay_s: float = 0.0) -> Any:
        if self.in_tensors and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.device("CPU:0"):
                return tf.data.Dataset.from_tensors((self.x, self.y)).repeat(steps)
        return Batches(self.x, self.y, steps, delay_s)


def large_model(device: Device, policy: str, step_s: float = STEP_S, widest: int = 8192) -> Workload:
    """Convolutions and wide matrix products: a step takes about `step_s` on this GPU."""
    keras.mixed_precision.set_global_policy(policy)
    # Weights in 32 bits, gradients, and activations of 2-4 bytes: far below the memory.
    width = 256 if not device.is_gpu else 8192 if device.memory_bytes > 30e9 else 4096
    width = min(width, widest)
    layers, channels = 6, 32 if not device.is_gpu else 128
    rate = device.flops(policy)
    per_sample = 6 * (layers * width**2 + FEATURES * 9 * channels * (channels + 1))
    batch = int(min(8192, max(16, 0.6 * rate * step_s / per_sample)))
    batch = 1 << (batch.bit_length() - 1)
    model = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Reshape((16, 16, 1)),
            keras.layers.Conv2D(channels, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(channels, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            *(keras.layers.Dense(width, activation="relu") for _ in range(layers)),
            keras.layers.Dense(8, dtype="float32"),
        ]
    )
    model.compile("sgd", "mse")
    rng = np.random.default_rng(5)
    x = rng.standard_normal((batch, FEATURES)).astype("float32")
    return Workload(model, x, rng.standard_normal((batch, 8)).astype("float32"))


def healthy(device: Device) -> Workload:
    return large_model(device, "mixed_bfloat16" if device.is_gpu else "float32")


def slow_input(device: Device) -> Workload:
    workload = healthy(device)
    workload.delay = lambda step_s: 2 * step_s
    return workload


def tiny_kernels(device: Device) -> Workload:
    """Forty layers eight wide on one sample, each operation launched by itself."""
    keras.mixed_precision.set_global_policy("float32")
    layers = 40 if device.is_gpu else 10
    model = keras.Sequential([keras.layers.Input((8,)), *(keras.layers.Dense(8, "relu") for _ in range(layers))])
    eager = keras.backend.backend() != "torch"  # Keras on torch compiles nothing by itself
    model.compile("sgd", "mse", run_eagerly=eager, jit_compile=False)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 8)).astype("float32")
    return Workload(model, x, x.copy(), window_steps=3)


def copies(device: Device) -> Workload:
    """A batch of a quarter of a gigabyte for one reduction; numpy's memory is pageable."""
    keras.mixed_precision.set_global_policy("float32")
    floats = (64 << 20) if device.is_gpu else (1 << 18)
    columns = 1 << 14 if device.is_gpu else 1 << 10
    model = keras.Sequential([keras.layers.Input((columns,)), keras.layers.Dense(64)])
    model.compile("sgd", "mse")
    rng = np.random.default_rng(5)
    x = rng.standard_normal((floats // columns, columns), dtype="float32")
    return Workload(model, x, np.zeros((len(x), 64), "float32"), in_tensors=True)


def float32(device: Device) -> Workload:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)
    if keras.backend.backend() == "torch":
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return large_model(device, "float32", 2 * STEP_S)


def full_memory(device: Device) -> Workload:
    """The framework's allocator holds 98 % of its limit, which is nearly all of the memory."""
    policy = "mixed_bfloat16" if device.is_gpu else "float32"
    workload = large_model(device, policy, STEP_S / 3, widest=4096)  # what it needs has to fit
    if device.is_gpu:
        workload.model.fit(workload.batches(4), verbose=0)  # its own memory first
        workload.kept = device.fill_allocator(0.98)
    return workload


def competitor(device: Device) -> Workload:
    workload = healthy(device)
    if device.is_gpu:
        workload.beside = computing_process
    return workload


@contextlib.contextmanager
def computing_process() -> Iterator[None]:
    """A process that multiplies matrices on the GPU until this block ends."""
    program = Path(__file__).with_name("compete.py")
    process = subprocess.Popen(
        [sys.executable, str(program), keras.backend.backend()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "computing\n":
            raise RuntimeError("the competing process did not start")
        yield
    finally:
        process.communicate()  # closes its input, and waits until its output is closed


def long_validation(device: Device) -> Workload:
    workload = healthy(device)
    workload.epochs = 4
    # As long as an epoch, in batches that take 20 ms each to make: on JAX the GPU still works on
    # the epoch's last steps for a quarter of a second.
    workload.validation = lambda epoch_s: (max(4, int(epoch_s / 0.02)), 0.02)
    return workload


WORKLOADS: dict[str, Callable[[Device], Workload]] = {
    build.__name__: build
    for build in (healthy, slow_input, tiny_kernels, copies, float32, full_memory, competitor, long_validation)
}
