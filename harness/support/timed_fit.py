"""A Keras model whose step takes a known time off the CPU, and a fit of it under the callback."""

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.diagnosis import run_report


def pause(x: tf.Tensor, ms: float) -> tf.Tensor:
    """`x`, later: waits inside a graph, without Python, its lock or the CPU."""
    later = tf.data.Dataset.from_tensors(x).apply(testing.sleep(round(1e3 * ms)))
    return tf.ensure_shape(later.take(1).get_single_element(), x.shape)


class Timed(keras.Sequential):
    """A model whose step takes `work_ms` inside the compiled function, and little of the CPU."""

    def __init__(self, work_ms: float, **kwargs: Any):
        super().__init__([keras.Input((8,)), keras.layers.Dense(1)], **kwargs)
        self.work_ms = work_ms

    def train_step(self, data):
        x, y = data  # the work needs the batch, as a real step does: it cannot begin before
        return super().train_step((pause(x, self.work_ms), y))


def batches(count: int) -> tf.data.Dataset:
    """So many batches of inputs without labels, at once."""
    return tf.data.Dataset.from_tensors(tf.ones((4, 8))).repeat(count)


def labelled(count: int) -> tf.data.Dataset:
    """So many batches with labels, at once."""
    return batches(count).map(lambda x: (x, x[:, :1]))


def slowly(ms: float):
    """A function for `map` that waits, as reading from a slow disk does, and makes (x, y)."""

    def read(value):
        time.sleep(ms / 1e3)
        return value

    def load(x):
        x = tf.ensure_shape(tf.numpy_function(read, [x], tf.float32), (4, 8))
        return x, x[:, :1]

    return load


def fit(log_dir: Path, _model: keras.Model, _data: Any, **kwargs: Any) -> dict:
    """Train once under the callback; the run's object of the report.

    Printed code has no names from in here (they begin with an underscore) but the usual ones.
    """
    _warm()
    callbacks = [*kwargs.pop("callbacks", []), GpuUtilCallback(log_dir, trace="off", report=False)]
    if not _model.compiled:
        _model.compile("sgd", "mse", jit_compile=False)
    _model.fit(_data, callbacks=callbacks, **{"verbose": 0, **kwargs})
    [recording] = read_recordings(log_dir)
    return run_report(recording)


@functools.cache
def _warm() -> None:
    """What a process does once, at its first fit, belongs to none of the runs that are compared."""
    model = Timed(1)
    model.compile("sgd", "mse", jit_compile=False)
    data = labelled(3)
    with tempfile.TemporaryDirectory() as folder:
        callback = GpuUtilCallback(folder, trace="off", report=False)
        model.fit(data, validation_data=data, callbacks=[callback], verbose=0)
    keras.backend.clear_session()
