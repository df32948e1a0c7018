"""Two worker processes record into one bucket of a real S3 protocol server on loopback."""

from __future__ import annotations

import os
import signal

import pytest
from object_store import empty_bucket
from processes import results, start
from waiting import wait_until

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.errors import UnusableInput


@pytest.fixture
def bucket(monkeypatch):
    yield from empty_bucket(monkeypatch)


def workers(log_dir, **variables):
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", **variables}
    return [
        start("worker_program.py", "alone", log_dir, str(rank), "2", "1", RANK=str(rank), **told) for rank in range(2)
    ]


def steps_of(log_dir, rank):
    """How many steps a worker has written so far."""
    try:
        found = read_recordings(log_dir)
    except UnusableInput:  # nothing at all yet
        return 0
    return max([0, *(len(one.steps["step"]) for one in found if one.facts.get("rank") == rank)])


def by_rank(log_dir):
    found = sorted(read_recordings(log_dir), key=lambda one: one.facts["rank"])
    assert [one.facts["rank"] for one in found] == [0, 1]
    assert len({one.session for one in found}) == 1
    return found


def test_workers_share_a_bucket(bucket):
    for process in workers(bucket, STEPS="30"):
        results(process, 60)
    recordings = by_rank(bucket)
    assert [one.status for one in recordings] == ["ended", "ended"]
    assert [one.steps["step"].tolist() for one in recordings] == [list(range(30))] * 2
    assert not any(one.problems for one in recordings)
    report = logdir_report(recordings)
    assert [run["steps"] for run in report["runs"]] == [30, 30]
    assert report["sessions"][0]["ranks"] == [0, 1]


def test_a_worker_killed_while_it_records_into_a_bucket(bucket):
    """What it had flushed can be read, and the other one goes on."""
    first, killed = workers(bucket, STEPS="300", FLUSH_S="0.5")
    flushed = wait_until(lambda: steps_of(bucket, rank=1), 60)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=30)
    results(first, 60)
    ended, lost = by_rank(bucket)
    assert ended.status == "ended" and len(ended.steps["step"]) == 300
    assert lost.status == "lost"
    steps = lost.steps["step"]
    assert flushed <= len(steps) < 300 and steps.tolist() == list(range(len(steps)))
    assert not lost.problems
    logdir_report([ended, lost])


def test_the_total_of_a_bucket_is_that_of_a_folder(bucket, tmp_path):
    import s3fs
    from make_recording import make_recording

    from gpu_util_callback.diagnosis.survey import survey
    from gpu_util_callback.diagnosis.total_time import total

    for place, scenario in enumerate(("slow", "healthy", "thirds")):
        make_recording(tmp_path / f"logs/{scenario}", scenario, 120, 3, seed=place, scalars=False)
    s3fs.S3FileSystem().put(f"{tmp_path}/logs/", f"{bucket.removeprefix('s3://')}/", recursive=True)
    there, here = total(survey([bucket])), total(survey([f"{tmp_path}/logs"]))
    assert there["recordings"] == 3 and not there["read"]["problems"]
    assert there["gpu_hours"] == here["gpu_hours"] and there["causes"] == here["causes"]
    assert sorted(run["run"] for run in there["runs"]) == ["healthy", "slow", "thirds"]
