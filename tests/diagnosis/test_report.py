"""The report of real recordings: its JSON, its text, its command."""

import json
import re

import pytest
from generated_runs import GPU, Generated, reported, write
from make_recording import make_recording

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import RULES, diagnose, logdir_report, run_report
from gpu_util_callback.recording import Recording, read_recordings
from gpu_util_callback.report.screen import Detail, two_lines
from gpu_util_callback.report.terminal import render
from gpu_util_callback.words import steps


def slow_run(**facts) -> Generated:
    cores = {"cpus": 8, "cpus_allowed": 8}
    run = Generated(seed=1, gpus=[GPU], fit_index=0, machine=cores, **facts)
    run.steps(200, step_ms=8)
    run.steps(200, step_ms=8, wait_ms=30)
    run.reading(
        ("from_tensor_slices", "TensorSlice", 0.01, 1, ""),
        ("map(decode)", "Map", 37, 1, "sequential"),
        ("batch", "BatchV2", 0.3, 1, ""),
        batches=200,
    )
    run.steps(200, step_ms=8)
    run.phase("validation", 0.5, share=0.9)
    return run


@pytest.fixture
def logdir(tmp_path):
    write(
        slow_run(
            unavailable=[{"source": "GPM", "reason": "needs a Hopper GPU", "cure": ""}],
            overhead={"callback_us_per_step": 3.1, "sampler_cpu_pct": 0.2},
        ),
        tmp_path / "resnet",
    )
    return tmp_path


def test_json_is_the_contract(logdir):
    report = logdir_report(read_recordings(logdir))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert set(report) == {"version", "runs", "sessions"} and report["version"] == 1
    [run] = report["runs"]
    assert run["run"] == "resnet" and run["steps"] == 600 and run["status"] == "ended"
    assert set(run["time_s"]) == {"input_wait", "step", "compile", "validation", "callbacks", "other"}
    assert sum(run["time_s"].values()) == pytest.approx(run["wall_s"], rel=0.005)
    assert run["step_ms"]["p50"] == pytest.approx(8.1, rel=0.05)
    [gpu] = run["gpus"]
    assert set(gpu["utilization_pct"]) == {"mean", "p5", "p50", "p95"}
    assert gpu["memory_used_bytes"] == {"max": None}, "what was not measured is null"
    assert sum(run["gpu_time_est"]["0"][k] for k in ("gpu_active", "idle")) == pytest.approx(run["wall_s"])
    [span] = run["spans"]
    assert set(span["advice"]) == {"text", "code", "before", "question", "changes"}
    assert set(span["threshold"]) <= set(span["evidence"])
    assert span["confidence"] == "measured" and 0 < span["severity"] <= 1
    assert run["findings"] == [], "spans are not repeated in findings"
    alone = {"session": run["session"], "ranks": [0], "verdict": None, "findings": [], "clocks": None}
    assert report["sessions"] == [alone]


def test_a_run_without_steps_has_nulls_not_zeros(tmp_path):
    run = Generated()
    run.now += 10**9
    report = reported(run, tmp_path)
    assert report["step_ms"] == {"mean": None, "p50": None, "p95": None}
    assert report["gpu_time_est"] == {} and report["gpus"] == []
    assert "No training step" in render({"runs": [report]})


def test_the_stored_diagnosis_is_used_only_while_it_holds(tmp_path):
    run = slow_run()
    stored = run.diagnose()
    marked = stored | {"verdict": "As stored."}
    write(run, tmp_path / "same", diagnosis=marked)
    write(run, tmp_path / "old", diagnosis=marked | {"rules_version": -1})
    same, old = sorted(read_recordings(tmp_path), key=lambda one: one.run != "same")
    assert diagnose(same)["verdict"] == "As stored."
    assert diagnose(same, {"input_bound": {"wait_pct": 6}})["verdict"] != "As stored."
    assert diagnose(old)["verdict"] == stored["verdict"]
    assert diagnose(old)["spans"] == json.loads(json.dumps(stored["spans"]))


def test_a_run_with_profiler_windows_is_reported_without_its_rows(tmp_path, monkeypatch):
    make_recording(tmp_path, steps=300, windows=[(20, 30), (200, 210)])
    (recording,) = read_recordings(tmp_path)
    judged_anew = diagnose(recording, {"input_bound.wait_pct": 50})
    monkeypatch.setattr(Recording, "open_segment", lambda self, info: pytest.fail(f"{info.name} was read"))
    (recording,) = read_recordings(tmp_path)
    report = run_report(recording)
    assert report["traced"]["steps"] == 20 and report["traced"]["per_gpu"]["0"]["step_ms"] > 0
    assert judged_anew["traced"] == recording.stored["traced"]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("color", [True, False])
def test_text_fits_the_terminal(logdir, width, unicode, color):
    text = render(logdir_report(read_recordings(logdir)), width, color, unicode)
    plain = re.sub(r"\x1b\[\d+m", "", text)
    assert ("\x1b" in text) == color
    if not unicode:
        plain.encode("ascii")
    for line in plain.splitlines():
        assert len(line) <= width, line
    flat = " ".join(plain.split())
    assert "The input pipeline starves the GPU" in flat
    assert "steps 200" in flat and "map(decode)" in flat and "needs a Hopper GPU" in flat
    assert "Recorder overhead: " in flat


def test_two_lines_say_the_verdict_and_what_to_do(logdir, tmp_path):
    [recording] = read_recordings(logdir)
    first, second = two_lines(run_report(recording)).splitlines()
    assert "starves" in first and "ds.map(decode" in second
    healthy = Generated()
    healthy.steps(300, step_ms=8)
    first, second = two_lines(reported(healthy, tmp_path / "healthy")).splitlines()
    assert "Nothing held up training" in first and "300 steps" in second


def test_of_an_idle_gpu_without_a_known_cause_the_second_line_says_where_to_look(tmp_path):
    cure = "trace=[(100, 105)] profiles these steps regardless of the cost"
    missing = {"source": "profiler windows", "reason": "a short run", "cure": cure}
    seconds = []
    for share in (0.3, 0.97):
        run = Generated(gpus=[GPU])
        run.facts["unavailable"] = [missing]
        run.steps(600, step_ms=50, gpu_share=share)
        seconds.append(two_lines(reported(run, tmp_path / str(share))).splitlines()[1].strip())
    assert seconds[0] == f"To see what the GPU waits for: {cure}"
    assert seconds[1].startswith("600 steps")


def test_no_color_wins_over_a_terminal(logdir, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["report", str(logdir)]) == 0
    assert "\x1b" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["report", str(logdir)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["{}/nowhere"], "does not exist"),
        (["{}/empty"], "GpuUtilCallback"),
        (["{}", "--run", "vgg"], "available: resnet"),
    ],
)
def test_unusable_input_is_one_clear_line(logdir, capsys, arguments, said):
    (logdir / "empty").mkdir()
    assert main(["report", *(text.format(logdir) for text in arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1


def test_the_list_of_rules_says_when_each_holds_and_what_it_says_when_it_cannot_know(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["report", "--rules"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for rule in RULES:
        assert f"else: {rule.unknown}" in said
        assert " ".join(rule.__doc__.partition("\n\n")[0].split()) in said, rule.cause


@pytest.mark.parametrize(
    "missing, silent",
    [
        # An imported trace times neither compilation nor callbacks.
        (("compile_ns", "callbacks_ns", "shape_id"), {"recompilation", "host_stall"}),
        (("input_wait_ns",), {"input_bound"}),
    ],
)
def test_a_rule_without_its_columns_is_silent_and_says_so(missing, silent):
    run = Generated(seed=1)
    run.steps(300, step_ms=8, wait_ms=30)
    whole = run.tables()["steps"]
    known = {name: column for name, column in whole.items() if name not in missing}
    with_all, without = (run.diagnose(tables={"steps": table}, samples={}, ended=False) for table in (whole, known))
    causes = [{one["cause"] for one in found["silent"]} for found in (without, with_all)]
    assert causes[0] - causes[1] == silent
    assert bool(without["spans"]) == ("input_bound" not in silent)


def test_a_gpu_idles_for_input_no_longer_than_the_thread_waited(tmp_path):
    """The windows may happen to lie in the steps that waited."""
    run = Generated(seed=1, gpus=[GPU])
    run.steps(100, step_ms=8)
    run.steps(100, step_ms=8, wait_ms=30)
    run.trace(4, step_ms=40, idle_input=0.75, idle_host=0.1)
    report = reported(run, tmp_path)
    parts = {name: part for name, part in report["gpu_time_est"]["0"].items() if name != "basis"}
    assert parts["idle_input"] == pytest.approx(report["time_s"]["input_wait"], rel=1e-3)
    assert sum(parts.values()) == pytest.approx(report["wall_s"], rel=1e-3)
    assert parts["kernel"] == pytest.approx(1.5 * parts["idle_host"], rel=1e-3)


def test_windows_that_lie_in_a_busy_part_do_not_speak_for_a_run_that_idles(tmp_path):
    """A thread that waited for most of the run, beside a GPU that "idled 1 % for input"?"""
    found = []
    for busy in (0.97, 0.3):
        run = Generated(seed=1, gpus=[GPU])
        run.steps(100, step_ms=10)
        run.steps(100, step_ms=10, wait_ms=30, gpu_share=busy, gpu_in_wait=busy)
        run.trace(4, step_ms=10, idle_input=0.01, idle_host=0.02)
        report = reported(run, tmp_path / str(busy))
        found.append(report["gpu_time_est"]["0"])
    assert found[0]["basis"] == "windows"
    assert found[1]["basis"] == "nvml"
    assert found[1]["idle"] > 2 * found[1]["gpu_active"]


def test_a_stage_slower_than_its_steps_is_called_a_sum_over_threads(tmp_path):
    for name, work_ms in (("less", 30), ("more", 240)):
        run = Generated(seed=1, gpus=[GPU])
        run.steps(200, step_ms=8, wait_ms=30)
        run.facts["machine"] = {"cpus": 8, "cpus_allowed": 8}
        run.reading(("map(decode)", "Map", work_ms, 1, "sequential"), batches=200)
        write(run, tmp_path / name)
    less, more = (
        render({"runs": [run]}, detail=Detail(evidence=True))
        for run in logdir_report(read_recordings(tmp_path))["runs"]
    )
    less, more = " ".join(less.split()), " ".join(more.split())
    assert "slowest stage, per batch 30 ms" in less and "summed" not in less
    assert "runs one call at a time" in less
    assert "slowest stage per batch, summed over threads 240 ms" in more and "its threads 1" not in more
    assert "takes 240 ms a batch, summed over its threads" in more and "one thread" not in more
    assert "step time here without its wait 8" in more and "all 200 steps" in more


def test_steps_are_said_without_the_one_after_them():
    assert steps(0, 240, 240) == "all 240 steps" and steps(0, 240, 300) == "steps 0–239"
    assert steps(1000, 2000, 2000) == "steps 1,000–1,999" and steps(5, 6) == "step 5"


def test_one_long_step_is_said_as_such(tmp_path):
    run = Generated()
    run.steps(1, step_ms=1270)
    write(run, tmp_path / "run")
    [recording] = read_recordings(tmp_path / "run")
    assert "1 step, median 1.3 s a step." in two_lines(run_report(recording))
    assert "e+" not in render(logdir_report([recording]), 100)
