"""Keras fits on JAX with the model's weights spread over 8 forced host devices, recorded."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import jax
import keras
import numpy as np
from injected import WIDTH, Truth, close, medians, report

from gpu_util_callback import GpuUtilCallback, read_recordings

FOLDER = Path(tempfile.mkdtemp(prefix="sharded-"))
# Eight devices on a few cores work on for a while, and hide so much of the next fetch.
SLACK_MS = 2.5


class Wanted(keras.callbacks.Callback):
    """Stamps when the step after each batch was over."""

    def __init__(self, truth):
        super().__init__()
        self.truth, self.step = truth, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.truth.wanted[self.step] = time.perf_counter_ns()

    def on_train_batch_end(self, batch, logs=None):
        self.truth.worked[self.step] = time.perf_counter_ns()
        self.step += 1


def model_parallel() -> keras.distribution.ModelParallel:
    mesh = keras.distribution.DeviceMesh(
        shape=(2, 4), axis_names=("batch", "model"), devices=keras.distribution.list_devices()
    )
    layout = keras.distribution.LayoutMap(mesh)
    layout["wide.*kernel"] = (None, "model")
    layout["wide.*bias"] = ("model",)
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False)


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    keras.distribution.set_distribution(model_parallel())
    for attempt in range(3):
        truth = Truth()
        inputs = keras.layers.Input((WIDTH,))
        hidden = keras.layers.Dense(64, activation="relu", name="wide")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1, name="narrow")(hidden))
        model.compile("sgd", "mse")
        log_dir = FOLDER / str(attempt)
        model.fit(
            truth.batches(),
            steps_per_epoch=len(truth),
            verbose=0,
            callbacks=[Wanted(truth), GpuUtilCallback(log_dir, report=False)],
        )
        (recording,) = read_recordings(log_dir)
        wait, true = recording.steps["input_wait_ns"] / 1e6, truth.wait_ms(ahead=False)
        if close(wait, true, handed=True, slack_ms=SLACK_MS):
            break
    kernel = model.get_layer("wide").kernel.value
    account = recording.account
    report(
        "sharded",
        good=close(wait, true, handed=True, slack_ms=SLACK_MS),
        measured=medians(wait),
        truth=medians(true),
        steps=len(recording.steps["step"]),
        fit=recording.facts["fit"],
        status=recording.status,
        compiled=int((recording.steps["compile_ns"] > 0).sum()),
        unavailable=[one["source"] for one in recording.facts["unavailable"]],
        off_s=abs(sum(account["time_s"].values()) - account["wall_s"]),
        wall_s=account["wall_s"],
        shards=sorted({str(shard.data.shape) for shard in kernel.addressable_shards}),
        devices=len({shard.device for shard in kernel.addressable_shards}),
        finite=bool(np.isfinite(np.asarray(jax.device_get(kernel))).all()),
    )


if __name__ == "__main__":
    main()
