"""Switches for debugging that were left on: named with the line that turns them off, and no promise."""

import cProfile
import importlib
import sys
import tracemalloc
from functools import partial

import pytest
from advised import findings
from generated_runs import GPU, Generated, findings_of
from packages import need

from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.backends.base import Runtime
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings

ANOMALY, ALLOCATIONS = "torch.autograd.set_detect_anomaly(True)", "tracemalloc.start(1)"
LINES = {
    ANOMALY: "torch.autograd.set_detect_anomaly(False)",
    'jax.config.update("jax_debug_nans", True)': 'jax.config.update("jax_debug_nans", False)',
    'jax.config.update("jax_debug_infs", True)': 'jax.config.update("jax_debug_infs", False)',
    "tf.debugging.enable_check_numerics()": "tf.debugging.disable_check_numerics()",
    "CUDA_LAUNCH_BLOCKING=1": "CUDA_LAUNCH_BLOCKING=0",
    "torch.profiler": "",
}


def run_of(*switches: str, gpus=(), count=300) -> dict:
    run = Generated(seed=5, gpus=list(gpus), framework={"name": "torch", "backend": "torch"})
    run.facts["fit"] = {"loop": "custom", "debugging": list(switches)}
    run.steps(count, step_ms=8.0, **({"gpu_share": 0.95} if gpus else {}))
    return run.diagnose()


@pytest.mark.parametrize("switch", LINES)
@pytest.mark.parametrize("gpus", [[], [GPU]])
def test_a_switch_is_named_with_the_line_that_turns_it_off(switch, gpus):
    """Seen: "Nothing held up training" of a step that took 1.7 times as long with anomaly detection."""
    report = run_of(switch, gpus=gpus)
    named = findings_of(report, cause="slow_steps")
    if switch.startswith("CUDA") and not gpus:
        assert named == [] and report["verdict"].startswith("Nothing held up training")
        return
    (finding,) = named
    assert report["verdict"] == f"{switch}, meant for debugging, is on and slows each step; cost unknown."
    assert finding["advice"]["code"] == LINES[switch]
    assert finding["lost_s"] is None and not finding["saves_s"]


def test_each_of_two_is_named_and_nothing_else():
    assert len(findings_of(run_of("jax_debug_nans", "jax_debug_infs"), cause="slow_steps")) == 2
    assert run_of()["findings"] == []
    assert run_of(ANOMALY, count=20)["findings"] == [], "too few steps"


@pytest.fixture
def switched(request):
    """Yield the module of a framework whose switch is on, and turn it off again."""
    framework, switch = request.param
    need(framework)
    module = importlib.import_module(framework)
    if switch == ALLOCATIONS:
        module, turn = tracemalloc, lambda on: tracemalloc.start(1) if on else tracemalloc.stop()
    elif switch == ANOMALY:
        turn = module.autograd.set_detect_anomaly
    else:
        turn = partial(module.config.update, switch)
    turn(True)
    yield framework, module, switch
    turn(False)


def recorded(framework: str, log_dir: str) -> dict:
    with GpuUtilMonitor(log_dir=log_dir, framework=framework) as monitor:
        for _ in monitor.batches(range(60)):
            sum(range(20_000))
    (recording,) = read_recordings(log_dir)
    return run_report(recording)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    "switched",
    [("torch", ANOMALY), ("torch", ALLOCATIONS), ("jax", "jax_debug_nans"), ("jax", "jax_debug_infs")],
    indirect=True,
)
def test_the_line_switches_it_off(switched, tmp_path):
    framework, module, switch = switched
    (finding,) = findings(recorded(framework, str(tmp_path / "before")), "slow_steps")
    assert switch in finding["title"]
    exec(finding["advice"]["code"], {module.__name__: module})
    after = recorded(framework, str(tmp_path / "after"))
    assert findings(after, "slow_steps") == []


@pytest.mark.parametrize("switch", ["sys.settrace", "sys.setprofile", "cProfile"])
def test_what_python_calls_at_each_line_is_named(switch, tmp_path):
    """Seen: nothing said of a program that was run with `python -m cProfile`."""
    before, profile = (sys.gettrace(), sys.getprofile()), cProfile.Profile()
    turn = profile.enable if switch == "cProfile" else partial(getattr(sys, switch[4:]), lambda *_: None)
    turn()
    try:
        report = recorded("torch", str(tmp_path))
    finally:
        profile.disable()
        sys.settrace(before[0])
        sys.setprofile(before[1])
    (finding,) = findings(report, "slow_steps")
    assert finding["title"] == f"{switch}, meant for debugging, is on and slows Python" and not finding["saves_s"]
    assert finding["advice"]["code"] == ("" if switch == "cProfile" else f"{switch}(None)")


def test_a_profiler_that_is_left_on_is_named(tmp_path):
    """Seen: "Nothing held up training" of steps that took 1.5 times their CPU time, with 5.8 GiB of records."""
    need("torch")
    import torch

    with torch.profiler.profile():
        (finding,) = findings(recorded("torch", str(tmp_path)), "slow_steps")
    assert "torch.profiler" in finding["title"] and "records" in finding["advice"]["text"]


def test_checks_of_numbers_are_seen_in_what_tensorflow_has_traced():
    """Seen: enable_check_numerics(), which only its own thread can tell, and "70 % compiling" as the whole verdict."""
    need("tensorflow")
    import tensorflow as tf

    from gpu_util_callback.backends.tensorflow.runtime import RUNTIME

    switch = "tf.debugging.enable_check_numerics()"
    tf.debugging.enable_check_numerics()
    try:
        eager = float(tf.sqrt(tf.constant(4.0)))
        assert eager == 2 and switch not in RUNTIME.debugging(), "it may be on in another thread, or not any more"
        root = tf.function(tf.sqrt)
        assert float(root(tf.constant(4.0))) == 2 and switch in RUNTIME.debugging()
    finally:
        exec(LINES[switch])


def mapped(tf, rows):
    return rows.map(lambda x, y: (x * 2, y), num_parallel_calls=tf.data.AUTOTUNE).batch(16).prefetch(2)


def shuffled(tf, rows):
    return rows.shuffle(64).cache().batch(16, num_parallel_calls=2)


def interleaved(tf, rows):
    return tf.data.Dataset.range(2).interleave(lambda _: rows.batch(16), num_parallel_calls=2)


def generated(tf, rows):
    batches = [(x.numpy(), y.numpy()) for x, y in rows.batch(16)]
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=rows.batch(16).element_spec)


@pytest.mark.parametrize("pipeline", [mapped, shuffled, interleaved, generated])
def test_the_debug_mode_of_a_pipeline_slows_the_input(pipeline, tmp_path):
    """Seen: "slows each step", "results are checked", and the advice to switch on an autotuning that was on."""
    need("tensorflow")
    import keras
    import tensorflow as tf
    from tensorflow.python.data.ops import debug_mode

    from gpu_util_callback import GpuUtilCallback

    if keras.backend.backend() != "tensorflow":
        pytest.skip("a fit of TensorFlow's")
    callback = GpuUtilCallback(log_dir=str(tmp_path))
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tf.data.experimental.enable_debug_mode()
    try:
        rows = tf.data.Dataset.from_tensor_slices((tf.random.normal((640, 4)), tf.zeros((640, 1))))
        model.fit(pipeline(tf, rows), epochs=3, verbose=0, callbacks=[callback])
    finally:
        debug_mode.toggle_debug_mode(False)  # the public way has no opposite
    (recording,) = read_recordings(str(tmp_path))
    switch = "tf.data.experimental.enable_debug_mode()"
    (finding,) = [one for one in findings(run_report(recording), "slow_steps") if switch in one["title"]]
    assert finding["title"] == f"{switch}, meant for debugging, is on and slows the input"
    assert "no stage works ahead" in finding["advice"]["text"] and not finding["advice"]["code"]
    assert finding["lost_s"] is None and not finding["saves_s"]
    (lacking,) = [row for row in recording.facts["unavailable"] if row["source"] == "pipeline"]
    assert "debug mode off" in lacking["cure"]


def test_kernels_that_the_host_waits_for_are_seen_in_the_environment(monkeypatch):
    for value, switches in (("", []), ("0", []), ("1", ["CUDA_LAUNCH_BLOCKING=1"])):
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
        assert Runtime().debugging() == switches
