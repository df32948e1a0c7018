"""Real fits over the stand-in driver library: what the GPU did decides what was lost."""

from types import SimpleNamespace

import pytest

pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from nvml import Scenario, loaded  # noqa: E402
from timed_fit import Timed, batches, fit, slowly  # noqa: E402

from gpu_util_callback.backends.tensorflow.runtime import TensorFlowRuntime  # noqa: E402
from gpu_util_callback.diagnosis import logdir_report  # noqa: E402
from gpu_util_callback.recording import read_recordings  # noqa: E402
from gpu_util_callback.report.terminal import render  # noqa: E402

pytestmark = [pytest.mark.real_clock("a verdict on what a real fit spends"), pytest.mark.usefixtures("fresh_keras")]

STEPS = 80
GIB = 2**30


def shown(folder) -> str:
    """What `gpu-util report` prints of a fit."""
    return " ".join(render(logdir_report(read_recordings(folder / "run"))).split())


def test_memory_that_the_machine_shares_is_not_called_vram(tmp_path):
    scenario = Scenario()
    gpu = scenario.gpu("h100", name="NVIDIA GB10").curve("memory_total", 120 * GIB).curve("memory_used", 112 * GIB)
    gpu.process("self", 0.3 * GIB)
    with loaded(scenario, tmp_path / "standin"):
        run = fit(tmp_path / "run", Timed(8), batches(STEPS).map(slowly(2)))
    assert run["gpus"][0]["unified_memory"] and run["gpus"][0]["memory_total_bytes"] is None
    assert "peak VRAM" not in shown(tmp_path) and "up to 0.3 GiB of the machine's memory" in shown(tmp_path)


def test_a_mig_slice_does_not_draw_the_power_of_its_board(tmp_path, monkeypatch):
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    monkeypatch.setattr(TensorFlowRuntime, "devices", lambda self: [{"index": 0, "name": name}])
    scenario = Scenario()
    scenario.mig(scenario.gpu("h100"))
    with loaded(scenario, tmp_path / "standin"):
        fit(tmp_path / "run", Timed(8), batches(STEPS).map(slowly(2)))
    assert "500 W of the whole board" in shown(tmp_path)


def fit_beside(folder, utilization: float, monkeypatch=None) -> dict:
    """A fit that waits for its input beside one H100; with `monkeypatch`, TensorFlow says it uses it."""
    scenario = Scenario()
    scenario.gpu("h100").curve("utilization", utilization)
    if monkeypatch is not None:
        seen = [{"index": 0, "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}]
        monkeypatch.setattr(TensorFlowRuntime, "devices", lambda self: seen)
    with loaded(scenario, folder / "standin"):
        return fit(folder / "run", Timed(8), batches(STEPS).map(slowly(20)))


def test_a_gpu_that_the_framework_does_not_see_comes_first(tmp_path):
    run = fit_beside(tmp_path, 0)
    [finding] = run["findings"]
    assert finding["cause"] == "cpu_fallback" and finding["lost_s"] is None
    assert [span["cause"] for span in run["spans"]] == ["input_bound"]
    assert run["verdict"] == "TensorFlow does not use the NVIDIA H100 80GB HBM3."
    assert run["gpus"][0]["used_by_framework"] is False
    assert finding["evidence"]["seen"].startswith("there is 1 GPU, and ")


def test_a_gpu_taken_from_the_middle_keeps_its_cuda_number(monkeypatch):
    second = SimpleNamespace(name="/physical_device:GPU:1")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [second])
    details = {"device_name": "NVIDIA A100", "compute_capability": (8, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    [device] = TensorFlowRuntime().devices()
    assert (device["index"], device["cuda_ordinal"]) == (0, 1)


def test_an_idle_gpu_makes_the_wait_a_loss(tmp_path, monkeypatch):
    run = fit_beside(tmp_path, 10, monkeypatch=monkeypatch)
    assert run["findings"] == []
    [span] = run["spans"]
    assert span["cause"] == "input_bound" and span["confidence"] == "measured"
    assert span["gpus"] == [0]
    assert span["evidence"]["gpu_active_pct"] == pytest.approx(10, abs=2)
    assert (span["start_step"], span["end_step"]) == pytest.approx((0, STEPS), abs=5)
