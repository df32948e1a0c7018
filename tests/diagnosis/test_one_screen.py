"""The summary in the terminal fits one screen, whatever there is to show."""

import re

import pytest
from generated_runs import GPU, Generated, write
from simulated_boards import H100
from simulated_jobs import Job

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.screen import Detail, Pen, folded
from gpu_util_callback.report.terminal import render

SCREEN = 50


def lines_of(folder, width=100, **detail) -> list[str]:
    text = render(logdir_report(read_recordings(folder)), width, detail=Detail(**detail))
    assert all(len(line) <= width for line in text.splitlines())
    return text.splitlines()


def workers(folder, count: int, starved: int | None = None) -> None:
    """Workers in step; what one waits for its input, the others wait for it."""
    for rank in range(count):
        run = Generated(seed=1, gpus=[GPU], rank=rank, world_size=count, job="b", fit_index=0, host=f"node-{rank}")
        own = rank == starved
        run.steps(300, step_ms=10 if own else 40, wait_ms=30 if own else 0)
        write(run, folder)


@pytest.mark.parametrize("count", [2, 8, 40])
def test_a_job_begins_with_the_worker_that_holds_the_others_back(tmp_path, count):
    workers(tmp_path, count, starved=1)
    lines = lines_of(tmp_path)
    assert lines[0].startswith("Worker 1 holds the others back: its input is slow (")
    assert len(lines) <= SCREEN
    text = " ".join(lines)
    assert ("alike)" in text) == (count > 2), "those that only wait are one line"
    assert text.count("Where the time of the training thread of rank 1 went") == 1
    assert re.search(r"1\. +\S+ s  Worker 1 holds the others back[^·]*  rank 1 · ", text)
    # The worker's own finding is the same time again.
    assert re.search(r"2\. +\(in 1\)  Input-bound", text)


def test_a_job_of_equal_workers_is_one_line(tmp_path):
    workers(tmp_path, 8)
    lines = lines_of(tmp_path)
    assert lines[0].startswith("All 8 workers: Nothing held up training")
    assert len(lines) <= 20


@pytest.mark.parametrize("width", [80, 100, 140])
def test_many_findings_are_a_line_each_and_three_are_explained(tmp_path, width):
    run = Generated(seed=1, gpus=[GPU], fit={"input_kind": "generator", "batch_size": 32})
    for place in range(10):
        run.steps(200, step_ms=8, wait_ms=12)
        run.steps(200, step_ms=8, compile_ms=0)
        for _ in range(3):
            run.phase("callback", 1.5, name=f"Export{'ABCDEFGHIJ'[place]}.on_epoch_end")
            run.steps(60, step_ms=8)
    write(run, tmp_path)
    lines = lines_of(tmp_path, width)
    assert len(lines) <= SCREEN + 5 * (width == 80)
    listed = [line for line in lines if re.match(r"\d\. +[\d.]+ ", line)]
    assert len(listed) == 5 and any("more, " in line and "(--all)" in line for line in lines)
    titles = [line for line in lines if re.match(r"\d\. [A-Z]", line)]
    assert len(titles) == 3
    everything = lines_of(tmp_path, width, all=True, evidence=True)
    assert len([line for line in everything if re.match(r"\d+\. [A-Z]", line)]) == 11


def test_sixty_four_gpus_are_what_differs_and_the_rest(tmp_path):
    gpus = [GPU | {"index": index, "uuid": f"GPU-{index}"} for index in range(64)]
    run = Generated(seed=1, gpus=gpus)
    run.steps(600, step_ms=20)
    write(run, tmp_path)
    report = logdir_report(read_recordings(tmp_path))
    for gpu in report["runs"][0]["gpus"]:
        gpu["utilization_pct"]["mean"] = 20.0 if gpu["index"] == 37 else 90.0
    lines = render(report, 100).splitlines()
    assert len(lines) <= SCREEN
    [slow] = [line for line in lines if line.startswith("gpu37 ")]
    assert "GPU active 20 % (avg)" in slow
    assert any(line.startswith("63 GPUs NVIDIA H200 (63 alike)") for line in lines)


def test_the_gpu_that_a_finding_names_is_not_alike_and_its_account_is_shown(tmp_path):
    job = Job(seed=1, board=H100, gpus=8, hz=2)
    job.train(300, gpu=120)
    job.set(gpu=5, sm_clock_mhz=1200, temperature_c=89, throttle_thermal_pct=70)
    job.train(300, gpu=165)
    job.write(tmp_path)
    lines = lines_of(tmp_path, 120)
    assert lines[0].startswith("Throttled (thermal) on gpu5: ")
    assert "throttled" not in " ".join(lines), "a cause is called by its title, not by its id"
    assert any(line.startswith("gpu5 NVIDIA") for line in lines)
    assert any(line.startswith("7 GPUs NVIDIA") and "(7 alike)" in line for line in lines)
    assert any(line.startswith("Where the time of gpu5 went") for line in lines)


def test_three_hundred_runs_are_a_table(tmp_path, capsys):
    for place in range(3):
        run = Generated(seed=place, gpus=[GPU])
        run.steps(200, step_ms=8, wait_ms=30 if place == 2 else 0)
        write(run, tmp_path / f"trial_{place}")
    report = logdir_report(read_recordings(tmp_path))
    fast, _, slow = report["runs"]
    report["runs"] = [
        {**(slow if place == 217 else fast), "id": f"r{place}", "run": f"trial_{place}", "session": f"s{place}"}
        for place in range(300)
    ]
    lines = render(report, 100).splitlines()
    assert lines[0].startswith("300 runs") and len(lines) <= SCREEN
    assert lines[2].startswith("trial_0 ") and lines[3].startswith("trial_217 "), "by loss"
    assert any("and 280 more runs" in line for line in lines)
    assert any("starves the GPU" in line for line in lines), "the costliest run's verdict"
    every = render(report, 100, detail=Detail(all=True)).splitlines()
    assert len([line for line in every if line.startswith("trial_")]) >= 300
    assert main(["report", str(tmp_path), "--all", "--evidence", "--width", "100"]) == 0
    assert "Where the time of the training thread went" in capsys.readouterr().out


def test_a_line_that_is_cut_says_where_the_rest_is():
    pen = Pen(60, color=False, unicode=True)
    [line] = folded("Not measured", ["profiler windows (" + "x" * 80 + ")"], pen, " (--evidence)")
    assert len(line) == 60 and line.endswith("… (--evidence).")
    [line] = folded("Not measured", ["profiler windows (" + "x" * 80 + ")", "NVML"], pen, " (--evidence)")
    assert len(line) == 60 and line.endswith("…; 1 more (--evidence).")
    assert folded("Not measured", ["NVML"], pen, " (--evidence)") == ["Not measured: NVML."]


def test_a_findings_line_is_no_answer_to_a_question_that_it_does_not_show(tmp_path):
    made = Generated(seed=3)
    made.steps(400, step_ms=10, wait_ms=30)
    write(made, tmp_path)
    report = logdir_report(read_recordings(tmp_path))
    advice = {"text": "It waits. May aug run twice at once? If so, let it.", "code": "", "before": "", "question": True}
    report["runs"][0]["spans"][0]["advice"] |= advice
    line = next(line for line in render(report, width=120).splitlines() if line.startswith("1. "))
    assert line.endswith("· Perhaps let it.")
