"""A fit that runs out of the stand-in's memory: its own error, and a recording that says why."""

import sys
import time
import traceback

import numpy as np
import pytest
from nvml import GIB, NOBODY, Scenario
from waiting import newest

TEXT = (
    "OOM when allocating tensor with shape[65536,4096] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
)


def failing_model(keras, error: Exception):
    """A model whose 60th step raises, as one does whose allocator has nothing left."""

    class Fails(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.steps = 0

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            self.steps += 1
            time.sleep(0.02)
            if self.steps > 60:
                raise error
            return super().train_step(data)

    model = Fails()
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def test_the_post_mortem_names_phase_batch_and_other_processes(play, tmp_path, monkeypatch):
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    from gpu_util_callback import GpuUtilCallback
    from gpu_util_callback.backends.tensorflow.runtime import TensorFlowRuntime
    from gpu_util_callback.diagnosis import run_report

    scenario = Scenario()
    gpu = scenario.gpu("h100")
    gpu.process("self", 58 * GIB).process(NOBODY, 20 * GIB)
    play(scenario)
    held = {"allocator_used_bytes": 12.0 * GIB, "allocator_peak_bytes": 57.0 * GIB}
    monkeypatch.setattr(TensorFlowRuntime, "memory", lambda self: {0: held})
    monkeypatch.setattr(TensorFlowRuntime, "devices", lambda self: [{"index": 0, "name": "NVIDIA H100 80GB HBM3"}])
    error = tf.errors.ResourceExhaustedError(None, None, TEXT)
    model = failing_model(keras, error)
    data = np.ones((6400, 4), "float32"), np.ones((6400, 1), "float32")
    with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
        model.fit(*data, batch_size=64, verbose=0, callbacks=[GpuUtilCallback(tmp_path)])
    assert raised.value is error, "the very same exception"
    lines = traceback.extract_tb(raised.value.__traceback__)
    assert [line for line in lines if line.name == "train_step" and "raise error" in line.line]
    run = run_report(newest(tmp_path, "interrupted"))
    [finding] = [one for one in run["findings"] if one["cause"] == "out_of_memory"]
    evidence = finding["evidence"]
    assert finding["title"].startswith("Out of GPU memory in the train function, at step ")
    assert finding["title"].endswith("with a batch of 64") and finding["gpus"] == [0]
    assert evidence["asked_for_mib"] == 1024 and evidence["batch_size"] == 64
    assert evidence["allocator_peak_mib"] == 57 * 1024
    assert evidence["others_memory_gib"] == pytest.approx(20, rel=0.05)
    assert run["verdict"] == f"{finding['title']}."
    assert sys.exc_info() == (None, None, None)
