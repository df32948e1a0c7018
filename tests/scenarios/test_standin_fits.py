"""Real fits over the stand-in driver library: what the GPU did decides what was lost."""

import os
import time
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from nvml import Scenario, loaded  # noqa: E402

from gpu_util_callback import GpuUtilCallback, read_recordings  # noqa: E402
from gpu_util_callback.backends.tensorflow import facts as tensorflow_facts  # noqa: E402
from gpu_util_callback.diagnosis import run_report  # noqa: E402

pytestmark = pytest.mark.timed

STEPS = 120


@pytest.fixture(autouse=True)
def quiet():
    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()


class Working(keras.Sequential):
    """A model whose step takes 8 ms inside the compiled function, off the CPU."""

    def _work(self, x):
        time.sleep(0.008)
        return x

    def train_step(self, data):
        x, y = data
        worked = tf.ensure_shape(tf.numpy_function(self._work, [x], x.dtype), x.shape)
        return super().train_step((worked, y))


def late(x):
    def wait(value):
        time.sleep(0.02)
        return value

    x = tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), (4, 8))
    return x, x[:, :1]


def fit(folder, utilization: float, slow: bool, monkeypatch=None) -> dict:
    """A fit beside one H100 at a utilization; with `monkeypatch`, TensorFlow says it uses it."""
    scenario = Scenario()
    gpu = scenario.gpu("h100")
    gpu.curve("utilization", utilization)
    if monkeypatch is not None:
        from gpu_util_callback.backends.tensorflow.backend import TensorFlowAdapter

        seen = [{"index": 0, "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}]
        monkeypatch.setattr(TensorFlowAdapter, "devices", lambda self: seen)
    source = tf.data.Dataset.from_tensors(tf.ones((4, 8))).repeat(STEPS if slow else 3 * STEPS)
    data = source.map(late if slow else lambda x: (x, x[:, :1]))
    model = Working([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    with loaded(scenario, folder / "standin"):
        callback = GpuUtilCallback(folder / "run", trace="off", report=False)
        model.fit(data, verbose=0, callbacks=[callback])
    [recording] = read_recordings(folder / "run")
    return run_report(recording)


def test_a_gpu_that_the_framework_does_not_see_comes_first(tmp_path):
    run = fit(tmp_path, 0, slow=True)
    [finding] = run["findings"]
    assert finding["cause"] == "cpu_fallback" and finding["lost_s"] is None
    assert [span["cause"] for span in run["spans"]] == ["input_bound"]
    assert run["verdict"] == "TensorFlow does not use the NVIDIA H100 80GB HBM3."
    assert run["gpus"][0]["used_by_framework"] is False
    assert finding["evidence"]["seen"].startswith("there is 1 GPU, and ")


def test_hidden_gpus_are_said_to_be_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    run = fit(tmp_path, 0, slow=False)
    assert run["gpus"] == [] and run["findings"] == []
    assert "CUDA_VISIBLE_DEVICES=-1 hides the 1 GPU" in [m["reason"] for m in run["unavailable"]]


def test_a_gpu_taken_from_the_middle_keeps_its_cuda_number(monkeypatch):
    second = SimpleNamespace(name="/physical_device:GPU:1")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [second])
    details = {"device_name": "NVIDIA A100", "compute_capability": (8, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    [device] = tensorflow_facts.devices()
    assert (device["index"], device["cuda_ordinal"]) == (0, 1)


def test_an_idle_gpu_makes_the_wait_a_loss(tmp_path, monkeypatch):
    run = fit(tmp_path, 10, slow=True, monkeypatch=monkeypatch)
    assert run["findings"] == []
    [span] = run["spans"]
    assert span["cause"] == "input_bound" and span["confidence"] == "measured"
    assert span["gpus"] == [0]
    assert span["evidence"]["gpu_active_pct"] == pytest.approx(10, abs=2)
    assert (span["start_step"], span["end_step"]) == pytest.approx((0, STEPS), abs=5)


def test_a_busy_gpu_makes_the_same_wait_harmless(tmp_path, monkeypatch):
    run = fit(tmp_path, 98, slow=True, monkeypatch=monkeypatch)
    assert run["findings"] == [] and run["spans"] == []


def test_a_healthy_fit_beside_a_busy_gpu_has_no_findings(tmp_path, monkeypatch):
    run = fit(tmp_path, 95, slow=False, monkeypatch=monkeypatch)
    assert run["findings"] == [] and run["spans"] == []
    assert "Nothing held training back" in run["verdict"]
