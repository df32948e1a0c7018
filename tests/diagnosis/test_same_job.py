"""Which earlier run a run is measured against: the same model and script, however named."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from generated_runs import GPU, STARTED, Generated, write
from programs import ran

from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.job import hashed_arguments, script_name
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.redaction import hashed_script
from gpu_util_callback.report.terminal import render

REPOSITORY = Path(__file__).parents[2]


def run_of(place: int, **facts) -> Generated:
    """The first run (place 0) waits for its input, later ones do not."""
    model = {"name": f"functional_{place}", "parameters": 25_000_000}
    run = Generated(seed=1, **STARTED | {"gpus": [GPU], "at_s": 100 * place, "model": model} | facts)
    run.steps(600, step_ms=10, wait_ms=0 if place else 10)
    run.slow_map(600, 10 if place else 20)
    return run


def since(tmp_path, *scripts: str | None, folders=("a", "b", "c")) -> list:
    for place, (script, folder) in enumerate(zip(scripts, folders, strict=False)):
        write(run_of(place, script=script), tmp_path / folder)
    return [run["since"] for run in logdir_report(read_recordings(tmp_path))["runs"]]


HASHED, OTHER = hashed_script("train.py"), hashed_script("finetune.py")
SWEPT = {"trial": "b", "trial_of": "sweep"}


def scripts(*names: str | None) -> tuple[dict, ...]:
    return tuple({"script": name} for name in names)


def models(script: str | None) -> tuple[dict, ...]:
    named = ({"name": name, "parameters": 25_000_000} for name in ("slow_input", "with_cache"))
    return tuple({"script": script, "model": model} for model in named)


def given(*arguments: str | None) -> tuple[dict, ...]:
    said = [None if one is None else hashed_arguments(["train.py", *one.split()]) for one in arguments]
    return tuple({"script": "train.py", "arguments": one} for one in said)


def jobs(source: str, *names: str) -> tuple[dict, ...]:
    return tuple({"job": name, "job_source": source} for name in names)


@pytest.mark.parametrize(
    "facts, same",
    [
        (scripts("train.py", "train.py"), True),
        (scripts("train.py", "finetune.py"), False),
        (scripts("train.py", HASHED), True),  # one of them was recorded with redact=True
        (scripts(HASHED, OTHER), False),
        # Of a notebook, or where only one script is known, they may be neighbours in a sweep.
        (scripts(None, "train.py"), False),
        (scripts(None, None), False),
        # A model of another name is the same in one script only.
        (models("train.py"), True),
        (models(None), False),
        # Named by the user; a launcher's name is new at every start.
        (jobs("argument", "first", "second"), False),
        (jobs("argument", "first", "first"), True),
        (jobs("SLURM", "12.0", "13.0"), True),
        # Other arguments, or the next fit of a loop over seeds, are neighbours in a sweep.
        (given("--seed 1", "--seed 2"), False),
        (given("", "--learning-rate 3e-4"), False),
        (given("model=resnet", "model=resnet optimizer=sgd"), False),  # Hydra's
        (given("--epochs 3", "--epochs 3"), True),
        (given(None, "--epochs 3"), False),
        (given(None, None), False),
        (({"script": "sweep.py", "fit_index": 0}, {"script": "sweep.py", "fit_index": 1}), False),
        (({"script": "sweep.py", "fit_index": 1}, {"script": "sweep.py", "fit_index": 1}), True),
        (({"script": None, "fit_index": 0}, {"script": None, "fit_index": 1}), False),  # in a notebook
        # Members of a sweep, or runs at once, are no before and after.
        ((SWEPT | {"trial": "a"}, SWEPT), False),
        (({}, SWEPT), False),
        (({}, {"at_s": 1}), False),
        # Another machine keeps no promise.
        (({}, {"gpus": [GPU | {"name": "NVIDIA T4"}]}), False),
        (({}, {"world_size": 4}), False),
    ],
)
def test_what_makes_two_runs_the_same_job(tmp_path, facts, same):
    for place, more in enumerate(facts):
        write(run_of(place, **more), tmp_path / str(place))
    first, second = logdir_report(read_recordings(tmp_path))["runs"]
    assert first["since"] is None
    assert (second["since"] is not None) == same


def test_it_is_found_across_differently_named_log_directories(tmp_path):
    folders = ("exp/2026-11-20 baseline", "with cache", "logs/x/y/run_17")
    _, second, third = since(tmp_path, "train.py", "train.py", "train.py", folders=folders)
    assert second["run"] == "exp/2026-11-20 baseline" and second["gone"] == ["input_bound"]
    assert third is None, "nothing went away since the run before it"


@pytest.mark.parametrize("facts", [given("--workers 0", "--workers 8"), scripts(None, None)])
def test_a_run_of_the_same_name_is_compared_whatever_its_arguments(tmp_path, facts):
    for place, more in enumerate(facts):
        write(run_of(place, **({"model": {"name": "m", "parameters": 25_000_000}} | more)), tmp_path / "resnet50")
    assert logdir_report(read_recordings(tmp_path))["runs"][1]["since"]["gone"] == ["input_bound"]


def test_arguments_are_known_by_a_stand_in():
    secret = hashed_arguments(["train.py", "--token", "hunter2"])
    assert "hunter2" not in secret and secret == hashed_arguments(["/elsewhere/train.py", "--token", "hunter2"])
    assert secret != hashed_arguments(["train.py"])


def test_a_run_of_another_script_in_between_is_passed_over(tmp_path):
    _, other, third = since(tmp_path, "train.py", "evaluate.py", "train.py")
    assert other is None
    assert third["run"] == "a" and third["estimated"][1] == pytest.approx(2.0, rel=0.05)


def test_the_name_has_no_folder_and_no_meaning_when_redacted():
    main = SimpleNamespace(__file__="/home/anna/secret-project/train.py", __spec__=None)
    assert script_name(main=main) == "train.py"
    assert script_name(main=main, redact=True) == hashed_script("train.py")
    assert "train" not in script_name(main=main, redact=True)
    assert hashed_script(hashed_script("train.py")) == hashed_script("train.py")


def test_modules_are_named_by_their_module():
    spec = SimpleNamespace(name="project.training.__main__")
    main = SimpleNamespace(__file__="/src/project/training/__main__.py", __spec__=spec)
    assert script_name(main=main) == "project.training"


SHOWS = "from gpu_util_callback.job import program_to_try; print(program_to_try({log_dir!r}))"


@pytest.mark.parametrize(
    "started_in, words, then, log_dir, shown",
    [
        (".", ["src/train it.py"], "", "logs", "'src/train it.py'"),
        (".", ["src/train it.py"], "", "runs/a", "--log-dir runs/a 'src/train it.py'"),
        ("elsewhere", ["../src/train it.py"], "", "logs", "'{root}/src/train it.py'"),
        (".", ["src/train it.py"], "import os; os.chdir('elsewhere'); ", "logs", None),  # not the shell's folder
        (".", ["-m", "package.train"], "", "s3://b/logs", "--log-dir s3://b/logs -m package.train"),
        (".", ["-c", SHOWS.format(log_dir="logs")], "", "logs", "None"),
    ],
    ids=["below", "log dir", "from another folder", "changed folder", "module", "no script"],
)
def test_a_program_is_named_as_its_shell_can_start_it_again(tmp_path, started_in, words, then, log_dir, shown):
    for folder in ("src", "package", "elsewhere"):
        (tmp_path / folder).mkdir()
    for script in ("src/train it.py", "package/train.py"):
        (tmp_path / script).write_text(then + SHOWS.format(log_dir=log_dir))
    if shown is None:
        place = f"{tmp_path}/elsewhere/logs"
        shown = f"--log-dir {place} '{tmp_path}/src/train it.py'"
    here, path = tmp_path / started_in, os.pathsep.join([str(REPOSITORY), str(tmp_path)])
    done = ran(sys.executable, *words, cwd=here, env={**os.environ, "PWD": str(here), "PYTHONPATH": path})
    assert done.stdout.strip() == shown.format(root=tmp_path)


def test_notebooks_and_consoles_have_no_script():
    assert script_name(main=SimpleNamespace(__spec__=None)) is None
    notebook = SimpleNamespace(__file__="/tmp/x/ipykernel_launcher.py", get_ipython=lambda: None)
    assert script_name(main=notebook) is None


@pytest.mark.parametrize("way, name", [("file", "train.py"), ("module", "train"), ("code", None)])
def test_however_python_is_started(tmp_path, way, name):
    program = "from gpu_util_callback.job import script_name; print(script_name())"
    (tmp_path / "train.py").write_text(program)
    command = {"file": [str(tmp_path / "train.py")], "module": ["-m", "train"], "code": ["-c", program]}[way]
    said = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(name)


@pytest.mark.parametrize(
    "steps, status, seen",
    [
        (600, "ended", True),
        (350, "interrupted", True),
        (60, "ended", True),
        (20, "ended", False),
        (5, "interrupted", False),
    ],
)
def test_a_run_too_short_to_show_a_cause_does_not_say_that_it_went_away(tmp_path, steps, status, seen):
    write(run_of(0), tmp_path / "before")  # lost 6 s in 600 steps
    after = Generated(seed=1, gpus=[GPU], at_s=100, model=run_of(1).facts["model"], **STARTED)
    after.steps(steps, step_ms=10)
    write(after, tmp_path / "since", status=status)
    _, second = logdir_report(read_recordings(tmp_path))["runs"]
    assert (second["since"] is not None) == seen


@pytest.mark.parametrize(
    "epochs, steps, status, seen",
    [
        (4, 200, "ended", True),
        (2, 100, "ended", True),
        (1, 150, "ended", False),
        (4, 80, "interrupted", False),
        (4, 450, "interrupted", True),
    ],
)
def test_validation_did_not_go_away_before_its_time(tmp_path, epochs, steps, status, seen):
    """Four epochs of 200 steps with a validation of 2 s each, then epochs without any."""
    for place in range(2):
        run = Generated(seed=1, gpus=[GPU], at_s=100 * place, model={"name": "m", "parameters": 1_000}, **STARTED)
        run.facts["fit"] |= {"epochs": epochs if place else 4}
        if place:
            run.steps(steps if status != "ended" else epochs * steps, step_ms=10)
        for _ in range(0 if place else 4):
            with run.epoch():
                run.steps(200, step_ms=10)
                run.phase("validation", 2)
        write(run, tmp_path / str(place), status=status if place else "ended")
    _, second = logdir_report(read_recordings(tmp_path))["runs"]
    assert (second["since"] is not None) == seen


@pytest.mark.parametrize("after_s, gone", [(0.95, False), (0.1, True)])
def test_what_is_just_below_its_limit_is_not_gone(tmp_path, after_s, gone):
    """Folds of one training: the validation of one takes 21 % of its time, of another 19 %."""
    for place, seconds in enumerate((1.1, after_s)):
        model = {"name": "m", "parameters": 100}
        run = Generated(seed=1, at_s=100 * place, model=model, fit={"epochs": 6}, **STARTED)
        for _ in range(6):
            with run.epoch():
                run.steps(200, step_ms=20)
                run.phase("validation", seconds, account="validation")
        account = {"validation": 6 * seconds, "step": 24.0}
        write(run, tmp_path / "logs", account={"wall_s": sum(account.values()), "time_s": account}, fit_index=place)
    report = logdir_report(read_recordings(tmp_path))
    first, second = report["runs"]
    assert first["spans"] and not second["spans"]
    assert (second["since"] is not None) == gone
    assert ("Since fit 1: Training stalls gone" in render(report, 100)) == gone


def test_of_many_runs_those_without_a_cause_stand_in_the_table_alone(tmp_path):
    for place in range(10):
        run = run_of(place, script="train.py")
        write(run, tmp_path / "logs", fit_index=place)
    text = render(logdir_report(read_recordings(tmp_path)), 100)
    assert text.count("Nothing held up training") == 1, "the newest run is shown in full"
    assert all(f"fit {place + 1} " in text for place in range(10))
