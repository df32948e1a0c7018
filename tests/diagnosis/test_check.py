"""`--check` as CI uses it: every combination of limits, and what is said of wrong ones."""

import json
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import engine, logdir_report
from gpu_util_callback.diagnosis.check import Check, failures
from gpu_util_callback.recording import Recording, read_recordings

# limit -> (a value that is kept, one that is broken, how its reason begins)
LIMITS = {
    "min_utilization": (20, 90, "GPU active 4"),
    "max_input_wait": (60, 5, "waiting for input 5"),
    "max_stalls": (50, 1, ""),
    "max_lost": (90, 10, "lost "),
    "max_step_ms": (100, 2, "2"),
    "max_stuck_s": (600, 60, "no step for 90 s"),
    "forbid": (["throttled"], ["input_bound"], "Input-bound"),
}


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """Half of the time waits for input, a twentieth validates."""
    run = Generated(seed=1, gpus=[GPU])
    for _ in range(4):
        with run.epoch():
            run.steps(200, step_ms=10, wait_ms=12)
            run.phase("validation", 0.25)
    run.facts["step_watch"] = {"seconds": 90.0, "times": 4, "standstills": [], "still": False}
    folder = tmp_path_factory.mktemp("check") / "resnet"
    write(run, folder)
    return folder


def test_every_combination_of_limits(logdir):
    report = logdir_report(read_recordings(logdir))
    for choice in product((None, 0, 1), repeat=len(LIMITS)):
        chosen = zip(LIMITS, choice, strict=True)
        given = {name: LIMITS[name][which] for name, which in chosen if which is not None}
        broken = failures(report, Check(**given))
        if given:
            begins = [LIMITS[name][2] for name, which in zip(LIMITS, choice, strict=True) if which == 1]
            assert len(broken) == len(begins), (given, broken)
            assert all(any(one["reason"].startswith(begin) for one in broken) for begin in begins), broken
        else:
            assert [one["reason"].split(",")[0] for one in broken] == ["Input-bound"]


@pytest.mark.parametrize(
    "limits, code",
    [
        (["--max-input-wait", "5"], 1),  # a limit asks for a check by itself
        (["--max-input-wait", "80"], 0),
        (["--check", "--max-input-wait", "80"], 0),
        (["--check"], 1),
        ([], 0),
        (["--forbid", "throttled, contention", "--min-utilization", "0"], 0),
        (["--forbid", "throttled", "--forbid", "input_bound"], 1),
        (["--forbid", "Throttled, input-Bound"], 1),
    ],
)
def test_exit_codes(logdir, capsys, limits, code):
    assert main(["report", str(logdir), *limits]) == code
    out, err = capsys.readouterr()
    assert err == ""
    assert ("within the limits" in out) == (bool(limits) and not code)
    if code:
        assert out.startswith("resnet: "), "a run is called by its folder, not by a dot"
    assert main(["report", str(logdir), "--json", *limits]) == code
    assert not limits or json.loads(capsys.readouterr().out)["check"]["passed"] == (not code)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--threshold", "input_bound.wait_pc=8"], "did you mean wait_pct?"),
        (["--threshold", "inputbound.wait_pct=8"], "did you mean input_bound?"),
        (["--threshold", "zebra.wait_pct=8"], "available: between_fits, communication_bound, "),
        (["--threshold", "wait_pct=8"], "write CAUSE.NAME=VALUE"),
        (["--threshold", "input_bound.wait_pct=much"], "must be a non-negative number"),
        (["--threshold", "input_bound.wait_pct=-8"], "must be a non-negative number"),
        (["--forbid", "throtled"], "did you mean throttled?"),
        (["--forbid", "Unequal works"], "did you mean unequal work?"),
        (["--min-utilization", "101"], "must be a percentage"),
        (["--max-input-wait", "-5"], "must be a non-negative number"),
        (["--max-step-ms", "nan"], "must be a non-negative number"),
        (["--junit", "x.xml"], "--junit needs --check"),
        (["--max-lost"], "expected one argument"),
        (["--max-los", "5", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_limits_are_told_in_one_line(logdir, capsys, arguments, said):
    try:
        code = main(["report", str(logdir), *arguments])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_a_worker_that_holds_the_others_back_fails_the_check(tmp_path, capsys):
    """It waits 6 % longer than they: no cause by itself, and every step waits for it."""
    for rank in range(4):
        run = Generated(seed=rank, job="abc", rank=rank, world_size=4, fit_index=0)
        run.steps(500, step_ms=15 if rank == 3 else 16, wait_ms=1.0 if rank == 3 else 0)
        write(run, tmp_path / f"worker{rank}")
    assert main(["report", str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().out.startswith("worker3: Unequal work: Worker 3 ")
    assert main(["report", str(tmp_path), "--forbid", "imbalance"]) == 1
    assert main(["report", str(tmp_path), "--forbid", "throttled"]) == 0


@pytest.mark.parametrize(
    "limits, code",
    [
        (["--check"], 1),
        (["--forbid", "throttled"], 1),
        (["--max-lost", "90"], 1),
        (["--check", "--min-utilization", "0"], 0),
    ],
)
@pytest.mark.parametrize("what", ["nothing", "garbage"])
def test_what_cannot_be_judged_does_not_pass(tmp_path, capsys, monkeypatch, what, limits, code):
    run = Generated(seed=1, gpus=[GPU])
    if what == "garbage":
        run.steps(300, step_ms=10)
    path = Path(write(run, tmp_path))
    for name in path.glob("segment-*.npz"):
        name.write_bytes(b"garbage")
    monkeypatch.setattr(Recording, "stored_sums", lambda *_: None)  # those of another version
    if what == "nothing":
        limits, code = (limits[:1], 1) if limits[0] == "--check" else (limits, code)
    assert main(["report", str(tmp_path), *limits]) == code
    out = capsys.readouterr().out
    said = {"nothing": "no training step was recorded", "garbage": "not all of it can be read"}
    assert (said[what] in out) == (code == 1)


def test_an_empty_name_is_no_log_directory(capsys):
    """`gpu-util report "$LOGDIR" --check` with LOGDIR unset would look at the current folder."""
    assert main(["report", "", "--check"]) == 2
    assert "which log directory?" in capsys.readouterr().err


def test_thresholds_in_python_by_either_form_and_in_the_report(logdir):
    for thresholds in ({"input_bound": {"wait_pct": 90}}, {"input_bound.wait_pct": 90}):
        [run] = logdir_report(read_recordings(logdir), thresholds)["runs"]
        assert run["thresholds"]["input_bound"]["wait_pct"] == 90
        assert run["spans"] == []


def test_the_recordings_own_thresholds_are_in_force_for_all_who_read_it(tmp_path, capsys):
    run = Generated(seed=1, gpus=[GPU])
    run.steps(600, step_ms=10, wait_ms=10)
    write(run, tmp_path, diagnosis=run.diagnose({"input_bound": {"wait_pct": 90}}))

    def read(thresholds=None) -> tuple[float, int]:
        [one] = logdir_report(read_recordings(tmp_path), thresholds)["runs"]
        return one["thresholds"]["input_bound"]["wait_pct"], len(one["spans"])

    assert read() == (90, 0)
    assert read({"host_stall.callback_pct": 3}) == (90, 0), "on top of the recording's own"
    assert read({"input_bound.wait_pct": 7.5}) == (7.5, 1), "the default, if it is asked for"
    assert main(["report", str(tmp_path)]) == 0
    assert "Thresholds set: input_bound.wait_pct=90" in capsys.readouterr().out


@pytest.mark.parametrize(
    "told",
    [
        {"no_such_cause.x": 1, "input_bound.no_such_name": 2, "input_bound.wait_pct": 90},
        {"input_bound.wait_pct": 90, "host_stall.callback_pct": "much", "nonsense": None},
    ],
)
def test_thresholds_of_other_rules_or_damaged_ones_are_passed_over(tmp_path, told):
    run = Generated(seed=1, gpus=[GPU])
    run.steps(600, step_ms=10, wait_ms=10)
    found = run.diagnose({"input_bound": {"wait_pct": 90}})
    write(run, tmp_path, diagnosis=found | {"rules_version": 1, "thresholds_set": told})
    [one] = logdir_report(read_recordings(tmp_path))["runs"]
    assert one["thresholds"]["input_bound"]["wait_pct"] == 90 and one["spans"] == []


def test_the_offline_tab_shows_what_the_report_judged_once(tmp_path, monkeypatch):
    """Its runs and their sums are by the thresholds that were asked for: JSON inside the page."""
    for seed, name in enumerate(("one", "two")):
        run = Generated(seed=seed, gpus=[GPU])
        run.steps(600, step_ms=10, wait_ms=10)
        write(run, tmp_path / name)
    judged = []
    judge = engine.judge
    monkeypatch.setattr(engine, "judge", lambda *of: judged.append(of) or judge(*of))
    page = tmp_path / "page.html"
    for limits, input_bound in ((["--threshold", "input_bound.wait_pct=90"], False), ([], True)):
        judged.clear()
        assert main(["report", str(tmp_path), "--html", str(page), *limits]) == 0
        assert len(judged) == 2, "each run once"
        data = json.loads(page.read_text().split('id="gpu-utilization-data">')[1].split("</script>")[0])
        shown = [one["reply"]["report"]["spans"] for one in data["recordings"].values()]
        assert [bool(spans) for spans in shown] == [input_bound] * 2
        assert len(data["total"]["runs"]) == 2
        assert ("input_bound" in {cause["cause"] for cause in data["total"]["causes"]}) == input_bound


def test_ci_gets_junit_and_a_summary(logdir, tmp_path, capsys, monkeypatch):
    summary, file = tmp_path / "summary.md", tmp_path / "x.xml"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    limits = ["--max-step-ms", "1", "--max-input-wait", "5"]
    assert main(["report", str(logdir), *limits, "--junit", str(file)]) == 1
    printed = capsys.readouterr().out.splitlines()
    suite = ElementTree.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "1",
        "1",
        "0",
        "0",
    )
    [case] = suite
    assert case.get("classname") == "resnet" and float(case.get("time")) > 1  # its log directory is the run
    assert all(line.removeprefix("resnet: ") in case[0].get("message") for line in printed) and len(printed) == 2
    said = summary.read_text()
    assert said.startswith("before\n### gpu-util: 1 of 1 runs failed") and said.count("❌ resnet: ") == 2
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))  # a folder
    assert main(["report", str(logdir), "--max-input-wait", "80"]) == 0
    assert "gpu-util report: " in capsys.readouterr().err
