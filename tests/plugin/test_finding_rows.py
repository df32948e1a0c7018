"""The rows that the tab lists findings in, and what it is told where there are none."""

import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.diagnosis.verdict import calm
from gpu_util_callback.trying.changes import Change, parse
from gpu_util_callback.words import same_fix
from tensorboard_plugin.replies import levers, not_counted, recording_reply, rows_of


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
    assert [*row["remedies"].values()] == [{"id": "input_bound@0", "saves_range_s": [2.0, 4.0], "command": ""}]


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
        ("GPU active 30 %, no single cause. 70 % of 12 s in steps.", "unexplained"),
    ],
)
def test_a_verdict_without_findings_is_told_apart(verdict, says):
    assert calm(verdict) == says


LIMITS = {
    "input_bound": {"wait_pct": 7.5}, "launch_bound": {"idle_launch_pct": 15}, "recompilation": {"compile_pct": 5},
    "host_stall": {"callback_pct": 5, "validation_pct": 20},
}  # fmt: skip


@pytest.mark.parametrize(
    ("waited", "lane", "parts", "said"),
    [
        (38, 2, (), "Waiting for input 38 %, not counted: the GPU was busy in 95 % of it."),
        (7, 6, (), "Waiting for input 7 %, not counted: it begins to count at 7.5 %."),
        (12, 11, (), "Waiting for input 12 %, not counted: not all of what “Input-bound” asks for was seen."),
        (38, 36, ("input",), None),
        (4.9, 4.9, (), None),
    ],
)
def test_a_large_part_of_the_time_that_no_finding_counts_says_why(waited, lane, parts, said):
    report = {"time_s": {"input_wait": float(waited)}, "wall_s": 100.0, "thresholds": LIMITS}
    budget = {"known_s": 50.0, "parts": [{"name": "input", "title": "waiting for input", "seconds": lane / 2}]}
    assert not_counted(report, budget, parts) == ({"input": said} if said else {})


def test_each_part_of_the_time_is_a_finding_s_or_says_why_not(tmp_path):
    """Of a compiled healthy run: compiling is large, and no finding's."""
    make_recording(tmp_path, "healthy", steps=600, gpus=1)
    (recording,) = read_recordings(tmp_path)
    reply = recording_reply(recording, "1", run_report(recording))
    [budget], report = reply["budgets"], reply["report"]
    large = {part["name"] for part in budget["parts"] if part["seconds"] >= 0.05 * budget["known_s"]}
    parts = {one["part"] for one in (*report["spans"], *report["findings"])}
    assert large - parts - {"busy", "rest"} <= set(report["not_counted"])
    assert "begins by compiling" in report["not_counted"]["compile"]


def test_a_healthy_run_has_the_levers_left_and_the_command_that_tries_each(tmp_path):
    unused = {"mixed_precision": "float32", "jit_compile": False, "steps_per_execution": 1}
    shown = levers({"fit": unused, "script": "train.py"})
    assert len(shown) == 3
    for command in shown.values():
        tool, _, rest = command.partition(" --change ")
        quoted, _, program = rest.rpartition(" ")
        assert tool == "gpu-util try" and program == "train.py"
        assert isinstance(parse(quoted.strip("'")), Change)
    assert [*levers({"fit": unused, "script": None}).values()][1] == "jit_compile=True"
    used = {"mixed_precision": "mixed_bfloat16", "jit_compile": True, "steps_per_execution": 16}
    assert levers({"fit": used, "script": "train.py"}) == {} == levers({"fit": None, "script": "train.py"})


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("train.py", "gpu-util try --fix 2 train.py"),
        ("pkg.train", "gpu-util try --fix 2 -m pkg.train"),
        ("a b;c.py", "gpu-util try --fix 2 'a b;c.py'"),
        (None, ""),
    ],
)
def test_a_remedy_of_a_script_has_the_command_that_tries_it(script, command, tmp_path):
    make_recording(tmp_path, "thirds", steps=600, gpus=1)
    (recording,) = read_recordings(tmp_path)
    report = run_report(recording)
    [found] = report["spans"]
    found["advice"] |= {"code": "ds = ds.map(decode, num_parallel_calls=tf.data.AUTOTUNE)", "untried": ""}
    larger = {**found, "id": "other", "title": "Another", "saves_s": 2 * found["saves_s"], "saves_range_s": None}
    larger["advice"] = {"text": "mend it", "code": ""}
    report |= {"script": script, "spans": [found, larger]}
    rows = recording_reply(recording, "1", report)["report"]["rows"]
    said = {remedy["id"]: remedy["command"] for row in rows for remedy in row["remedies"].values()}
    assert said == {found["id"]: command, "other": ""}
