"""Windows of real fits on TensorFlow: TensorFlow's profiler, our reader, and XProf's."""

import json
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from fork_server import python
from programs import ran
from waiting import newest, wait_until

pytestmark = pytest.mark.real_clock("the profiler starts and stops within seconds")

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another backend here", allow_module_level=True)

from gpu_util_callback import GpuUtilCallback, read_recordings  # noqa: E402
from gpu_util_callback.backends.tensorflow.profiler import SESSION, TensorFlowProfiler  # noqa: E402
from gpu_util_callback.profiling.session import ProfilerBusy  # noqa: E402
from gpu_util_callback.profiling.window_reader import WindowRows  # noqa: E402
from gpu_util_callback.traces import read_trace  # noqa: E402
from gpu_util_callback.traces.imported import analyse  # noqa: E402
from gpu_util_callback.traces.recorded import recording_tables  # noqa: E402

START = tf.profiler.experimental.start


@pytest.fixture(autouse=True)
def profiler_is_free():
    """No test leaves the profiler running, or TensorFlow's function wrapped."""
    yield
    wait_until(lambda: SESSION._current() is None, 5)
    assert tf.profiler.experimental.start is START


def model():
    result = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    result.compile("sgd", "mse")
    return result


def fit(log_dir, trace, steps=12, epochs=1, others=(), made=None, compiled=None, **kwargs):
    callback = GpuUtilCallback(str(log_dir), trace=trace, report=False, **kwargs)
    x, y = np.zeros((steps * 4, 8), "float32"), np.zeros((steps * 4, 1), "float32")
    (made or model()).fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=[callback, *others])
    (recording,) = read_recordings(log_dir)
    return recording


def profiles(log_dir):
    return sorted(Path(log_dir).glob("plugins/profile/*/*.xplane.pb"))


def gone(recording, source="profiler windows"):
    return [entry for entry in recording.facts["unavailable"] if entry["source"] == source]


def test_with_a_gpu_the_training_thread_waits_for_it_and_stops_the_profiler(tmp_path, monkeypatch):
    """As on a GPU, but that there is none to wait for."""
    done = []
    stop, wait = TensorFlowProfiler._stop, tf.test.experimental.sync_devices
    monkeypatch.setattr(TensorFlowProfiler, "traces_device", property(lambda session: True))
    monkeypatch.setattr(TensorFlowProfiler, "_stop", lambda *args: (done.append(("stop", thread())), stop(*args)))
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: (done.append(("wait", thread())), wait()))
    thread = threading.current_thread
    recording = fit(tmp_path, [(3, 5), (8, 10)])
    # Before a window begins, and before it is stopped.
    assert done == [(what, threading.main_thread()) for what in ("wait", "wait", "stop")] * 2
    assert [window["first_step"] for window in recording.facts["windows"]] == [3, 8]
    assert len(profiles(tmp_path)) == 2


def test_a_window_is_in_the_recording_and_in_the_profile_tab(tmp_path):
    recording = fit(tmp_path, [(3, 6)])
    assert recording.status == "ended"
    assert list(recording.traced_steps["step"]) == [3, 4, 5]
    assert list(recording.traced_steps["gpu"]) == [-1, -1, -1]
    assert gone(recording) == []

    # The marker covers the step, from its begin to the next one's.
    steps, traced = recording.steps, recording.traced_steps
    starts = steps["start_ns"][3:6]
    apart = traced["start_ns"] - starts
    assert apart.min() > -1e6
    assert np.median(apart) < 3e6  # the first begins when the profiler has started
    parts = [name for name in traced if name.endswith("_ns")][2:]
    assert {"kernel_ns", "idle_input_ns", "other_ns"} <= set(parts)

    (phase,) = np.flatnonzero(recording.phases["kind"] == "profiler_window")
    assert recording.phases["account"][phase] == ""
    assert recording.phases["step"][phase] == 3
    assert recording.phases["start_ns"][phase] <= starts[0] + 1e6
    assert recording.phases["end_ns"][phase] > steps["start_ns"][5]

    (file,) = profiles(tmp_path)
    (window,) = recording.facts["windows"]
    assert window["profile"] == file.parent.name
    assert (window["first_step"], window["stop_step"]) == (3, 6)
    assert recording.facts["overhead"]["windows_s"] == pytest.approx(window["cost_s"], abs=1e-3)
    assert 0.01 < window["cost_s"] < 20

    (process,) = analyse(read_trace(str(file))).processes
    assert process.steps.basis == "marker"
    assert list(process.steps.label) == [3, 4, 5]


def test_xprof_finds_the_step_markers(tmp_path):
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    fit(tmp_path, [(3, 8)])
    (file,) = profiles(tmp_path)
    assert "overview_page" in convert.xspace_to_tool_names([str(file)])
    data, _ = convert.xspace_to_tool_data([str(file)], "overview_page", {})
    steps = json.loads(data)[1]
    assert "No step marker observed" not in json.dumps(json.loads(data))
    found = [row["c"][0]["v"] for row in steps["rows"]]
    assert len(found) >= 3  # XProf may leave out the first and the last
    assert set(found) <= {f"train {step}" for step in range(3, 8)}


def test_tensorboard_in_the_same_folder_and_before_us(tmp_path):
    board = keras.callbacks.TensorBoard(str(tmp_path), profile_batch=2)
    callback = GpuUtilCallback(str(tmp_path), trace=[(0, 4)], report=False)
    x, y = np.zeros((48, 8), "float32"), np.zeros((48, 1), "float32")
    model().fit(x, y, batch_size=4, verbose=0, callbacks=[board, callback])
    (recording,) = read_recordings(tmp_path)
    assert list(recording.traced_steps["step"]) == [2, 3, 4, 5]  # behind theirs
    files = [*profiles(tmp_path / "train"), *profiles(tmp_path)]
    labels = [list(analyse(read_trace(str(file))).processes[0].steps.label) for file in files]
    assert len(labels) == 2 and [2, 3, 4, 5] in labels


def test_a_callback_that_profiles_by_itself_gets_the_profiler(tmp_path):
    class Profiling(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 4:
                tf.profiler.experimental.start(str(tmp_path / "theirs"))  # ours is open: raises?
            if batch == 6:
                tf.profiler.experimental.stop()

    recording = fit(tmp_path / "ours", [(3, 8)], others=[Profiling()])
    assert len(profiles(tmp_path / "theirs")) == 1
    assert recording.status == "ended"
    assert profiles(tmp_path / "ours") == []
    assert len(recording.steps["step"]) == 12


def test_a_profile_as_a_context_gets_the_profiler(tmp_path):
    SESSION.start(tmp_path / "ours", lambda: None)
    with tf.profiler.experimental.Profile(str(tmp_path / "theirs")):
        pass
    assert len(profiles(tmp_path / "theirs")) == 1
    assert SESSION.stop(tmp_path / "ours") is None


def test_a_session_that_only_the_runtime_knows_of(tmp_path):
    internal = pytest.importorskip("tensorflow.python.profiler.internal._pywrap_profiler")
    theirs = internal.ProfilerSession()
    theirs.start(str(tmp_path / "theirs"), {})
    with pytest.raises(ProfilerBusy):
        SESSION.start(tmp_path / "ours", lambda: None)
    assert SESSION._current() is None  # TensorFlow does not take it for ours
    theirs.export_to_tb()
    del theirs
    assert len(profiles(tmp_path / "theirs")) == 1
    (tmp_path / "ours").mkdir()
    SESSION.start(tmp_path / "ours", lambda: None)
    assert SESSION.stop(tmp_path / "ours") is not None


def test_a_fit_that_raises_in_a_window_does_not_leave_the_profiler_running(tmp_path):
    class Raising(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                assert SESSION._current() is not None
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, [(3, 10)], others=[Raising()])
    wait_until(lambda: SESSION._current() is None, 5)
    recording = newest(tmp_path, "interrupted")
    assert list(recording.traced_steps["step"]) == [3, 4]  # step 5 was left in the middle


def test_windows_over_epochs_validation_and_inputs_of_unknown_length(tmp_path):
    def batches():
        for _ in range(5):
            yield np.zeros((4, 8), "float32"), np.zeros((4, 1), "float32")

    signature = (tf.TensorSpec((4, 8)), tf.TensorSpec((4, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    callback = GpuUtilCallback(str(tmp_path), trace=[(3, 7), (9, 12)], report=False)
    model().fit(data, epochs=3, validation_data=data, verbose=0, callbacks=[callback])
    (recording,) = read_recordings(tmp_path)
    assert len(recording.steps["step"]) == 15
    assert list(recording.traced_steps["step"]) == [3, 4, 5, 6, 9, 10, 11]
    at = np.searchsorted(recording.steps["step"], recording.traced_steps["step"])
    apart = recording.traced_steps["start_ns"] - recording.steps["start_ns"][at]
    assert apart.min() > -1e6
    # The first ones of a window begin when the profiler has started; a step takes over 1 ms.
    assert np.quantile(apart, 0.3) < 1e6


def test_a_profiler_server_in_the_process_is_seen_beside_the_cluster_s():
    """Seen: no multi-worker training was profiled, since TensorFlow's own server was taken for a profiler's."""
    script = """
import time
import tensorflow as tf
from gpu_util_callback.backends.tensorflow.profiler import SESSION, _THREAD, Path, text_of
strategy = tf.distribute.MultiWorkerMirroredStrategy()
while not any(text_of(thread / "comm").strip() == _THREAD for thread in Path("/proc/self/task").iterdir()):
    time.sleep(0.01)
print(SESSION.server())
tf.profiler.experimental.server.start(0)
end = time.monotonic() + 30
while not SESSION.server() and time.monotonic() < end:  # its threads start by themselves
    time.sleep(0.01)
print(SESSION.server())
"""
    with socket.create_server(("127.0.0.1", 0)) as held:
        cluster = {"worker": [f"127.0.0.1:{held.getsockname()[1]}"]}
    job = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}
    before, after = ran(*python("keras"), "-c", script, timeout=120, env=os.environ | job).stdout.splitlines()
    assert before == "None" and "server.start" in after


class GpuReader:
    """Stands in for reading: what a GPU would have left in the trace."""

    def __init__(self):
        self.pid = None

    def read(self, file):
        found = recording_tables(analyse(read_trace(str(file))))["traced_steps"]
        n = len(found["step"])
        rows = {name: np.concatenate([values, values]) for name, values in found.items()}
        rows["gpu"] = np.repeat([0, 1], n)
        rows["kernel_ns"] = rows["kernel_busy_ns"] = np.repeat([1_500_000, 250_000], n)
        kernels = {
            "window": np.zeros(1, int),
            "gpu": np.zeros(1, int),
            "name": np.array(["gemm"]),
            "op": np.array(["dense"]),
            "count": np.array([n]),
            "total_ns": np.array([n * 1_500_000]),
            "tensor_core": np.array(["yes"]),
        }
        tables = {"traced_steps": rows, "kernels": kernels}
        return WindowRows(tables, 100, 50, [], 0.1)

    def give_up(self):
        pass


def test_kernel_times_become_scalars_and_kernels_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_util_callback.profiling.profiler_windows.WindowReader", GpuReader)
    recording = fit(tmp_path, [(3, 6), (8, 9)], epochs=1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    for gpu, expected in ((0, 1.5), (1, 0.25)):
        tag = f"gpu_util/gpu{gpu}/kernel_time_ms"
        if tag in tags["scalars"]:
            points = [(p.step, p.value) for p in accumulator.Scalars(tag)]
        else:
            points = [(p.step, float(tf.make_ndarray(p.tensor_proto))) for p in accumulator.Tensors(tag)]
        assert points == [(step, pytest.approx(expected)) for step in (3, 4, 5, 8)]
    assert list(recording.kernels["name"]) == ["gemm", "gemm"]
    assert list(recording.kernels["window"]) == [0, 1]
    assert list(recording.kernels["tensor_core"]) == ["yes", "yes"]
