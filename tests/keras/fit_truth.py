"""Fits whose input is late by known amounts, stamped inside the test's own pipeline."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import injected_fit
import keras
import numpy as np
import tensorflow as tf
from injected import BATCH, WIDTH, Truth, mapped

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.backends.functions import unwrapped
from gpu_util_callback.recorder import recorder

# Keras 3.6 fetches with `next` in the graph, and several steps a call in a Python loop that its
# tracing unrolls: a call that runs out of batches half-way is an epoch's end and no step.
UNROLLED = not hasattr(keras.Model, "_make_function")
PULLED = ("tf.data", "unknown length")  # the batch is made when it is asked for, not before


class Raise(keras.callbacks.Callback):
    """Raises at the end of some batch."""

    def __init__(self, error, batch=5):
        super().__init__()
        self.error, self.batch = error, batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            raise self.error


class Inside(keras.callbacks.Callback):
    """Hands all that Keras calls on to another callback."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattribute__(self, name):
        if name.startswith(("on_", "set_")):
            return getattr(object.__getattribute__(self, "inner"), name)
        return super().__getattribute__(name)


class Worker(keras.Sequential):
    """A model whose steps take as long as they are told, inside the compiled function."""

    def __init__(self, *args, truth: Truth, work_ms: float = 0, **kwargs):
        super().__init__(*args, **kwargs)
        self.truth = truth
        self.work_ms = work_ms
        self.count = 0

    def _work(self) -> np.float32:
        if self.work_ms:
            time.sleep(self.work_ms / 1e3)
        if self.count < len(self.truth):
            self.truth.worked[self.count] = time.perf_counter_ns()
        self.count += 1
        return np.float32(0)

    def train_step(self, data):
        logs = super().train_step(data)
        with tf.control_dependencies(tf.nest.flatten(logs)):
            done = tf.numpy_function(self._work, [], tf.float32)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, logs)


def small_model(truth: Truth | None = None, work_ms: float = 0, size: int | None = None):
    hidden = [keras.layers.Dense(size, activation="relu")] if size else []
    layers = [keras.layers.Input((WIDTH,)), *hidden, keras.layers.Dense(1)]
    if truth is None:
        return keras.Sequential(layers)
    return Worker(layers, truth=truth, work_ms=work_ms)


def compiled(**arguments):
    model = small_model()
    model.compile("sgd", "mse", **arguments)
    return model


@functools.cache
def traced() -> keras.Model:
    """One model for all tests of a process that need no new one: its functions are traced once."""
    model = compiled()
    x = np.zeros((BATCH, WIDTH), np.float32)
    model.fit(x, x[:, :1], batch_size=BATCH, verbose=0)
    return model


def ours(folder) -> GpuUtilCallback:
    return GpuUtilCallback(str(folder), report=False)


def untouched(model) -> bool:
    """Whether nothing of ours is left on the model."""
    return all(getattr(model, name) is unwrapped(getattr(model, name)) for name in ("train_function", "test_function"))


def given(kind: str, truth: Truth):
    """`fit`'s arguments for one kind of input over the truth's batches."""
    if kind == "tf.data":
        return {"x": mapped(truth)}
    if kind == "unknown length":
        return {"x": mapped(truth).filter(lambda x, y: tf.size(x) > 0)}
    if kind == "tf.data + prefetch":
        return {"x": mapped(truth, prefetched=True).prefetch(3)}
    return injected_fit.given(kind, truth)


def recordings(folder) -> list:
    """The recordings in a folder, in the order of their fits."""
    return sorted(read_recordings(folder), key=lambda one: one.facts.get("fit_index", -1))


def ms(recording, column: str) -> np.ndarray:
    return recording.steps[column] / 1e6


def ended(folder: Path, steps: int = 0, within_s: float = 30) -> list:
    """The recordings in a folder, once all are closed and they have so many steps."""
    until = time.monotonic() + within_s
    while True:
        for idle in list(recorder._active.values()):
            idle._idle_until = 0.0  # the moment is over in which the next fit of a series may come
            idle._retire()  # at once, and not with its next flush
        found = recordings(folder)
        counts = [one.step_count for one in found]
        if all(one.status != "live" for one in found) and sum(counts) >= steps:
            return found
        assert time.monotonic() < until, [(one.status, one.step_count) for one in found]
        time.sleep(0.1)
