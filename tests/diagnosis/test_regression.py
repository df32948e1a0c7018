"""`gpu-util report --baseline`: a run against its baseline, with their own scatter as the measure.

`real_steps.npz` holds the step times of 24 fits of one small model (CPU, 1.6 ms a step, each
1,980 steps after the first ones and without compilations), recorded one after another on two cores
that other programs kept busy most of the time.
"""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import regression

REAL = Path(__file__).with_name("real_steps.npz")
LIMIT = 5.0


@pytest.fixture(scope="module")
def real() -> np.ndarray:
    """float64[fit, step]: seconds."""
    with np.load(REAL) as stored:
        return stored["step_100ns"] / 1e7


def measures(took):
    return [regression.measured(took, of_block) for of_block in regression.MEASURES.values()]


def outcome(run, before, factor=1.0):
    """The outcome for step times that all are `factor` as long."""
    found = []
    for one, other in zip(run, before, strict=True):
        slower = replace(one, level=one.level + math.log(factor))
        _, low, high = regression._bounds([slower], [other])
        low, high = 100 * math.expm1(low), 100 * math.expm1(high)
        found.append("slower" if low > 0 and high >= LIMIT else "within" if high < LIMIT else "")
    return "slower" if "slower" in found else found[0]


def without_drift(real, pairs):
    """Pairs of 2,000 steps of one fit, in no order; of the half of the fits that scatter less."""
    fits = sorted(real, key=lambda took: np.percentile(took, 75) / np.percentile(took, 10))
    rng = np.random.default_rng(5)
    for _ in range(pairs):
        fit = fits[rng.integers(len(fits) // 2)]
        yield measures(rng.choice(fit, 2000)), measures(rng.choice(fit, 2000))


def test_real_fits_that_do_not_differ_raise_no_more_than_one_alarm_in_a_hundred(real):
    fits = [measures(took) for took in real]
    pairs = [(a, b) for a in range(len(fits)) for b in range(len(fits)) if a != b]
    found = Counter(outcome(fits[a], fits[b]) for a, b in pairs)
    assert len(pairs) == 552 and found["slower"] / len(pairs) <= 0.01


def test_five_percent_are_found_where_nothing_drifts(real):
    pairs = list(without_drift(real, 200))
    same = Counter(outcome(*pair) for pair in pairs)
    slower = Counter(outcome(*pair, factor=1.05) for pair in pairs)
    assert same["slower"] <= 2 and slower["slower"] >= 180
    # A slowdown is never called within, and what is too small for the limit passes.
    assert slower["within"] == 0
    assert Counter(outcome(*pair, factor=1.01) for pair in pairs)["slower"] <= 20


def test_what_scatters_too_much_is_neither_passed_nor_failed(real):
    fits = [measures(took) for took in real]
    pairs = [(a, b) for a in fits for b in fits if a is not b]
    found = Counter(outcome(*pair, factor=1.05) for pair in pairs)
    assert found[""] > 0.8 * len(pairs) and found["within"] <= 0.01 * len(pairs)


def test_repeats_show_by_themselves_how_much_runs_differ():
    """Ten runs on both sides resolve what one of each does not, and err in few of a hundred."""
    rng = np.random.default_rng(1)

    def runs(factor=1.0):
        return [regression.StepLevel(math.log(factor) + rng.normal(0, 0.015), 0.02, 8) for _ in range(10)]

    def slower(factor, count):
        return sum(regression._bounds(runs(factor)[:count], runs()[:count])[1] > 0 for _ in range(400))

    assert slower(1.0, 10) <= 6 and slower(1.05, 10) >= 380
    assert slower(1.05, 1) <= 40


@pytest.mark.parametrize("freedom, known", [(1, 63.66), (7, 3.499), (30, 2.75), (1e9, 2.576)])
def test_quantiles_of_students_t(freedom, known):
    assert regression._quantile(freedom) == pytest.approx(known, abs=0.01)


# --- the command ----------------------------------------------------------------------------------


def run_of(step_ms=10.0, *, seed=1, steps=1000, batch=32, at_s=0, noise=0.05, **facts) -> Generated:
    facts = {"script": "train.py", "model": {"parameters": 1_000_000}} | facts
    run = Generated(seed=seed, gpus=[GPU], noise=noise, at_s=at_s, **facts)
    run.facts["fit"] |= {"batch_size": batch}
    run.steps(steps, step_ms=step_ms)
    return run


def drifting(seed, at_s=0) -> Generated:
    run = run_of(seed=seed, steps=500, at_s=at_s)
    run.steps(500, step_ms=15)
    return run


def check(capsys, *arguments):
    code = main(["report", *map(str, arguments)])
    return code, *capsys.readouterr()


def stalling() -> Generated:
    run = run_of(seed=2, steps=10)
    run.steps(1000, step_ms=10, callback_ms=np.where(np.arange(1000) % 10 == 9, 30.0, 0.0))
    return run


def logging(step_ms, logs_us, seed=2, python="3.11.7") -> Generated:
    """A run whose steps end with reading the logs: always the same work, on the CPU."""
    run = run_of(step_ms, seed=seed, framework={"name": "tensorflow", "python": python})
    for part in run._steps:
        part["gpu_wait_ns"] = np.full(len(part["step"]), int(1000 * logs_us))
        part["body_ns"] = part["body_ns"] - part["gpu_wait_ns"]
    return run


SEEMS = "but the CPU seems to have been slower there or then (to read the logs, always the same work, "
LOGGED = logging(10.0, 30, 1)
SPREAD = [run_of(step_ms, seed=place, at_s=100 * place) for place, step_ms in enumerate((9, 10, 11, 12))]


@pytest.mark.parametrize(
    "before, after, code, said",
    [
        ([run_of()], run_of(10.0, seed=2), 0, "within 5 %"),
        ([run_of()], run_of(10.1, seed=2), 0, "within 5 %"),
        ([run_of()], run_of(11.0, seed=2), 1, "at most 5 % allowed"),
        ([run_of()], run_of(9.0, seed=2), 0, "faster than in"),
        ([run_of()], stalling(), 1, "its mean step is"),  # now and then
        ([run_of(batch=32)], run_of(20, batch=64, seed=2), 0, "per sample"),
        (SPREAD, run_of(12, seed=9), 0, "scatter too much to resolve 5 %"),
        # Where the CPU was slower there or then, which the logs show, that is no slowdown.
        ([LOGGED], logging(11.0, 42), 0, SEEMS + "took 40 % longer in after"),
        ([LOGGED], logging(10.0, 21), 0, "% longer in before), and 5 % cannot be resolved"),
        ([LOGGED], logging(11.0, 30.6), 1, "at most 5 % allowed"),  # by chance
        ([LOGGED], logging(14.0, 42), 1, "at most 5 % allowed"),  # more than that explains
        ([LOGGED], logging(11.0, 42, python="3.12.1"), 1, "at most 5 % allowed"),  # another work there
        ([LOGGED], logging(11.0, 300), 1, "at most 5 % allowed"),  # a wait for the device
    ],
)
def test_a_run_is_checked_against_its_baseline(tmp_path, capsys, before, after, code, said):
    for place, run in enumerate(before):
        write(run, tmp_path / "before" / f"run{place}" if len(before) > 1 else tmp_path / "before")
    write(after, tmp_path / "after")
    found, text, _ = check(capsys, tmp_path / "after", "--baseline", tmp_path / "before", "--allow-different")
    assert found == code and said in text and text.startswith("after: ")
    assert (f"{len(before)} runs" in text) == (len(before) > 1)


def test_the_limit_can_be_chosen_and_is_at_least_what_can_be_proven(tmp_path, capsys):
    write(run_of(seed=1), tmp_path / "before")
    write(run_of(11, seed=2), tmp_path / "after")
    arguments = (tmp_path / "after", "--check", "--baseline", tmp_path / "before", "--json")
    code, text, _ = check(capsys, *arguments, "--max-slowdown", 20)
    assert code == 0
    [one] = json.loads(text)["check"]["slowdowns"]
    assert one["outcome"] == "within" and one["low_pct"] < 10 < one["high_pct"] < 20
    code, text, _ = check(capsys, *arguments, "--max-slowdown", 0)
    assert code == 1 and not json.loads(text)["check"]["passed"]


def test_a_wait_for_the_device_says_nothing_of_the_cpu():
    def logs(us, step_us):
        steps = {"gpu_wait_ns": np.full(300, 1000 * us)}
        return regression._logs(SimpleNamespace(steps=steps), step_us / 1e6)

    assert logs(30, 1000) == pytest.approx(math.log(30e-6))
    assert logs(30, 200) is None is logs(200, 10_000) is logs(0, 1000)
    assert regression._logs(SimpleNamespace(steps={}), 0.01) is None


def test_repeats_of_one_program_are_compared_together(tmp_path, capsys):
    for place, step_ms in enumerate((10.0, 10.1, 9.9)):
        write(run_of(step_ms, seed=place), tmp_path / "before" / f"run{place}")
        write(run_of(1.1 * step_ms, seed=9 + place), tmp_path / "after" / f"run{place}")
    write(run_of(script="other.py"), tmp_path / "after" / "other")
    arguments = (tmp_path / "after", "--check", "--baseline", tmp_path / "before", "--repeats")
    code, text, _ = check(capsys, *arguments, "--json")
    found = {one["outcome"]: one for one in json.loads(text)["check"]["slowdowns"]}
    one, other = found["slower"], found["unknown"]
    assert code == 1 and len(found) == 2 and other["run"] == "other"
    assert one["run"] == "run0 and 2 like it"
    assert len(one["baseline"]) == 3 and 2 < one["low_pct"] < 10 < one["high_pct"] < 20
    code, _, error = check(capsys, tmp_path / "after", "--check", "--repeats")
    assert code == 2 and "--repeats needs --baseline" in error


def test_without_a_comparable_run_the_check_fails_and_says_why(tmp_path, capsys):
    write(run_of(script="other.py"), tmp_path / "before")
    write(run_of(seed=2), tmp_path / "after")
    write(run_of(seed=3, steps=100), tmp_path / "short")
    code, text, _ = check(capsys, tmp_path / "after", "--baseline", tmp_path / "before")
    assert code == 1 and "no run of the same script, model and rank" in text
    code, text, _ = check(capsys, tmp_path / "short", "--baseline", tmp_path / "after")
    assert code == 1 and "100 steps, and 212 are needed" in text
    for arguments, said in (
        (("--max-slowdown", 5), "--max-slowdown needs --baseline"),
        (("--junit", tmp_path / "x.xml"), "--junit needs --check"),
        (("--baseline", tmp_path / "no"), "does not exist"),
    ):
        code, text, error = check(capsys, tmp_path / "after", *arguments)
        assert code == 2 and not text and said in error and error.count("\n") == 1


def test_a_log_directory_that_is_itself_the_run_has_its_name_in_ci(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    write(run_of(), tmp_path / "new")
    code, _, _ = check(capsys, tmp_path / "new", "--max-step-ms", 1, "--junit", tmp_path / "x.xml")
    assert code == 1
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert [case.get("classname") for case in suite] == ["new"]
    assert "❌ new: 10" in (tmp_path / "summary.md").read_text()


def test_ci_gets_junit_and_a_summary(tmp_path, capsys, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    write(run_of(seed=1), tmp_path / "before" / "a")
    write(drifting(2), tmp_path / "before" / "b")
    write(run_of(11, seed=3), tmp_path / "after" / "a")
    write(drifting(4), tmp_path / "after" / "b")
    code, text, _ = check(
        capsys, tmp_path / "after", "--baseline", tmp_path / "before", "--junit", tmp_path / "x.xml", "--max-lost", 90
    )
    assert code == 1 and text.count("\n") == 2
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "1")
    [failure] = suite.iter("failure")
    assert "at most 5 % allowed" in failure.get("message")
    said = summary.read_text()
    assert said.startswith("before\n### gpu-util: 1 of 2 runs failed")
    assert "❌ a: its step is" in said and "⚠️ b: its " in said


@pytest.mark.parametrize(
    "used, computes", [([30.0, 45.0], False), ([130.0, 140.0], True), ([np.nan], True), (None, True)]
)
def test_steps_that_wait_for_a_device_are_compared_more_closely(real, used, computes):
    """Where a process was placed matters less to them; what is not known is no reason to."""
    host = {} if used is None else {"process_cpu_pct": np.array(used)}
    cpu = regression._cpu_pct(SimpleNamespace(samples={"host": host}))
    assert (cpu >= 80) == computes
    usual, one = (regression.measured(real[0], regression._quick, of) for of in (True, computes))
    assert (one.between < usual.between) == (not computes)
    bounds = [regression._bounds([some], [some])[2] for some in (one, usual)]
    assert (bounds[0] < bounds[1]) == (not computes)


def test_more_runs_resolve_more():
    """Runs of one side narrow nothing: an odd run on the other side stays one."""
    rng = np.random.default_rng(0)
    one = regression.StepLevel(-6.0, 0.008, 16, 0.008)
    runs = [replace(one, level=one.level + rng.normal(0, 0.008)) for _ in range(6)]
    widths = []
    for after, before in ((1, 1), (1, 5), (2, 2), (3, 3)):
        change, _, high = regression._bounds(runs[:after], runs[-before:])
        widths.append(high - change)
    assert widths[0] > 0.8 * widths[1] > widths[2] > widths[3]
    odd = [*runs[:2], replace(one, level=one.level + 0.1)]
    change, _, high = regression._bounds(odd, runs[3:])
    assert high - change > 1.5 * widths[3]


@pytest.mark.parametrize("answer, code", [(None, 0), ("pass", 0), ("fail", 1)])
def test_what_cannot_be_resolved_may_fail(tmp_path, capsys, answer, code):
    write(drifting(1), tmp_path / "before")
    write(drifting(2, at_s=100), tmp_path / "after")
    choice = ("--unresolved", answer) if answer else ()
    found, text, _ = check(capsys, tmp_path / "after", "--baseline", tmp_path / "before", *choice, "--json")
    [one] = json.loads(text)["check"]["slowdowns"]
    assert found == code and one["outcome"] == "unresolved" and one["failed"] == bool(code)


OTHER = {
    "GPU: NVIDIA T4, baseline NVIDIA H200": {"gpus": [{**GPU, "name": "NVIDIA T4"}]},
    "CPU: B, baseline A": {"machine": {"cpu": "B"}},
    "CPU cores: 2, baseline 8": {"machine": {"cpu": "A", "cpus_allowed": 8, "cpu_quota": 2.0}},
    "framework: jax, baseline tensorflow": {"framework": {"name": "jax", "backend": "jax"}},
    "precision: mixed_bfloat16, baseline float32": {"fit": {"batch_size": 32, "mixed_precision": "mixed_bfloat16"}},
    "batch size: 64, baseline 32": {"fit": {"batch_size": 64}},
}


@pytest.mark.parametrize("difference", OTHER)
def test_runs_that_were_set_up_otherwise_are_not_comparable(tmp_path, capsys, difference):
    before, after = run_of(seed=1, machine={"cpu": "A", "cpus_allowed": 8}), run_of(seed=2)
    before.facts["fit"]["mixed_precision"] = "float32"
    after.facts |= OTHER[difference]
    write(before, tmp_path / "before")
    write(after, tmp_path / "after")
    arguments = (tmp_path / "after", "--baseline", tmp_path / "before")
    code, text, _ = check(capsys, *arguments, "--junit", tmp_path / "x.xml")
    assert code == 3 and f"not comparable with before: {difference} (--allow-diff" in text
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    code, text, _ = check(capsys, *arguments, "--json")
    outcome = json.loads(text)["check"]
    assert not outcome["passed"] and outcome["slowdowns"][0]["differences"] == [difference]
    assert check(capsys, *arguments, "--allow-different")[0] == 0


def test_only_what_both_are_known_to_have_trained_with_can_differ(tmp_path, capsys):
    newer = {"name": "tensorflow", "backend": "tensorflow", "version": "3.0"}
    write(run_of(seed=1, machine={"cpu": "A"}), tmp_path / "before" / "alike")
    write(run_of(seed=3, at_s=9, machine={"cpu": "B"}), tmp_path / "before" / "other")
    write(run_of(seed=2, framework=newer), tmp_path / "after")
    arguments = (tmp_path / "after", "--baseline", tmp_path / "before", "--json")
    code, text, _ = check(capsys, *arguments)
    assert code == 0 and len(json.loads(text)["check"]["slowdowns"][0]["baseline"]) == 2
    write(run_of(seed=2, machine={"cpu": "A"}), tmp_path / "again")
    code, text, _ = check(capsys, tmp_path / "again", *arguments[1:])
    assert code == 0 and len(json.loads(text)["check"]["slowdowns"][0]["baseline"]) == 1


@pytest.mark.parametrize(
    "wait_ms, before_ms, code",
    [
        (2.0, 0.0, 1),  # nothing waited before
        (2.0, 2.0, 0),  # no news
        (0.75, 0.55, 0),  # just above its threshold here, just below it there
    ],
)
def test_a_cause_that_the_baseline_has_not_fails(tmp_path, capsys, wait_ms, before_ms, code):
    """The limit allows the slower steps themselves."""
    for name, wait, seed in (("before", before_ms, 1), ("after", wait_ms, 2)):
        run = run_of(8.0, seed=seed, steps=10)
        run.steps(2000, step_ms=8.0, wait_ms=wait)
        write(run, tmp_path / name)
    arguments = ("--baseline", tmp_path / "before", "--max-slowdown", 90)
    found, text, _ = check(capsys, tmp_path / "after", *arguments)
    assert found == code and text.count("not in the baseline") == code
    assert not code or text.startswith("after: Input-bound; not in")
    if code:
        found, text, _ = check(capsys, tmp_path / "after", *arguments, "--forbid", "input_bound")
        assert found == 1
