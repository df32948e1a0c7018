"""The GPU's part of `GpuUtilCallback(logs=True)`, over the stand-in driver library."""

import os
import time

import pytest
from nvml import Scenario

pytestmark = pytest.mark.real_clock("an epoch of real time is averaged")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_a_gpu_in_use_is_averaged_over_the_epoch(steps_per_execution, play, tmp_path, monkeypatch):
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    from gpu_util_callback import GpuUtilCallback
    from gpu_util_callback.backends.tensorflow.runtime import TensorFlowRuntime

    seen_gpu = [{"index": 0, "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}]
    monkeypatch.setattr(TensorFlowRuntime, "devices", lambda self: seen_gpu)
    scenario = Scenario()
    scenario.gpu("h100").curve("utilization", 40)
    play(scenario)

    def slow(x):
        time.sleep(0.06)
        return x

    data = tf.data.Dataset.from_tensors(tf.ones((4, 8))).repeat(12)
    data = data.map(lambda x: (tf.ensure_shape(tf.numpy_function(slow, [x], tf.float32), (4, 8)), x[:, :1]))
    logs: list[dict] = []
    seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, given: logs.append(dict(given)))
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution, jit_compile=False)
    ours = GpuUtilCallback(tmp_path, trace="off", report=False, logs=True)
    model.fit(data, epochs=2, verbose=0, callbacks=[seen, ours])
    assert logs[1]["gpu_utilization_pct"] == pytest.approx(40, abs=2)
    assert set(logs[0]) == set(logs[1]), "also where the first sample came late"
    assert ours.summary()["gpu_utilization_pct"] == pytest.approx(40, abs=2)
