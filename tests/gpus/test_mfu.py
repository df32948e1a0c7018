"""Samples per second, MFU and power: recording, report, scalars, lanes, logs and summary agree."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from nvml import Scenario

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.diagnosis import logdir_report, run_report
from gpu_util_callback.recorder.model_work import precision_of
from gpu_util_callback.recording.work import full_rates, mfu_of, peak_text
from gpu_util_callback.report.terminal import render
from tensorboard_plugin.lanes import lanes_of

pytestmark = pytest.mark.real_clock("rates of real time")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

H100 = {"index": 0, "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}


@pytest.fixture
def keras(play, monkeypatch):
    """Keras on TensorFlow, on a machine with an H100."""
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    from gpu_util_callback.backends.tensorflow.runtime import TensorFlowRuntime

    monkeypatch.setattr(TensorFlowRuntime, "devices", lambda self: [dict(H100)])
    scenario = Scenario("h100")
    play(scenario)
    return keras


def trained(keras, log_dir, policy: str = "float32", at_once: int = 1, **arguments):
    """A fit of 20 ms a call, with a validation; (callback, epochs' logs, its only run)."""
    from gpu_util_callback import GpuUtilCallback

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.02)

    keras.mixed_precision.set_dtype_policy(policy)
    try:
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=at_once)
    x = np.zeros((202, 8), np.float32)
    logs: list[dict] = []
    seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, given: logs.append(dict(given)))
    ours = GpuUtilCallback(log_dir, trace="off", report=False, logs=True, **arguments)
    model.fit(
        x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Slow(), seen, ours], validation_data=(x, x[:, :1])
    )
    (recording,) = read_recordings(log_dir)
    return ours, logs, recording


def training_s(recording, since_ns: int = 0) -> float:
    """What steps took since a moment, but for compiling, and what else belongs to training: new iterators."""
    steps, phases = recording.steps, recording.phases
    spent = steps["duration_ns"] - steps["compile_ns"]
    training = np.isin(phases["account"].astype(str), ("input_wait", "step"))
    others = phases["self_ns"][training & (phases["start_ns"] >= since_ns)]
    return (spent[steps["start_ns"] >= since_ns].sum() + others.sum()) / 1e9


def averaged(ours, logs) -> None:
    """What the GPU did is in the logs of each epoch, also where its first sample or the work came late."""
    assert logs[1]["gpu_utilization_pct"] == pytest.approx(95, abs=2)
    assert set(logs[0]) == set(logs[1])
    assert ours.summary()["gpu_utilization_pct"] == pytest.approx(95, abs=2)


def test_all_of_them_agree(keras, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ours, logs, recording = trained(keras, tmp_path, flops_per_sample=2e9, scalar_freq=10)
    averaged(ours, logs)
    report = logdir_report([recording])
    (run,) = report["runs"]
    assert run["samples_per_s"] == pytest.approx(404 / training_s(recording), rel=1e-3)
    assert run["work"] == {"flops_per_sample": 2e9, "source": "given"}
    (gpu,) = run["gpus"]
    assert gpu["peak"]["tflops"] == 494.7 and gpu["peak"]["precision"] == "tf32"
    assert gpu["peak"]["source"].startswith("https://")
    expected = 100 * run["samples_per_s"] * 2e9 / 494.7e12
    assert gpu["mfu_pct"] == run["mfu"]["pct"] == pytest.approx(expected, rel=1e-4)
    assert run["mfu"]["peak_tflops"] == 494.7
    # Epochs, the first of which compiles.
    second_ns = recording.phases["start_ns"][recording.phases["kind"] == "epoch"][1]
    assert logs[1]["samples_per_s"] == pytest.approx(202 / training_s(recording, second_ns), rel=1e-3)
    share = 100 * logs[1]["samples_per_s"] * 2e9 / 494.7e12
    assert logs[1]["mfu_pct"] == pytest.approx(share, rel=1e-6)
    summary = ours.summary()
    assert summary["mfu_pct"] == run["mfu"]["pct"] and summary["mfu_peak_tflops"] == 494.7
    assert summary["samples_per_s"] == run["samples_per_s"]
    screen = " ".join(render(report, width=200).split())
    assert "of tf32, 495 TFLOP/s" in screen and "samples/s" in screen and " W" in screen
    lanes = {lane["id"]: lane for lane in lanes_of(recording)}
    assert lanes["gpu0/model:mfu_pct"]["title"] == "MFU"
    assert "tf32, 495 TFLOP/s" in lanes["gpu0/model:mfu_pct"]["note"]
    assert lanes["model:samples_per_s"]["title"] == "Samples per second"
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = set(events.Tags()["scalars"]) | set(events.Tags()["tensors"])
    assert {"gpu_util/samples_per_s", "gpu_util/gpu0/mfu_pct", "gpu_util/gpu0/power_w"} <= tags


def test_the_precision_that_the_model_computes_in_and_several_steps_a_call(keras, tmp_path):
    ours, logs, recording = trained(keras, tmp_path, "mixed_bfloat16", at_once=4)
    averaged(ours, logs)
    (gpu,) = run_report(recording)["gpus"]
    assert (gpu["peak"]["precision"], gpu["peak"]["tflops"]) == ("bf16", 989.4)
    assert recording.facts["work"]["source"] == "counted"
    assert recording.facts["work"]["flops_per_sample"] == 2 * (2 * 8 * 16 + 3 * 16)


def test_a_loop_under_the_monitor(play, tmp_path, monkeypatch):
    from gpu_util_callback.backends.adapters import framework_in_use
    from gpu_util_callback.backends.base import runtime_of

    monkeypatch.setattr(type(runtime_of(framework_in_use()[0])), "devices", lambda self: [dict(H100)])
    scenario = Scenario("h100")
    play(scenario)
    batches = [np.zeros((16, 8), np.float32)] * 40
    with GpuUtilMonitor(tmp_path, flops_per_sample=5e9, trace="off", report=False) as monitor:
        for _ in monitor.batches(batches):
            time.sleep(0.02)
    (recording,) = read_recordings(tmp_path)
    run = run_report(recording)
    spent_s = recording.steps["duration_ns"].sum() / 1e9
    assert run["samples_per_s"] == pytest.approx(16 * 40 / spent_s, rel=0.05)
    assert run["mfu"]["pct"] == pytest.approx(
        100 * run["samples_per_s"] * 5e9 / (1e12 * run["gpus"][0]["peak"]["tflops"]), rel=1e-4
    )


def test_an_argument_that_is_no_number():
    with pytest.raises(TypeError, match="flops_per_sample must be a number, got 'many'"):
        GpuUtilMonitor(flops_per_sample="many")
    with pytest.raises(ValueError, match="flops_per_sample must be above 0"):
        GpuUtilMonitor(flops_per_sample=0)


def test_most_of_the_work_decides():
    both = {"matmul": True, "conv": True}
    flops = {("conv", "float16"): 90.0, ("matmul", "float32"): 10.0}
    assert precision_of(flops, "mixed_float16", both) == "fp16"
    assert (
        precision_of({("conv", "float32"): 9.0, ("matmul", "float32"): 1.0}, "float32", {"matmul": False, "conv": True})
        == "tf32"
    )
    assert precision_of({("matmul", "float32"): 1.0}, "float32", {"matmul": False}) == "fp32"
    assert precision_of({}, "mixed_bfloat16", both) == "bf16"


def test_gpus_share_the_work():
    peak = {"tflops": 312.0, "precision": "bf16"}
    gpus = [{"index": 0, "peak": peak}, {"index": 1, "peak": peak}, {"index": 2}]
    facts = {"work": {"flops_per_sample": 1e9}, "gpus": gpus}
    assert full_rates(facts) == {0: 2 * 312e3, 1: 2 * 312e3}
    assert mfu_of(312e3, full_rates(facts)[0]) == pytest.approx(50)
    assert full_rates({**facts, "work": None}) == {} and mfu_of(None, 1.0) is None
    assert mfu_of(1e9, 312e3) is None, "more than the peak is no measurement"


def test_the_denominator_in_words():
    assert peak_text({"tflops": 989.4, "precision": "bf16"}) == "bf16, 989 TFLOP/s"
    assert peak_text({"tflops": 8.1, "precision": "fp32", "derived": "…"}) == ("fp32, 8.1 TFLOP/s, derived")
