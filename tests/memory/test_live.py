"""A real fit that leaks: the warning comes while it trains, once, from the recorder's thread."""

import ctypes
import gc
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import gpu_util_callback
from gpu_util_callback import GpuUtilCallback
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.gpus import _host, sampler
from gpu_util_callback.recorder import memory_watch, outputs, recorder
from gpu_util_callback.recording import read_recordings

pytestmark = pytest.mark.real_clock("a warning that comes while it trains")
MIB = 1 << 20
PACKAGE = Path(gpu_util_callback.__file__).parent


class Keeps(keras.callbacks.Callback):
    def __init__(self, mib):
        super().__init__()
        self.outputs = []
        self.floats = mib * MIB // 4

    def on_train_batch_end(self, batch, logs=None):
        if self.floats:
            self.outputs.append(np.ones(self.floats, np.float32))
        time.sleep(0.004)


@pytest.fixture
def hurried(monkeypatch):
    """The rates of a long training, for one of seconds; and who did what of ours.

    What earlier tests have freed is given back first: a leak that fits into it would not show.
    """
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    monkeypatch.setattr(_host, "_TOO_SOON_S", 0.0)
    monkeypatch.setattr(sampler, "SLOW_S", 0.03)
    monkeypatch.setattr(sampler, "WATCH_S", 0.03)
    monkeypatch.setattr(recorder, "FLUSH_S", 0.2)
    monkeypatch.setattr(recorder, "LOOK_S", 0.1)
    monkeypatch.setattr(outputs, "DIAGNOSIS_S", 0.2)
    monkeypatch.setattr(outputs, "SELDOM_S", 0.4)
    threads = set()
    facts = memory_watch.MemoryWatch.facts

    def watched(self, *args):
        threads.add(threading.current_thread().name)
        return facts(self, *args)

    monkeypatch.setattr(memory_watch.MemoryWatch, "facts", watched)
    return threads


def fitted(tmp_path, mib, epochs=6, *callbacks):
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.ones((640, 8), np.float32), np.ones((640, 1), np.float32)
    callback = GpuUtilCallback(log_dir=str(tmp_path), trace=None)
    model.fit(*data, batch_size=8, epochs=epochs, verbose=0, callbacks=[callback, Keeps(mib), *callbacks])
    [recording] = read_recordings(tmp_path)
    return run_report(recording)


def growth_of(run):
    return [one for one in run["findings"] if one["cause"] == "memory_growth"]


def test_growth_is_said_once_while_it_trains(tmp_path, hurried, capfd, monkeypatch):
    limit = int(_host._held_bytes()) + 400 * MIB
    monkeypatch.setattr(_host, "memory_limit", lambda _: limit)
    run = fitted(tmp_path, mib=1)
    said = capfd.readouterr().err
    assert said.count("Host memory grows by ") == 1
    assert "a step: full at step " in said and "in about " in said
    [finding] = growth_of(run)
    assert finding["evidence"]["per_step_mib"] == pytest.approx(1.0, rel=0.25)
    assert "tracemalloc" in finding["advice"]["code"]
    assert hurried == {"gpu-util-recorder"}, "nothing of this runs on the training thread"


def test_growth_that_does_not_end_this_training_is_said_after_it(tmp_path, hurried, capfd):
    """A machine with room for thousands of steps, of which 480 are planned.

    Every call of ours is noted that the training thread makes during the steps of the first epoch.
    """
    called = set()

    def note(frame, event, _):
        if event == "call" and str(PACKAGE) in frame.f_code.co_filename:
            called.add(Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix())

    class Notes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 20 and not called:
                sys.setprofile(note)

        def on_epoch_end(self, epoch, logs=None):
            sys.setprofile(None)

    try:
        run = fitted(tmp_path, 1, 6, Notes())
    finally:
        sys.setprofile(None)
    assert "grows by" not in capfd.readouterr().err
    [finding] = growth_of(run)
    assert finding["title"].endswith(", after the end of this training (480 steps)")
    assert finding["evidence"]["planned_steps"] == 480
    assert "steps/timeline.py" in called, "its hooks are seen"
    elsewhere = ("recorder/memory_watch.py", "cgroup.py", "gpus/", "diagnosis/", "recording/")
    assert [one for one in called if one.startswith(elsewhere)] == [] and hurried == {"gpu-util-recorder"}


def test_a_fit_that_keeps_nothing_gets_no_warning(tmp_path, hurried, capfd):
    run = fitted(tmp_path, mib=0, epochs=3)
    assert "memory grows" not in capfd.readouterr().err
    assert growth_of(run) == []
    assert run["memory"]["host"]["peak_bytes"] > 50 * MIB
