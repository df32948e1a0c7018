"""What a promise rests on, and the accelerator utilization."""

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.terminal import render
from tensorboard_plugin.replies import recording_reply


def waiting():
    """Steps of 10 ms with batches of 32, each of which waits 30 ms."""
    run = Generated(seed=1, noise=0.01)
    run.steps(600, step_ms=10, wait_ms=30)
    return run


def test_steps_that_a_promise_rests_on_are_counted_as_people_write_numbers():
    run = waiting()
    run.steps(1200, step_ms=20)
    (found,) = run.findings("input_bound")
    assert found["evidence"]["promise_rests_on"] == "1,200 steps of this run that did not wait"


def recorded(run, tmp_path):
    """The run of the JSON report, the reply to the tab, and the terminal's text."""
    write(run, tmp_path)
    recordings = list(read_recordings(str(tmp_path)))
    report = logdir_report(recordings)
    (found,) = report["runs"]
    text = " ".join(render(report, width=100).split())
    return found, recording_reply(recordings[0], "1", found)["report"], text


def test_the_tab_is_sent_the_accelerator_utilization_with_its_limits(tmp_path):
    run = Generated(seed=1, gpus=[GPU], noise=0.01)
    run.steps(600, step_ms=10, wait_ms=30)
    found, shown, _ = recorded(run, tmp_path / "gpu")
    assert found["au_pct"] == pytest.approx(25, abs=1)
    assert shown["au"] == {
        "name": "AU",
        "value": "25 %",
        "limits": "MLPerf Storage asks for 90 % or 70 %",
        "text": "Accelerator utilization (AU, as in MLPerf Storage): 25 %; the benchmark asks for "
        "90 % (3D U-Net, ResNet-50) or 70 % (CosmoFlow).",
    }
    _, shown, _ = recorded(waiting(), tmp_path / "no-gpu")
    assert shown["au"] is None
