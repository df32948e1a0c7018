"""Keras fits under MirroredStrategy over two logical CPU devices, recorded."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from injected import Truth, close, mapped, medians, report, summary

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings
from gpu_util_callback.recorder import recorder

FOLDER = Path(tempfile.mkdtemp(prefix="mirrored-"))
BATCH, WIDTH = 8, 16


def dataset(truth: Truth, known: bool = True) -> tf.data.Dataset:
    made = mapped(truth, prefetched=True)
    return made if known else made.filter(lambda x, y: tf.size(x) > 0)


def fit(name: str, truth: Truth, strategy, known: bool = True):
    with strategy.scope():
        layers = [keras.layers.Input((WIDTH,)), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse", jit_compile=False)
    callbacks = [GpuUtilCallback(FOLDER / name, report=False)]
    model.fit(dataset(truth, known), epochs=1, verbose=0, callbacks=callbacks)
    return read_recordings(FOLDER / name)[0]


def fits() -> None:
    """Waits are those of the pipeline, whatever its length; partial batches; facts."""
    for name, known in (("known", True), ("unknown", False)):
        truth = Truth()
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        recording = fit(name, truth, strategy, known)
        wait = recording.steps["input_wait_ns"] / 1e6
        # Each replica's device fetches ahead: the next batch is made while the step works, and
        # what is left of that is the wait.
        made = truth.making_ms()
        left = np.maximum(made - (recording.steps["duration_ns"] / 1e6 - wait), 0)
        report(
            name,
            **summary(recording),
            good=close(wait, left, handed=True, slack_ms=2.0, share=0.15),
            measured=medians(wait),
            left=medians(left),
            stages=sorted(set(recording.pipeline.get("stage", ()))),
        )


def stages() -> None:
    """Loops over distributed datasets, those that are fetched to the devices ahead and others."""

    def decode(x):
        return x * 2

    recorder.FLUSH_S = 0.1
    for name, devices in (("one", ["CPU:0"]), ("two", ["CPU:0", "CPU:1"])):
        for way, ahead in (("ahead", True), ("late", False)):
            strategy = tf.distribute.MirroredStrategy(devices)
            options = (
                None
                if ahead
                else tf.distribute.InputOptions(
                    experimental_fetch_to_device=False,
                    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
                )
            )
            made = tf.data.Dataset.from_tensors(tf.ones((BATCH, WIDTH))).repeat(20).map(decode)
            batches = strategy.distribute_datasets_from_function(lambda _, made=made: made, options)
            folder = FOLDER / f"{name}-{way}"
            with GpuUtilMonitor(folder, framework="tensorflow", report=False) as monitor:
                for _ in monitor.batches(batches):
                    time.sleep(0.04)  # long enough that the pipeline is read
            [recording] = read_recordings(folder)
            found = {str(stage) for stage in recording.pipeline.get("stage", ())}
            sources = {u["source"] for u in recording.facts["unavailable"]}
            report(
                f"{name}/{way}",
                stages=sorted(stage for stage in found if "decode" in stage),
                unavailable=sorted(sources & {"pipeline"}),
            )


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for chosen in sys.argv[1:]:
        globals()[chosen]()
