"""Trains on the backend that KERAS_BACKEND names, measures ceilings, follows the printed advice, trains again."""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from advised import apply, only

from gpu_util_callback import GpuUtilCallback, ceilings, read_recordings
from gpu_util_callback.diagnosis import logdir_report, run_report

FOLDER = Path(tempfile.mkdtemp(prefix="advised-"))
STEPS, MAKE_S, WORK_S = 30, 0.05, 0.025


def slow_model(step_s: float) -> Any:
    """A model whose step takes `step_s`, without the CPU, on any backend."""

    def wait(value: Any) -> Any:
        time.sleep(step_s)
        return value

    class Works(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            backend = keras.backend.backend()
            if backend == "tensorflow":
                import tensorflow as tf
                from timed_fit import pause

                return tf.ensure_shape(pause(x, 1e3 * step_s), x.shape)
            if backend == "torch":
                return wait(x)
            import jax

            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.pure_callback(wait, shape, jax.lax.stop_gradient(x))

    layers = [keras.Input((8,), batch_size=4), Works(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    return model


class Made(keras.utils.PyDataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(MAKE_S)
        return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")


def fit(name, _data, **kwargs):  # a name that no code is printed with
    callback = GpuUtilCallback(FOLDER / name, trace="off", report=False)
    slow_model(WORK_S).fit(_data, verbose=0, callbacks=[callback], **kwargs)
    [recording] = read_recordings(FOLDER / name)
    return run_report(recording)


if __name__ == "__main__":
    # What a process does once, at its first fit with such an input, is not the input's to save.
    fit("first", Made(), steps_per_epoch=2)
    before = fit("before", Made())
    measured = ceilings(slow_model(WORK_S), Made(), seconds=0.8, progress=False)
    names = apply(only(before, "input_bound")["advice"]["code"], dataset=Made())
    after = fit("after", names["dataset"])
    kept = ("wall_s", "time_s", "step_ms", "spans", "findings")
    runs = [{name: run[name] for name in kept} for run in (before, after)]
    *_, newest = logdir_report(read_recordings(FOLDER))["runs"]
    print("RESULT", json.dumps([*runs, measured.to_dict(), newest["since"]]))
