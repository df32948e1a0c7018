"""Runs side by side, and promises kept."""

import json

import pytest
from generated_runs import GPU, STARTED, Generated, write

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.diagnosis.compare import comparison
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.terminal import render
from gpu_util_callback.words import times


def run_of(
    wait_ms: float,
    *,
    batch: int = 32,
    step_ms: float = 10,
    seed: int = 1,
    later_s: int = 0,
    name: str = "resnet",
    steps: int = 600,
    **facts,
) -> Generated:
    run = Generated(
        seed=seed,
        gpus=[GPU],
        at_s=later_s,
        model={"name": name, "parameters": 25_000_000},
        fit={"batch_size": batch, "input_kind": "tf.data"},
        **STARTED | facts,
    )
    run.steps(steps, step_ms=step_ms, wait_ms=wait_ms)
    if wait_ms:
        run.slow_map(600, step_ms + wait_ms)
    return run


@pytest.fixture
def before_and_after(tmp_path):
    write(run_of(10), tmp_path / "before" / "run")
    write(run_of(0, later_s=100, name="resnet_1"), tmp_path / "after" / "run")
    return tmp_path


def test_the_next_run_of_the_job_says_what_was_promised_and_got(before_and_after):
    first, second = logdir_report(read_recordings(before_and_after))["runs"]
    assert first["since"] is None
    since = second["since"]
    assert since["run"] == "before/run" and since["gone"] == ["input_bound"]
    assert since["estimated"] == pytest.approx([2.0 / 1.35, 2.0], rel=0.05)
    assert since["got"] == pytest.approx(2.0, rel=0.05)
    text = render({"runs": [second]})
    assert "Since before/run: Input-bound gone; estimated gain 1.5 to 2×, measured 2×." in text
    assert not since["slower"] and "slower all the same" not in text
    slower = {**second, "since": {**since, "got": 0.2, "slower": True}}
    assert "measured 0.2×. This run is slower all the same." in " ".join(render({"runs": [slower]}).split())


def test_a_gain_without_an_upper_end_has_none_in_json(tmp_path):
    for place, (step_ms, lost) in enumerate([(10, 0.9), (1, 0.0)]):
        run = Generated(
            seed=1,
            gpus=[GPU],
            at_s=100 * place,
            model={"name": "resnet", "parameters": 25_000_000},
            fit={"batch_size": 32, "input_kind": "numpy", "run_eagerly": bool(lost)},
            **STARTED,
        )
        run.steps(300, step_ms=step_ms, gpu_share=0.9 - 0.8 * bool(lost))
        run.trace(8, step_ms, kernels=500, idle_launch=lost)
        run.steps(600, step_ms=step_ms, gpu_share=0.9 - 0.8 * bool(lost))
        write(run, tmp_path / str(place))
    first, second = logdir_report(read_recordings(tmp_path))["runs"]
    assert ["(run_eagerly=True)" in render({"runs": [run]}) for run in (first, second)] == [True, False]
    assert second["since"]["gone"] == ["launch_bound"]
    assert second["since"]["estimated"] == [pytest.approx(6.8, abs=0.1), None]
    assert "launch-bound gone; estimated gain at least 6.8×" in render({"runs": [second]}).lower().replace("\n", " ")


def test_a_promise_is_the_number_that_the_verdict_promised(tmp_path):
    for place in range(2):
        run = run_of(10 * (1 - place), later_s=100 * place)
        run.phase("validation", seconds=3)
        write(run, tmp_path / str(place))
    first, second = logdir_report(read_recordings(tmp_path))["runs"]
    [wait] = [one for one in first["spans"] if one["cause"] == "input_bound"]
    least, most = (first["wall_s"] / (first["wall_s"] - saved) for saved in wait["saves_range_s"])
    assert second["since"]["estimated"] == [pytest.approx(least, abs=0.01), pytest.approx(most, abs=0.01)]
    assert f"{times(least)[:-1]} to {times(most)} faster" in first["verdict"] and most < 1.9
    assert least < second["since"]["got"] <= 1.05 * most


def test_runs_of_several_log_directories_are_told_apart(tmp_path, capsys, monkeypatch):
    for name in ("1-healthy", "2-slow", "deep/2-slow"):
        write(run_of(0), tmp_path / name)

    def names(*folders):
        assert main(["report", *map(str, folders), "--json"]) == 0
        return {run["run"] for run in json.loads(capsys.readouterr().out)["runs"]}

    assert names(tmp_path / "1-healthy", tmp_path / "2-slow") == {"1-healthy", "2-slow"}
    both = {str(tmp_path / "2-slow"), str(tmp_path / "deep" / "2-slow")}
    assert names(*both) == both
    monkeypatch.chdir(tmp_path / "1-healthy")
    assert names(".", "../2-slow") == {"1-healthy", "2-slow"}


def test_comparison_is_per_sample_where_batch_sizes_differ(tmp_path):
    write(run_of(0, batch=32, step_ms=10), tmp_path / "b32")
    write(run_of(0, batch=128, step_ms=20, later_s=50), tmp_path / "b128")
    compared = comparison(logdir_report(read_recordings(tmp_path))["runs"])
    small, large = compared["runs"]
    assert compared["baseline"] == small["id"]
    assert large["speed"] == pytest.approx(2.0, rel=0.05)
    assert small["ms_per_sample"] == pytest.approx(10 / 32, rel=0.05)
    assert small["causes"] == [] and small["gone"] == [] and small["new"] == []


def test_a_step_of_a_trainer_has_the_samples_of_an_update(tmp_path):
    """Hugging Face's Trainer takes the batches of an update in one step, Lightning one batch."""
    for trainer, speed in {"transformers": 2.0, "lightning": 0.5}.items():
        folder = tmp_path / trainer
        for at_s, (each, step_ms) in enumerate([(1, 10), (4, 20)]):
            run = run_of(0, batch=8, step_ms=step_ms, later_s=100 * at_s)
            run.facts["fit"] |= {"trainer": trainer, "gradient_accumulation_steps": each}
            write(run, folder / str(each))
        assert comparison(logdir_report(read_recordings(folder))["runs"])["runs"][1]["speed"] == pytest.approx(
            speed, 0.1
        )


def test_command_compares_log_directories(before_and_after, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    folders = [str(before_and_after / name) for name in ("before", "after")]
    assert main(["report", *folders, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["comparison"]["runs"][1]["gone"] == ["input_bound"]
    assert main(["report", *folders]) == 0
    text = capsys.readouterr().out
    assert "2 runs" in text and "speed" in text and "without Input-bound" in text
    table = text.split("\n\n")[0]
    assert all(len(line) <= 70 for line in table.splitlines()), table


WORKER = {"job": "abc", "world_size": 2, "fit_index": 0}


@pytest.mark.parametrize(
    "runs, line",
    [
        (
            {"b32": {"batch": 32}, "b64": {"batch": 64, "step_ms": 12}, "b128": {"batch": 128, "step_ms": 30}},
            "3 runs: b64 is the fastest, 1.7× as fast as b32",
        ),
        (
            {"before": {"wait_ms": 10}, "after": {}},
            "2 runs: after is the faster, 2× as fast as before; without Input-bound",
        ),
        (
            {"before": {"wait_ms": 10}, "after": {}, "worse": {"wait_ms": 10}},
            "3 runs: after is the fastest, 2× as fast",
        ),
        ({"a": {}, "b": {"step_ms": 10.2, "seed": 2}}, "2 runs: both are about as fast"),
        ({"a": {}, "b": {"step_ms": 5, "steps": 12}}, "2 runs"),  # began only
        ({"w0": {**WORKER, "rank": 0}, "w1": {**WORKER, "rank": 1, "step_ms": 20}}, "Both workers: "),  # no race
        ({"a": {"batch": 32}, "b": {"batch": 64}, "c": {"batch": None}}, "3 runs"),  # per sample, which is not known
    ],
)
def test_the_first_line_says_which_run_is_the_fastest_if_one_is(tmp_path, runs, line):
    for place, (name, facts) in enumerate(runs.items()):
        later_s = 0 if "rank" in facts else 50 * place
        write(run_of(**{"wait_ms": 0} | facts, later_s=later_s), tmp_path / name, status="interrupted")
    lines = render(logdir_report(read_recordings(tmp_path)), width=200).splitlines()
    assert lines[0].startswith(line) and (":" in line or lines[0] == line)
    assert "about as fast" not in line or "b: interrupted" in lines


def test_the_log_directory_named_first_is_what_others_are_held_against(before_and_after, capsys):
    for names in (("before", "after"), ("after", "before")):
        folders = [str(before_and_after / name) for name in names]
        assert main(["report", "--json", *folders]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [run["run"].split("/")[0] for run in report["runs"]] == list(names)
        assert report["comparison"]["baseline"] == report["runs"][0]["id"]
        since = {run["run"].split("/")[0]: run["since"] for run in report["runs"]}
        assert since["before"] is None and since["after"], "what came first in time stays so"


@pytest.mark.parametrize(
    "gpus, said", [([], "not measured"), ([GPU | {"used_by_framework": False}], "no GPU was in use")]
)
def test_what_was_not_measured_fails_the_check(tmp_path, capsys, gpus, said):
    run = Generated(seed=1, gpus=gpus)
    run.steps(300, step_ms=10)
    write(run, tmp_path)
    assert main(["report", str(tmp_path), "--min-utilization", "50"]) == 1
    assert said in capsys.readouterr().out
    assert main(["report", str(tmp_path), "--check"]) == bool(gpus)  # which is cause enough
    assert main(["report", str(tmp_path), "--forbid", "input"]) == 2
