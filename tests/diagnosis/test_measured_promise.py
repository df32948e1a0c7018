"""Where the model alone was measured before training, a promise rests on that, not on inference."""

import pytest
from generated_runs import Generated

from gpu_util_callback.diagnosis import Diagnosis, logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.writer import RecordingWriter
from gpu_util_callback.report.ceilings import Ceilings
from gpu_util_callback.report.terminal import render


def waiting(model_per_s=None, wait_ms=30.0):
    """Steps of 10 ms, each of which waits."""
    measured = {}
    if model_per_s:
        found = Ceilings(1000 / wait_ms, model_per_s, 25.0, 32, 10.0, "tensorflow")
        measured = {"ceilings": found.to_dict()}
    run = Generated(seed=1, noise=0.01, **measured)
    run.steps(600, step_ms=10, wait_ms=wait_ms)
    return run


def promise(run):
    diagnosis = Diagnosis(run.facts)
    diagnosis.add(run.tables(), run.samples())
    found = diagnosis.result(now_ns=run.now, ended=True)
    return [one for one in [*found["findings"], *found["spans"]] if one["cause"] == "input_bound"]


def test_the_promise_is_what_was_measured():
    (inferred,) = promise(waiting())
    assert "model_alone_ms" not in inferred["evidence"]
    (measured,) = promise(waiting(model_per_s=50))  # 20 ms: the wait hid half of it
    evidence = measured["evidence"]
    assert evidence["model_alone_ms"] == pytest.approx(20)
    assert evidence["promise_rests_on"] == "a measurement of the model alone, before training"
    assert measured["lost_s"] == pytest.approx(600 * 0.020, rel=0.05)
    assert measured["lost_s"] < 0.8 * inferred["lost_s"]


def test_nothing_is_promised_where_the_model_alone_is_no_faster():
    assert promise(waiting(model_per_s=25.1)) == []


def test_no_more_is_promised_than_the_wait():
    (measured,) = promise(waiting(model_per_s=1000))
    assert measured["lost_s"] == pytest.approx(600 * 0.030, rel=0.05)


def test_the_report_names_the_rates(tmp_path):
    run = waiting(model_per_s=1020)
    writer = RecordingWriter(str(tmp_path), run.facts, clock=Clock())
    for table, rows in run.tables().items():
        if rows and len(next(iter(rows.values()))):
            writer.append(table, rows)
    writer.close("ended")
    report = logdir_report(read_recordings(str(tmp_path)))
    (found,) = report["runs"]
    assert found["ceilings"]["model_per_s"] == 1020
    text = " ".join(render(report, width=100).split())
    assert (
        "Measured before training: input alone 33.3 batches/s, model alone 1,020, both together 25."
        in text
    )
