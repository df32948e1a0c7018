"""A `tf_keras` (Keras 2) model trained with the callback."""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import tensorflow as tf
import tf_keras
from injected import Truth, close, medians, report

from gpu_util_callback import GpuUtilCallback, read_recordings

BATCH, WIDTH = 8, 16


def dataset(truth: Truth):
    def load(k):
        make = lambda k: truth.make(int(k))  # noqa: E731
        x, y = tf.numpy_function(make, [k], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (BATCH, WIDTH)), tf.ensure_shape(y, (BATCH, 1))

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.range(len(truth)).map(load).with_options(options)


if __name__ == "__main__":
    for executions in (int(argument) for argument in sys.argv[1:]):
        for _ in range(3):
            log_dir = tempfile.mkdtemp(prefix="legacy-")
            truth = Truth()
            model = tf_keras.Sequential([tf_keras.layers.Input((WIDTH,)), tf_keras.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=executions)
            model.fit(
                dataset(truth),
                verbose=0,
                epochs=2,
                validation_data=dataset(Truth([7.0] * 4)),
                callbacks=[GpuUtilCallback(log_dir, report=False)],
            )
            (recording,) = read_recordings(log_dir)
            wait = recording.steps["input_wait_ns"][: len(truth)] / 1e6
            made = (np.array(truth.ready) - np.array(truth.started)) / 1e6
            good = close(wait, made, handed=True)
            if good:
                break
        report(
            f"executions/{executions}",
            good=good,
            measured=medians(wait),
            truth=medians(made),
            steps=len(recording.steps["step"]),
            status=recording.status,
            account=recording.account,
            framework=recording.facts["framework"],
            timing=recording.facts["fit"]["timing"],
            validations=int((recording.phases["kind"] == "validation").sum()),
            validation_ms=(recording.validation_steps["input_wait_ns"] / 1e6).tolist(),
            input=recording.facts["fit"]["input_kind"],
        )
    data = dataset(Truth([0.0] * 4))
    model.fit(data, validation_data=data, verbose=0)  # without us
    left = [getattr(model, name) for name in ("train_function", "test_function")]
    report("after", left=[function.__module__ for function in left])
