"""A `tf_keras` (Keras 2) model trained with the callback."""

from __future__ import annotations

import sys
import tempfile

import tf_keras
from injected import WIDTH, Truth, close, mapped, medians, report, summary

from gpu_util_callback import GpuUtilCallback, read_recordings

if __name__ == "__main__":
    for executions in (int(argument) for argument in sys.argv[1:]):
        log_dir = tempfile.mkdtemp(prefix="legacy-")
        truth = Truth()
        model = tf_keras.Sequential([tf_keras.layers.Input((WIDTH,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=executions)
        model.fit(
            mapped(truth),
            verbose=0,
            epochs=2,
            validation_data=mapped(Truth([7.0] * 4)),
            callbacks=[GpuUtilCallback(log_dir, report=False)],
        )
        (recording,) = read_recordings(log_dir)
        wait = recording.steps["input_wait_ns"][: len(truth)] / 1e6
        made = truth.making_ms()
        report(
            f"executions/{executions}",
            **summary(recording),
            good=close(wait, made, handed=True),
            measured=medians(wait),
            truth=medians(made),
            validations=int((recording.phases["kind"] == "validation").sum()),
            validation_ms=(recording.validation_steps["input_wait_ns"] / 1e6).tolist(),
        )
    data = mapped(Truth([0.0] * 4))
    model.fit(data, validation_data=data, verbose=0)  # without us
    left = [getattr(model, name) for name in ("train_function", "test_function")]
    report("after", left=[function.__module__ for function in left])
