"""Made-up jobs of several processes: which of them holds the others back, if any does."""

from collections.abc import Callable

import pytest
from scoring import by_cause
from simulated_boards import A100, H100, T4
from simulated_jobs import Job
from simulated_noise import bursts, lognormal, normal

from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recording import read_recordings

Play = Callable[[Job, int], None]


def report_of(folder, ranks: int, play: Play, **job) -> dict:
    """The report of a job whose rank `r` plays `play(job, r)` on a host of its own."""
    for rank in range(ranks):
        one = Job(
            seed=40 + rank,
            rank=rank,
            world_size=ranks,
            job="j0b",
            job_source="torchelastic",
            host=f"node-{rank}",
            **job,
        )
        play(one, rank)
        one.write(folder / f"worker{rank}")
    return logdir_report(read_recordings(folder))


def held_back(report: dict) -> list[tuple[str, list[int]]]:
    [session] = report["sessions"]
    return [(finding["cause"], finding["ranks"]) for finding in session["findings"]]


def slow_disk(job: Job, rank: int) -> None:
    """The others spend in the all-reduce what rank 2 spends waiting."""
    slow = rank == 2
    job.train(700, gpu=normal(40 if slow else 60, 0.03), wait=lognormal(20, 0.3) if slow else 0)


def saves_alone(job: Job, rank: int) -> None:
    """Rank 0 plots every ten steps, and all wait for it."""
    own = {"callback": bursts(10, 120), "hook": "Plot.on_train_batch_end"} if rank == 0 else {}
    job.train(700, gpu=normal(40 if rank == 0 else 52, 0.03), **own)


def alike(job: Job, rank: int) -> None:
    job.train(600, gpu=50, wait=lognormal(1.0))


def saves_a_little(job: Job, rank: int) -> None:
    """Rank 0 saves each epoch: three percent."""
    for _ in range(5):
        with job.epoch():
            job.train(150, gpu=50)
            job.phase("checkpoint", 0.25 if rank == 0 else 0.01, "ModelCheckpoint.on_epoch_end")


def all_starved(job: Job, rank: int) -> None:
    """Everybody's input is slow: each has the cause, nobody holds the others back."""
    job.train(600, gpu=40, wait=lognormal(25))


def a_sweep(job: Job, rank: int) -> None:
    """Nobody waits for anybody: rank 1 is slower by what it waits, and that is its own affair."""
    job.train(600, gpu=normal(40, 0.02), wait=normal(6, 0.2) if rank == 1 else 0)


def asynchronous(job: Job, rank: int) -> None:
    """A parameter server: rank 0 saves and plots, the others go on."""
    own = {"callback": bursts(20, 90), "hook": "Plot.on_train_batch_end"} if rank == 0 else {}
    job.train(600, gpu=normal(40, 0.02), **own)


@pytest.mark.parametrize(
    "play, job, found, causes",
    [
        (slow_disk, {"board": A100, "framework": "torch"}, [("imbalance", [2])], [set(), {"input_bound"}]),
        (saves_alone, {"board": H100}, [("imbalance", [0])], [set(), {"host_stall"}]),
        (alike, {"board": T4, "hz": 2, "framework": "torch"}, [], [set()]),
        (saves_a_little, {"board": A100, "framework": "jax"}, [], [set()]),
        (all_starved, {"board": A100}, [], [{"input_bound"}]),
        (a_sweep, {"board": A100}, [], [set(), {"input_bound"}]),
        (asynchronous, {"board": A100}, [], [set(), {"host_stall"}]),
    ],
)
def test_ranks(tmp_path, play, job, found, causes):
    report = report_of(tmp_path, 4, play, **job)
    assert held_back(report) == found
    for run in report["runs"]:
        assert set(by_cause(run)) in causes


def test_a_job_of_eight_is_judged_by_the_worker_that_starves_the_others(tmp_path):
    report = report_of(tmp_path, 8, slow_disk, board=A100, framework="torch")
    verdict = report["sessions"][0]["verdict"]
    [finding] = report["sessions"][0]["findings"]
    assert verdict["text"].startswith("Worker 2 holds the others back: its input is slow (")
    assert (verdict["rank"], verdict["finding"]) == (2, finding["id"])
    assert finding["lost_s"] == pytest.approx(700 * 0.020, rel=0.1)
    assert verdict["lost_s"] == finding["lost_s"] and verdict["advice"] == finding["advice"]
    assert verdict["wall_s"] / (verdict["wall_s"] - verdict["saves_s"]) == pytest.approx(
        verdict["faster_up_to"], abs=0.01
    )
    # The seven that only wait are one group.
    assert [group["ranks"] for group in verdict["groups"]] == [[2], [0, 1, 3, 4, 5, 6, 7]]
    ids = {run["id"]: run["rank"] for run in report["runs"]}
    for group in verdict["groups"]:
        assert sorted(ids[id_] for id_ in group["ids"]) == group["ranks"]
    assert ids[verdict["id"]] == 2


@pytest.mark.parametrize(
    "play, begins, groups",
    [
        (all_starved, "All 4 workers: ", [[0, 1, 2, 3]]),
        (alike, "All 4 workers: ", [[0, 1, 2, 3]]),
        (a_sweep, "Worker 1 of 4: ", [[1], [0, 2, 3]]),
    ],
)
def test_workers_that_hold_nobody_back_are_judged_by_the_worst(tmp_path, play, begins, groups):
    report = report_of(tmp_path, 4, play, board=A100)
    verdict = report["sessions"][0]["verdict"]
    assert verdict["text"].startswith(begins) and verdict["finding"] is None
    assert [group["ranks"] for group in verdict["groups"]] == groups
    worst = next(run for run in report["runs"] if run["id"] == verdict["id"])
    assert verdict["text"] == begins + worst["verdict"]


def test_a_single_process_has_no_verdict_beyond_its_own(tmp_path):
    report = report_of(tmp_path, 1, alike, board=A100)
    assert report["sessions"][0]["verdict"] is None


def test_fits_of_one_process_are_no_ranks(tmp_path):
    """Ten folds of a cross-validation in one process: each is judged by itself."""
    for fold in range(6):
        one = Job(seed=fold, board=A100, fit_index=fold)
        one.train(300, gpu=30 + 5 * fold, wait=lognormal(30) if fold == 4 else 0)
        one.write(tmp_path / f"fold{fold}")
    report = logdir_report(read_recordings(tmp_path))
    assert all(session["findings"] == [] for session in report["sessions"])
    assert [bool(run["spans"]) for run in report["runs"]] == [fold == 4 for fold in range(6)]
