"""Fits whose input is late by known amounts, stamped inside the test's own pipeline."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.backends.functions import unwrapped
from gpu_util_callback.recorder import recorder

BATCH, WIDTH = 8, 16
KINDS = ("tf.data", "tf.data + prefetch", "unknown length", "generator", "PyDataset", "numpy")
# Keras 3.6 fetches with `next` in the graph, and several steps a call in a Python loop that its
# tracing unrolls: a call that runs out of batches half-way is an epoch's end and no step.
UNROLLED = not hasattr(keras.Model, "_make_function")
PULLED = ("tf.data", "unknown length")  # the batch is made when it is asked for, not before


@dataclass
class Truth:
    """When each batch was asked for and when it was ready: `time.perf_counter_ns`.

    Args:
        delays_ms: how long each batch takes to be made.
    """

    delays_ms: list[float]
    begun: dict[int, int] = field(default_factory=dict)  # the maker was called
    ready: dict[int, int] = field(default_factory=dict)  # the maker returned
    wanted: dict[int, int] = field(default_factory=dict)  # the training loop reached the batch
    worked: dict[int, int] = field(default_factory=dict)  # the step's own work was over

    def make(self, index) -> tuple[np.ndarray, np.ndarray]:
        k = int(index)
        self.begun[k] = time.perf_counter_ns()
        if self.delays_ms[k]:
            time.sleep(self.delays_ms[k] / 1e3)
        batch = np.full((BATCH, WIDTH), 0.1, np.float32), np.zeros((BATCH, 1), np.float32)
        self.ready[k] = time.perf_counter_ns()
        return batch

    def wait_ms(self) -> np.ndarray:
        """max(0, batch ready - batch requested) of every batch."""
        return np.array([max(0, self.ready[k] - self.wanted[k]) / 1e6 for k in sorted(self.ready)])

    def making_ms(self) -> np.ndarray:
        """How long each batch took to be made."""
        return np.array([(self.ready[k] - self.begun[k]) / 1e6 for k in sorted(self.ready)])

    def delaying_ms(self, steps_per_execution: int) -> np.ndarray:
        """How late each batch was for a step that could start when the one before was over.

        Within a call the device is free when the previous step's work is over; the first batch of
        a call is wanted when the call begins.
        """
        free = {
            k: self.wanted[k] if k % steps_per_execution == 0 else self.worked[k - 1]
            for k in range(len(self.delays_ms))
        }
        return np.array([max(0, self.ready[k] - free[k]) / 1e6 for k in free])


class Wanted(keras.callbacks.Callback):
    """Stamps when the loop reaches a batch, just before the train (or test) function."""

    def __init__(self, truth: Truth, validation: Truth | None = None):
        super().__init__()
        self.truth = truth
        self.validation = validation

    def on_train_batch_begin(self, batch, logs=None):
        self.truth.wanted[batch] = time.perf_counter_ns()

    def on_test_batch_begin(self, batch, logs=None):
        if self.validation is not None:
            self.validation.wanted[batch] = time.perf_counter_ns()


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
    n = len(truth.delays_ms)
    if kind in ("tf.data", "tf.data + prefetch", "unknown length"):

        def load(index):
            x, y = tf.numpy_function(truth.make, [index], (tf.float32, tf.float32))
            return tf.ensure_shape(x, (BATCH, WIDTH)), tf.ensure_shape(y, (BATCH, 1))

        dataset = tf.data.Dataset.range(n).map(load)
        if kind == "unknown length":
            dataset = dataset.filter(lambda x, y: tf.size(x) > 0)
        if kind in PULLED:
            return {"x": dataset.with_options(on_demand())}
        return {"x": dataset.prefetch(3)}
    if kind == "generator":
        return {"x": (truth.make(k) for k in range(n)), "steps_per_epoch": n}
    if kind == "PyDataset":
        return {"x": Made(truth), "shuffle": False}
    x = np.full((n * BATCH, WIDTH), 0.1, np.float32)
    return {"x": x, "y": np.zeros((n * BATCH, 1), np.float32), "batch_size": BATCH}


def on_demand() -> tf.data.Options:
    """tf.data without the prefetch that it would put at the end by itself."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return options


class Made(keras.utils.PyDataset):
    """Batches of a truth as a PyDataset."""

    def __init__(self, truth: Truth, **kwargs):
        super().__init__(**kwargs)
        self.truth = truth

    def __len__(self):
        return len(self.truth.delays_ms)

    def __getitem__(self, index):
        return self.truth.make(index)


def recorded_fit(model, log_dir, *, callbacks=(), after=(), **arguments):
    """Fit with a GpuUtilCallback between `callbacks` and `after`; the one recording it leaves."""
    before = {r.id for r in read_recordings(log_dir)} if log_dir.exists() else set()
    arguments.setdefault("verbose", 0)
    ours = GpuUtilCallback(str(log_dir), report=False)
    model.fit(callbacks=[*callbacks, ours, *after], **arguments)
    (recording,) = [r for r in read_recordings(log_dir) if r.id not in before]
    return recording


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
