"""Each category of the account against what was injected; nothing left unexplained."""

from __future__ import annotations

import os
import sys
import textwrap
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import UNROLLED, compiled, given, ms, small_model
from fork_server import python
from injected import BATCH, WIDTH, Truth
from injected_fit import Wanted, recorded_fit
from programs import ran

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report


class Slow(keras.callbacks.Callback):
    """Takes its time in some hooks, and adds up how much."""

    def __init__(self, **ms_by_hook: float):
        super().__init__()
        self.spent: dict[str, float] = dict.fromkeys(ms_by_hook, 0.0)
        for hook, duration in ms_by_hook.items():
            setattr(self, hook, self._sleeper(hook, duration))

    def _sleeper(self, hook, duration):
        def sleep(*args, **kwargs):
            start = time.perf_counter()
            time.sleep(duration / 1e3)
            self.spent[hook] += time.perf_counter() - start

        return sleep


class Stamp(keras.callbacks.Callback):
    """When things happened, as the callback in this place sees it: seconds."""

    def __init__(self):
        super().__init__()
        self.steps: list[float] = []

    def on_train_begin(self, logs=None):
        self.begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(time.perf_counter())

    def on_epoch_end(self, epoch, logs=None):
        self.epoch_end = time.perf_counter()

    def on_train_end(self, logs=None):
        self.end = time.perf_counter()


def sums_up(recording) -> None:
    account = recording.account
    assert account["wall_s"] == pytest.approx(sum(account["time_s"].values()), rel=0.005, abs=0.001)
    assert all(seconds >= -0.001 for seconds in account["time_s"].values()), account
    parts = sum(
        np.maximum(recording.steps[name], 0)
        for name in ("input_wait_ns", "compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns")
    )
    assert (parts <= recording.steps["duration_ns"] + 1000).all()


@pytest.mark.timed
@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_every_category_is_what_was_injected(steps_per_execution, tmp_path):
    # Keras 3.6 drops an execution that the batches do not suffice for.
    whole = UNROLLED and steps_per_execution > 1
    n = 64 if whole else 60
    truth = Truth([6.0] * n)
    # The validation has a pipeline and a model's test function of its own.
    late = Truth([15.0] * (16 if whole else 10))
    validation = given("tf.data", late)["x"]
    slow = Slow(on_train_batch_end=4.0, on_epoch_end=120.0)
    first, before, after = Stamp(), Stamp(), Stamp()
    model = small_model(truth, work_ms=3)
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution, jit_compile=False)
    recording = recorded_fit(
        model,
        tmp_path / "logs",
        callbacks=[first, slow, Wanted(truth, late), before],
        after=[after],
        validation_data=validation,
        **given("tf.data", truth),
    )
    sums_up(recording)
    spent = recording.account["time_s"]
    # Ours runs from after the one before us to before the one after us.
    wall = before.end - after.begin
    assert recording.account["wall_s"] == pytest.approx(wall, rel=0.005, abs=0.003)
    assert spent["other"] <= 0.02 * recording.account["wall_s"]

    hooks = sum(slow.spent.values())
    assert spent["callbacks"] == pytest.approx(hooks, rel=0.05, abs=0.02)
    # The test function is built in the first validation; building it is named.
    phases = recording.phases
    built = phases["name"] == "test function traced"
    assert built.sum() == 1 and (phases["account"][built] == "").all()
    # From the last step to the epoch's end there is validation, and the next epoch's iterator.
    setting_up = phases["self_ns"][phases["name"] == "new iterator"].sum() / 1e9
    assert setting_up > 0
    between = after.epoch_end - after.steps[-1] - slow.spent["on_epoch_end"]
    assert spent["validation"] + setting_up == pytest.approx(between, rel=0.02, abs=0.005)
    waits = recording.validation_steps["input_wait_ns"] / 1e6
    assert len(waits) == len(late)
    if steps_per_execution == 1:
        apart = np.median(waits[1:] - late.wait_ms(ahead=True)[1:])
    else:  # within a call, a batch is asked for when the last one came
        ready = np.array([late.ready[k] / 1e6 for k in range(8)])
        apart = np.median(waits[1:8] - np.diff(ready))
    assert abs(apart) < 1.0
    # The first call builds the function; nothing else is as long.
    building = steps_per_execution
    assert spent["compile"] > 0.05
    compiling = recording.steps["compile_ns"] > 0
    assert compiling.tolist() == [True] * building + [False] * (n - building)
    # From here on: without the first call, in which everything also waited for the function.
    waits = ms(recording, "input_wait_ns")[building:]
    truly = truth.wait_ms(ahead=True)[building:]
    assert abs(np.median(waits - truly)) < 1.0  # the truth has the way into the graph in it
    # A step is what is left between a batch being wanted and the first callback's end hook.
    between = sum(end - truth.wanted[call * building] / 1e9 for call, end in enumerate(first.steps) if call)
    own = (ms(recording, "body_ns") + ms(recording, "gpu_wait_ns"))[building:].sum() / 1e3
    assert own + waits.sum() / 1e3 == pytest.approx(between, rel=0.05)


@pytest.mark.timed
def test_callbacks_are_told_apart_by_name(tmp_path):
    class Quick(Slow):
        pass

    model = compiled()
    slow = Slow(on_train_batch_end=3.0, on_train_batch_begin=1.0, on_epoch_end=30.0)
    quick = Quick(on_epoch_begin=15.0, on_train_batch_end=25.0)
    x = np.zeros((BATCH * 20, WIDTH), np.float32)
    recording = recorded_fit(
        model,
        tmp_path / "logs",
        callbacks=[slow, quick],
        x=x,
        y=x[:, :1],
        batch_size=BATCH,
        epochs=2,
        validation_data=(x[:8], x[:8, :1]),
    )
    phases = recording.phases
    by_name = {name: phases["self_ns"][phases["name"] == name].sum() / 1e9 for name in set(phases["name"])}
    for callback in (slow, quick):
        for hook, seconds in callback.spent.items():
            name = f"{type(callback).__name__}.{hook}"
            assert by_name[name] == pytest.approx(seconds, rel=0.02, abs=0.002), name
    # Calls longer than 10 ms stand for themselves, so that their step is known; shorter ones are
    # summed.
    quick_rows = phases["name"] == "Quick.on_train_batch_end"
    assert phases["step"][quick_rows].tolist() == list(range(40))
    slow_rows = phases["name"] == "Slow.on_train_batch_end"
    assert phases["count"][slow_rows].sum() == 40 and slow_rows.sum() < 40
    # Batch hooks count in their steps, the others by themselves.
    assert (phases["account"][quick_rows] == "").all()
    assert (phases["account"][phases["name"] == "Slow.on_epoch_end"] == "callbacks").all()
    hooks = [seconds for callback in (slow, quick) for hook, seconds in callback.spent.items() if "batch" in hook]
    assert ms(recording, "callbacks_ns").sum() / 1e3 == pytest.approx(sum(hooks), rel=0.05)
    # The hooks are the callbacks' own again.
    assert slow.__dict__["on_train_batch_end"].__name__ == "sleep"
    sums_up(recording)


def test_checkpoints_are_named(tmp_path):
    model = compiled()
    x = np.zeros((BATCH * 10, WIDTH), np.float32)
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))
    recording = recorded_fit(model, tmp_path / "logs", callbacks=[checkpoint], x=x, y=x[:, :1], epochs=2)
    saves = recording.phases["name"] == "ModelCheckpoint.on_epoch_end"
    assert saves.sum() == 2
    assert (recording.phases["kind"][saves] == "checkpoint").all()
    assert (recording.phases["self_ns"][saves] > 1e6).all()
    assert "on_epoch_end" not in checkpoint.__dict__
    assert "on_train_batch_end" not in checkpoint.__dict__


@pytest.mark.timed
def test_waiting_for_the_device_is_not_a_callback(tmp_path, monkeypatch):
    """Keras reads the logs before the first callback: what takes time there is the device."""
    model = compiled()
    x = np.zeros((BATCH * 30, WIDTH), np.float32)
    from keras.src.callbacks import callback_list

    home, name = callback_list.CallbackList, "_pythonify_logs"  # Keras 3.6
    if not hasattr(home, name):
        home, name = callback_list.python_utils, "pythonify_logs"
    pythonify = getattr(home, name)

    spent = []

    def waiting(*arguments):
        start = time.perf_counter()
        if arguments[-1]:
            time.sleep(0.005)  # as reading a tensor that a busy device still computes
        read = pythonify(*arguments)
        spent.append(time.perf_counter() - start)
        return read

    monkeypatch.setattr(home, name, waiting)
    other = Slow(on_train_batch_end=0.0)  # with ours alone, Keras 3.6 reads the logs on a thread
    recording = recorded_fit(model, tmp_path / "logs", after=[other], x=x, y=x[:, :1], batch_size=BATCH)
    took = 1e3 * np.median([seconds for seconds in spent if seconds > 0.005])
    assert np.median(ms(recording, "gpu_wait_ns")) == pytest.approx(took, rel=0.1, abs=0.2)
    assert np.median(ms(recording, "callbacks_ns")) < 0.1 * took
    sums_up(recording)


@pytest.mark.timed
def test_a_healthy_run_has_little_unexplained(tmp_path):
    model = small_model(size=512)
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(256 * 40, WIDTH)).astype(np.float32)
    recording = recorded_fit(model, tmp_path / "logs", x=x, y=x[:, :1], batch_size=256, epochs=6, verbose=2)
    sums_up(recording)
    account = recording.account
    assert account["time_s"]["other"] <= max(0.02 * account["wall_s"], 0.01), account
    step_us = 1e3 * np.median(ms(recording, "duration_ns"))
    assert recording.facts["overhead"]["callback_us_per_step"] < 0.05 * step_us
    assert recording.stored["findings"] == [] or account["wall_s"] < 3


def of_any_length(lengths):
    """A model under XLA, which compiles for each input shape without a new trace, and batches of these lengths."""
    model = keras.Sequential([keras.layers.Embedding(20, 8), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    dataset = tf.data.Dataset.from_generator(
        lambda: ((np.zeros((4, n), np.int32), np.zeros((4, 1), np.float32)) for n in lengths),
        output_signature=(tf.TensorSpec((4, None), tf.int32), tf.TensorSpec((4, 1), tf.float32)),
    )
    return model, dataset


def test_a_new_shape_under_xla_is_a_compilation(tmp_path):
    """Only the shape gives it away."""
    lengths = [10] * 12 + [11] * 3 + [10] * 4 + [13] * 3 + [11] * 3
    model, dataset = of_any_length(lengths)
    recording = recorded_fit(model, tmp_path / "logs", x=dataset)
    assert recording.steps["shape_id"].tolist() == [[10, 11, 13].index(n) for n in lengths]
    compiled = np.flatnonzero(recording.steps["compile_ns"] > 0).tolist()
    assert compiled == [0, 12, 19]
    assert (recording.steps["body_ns"][compiled] == 0).all()
    # The shapes stay compiled: a second fit of the same model finds them done.
    again = recorded_fit(model, tmp_path / "logs", x=dataset)
    assert (again.steps["compile_ns"] == 0).all()
    sums_up(again)


def test_new_shapes_under_xla_are_compilations_from_the_first_step_on(tmp_path):
    """Every step its own length: there is no usual step to hold them against."""
    model, dataset = of_any_length([10, 11, 12, 13, 10, 11, 12, 13])
    recording = recorded_fit(model, tmp_path / "logs", x=dataset)
    assert np.flatnonzero(recording.steps["compile_ns"]).tolist() == [0, 1, 2, 3]
    sums_up(recording)


def test_a_retrace_is_a_compilation(tmp_path):
    class Unfreeze(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:  # somebody wants the function made anew in mid fit
                self.model.make_train_function(force=True)

    model = compiled()
    x = np.zeros((BATCH * 10, WIDTH), np.float32)
    recording = recorded_fit(
        model, tmp_path / "logs", callbacks=[Unfreeze()], x=x, y=x[:, :1], batch_size=BATCH, epochs=3
    )
    assert recording.steps["step"].tolist() == list(range(30))
    assert np.flatnonzero(recording.steps["compile_ns"]).tolist() == [0, 10]
    assert (recording.steps["input_wait_ns"] >= 0).all()
    compilations = recording.phases["kind"] == "compilation"
    assert recording.phases["step"][compilations].tolist() == [0, 10]
    sums_up(recording)


@pytest.mark.real_clock("milliseconds of an iterator that sleeps")
def test_setting_up_the_input_counts_as_input(tmp_path):
    class LateStart(keras.utils.PyDataset):
        """Takes 80 ms to begin an epoch and 40 ms to end one."""

        def __len__(self):
            return 5

        def __getitem__(self, index):
            return np.zeros((BATCH, WIDTH), np.float32), np.zeros((BATCH, 1), np.float32)

        def on_epoch_begin(self):
            time.sleep(0.08)

        def on_epoch_end(self):
            start = time.perf_counter()
            time.sleep(0.04)
            slept.append(1e3 * (time.perf_counter() - start))

    slept: list[float] = []
    model = compiled()
    recording = recorded_fit(model, tmp_path / "logs", x=LateStart(), epochs=3)
    phases = recording.phases
    begins = phases["self_ns"][[n.endswith(": iterator") for n in phases["name"]]] / 1e6
    ends = phases["self_ns"][phases["name"] == "input: end of epoch"] / 1e6
    assert len(begins) == 3 and begins.min() > 80
    assert len(ends) >= 2 and np.median(ends) == pytest.approx(np.median(slept), rel=0.1)
    assert recording.account["time_s"]["input_wait"] > 0.30
    sums_up(recording)


def test_waits_that_were_lost_are_named(tmp_path, monkeypatch):
    """Fewer rows than calls: nobody can say any more whose are whose."""
    from gpu_util_callback.backends.tensorflow.queue import RowQueue
    from gpu_util_callback.recorder import recorder

    drain = RowQueue.drain
    monkeypatch.setattr(RowQueue, "drain", lambda self: drain(self)[1:])
    monkeypatch.setattr(recorder, "FLUSH_S", 10**6)
    monkeypatch.setattr("gpu_util_callback.backends.tensorflow.backend.probe", lambda: "")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones((2, 4)), tf.ones((2, 1)))).repeat()
    recording = recorded_fit(model, tmp_path, x=data, steps_per_epoch=70)
    assert len(recording.steps["step"]) == 70
    assert (recording.steps["input_wait_ns"] == -1).all(), "absent, not zero"
    (lost,) = [u for u in recording.facts["unavailable"] if u["source"] == "input wait"]
    assert "70 of 70 steps" in lost["reason"]


STOPPED = """
    import ctypes, os, subprocess, sys, time
    import keras, numpy as np
    from gpu_util_callback import GpuUtilCallback

    holds_the_lock = ctypes.PyDLL(None).usleep

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                holds_the_lock(800_000)
            if batch == 15:
                stop = f"sleep 0.3; kill -STOP {os.getpid()}; sleep 1.2; kill -CONT {os.getpid()}"
                subprocess.Popen(["sh", "-c", stop])
            time.sleep(0.03)

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((320, 4), "float32")
    callbacks = [GpuUtilCallback(sys.argv[1], report=False), Stops()]
    model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=callbacks)
"""


@pytest.mark.real_clock("a process is stopped for a second")
@pytest.mark.skipif(sys.platform != "linux", reason="the waits of a thread are Linux's to count")
def test_a_stopped_process_is_a_gap_of_its_own_and_no_callback(tmp_path):
    """A callback that holds Python's lock stops every thread as well: that is its own time."""
    ran(*python("keras"), "-c", textwrap.dedent(STOPPED), tmp_path, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    (recording,) = read_recordings(tmp_path)
    account = recording.account
    assert account["stopped_s"] == pytest.approx(1.2, abs=0.3)
    assert account["time_s"]["callbacks"] == pytest.approx(0.8 + 40 * 0.03, abs=0.7)
    assert sum(account["time_s"].values()) == pytest.approx(account["wall_s"], abs=0.001)
    span_s = (recording.end_ns - recording.start_ns) / 1e9
    assert account["wall_s"] + account["stopped_s"] == pytest.approx(span_s, abs=0.001)
    run = run_report(recording)
    lost = [one["lost_s"] for one in run["spans"] if one["cause"] == "host_stall"]
    assert sum(lost) < 2.6
