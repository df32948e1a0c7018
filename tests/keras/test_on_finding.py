"""`on_finding`: the program's own function hears of a cause while training continues, once, whatever it does."""

from __future__ import annotations

import time

import pytest
from fit_truth import BATCH, WIDTH, traced
from waiting import flush_often, wait_until

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings
from gpu_util_callback.diagnosis import Announcer, logdir_report
from gpu_util_callback.recorder import outputs

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.real_clock("a training waits for its input")


@pytest.fixture
def soon(monkeypatch):
    """A cause is established once it was found twice and cost a tenth of a second."""
    flush_often(monkeypatch)
    monkeypatch.setattr(outputs, "DIAGNOSIS_S", 0.1)
    monkeypatch.setattr(outputs, "DIAGNOSIS_SHARE", 1.0)
    monkeypatch.setattr(Announcer, "IN_A_ROW", 2)
    monkeypatch.setattr(Announcer, "LEAST_S", 0.1)


def batches(heard: list, most_s: float = 60.0):
    """Slow batches, until somebody has heard of them and some more."""
    end = time.monotonic() + most_s
    after = 0
    while time.monotonic() < end and after < 40:
        time.sleep(0.02)
        after += bool(heard)
        yield np.zeros((BATCH, WIDTH), "float32"), np.zeros((BATCH, 1), "float32")


def test_a_fit_calls_it_once_a_cause_with_the_line_that_is_printed(tmp_path, soon, capsys):
    heard: list[dict] = []
    callback = GpuUtilCallback(str(tmp_path), on_finding=heard.append)
    traced().fit(batches(heard), verbose=0, callbacks=[callback])
    causes = [event["finding"]["cause"] for event in heard]
    assert "input_bound" in causes and len(causes) == len(set(causes))
    event = heard[causes.index("input_bound")]
    assert f"gpu-util: {event['text']}" in capsys.readouterr().err
    assert event["log_dir"] == str(tmp_path) and event["finding"]["lost_s"] >= 0.1
    (run,) = logdir_report(read_recordings(tmp_path))["runs"]
    assert "input_bound" in {finding["cause"] for finding in [*run["spans"], *run["findings"]]}


def test_an_error_in_it_is_logged_and_changes_nothing(tmp_path, soon, heard, caplog):
    calls: list[dict] = []

    def fails(event):
        calls.append(event)
        raise ValueError("no such channel")

    with GpuUtilMonitor(tmp_path, on_finding=fails, report=False) as monitor:
        for _ in monitor.batches(batches(calls)):
            time.sleep(0.001)
    assert calls
    wait_until(lambda: "no such channel" in caplog.text)
    assert caplog.text.count("on_finding: raised ValueError: no such channel") == 1
    (run,) = logdir_report(read_recordings(tmp_path))["runs"]
    assert run["status"] == "ended" and run["steps"] >= 40
