"""A training that somebody interrupts says what it has shown so far: that is when people look."""

from __future__ import annotations

import time

import numpy as np
import pynvml
import pytest
from fit_truth import BATCH, WIDTH, Raise, traced
from waiting import newest, wait_for_recorders

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor
from gpu_util_callback.gpus import _gate
from gpu_util_callback.recorder import messages

pytestmark = pytest.mark.real_clock("seconds of a fit that is stopped")

STEPS = 30


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Without a GPU, also where another test has loaded a driver library into this process."""

    def no_library(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(_gate, "_started_in", None)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)


def slow_batches():
    while True:
        time.sleep(0.02)
        yield np.zeros((BATCH, WIDTH), np.float32), np.zeros((BATCH, 1), np.float32)


def interrupted_fit(log_dir):
    with pytest.raises(KeyboardInterrupt):
        traced().fit(
            slow_batches(),
            steps_per_epoch=100 * STEPS,
            verbose=0,
            callbacks=[GpuUtilCallback(str(log_dir)), Raise(KeyboardInterrupt(), STEPS)],
        )


def interrupted_loop(log_dir):
    with pytest.raises(ZeroDivisionError), GpuUtilMonitor(str(log_dir), framework="tensorflow") as monitor:
        for step, _ in enumerate(monitor.batches(slow_batches())):
            1 / (STEPS - step)


@pytest.mark.parametrize("training", [interrupted_fit, interrupted_loop])
def test_the_verdict_comes_by_itself(training, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(messages, "_SHORT_S", 0.1)
    training(tmp_path)
    newest(tmp_path, "interrupted")
    wait_for_recorders()
    messages.drain(5)
    text = capsys.readouterr().out
    assert text.count("gpu-util: Training waits for its input") == 1, text
    assert "Ask first: The generator slow_batches " in text, text


def test_not_of_seconds_in_which_nothing_was_found(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError), GpuUtilMonitor(str(tmp_path), framework="tensorflow") as monitor:
        with monitor.step(input_wait_s=0.0):
            time.sleep(0.01)
        raise ZeroDivisionError
    newest(tmp_path, "interrupted")
    wait_for_recorders()
    messages.drain(5)
    assert "gpu-util" not in capsys.readouterr().out
