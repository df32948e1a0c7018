"""The rows that the tab lists findings in, and what it is told where there are none."""

import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.diagnosis.verdict import calm
from gpu_util_callback.words import same_fix
from tensorboard_plugin.replies import recording_reply, rows_of


def finding(cause, lost_s, code="a", at=None, title="", **more):
    place = {} if at is None else {"start_step": at}
    id_ = f"{cause}@{at}"
    advice = {"text": "mend it", "code": code}
    return (
        {"id": id_, "cause": cause, "title": title or cause, "lost_s": lost_s, "saves_s": lost_s, "advice": advice}
        | place
        | more
    )


def asked(cause, lost_s, span_s, code="a", at=None):
    return finding(cause, lost_s, code, at, saves_s=0.0, saves_range_s=span_s)


def fix(cause, lost_s, span_s, saves_s, code="a", at=None):
    return finding(cause, lost_s, code, at, saves_s=saves_s, saves_range_s=span_s)


def test_one_cause_is_one_row_and_each_of_its_remedies_mends_its_own():
    spans = [
        finding("input_bound", 2.0, "a", 300),
        finding("host_stall", 3.0, "b", 10),
        finding("input_bound", 4.0, "a", 100, title="takes 4.5 ms"),
        finding("input_bound", 1.0, "c", 500),
        finding("input_bound", 1.5, "a", 700, title="takes 12 ms"),
    ]
    rows = rows_of(spans)
    assert [(row["ids"], row["lost_s"]) for row in rows] == [
        (["input_bound@100", "input_bound@700"], 5.5),
        (["input_bound@300", "input_bound@500"], 3.0),
        (["host_stall@10"], 3.0),
    ]
    assert rows[0]["first"] == "input_bound@100"
    saved = {fix: (remedy["id"], remedy["saves_range_s"]) for fix, remedy in rows[1]["remedies"].items()}
    assert saved == {
        same_fix(spans[0]): ("input_bound@300", [2.0, 2.0]),
        same_fix(spans[3]): ("input_bound@500", [1.0, 1.0]),
    }


def test_what_the_verdict_sums_up_is_one_row_whatever_it_is_called():
    spans = [finding("input_bound", 8.0, at=0), finding("input_bound", 4.0, at=50, title="Waiting between epochs")]
    assert [row["lost_s"] for row in rows_of(spans, ["input_bound@0", "input_bound@50"])] == [12.0]
    assert [row["lost_s"] for row in rows_of(spans)] == [8.0, 4.0]


ORDERS = {
    "what is not known last": [finding("launch_bound", 1.0), finding("no_tensor_cores", None)],
    "what blocks first, though its cost is not known": [finding("cpu_fallback", None), finding("input_bound", 9.0)],
    "a question whose yes surely saves more before a small fix, and before what nothing shortens": [
        fix("input_bound", 20.0, [13.0, 15.0], 14.0),
        asked("host_stall", 15.0, [12.9, 15.6]),
        fix("sync_bound", 0.2, [0.0, 0.2], 0.1),
        finding("transfer_bound", 16.0, saves_s=0.0),
    ],
    "a fix that may save nothing before a small question": [
        fix("launch_bound", 8.0, [0.0, 6.0], 4.0),
        asked("host_stall", 15.0, [0.02, 0.1]),
    ],
    "of two that save the same the costlier": [fix("a", 8.0, [1.0, 1.0], 1.0), fix("b", 2.0, [1.0, 1.0], 1.0)],
    "time without a name last": [finding("a", 1.0), finding("host_stall", 9.0, id="host_stall:unmarked@0")],
}


@pytest.mark.parametrize("name", ORDERS)
def test_rows_are_in_the_order_of_the_verdict(name):
    wanted = [one["id"] for one in ORDERS[name]]
    assert [row["first"] for row in rows_of(ORDERS[name][::-1])] == wanted, name


def test_of_a_fix_and_a_question_about_one_cause_the_fix_alone_counts_and_is_the_remedy_shown():
    [row] = rows_of([fix("input_bound", 4.0, [2.0, 4.0], 3.0, at=0), asked("input_bound", 8.0, [5.0, 8.0], at=50)])
    assert row["first"] == "input_bound@50", "the costliest"
    assert [*row["remedies"].values()] == [{"id": "input_bound@0", "saves_range_s": [2.0, 4.0]}]


@pytest.mark.parametrize(
    ("scenario", "lead"), [("thirds", "input_bound"), ("host_stall", "host_stall"), ("healthy", None)]
)
def test_the_reply_names_the_row_that_the_verdict_speaks_of(scenario, lead, tmp_path):
    make_recording(tmp_path, scenario, steps=600, gpus=1)
    (recording,) = read_recordings(tmp_path)
    report = recording_reply(recording, "1", run_report(recording))["report"]
    causes = {one["id"]: one["cause"] for one in (*report["spans"], *report["findings"])}
    assert report["lead"] == (report["rows"][0]["first"] if lead else None) and causes.get(report["lead"]) == lead
    assert report["calm"] == (None if lead else "healthy")


def test_a_verdict_that_names_another_finding_than_it_sums_up_speaks_of_that(tmp_path):
    make_recording(tmp_path, "thirds", steps=600, gpus=1)
    (recording,) = read_recordings(tmp_path)
    report = run_report(recording)
    blocking = {**finding("cpu_fallback", None, title="Running on the CPU"), "evidence": {}, "threshold": {}}
    report = {**report, "findings": [blocking], "verdict": "Running on the CPU."}
    assert recording_reply(recording, "1", report)["report"]["lead"] == blocking["id"]


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("Nothing held up training: 97 % of 20 s in steps.", "healthy"),
        ("Nothing held up the GPU: kernels ran 98 % of 2 s.", "healthy"),
        ("Nothing held up training but compiling: 23 % of 20 s in steps.", "compiling"),
        ("Nothing held up training: 97 % of 20 s in steps. No GPU, so the inside of steps was not checked.", "outside"),
        ("No training step was recorded yet.", "empty"),
        ("No findings: what a GPU did is not in this trace.", "unjudged"),
        ("No bottleneck found: too little GPU work to judge, kernels ran 2 % of 1 s.", "unjudged"),
        ("No bottleneck found: 3 s of 20 s passed outside steps.", "unexplained"),
        ("The GPU was active only 30 % of the time; no single cause explains it.", "unexplained"),
    ],
)
def test_a_verdict_without_findings_is_told_apart(verdict, says):
    assert calm(verdict) == says
