"""The summary in the terminal fits one screen, whatever there is to show."""

import re
from itertools import pairwise

import pytest
from generated_runs import GPU, Generated, write
from simulated_boards import H100
from simulated_jobs import Job

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.screen import Detail, Pen, _ending, folded
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
    assert re.search(r"2\. +in 1  Input-bound", text)


def test_a_job_of_equal_workers_is_one_line(tmp_path):
    workers(tmp_path, 8)
    lines = lines_of(tmp_path)
    assert lines[0].startswith("All 8 workers: Nothing held up training")
    assert len(lines) <= 20


def of_causes(count: int, gpus=()) -> Generated:
    """A run that waits for its input, and for another callback every now and then."""
    run = Generated(seed=1, gpus=gpus, fit={"input_kind": "generator", "batch_size": 32})
    for place in range(count - 1):
        run.steps(200, step_ms=8, wait_ms=12)
        run.steps(200, step_ms=8, compile_ms=0)
        for _ in range(3):
            run.phase("callback", 1.5, name=f"Export{'ABCDEFGHIJ'[place]}.on_epoch_end")
            run.steps(60, step_ms=8)
    return run


ROW = r"\d+\. +(?:[\d.,]+ \S+|unknown)  "


@pytest.mark.parametrize("width", [80, 100, 140])
def test_many_findings_are_a_line_each_and_as_many_as_fit_are_explained(tmp_path, width):
    write(of_causes(11, [GPU]), tmp_path)
    lines = lines_of(tmp_path, width)
    assert len(lines) <= SCREEN
    assert len([line for line in lines if re.match(ROW, line)]) == 8
    assert any("3 more, " in line and "(--all)" in line for line in lines)
    assert [line.split() for line in lines if line.split()[:1] == ["lost"]] == [["lost", "finding"]]
    everything = lines_of(tmp_path, width, all=True, evidence=True)
    assert len([line for line in everything if re.match(ROW, line)]) == 11


def test_eight_findings_take_24_lines(tmp_path):
    write(of_causes(8), tmp_path)
    lines = lines_of(tmp_path)
    assert len([line for line in lines if re.match(ROW, line)]) == 8 and len(lines) <= 24
    text = " ".join(" ".join(lines).split())
    assert "60 % (threshold 7.5 %)" in text
    assert "Can you write make_batch(i)" in text and "If so, let processes" in text, "no answer without its question"
    first = next(line for line in lines if line.startswith("1. "))
    assert "…" not in first, "its fix stands below"


def test_a_few_findings_are_all_explained(tmp_path):
    write(of_causes(3), tmp_path)
    lines = lines_of(tmp_path)
    after = [following for line, following in pairwise(lines) if re.match(ROW, line)]
    assert len(after) == 3 and all("(threshold" in line for line in after)


def test_evidence_of_several_spans_is_one_table(tmp_path):
    write(of_causes(4), tmp_path)
    lines = lines_of(tmp_path, 110, evidence=True)
    [where] = [line for line in lines if line.count("steps ") == 3 and line.strip().startswith("where")]
    assert where.split()[1:] == ["steps", "0–199", "steps", "580–779", "steps", "1,160–1,359"]
    [share] = [line for line in lines if "waiting for input, share" in line]
    assert share.count("60 %") in (1, 3), "the same in all of them stands once"


def test_what_was_not_checked_is_a_count(tmp_path):
    write(of_causes(3, [GPU]), tmp_path)
    [line] = [line for line in lines_of(tmp_path) if line.startswith("Not checked")]
    assert re.fullmatch(r"Not checked: \d+ causes \(--evidence\)\.", line)
    assert sum(line.startswith("  - ") for line in lines_of(tmp_path, evidence=True)) == int(line.split()[2])


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
    assert main(["report", str(tmp_path), "--all", "--evidence"]) == 0
    assert "Where the time of the training thread went" in capsys.readouterr().out


def test_a_line_that_is_cut_says_where_the_rest_is():
    pen = Pen(60, color=False, unicode=True)
    [line] = folded("Not measured", ["profiler windows (" + "x" * 80 + ")"], pen, " (--evidence)")
    assert len(line) == 60 and line.endswith("… (--evidence).")
    [line] = folded("Not measured", ["profiler windows (" + "x" * 80 + ")", "NVML"], pen, " (--evidence)")
    assert len(line) == 60 and line.endswith("…; 1 more (--evidence).")
    assert folded("Not measured", ["NVML"], pen, " (--evidence)") == ["Not measured: NVML."]


def test_a_findings_line_is_no_answer_to_a_question_that_it_does_not_show(tmp_path):
    write(of_causes(8), tmp_path)
    line = next(line for line in lines_of(tmp_path) if line.startswith("2. "))
    assert "· Perhaps do it once" in line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "A core is slow. Is one free? If so, take it. It is at load (a.py, line 3).",
            "Perhaps take it. It is at load (a.py, line 3).",
        ),
        ("A core is slow. Take another one. It is at load (a.py, line 3).", "It is at load (a.py, line 3)."),
        ("Is one free? If so, take it.", "Is one free? If so, take it."),
        ("What it takes is long. Is one free? If so, take it.", "Is one free? If so, take it."),
    ],
)
def test_what_to_do_is_not_cut_before_the_place_of_it(text, shown):
    assert _ending(text, 30) == shown
