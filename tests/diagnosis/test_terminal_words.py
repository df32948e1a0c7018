"""What the terminal says of several runs at once, and of what is no log directory."""

import re

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback import read_recordings
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.report.terminal import render
from gpu_util_callback.words import between, percent, steps, times, times_between

MISSING = {"source": "NVML", "reason": "no NVIDIA GPU in this machine", "cure": "use one"}


@pytest.fixture
def report(tmp_path):
    """Two runs without NVML, one of them without windows, too."""
    for name, wait_ms in (("slow", 30), ("fast", 0)):
        run = Generated(seed=1, gpus=[GPU])
        run.steps(200, step_ms=8, wait_ms=wait_ms)
        run.slow_map(200, 8 + wait_ms)
        own = [{"source": "windows", "reason": "too short"}] if name == "fast" else []
        write(run, tmp_path / name, unavailable=[MISSING, *own])
    return logdir_report(read_recordings(tmp_path))


def test_what_no_run_measured_is_said_once(report):
    text = render(report, 100)
    assert text.count("no NVIDIA GPU in this machine") == 1
    assert "Not measured in any of these runs" in text
    assert text.count("too short") == 1, "what one run alone lacks stands with it"
    alone = render({**report, "runs": report["runs"][:1]}, 100)
    assert alone.count("no NVIDIA GPU in this machine") == 1


def test_no_name_steers_the_terminal(report):
    hostile = "a\x1b]0;owned\x07\x1b[2J\u202eb\x9b1A\x1b[8mhidden"
    for run in report["runs"]:
        run["run"] = run["gpus"][0]["name"] = hostile
        run["unavailable"][0]["reason"] = hostile
    for several in (report["runs"], report["runs"][:1]):
        text = render({**report, "runs": several}, 100, color=True)
        assert "owned" in text and "?[8mhidden" in text
        plain = re.sub(r"\x1b\[\d+m", "", text)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", plain)


def test_what_comes_and_goes_is_explained_once(tmp_path):
    run = Generated(seed=1, fit={"input_kind": "generator", "batch_size": 32})
    for _ in range(3):
        run.steps(200, step_ms=8, wait_ms=30)
        run.steps(200, step_ms=8)
    write(run, tmp_path / "run")
    report = logdir_report(read_recordings(tmp_path / "run"))
    assert len(report["runs"][0]["spans"]) == 3
    text = " ".join(render(report, 100).split())
    assert text.count("class Batches") == 1
    last = max(one["end_step"] for one in report["runs"][0]["spans"]) - 1
    assert f"3 spans, steps 0–{last:,}" in text
    assert text.count("Can you write make_batch(i)") == 1


def test_an_advice_says_how_much_faster_the_run_gets(report):
    (slow,) = [run for run in report["runs"] if run["run"] == "slow"]
    (span,) = slow["spans"]
    text = " ".join(render({"runs": [slow]}, 100).split())
    gains = [times(slow["wall_s"] / (slow["wall_s"] - saved)) for saved in span["saves_range_s"]]
    assert f"This run gets {gains[0][:-1]} to {gains[1]} faster." in text
    live = " ".join(render({"runs": [slow | {"status": "live"}]}, 100).split())
    assert "This run gets" not in live, "the run's length is newer than the promise"
    span["saves_s"] = 0.0
    assert "This run gets" not in render({"runs": [slow]}, 100)


@pytest.mark.parametrize(("factor", "said"), [(1.94, "1.9×"), (3.97, "4×"), (9.96, "10×"), (123.4, "120×")])
def test_a_promise_has_two_digits(factor, said):
    assert times(factor) == said


@pytest.mark.parametrize(("value", "said"), [(0, "0 %"), (3.16, "3.2 %"), (5, "5 %"), (9.96, "10 %"), (99.6, "100 %")])
def test_a_share_has_two_digits(value, said):
    assert percent(value) == said


@pytest.mark.parametrize("unicode", [True, False])
def test_a_number_and_its_unit_stay_on_one_line(report, unicode):
    for width in range(40, 111):
        for line in render(report, width, unicode=unicode).splitlines():
            assert not re.match(r"\s*(%|m?s[ ,.;:)])", line), line
            assert "\u00a0" not in line


@pytest.mark.parametrize("address", ["http://localhost:6006", "https://host/tb/#scalars"])
def test_a_web_address_is_no_log_directory(address, capsys):
    assert main(["report", address]) == 2
    error = capsys.readouterr().err.strip()
    assert "web address" in error and "--logdir" in error and "\n" not in error


@pytest.mark.parametrize(("us", "said"), [(12.34, "12.3 µs"), (1553.2, "1.55 ms")])
def test_our_own_cost_reads_as_a_time(report, us, said):
    run = {**report["runs"][0], "overhead": {"callback_us_per_step": us}}
    assert f"{said} a step on the training thread" in render({"runs": [run]}, 200)


def test_a_range_of_one_value_is_that_value():
    assert [between("4", "4"), between("4", "8"), between("4 s", "8 s", " s")] == ["4", "4 to 8", "4 to 8 s"]
    assert [times_between(1.52, 1.5), times_between(1.5, 2.7)] == ["1.5×", "1.5 to 2.7×"]
    assert [steps(3, 4, noun="fit"), steps(3, 7, noun="fit"), steps(0, 2000)] == ["fit 3", "fits 3–6", "steps 0–1,999"]
