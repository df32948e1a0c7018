"""Where the model alone was measured before training, a promise rests on that, not on inference."""

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.ceilings import Ceilings
from gpu_util_callback.report.terminal import render
from tensorboard_plugin.replies import recording_reply


def waiting(model_per_s=None, wait_ms=30.0, batch_size=32):
    """Steps of 10 ms with batches of 32, each of which waits."""
    measured = {}
    if model_per_s:
        found = Ceilings(1000 / wait_ms, model_per_s, 25.0, batch_size, 10.0, "tensorflow")
        measured = {"ceilings": found.to_dict()}
    run = Generated(seed=1, noise=0.01, **measured)
    run.steps(600, step_ms=10, wait_ms=wait_ms)
    return run


def test_the_promise_is_what_was_measured():
    (inferred,) = waiting().findings("input_bound")
    assert "model_alone_ms" not in inferred["evidence"]
    (measured,) = waiting(model_per_s=50).findings("input_bound")  # 20 ms: the wait hid half of it
    evidence = measured["evidence"]
    assert evidence["model_alone_ms"] == pytest.approx(20)
    assert evidence["promise_rests_on"] == "a measurement of the model alone, before training"
    assert measured["lost_s"] == pytest.approx(600 * 0.020, rel=0.05)
    assert measured["lost_s"] < 0.8 * inferred["lost_s"]


def test_steps_that_a_promise_rests_on_are_counted_as_people_write_numbers():
    run = waiting()
    run.steps(1200, step_ms=20)
    (found,) = run.findings("input_bound")
    assert found["evidence"]["promise_rests_on"] == "1,200 steps of this run that did not wait"


def test_nothing_is_promised_where_the_model_alone_is_no_faster():
    assert waiting(model_per_s=25.1).findings("input_bound") == []


def test_no_more_is_promised_than_the_wait():
    (measured,) = waiting(model_per_s=1000).findings("input_bound")
    assert measured["lost_s"] == pytest.approx(600 * 0.030, rel=0.05)


def test_batches_of_another_size_prove_nothing_here():
    (inferred,), (other,) = (
        waiting().findings("input_bound"),
        waiting(model_per_s=50, batch_size=64).findings("input_bound"),
    )
    assert other == inferred


def recorded(run, tmp_path):
    """The run of the JSON report, the reply to the tab, and the terminal's text."""
    write(run, tmp_path)
    recordings = list(read_recordings(str(tmp_path)))
    report = logdir_report(recordings)
    (found,) = report["runs"]
    text = " ".join(render(report, width=100).split())
    return found, recording_reply(recordings[0], "1", found)["report"], text


def test_report_and_tab_name_the_rates_and_the_ceiling(tmp_path):
    run = waiting(model_per_s=1020)
    run.facts["throughput"] = {"training_s": 24.0, "samples": 600 * 32}
    found, shown, text = recorded(run, tmp_path)
    assert found["ceilings"]["model_per_s"] == 1020
    verdict = (
        "The input is the ceiling: a perfect one makes training up to 41× faster; made while the model computes, 1.3×."
    )
    assert (
        f"Measured before training: input alone 33.3 batches/s, model alone 1,020, both together 25. {verdict}" in text
    )
    assert shown["ceilings"]["text"] == verdict
    assert [(row["name"], row["batches"], row["samples"]) for row in shown["ceilings"]["rows"]] == [
        ("input alone", "33.3 batches/s", "1,067 samples/s"),
        ("model alone", "1,020 batches/s", "32,640 samples/s"),
        ("this run", "25 batches/s", "800 samples/s"),
    ]


def test_without_the_run_s_own_rate_both_together_stand_there(tmp_path):
    _, shown, text = recorded(waiting(model_per_s=1020, batch_size=64), tmp_path)
    assert [row["name"] for row in shown["ceilings"]["rows"]][2] == "both, as now"
    note = "Measured with batches of 64, trained with 32."
    assert shown["ceilings"]["text"].endswith(note) and note in text


@pytest.mark.parametrize("rate", [0.0, None])
def test_what_was_not_measured_or_is_damaged_is_not_shown(tmp_path, rate):
    run = waiting()
    if rate is not None:
        run.facts["ceilings"] = {**Ceilings(10, 10, 10).to_dict(), "together_per_s": rate}
    _, shown, text = recorded(run, tmp_path)
    assert shown["ceilings"] is None
    assert "Measured before training" not in text


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
