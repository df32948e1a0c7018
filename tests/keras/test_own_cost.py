"""What the recording says of its own cost comes from the hooks of that very run."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fit_truth import BATCH, WIDTH, traced
from injected_fit import recorded_fit

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.recorder.fit import KerasSession
from gpu_util_callback.steps.loop import Loop
from gpu_util_callback.steps.timeline import SAMPLED_EVERY

pytestmark = pytest.mark.real_clock("microseconds a step")

STEPS = 6 * SAMPLED_EVERY


def cost(recording) -> float | None:
    return recording.facts["overhead"]["callback_us_per_step"]


def train(folder, steps: int = STEPS):
    x = np.zeros((BATCH * steps, WIDTH), np.float32)
    return recorded_fit(traced(), folder, x=x, y=x[:, :1], batch_size=BATCH)


def loop(folder, steps: int = STEPS):
    with GpuUtilMonitor(folder, report=False) as monitor:
        for _ in monitor.batches(range(steps)):
            pass
    (recording,) = read_recordings(folder)
    return recording


@pytest.fixture(params=[train, loop])
def run(request):
    return request.param


def test_hooks_that_are_slow_in_one_run_are_reported_by_it_alone(run, tmp_path, monkeypatch):
    hook = (KerasSession, "_batch_begins") if run is train else (Loop, "_end_work")
    usually = getattr(*hook)

    def slow(self, now):
        time.sleep(0.003)
        usually(self, now)

    usual = cost(run(tmp_path / "usual"))
    with monkeypatch.context() as patched:
        patched.setattr(*hook, slow)
        assert cost(run(tmp_path / "slow")) > 3000
    assert 0 < usual < 3000
    assert 0 < cost(run(tmp_path / "again")) < 3000


def test_a_run_of_ten_steps_has_a_cost_and_one_too_short_to_tell_none(run, tmp_path):
    assert cost(run(tmp_path / "three", steps=3)) is None
    assert cost(run(tmp_path / "ten", steps=10)) > 0
