"""What the terminal says of several runs at once, and of what is no log directory."""

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback import read_recordings
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.terminal import render

MISSING = {"source": "NVML", "reason": "no NVIDIA GPU in this machine", "cure": "use one"}


@pytest.fixture
def report(tmp_path):
    """Two runs without NVML, one of them without windows, too."""
    for name, wait_ms in (("slow", 30), ("fast", 0)):
        run = Generated(seed=1, gpus=[GPU])
        run.steps(200, step_ms=8, wait_ms=wait_ms)
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


def test_numbers_stand_beside_their_thresholds_in_words(report):
    (slow,) = [run for run in report["runs"] if run["run"] == "slow"]
    text = " ".join(render({"runs": [slow]}, 100).split())
    limit = slow["spans"][0]["threshold"]["wait_pct"]
    assert (
        f"aiting for input, share of a step: {slow['spans'][0]['evidence']['wait_pct']:g}" in text
    )
    assert f"% (≥ {limit:g} %)" in text and "wait_pct" not in text


def test_columns_of_the_comparison_say_what_they_are(report):
    lines = render(report, 110).splitlines()
    assert "ms/step" in lines[1] and "ms/sample" in lines[1]
    assert any("ms/step and ms/sample: means over all steps" in line for line in lines)


@pytest.mark.parametrize("address", ["http://localhost:6006", "https://host/tb/#scalars"])
def test_a_web_address_is_no_log_directory(address, capsys):
    assert main(["report", address]) == 2
    error = capsys.readouterr().err.strip()
    assert "web address" in error and "--logdir" in error and "\n" not in error
