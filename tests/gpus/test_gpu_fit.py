"""Real fits beside a driver whose calls are slow, and between fits."""

import os
import time

import numpy as np
import pytest
from nvml import Scenario
from waiting import newest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEP_S = 0.005


@pytest.mark.timed
def test_a_call_that_hangs_changes_no_step_time(play, tmp_path):
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    from gpu_util_callback import GpuUtilCallback, read_recordings

    scenario = Scenario("h100").call("nvmlDeviceGetClockInfo", latency_s=1.6, from_=1, until=1.3)

    def work(x):
        time.sleep(STEP_S)  # a step of known length: the machine's noise is small beside it
        return x

    data = tf.data.Dataset.from_tensors(np.ones((4, 8), "float32")).repeat()
    data = data.map(lambda x: (tf.ensure_shape(tf.numpy_function(work, [x], tf.float32), (4, 8)), x[:, :1]))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(data, steps_per_epoch=5, verbose=0)  # traced before the scenario begins
    library = play(scenario)
    callback = GpuUtilCallback(tmp_path, trace="off", report=False)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if library.time > 3.6:
                self.model.stop_training = True

    model.fit(data, steps_per_epoch=100_000, verbose=0, callbacks=[callback, Stop()])
    [recording] = read_recordings(tmp_path)
    # The GPU's samples have a hole where the driver was slow; the steps went on all the while.
    start_ns = library.start_us * 1000
    t = (recording.samples["gpu0"]["time_ns"] - start_ns) / 1e9
    assert np.diff(t).max() > 1.3
    assert 0.8 < t[np.diff(t).argmax()] < 1.4
    steps = recording.steps
    at = (steps["start_ns"] - start_ns) / 1e9
    slow = (at > 1.3) & (at < 2.5)
    fast = ((at > 0.3) & (at < 0.9)) | ((at > 2.9) & (at < 3.5))
    assert slow.sum() > 100
    assert fast.sum() > 100
    ratio = np.median(steps["duration_ns"][slow]) / np.median(steps["duration_ns"][fast])
    assert ratio < 1.1
    assert np.percentile(steps["duration_ns"][slow], 99) < 0.5e9  # no step waited for the call


@pytest.mark.real_clock("a sampler that rests between fits")
def test_what_gpus_do_between_the_fits_of_a_series_is_not_recorded(play, tmp_path):
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    from gpu_util_callback import GpuUtilCallback

    scenario = Scenario("h100")
    play(scenario)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    x = np.ones((64, 8), "float32")

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)

    callback = GpuUtilCallback(tmp_path, report=False)
    for _ in range(2):
        model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[callback, Slow()])
        time.sleep(0.7)
    recording = newest(tmp_path, "ended")
    phases = recording.phases
    rows = [i for i, kind in enumerate(phases["kind"]) if kind == "between_fits"]
    assert len(rows) == 1
    t = recording.samples["gpu0"]["time_ns"]
    assert len(t) > 8, "of the fits themselves"
    for i in rows:
        start, end = phases["start_ns"][i], phases["end_ns"][i]
        assert end - start > 0.5e9
        # The counters are read once more as a fit ends.
        assert not ((t >= start + 0.2e9) & (t < end)).any()
