"""What a long fit leaves in memory: what was handed on is gone."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from pathlib import Path

import keras
import numpy as np
import pytest
from fork_server import python
from programs import ran

import gpu_util_callback
from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recorder import recorder
from gpu_util_callback.recording.writer import RecordingWriter

pytestmark = pytest.mark.real_clock("rows that wait for a recorder that comes late")

EPOCHS, STEPS = 4, 600
ROW = 9 * 32  # a step is nine numbers, each of them an object of 32 bytes
# Not the writer's and the rules' buffers, which have a size of their own.
TIMING = ("steps", "backends", "recorder/fit.py")
HERE = Path(gpu_util_callback.__file__).parent
OURS = [tracemalloc.Filter(True, f"{HERE / place}*") for place in TIMING]


class Weighs(keras.callbacks.Callback):
    """What the lines that time steps have allocated and not given back, epoch by epoch."""

    def __init__(self):
        super().__init__()
        self.bytes = []

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.3)  # the recorder takes what there is every tenth of a second
        taken = tracemalloc.take_snapshot().filter_traces(OURS)
        self.bytes.append(sum(trace.size for trace in taken.traces))


def test_steps_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_S", 0.1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batch = np.zeros((2, 4), np.float32), np.zeros((2, 1), np.float32)

    def batches():
        while True:
            yield batch

    model.fit(batches(), steps_per_epoch=1, verbose=0)
    model.make_train_function = lambda force=False: None  # steps that take no time
    model.train_function = lambda iterator: {"loss": 1.0}
    weighs = Weighs()
    tracemalloc.start()
    try:
        model.fit(
            batches(),
            steps_per_epoch=STEPS,
            epochs=EPOCHS,
            verbose=0,
            callbacks=[GpuUtilCallback(str(tmp_path), report=False), weighs],
        )
    finally:
        tracemalloc.stop()
    (recording,) = read_recordings(tmp_path)
    assert len(recording.steps["step"]) == EPOCHS * STEPS
    assert weighs.bytes[-1] > 0, "nothing of ours was seen"
    # The last epoch's steps may be waiting for a recorder that comes late.
    assert weighs.bytes[-1] < 1.5 * STEPS * ROW + 100_000, weighs.bytes
    assert EPOCHS * STEPS * ROW > 1.5 * (1.5 * STEPS * ROW + 100_000), "kept rows would show"


FITS = """
import gc, sys
import keras, numpy as np, psutil
from gpu_util_callback import GpuUtilCallback

model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
x = np.zeros((320, 8), np.float32)
callback = GpuUtilCallback(sys.argv[1], report=False)
for number in range(52):
    if number in (2, 51):
        gc.collect()
        print(psutil.Process().memory_info().rss / 1e6, len(gc.get_objects()))
    model.fit(x, x[:, :1], batch_size=64, verbose=0, callbacks=[callback])
"""


def test_many_fits_keep_no_memory(tmp_path):
    """Each fit's own threads and buffers left 20 MB behind by the fiftieth."""
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = ran(*python("keras"), "-c", FITS, tmp_path, timeout=600, env=environment)
    (before, objects), (after, more) = (map(float, one.split()) for one in done.stdout.splitlines())
    assert after - before < 12, f"{after - before:.0f} MB"
    assert more - objects < 2000


def test_only_the_newest_callbacks_keep_what_a_next_fit_needs(tmp_path):
    """Callback and recorder refer to each other: without a full garbage collection all stayed."""
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    x = np.zeros((64, 8), np.float32)
    gc.collect()
    gc.disable()
    try:
        for fit in range(6):
            callback = GpuUtilCallback(str(tmp_path / str(fit)), report=False)
            model.fit(x, x[:, :1], verbose=0, callbacks=[callback])
        writers = [one for one in gc.get_objects() if type(one) is RecordingWriter]
        assert 1 <= len(writers) <= recorder.KEPT
    finally:
        gc.enable()
    assert [one.status for one in read_recordings(tmp_path)] == ["ended"] * 6
