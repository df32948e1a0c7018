"""Each remedy says how it is tried, or why it cannot be; and a trial is shown in place of the promise."""

import json
from pathlib import Path

import pytest
from advised_runs import found, hooks
from generated_runs import write
from make_recording import make_recording
from test_input_advice_fits import INPUTS
from test_stall_advice_fits import RUNS

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.diagnosis.rule import all_findings
from gpu_util_callback.report.screen import Detail, two_lines
from gpu_util_callback.report.terminal import render
from gpu_util_callback.trying.changes import TARGETS, Change, change_for
from gpu_util_callback.trying.outcomes import FILE, outcomes


def advised() -> list:
    stalls = [(run, cause, None) for cause, rows in RUNS.items() for run, line, _ in rows if line]
    return [*stalls, *((run, "input_bound", device) for run, device, line, _ in INPUTS if line)]


def test_each_printed_line_can_be_tried_or_says_why_it_cannot():
    can, cannot = 0, 0
    for run, cause, device in advised():
        advice = found(run, cause, device)["advice"] if device else found(run, cause)["advice"]
        change = change_for(advice)
        if isinstance(change, Change):
            assert change.target in TARGETS, (advice["code"], change)
            can += 1
        else:
            assert change
            cannot += 1
    assert can >= 20 and cannot >= 20, (can, cannot)


def report_of(log_dir) -> dict:
    return logdir_report(read_recordings(log_dir))["runs"][0]


def test_a_trial_beside_the_recording_is_shown_in_place_of_the_promise(tmp_path):
    make_recording(tmp_path)
    run = report_of(tmp_path)
    finding = next(one for one in all_findings(run) if one["advice"]["code"] and one["saves_s"])
    assert "This run gets" in render({"runs": [run]}, 110)
    [manifest] = Path(tmp_path).rglob("manifest.json")
    trial = {"ratio": 5.0, "low": 4.5, "high": 5.71, "resolved": True, "pairs": 4, "code": finding["advice"]["code"]}
    manifest.with_name(FILE).write_text(json.dumps({finding["id"]: trial}))
    run = report_of(tmp_path)
    tried = next(one["tried"] for one in all_findings(run) if one["id"] == finding["id"])
    assert (tried["ratio"], tried["high"], tried["pairs"]) == (5.0, 5.71, 4)
    assert "Tried: ×5.0 [4.5 … 5.7], 4 pairs." in " ".join(
        render({"runs": [run]}, 110, detail=Detail(all=True)).split()
    )


@pytest.mark.parametrize("text", ["[]", "{", '{"input_bound": {"ratio": "x"}}', '{"input_bound": 3}'])
def test_a_damaged_trial_is_none(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert outcomes(tmp_path) == {}


def test_another_line_than_the_one_that_was_tried_keeps_its_promise(tmp_path):
    make_recording(tmp_path)
    [manifest] = Path(tmp_path).rglob("manifest.json")
    trial = {"ratio": 5.0, "low": 4.5, "high": 5.7, "resolved": True, "pairs": 4, "code": "model.fit(..., verbose=0)"}
    ids = [one["id"] for one in all_findings(report_of(tmp_path))]
    manifest.with_name(FILE).write_text(json.dumps(dict.fromkeys(ids, trial)))
    assert not any("tried" in one for one in all_findings(report_of(tmp_path)))


def test_the_last_lines_of_fit_say_how_to_try_where_a_script_was_started(tmp_path):
    write(hooks("ProgbarLogger.on_train_batch_end", 10), tmp_path)
    report = report_of(tmp_path)
    assert two_lines(report, "a/train.py").endswith("gpu-util try --fix 1 a/train.py")
    assert "gpu-util try" not in two_lines(report)
    for finding in all_findings(report):
        finding["advice"]["untried"] = "it is the loop's own code"
    assert "gpu-util try" not in two_lines(report, "a/train.py")
