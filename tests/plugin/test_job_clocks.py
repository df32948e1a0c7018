"""What the tab is told about the clocks and the ends of a job's workers."""

import pytest
from generated_runs import InStep, write

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import alignment
from tensorboard_plugin.jobs import SessionClocks, job_reply

MS = 1_000_000


def workers(folder, steps=300):
    for rank, (offset, count, status) in enumerate([(0, 300, "ended"), (35, steps, "live")]):
        write(InStep(rank, offset, count), folder, status, pid=2**22 + 1, heartbeat_wall_ns=0)
    return read_recordings(folder)


def test_every_worker_has_its_clock_and_its_end(tmp_path, monkeypatch):
    recordings = workers(tmp_path, steps=231)
    (first, second) = sorted(recordings, key=lambda one: one.rank)
    # Of a process that is gone, as `kill -9` leaves it.
    monkeypatch.setattr(type(second), "status", property(lambda one: "lost" if one.rank else "ended"))
    reply = job_reply(first, recordings, run_report)
    own, other = reply["workers"]
    assert (own["status"], own["steps"]) == ("ended", 300)
    assert (other["status"], other["steps"], other["end_ns"]) == ("lost", 231, second.end_ns)
    assert own["clock"]["offset_ns"] == 0 and own["clock"]["text"] == ""
    assert other["clock"]["offset_ns"] / MS == pytest.approx(35, abs=0.5)
    assert "ahead of worker 0's" in other["clock"]["text"]
    assert "estimated from 231 common steps" in other["clock"]["text"]


def test_clocks_are_estimated_anew_only_when_there_is_a_good_deal_more(tmp_path, monkeypatch):
    recordings = workers(tmp_path)
    calls, counts = [], {}
    estimate = alignment.session_clocks
    monkeypatch.setattr("tensorboard_plugin.jobs.session_clocks", lambda of: calls.append(of) or estimate(of))
    clocks = SessionClocks()
    first = clocks(recordings)
    assert clocks(recordings) is first and len(calls) == 1
    monkeypatch.setattr(type(recordings[0]), "step_count", property(lambda one: counts["each"]))
    for counts["each"], times in ((301, 1), (370, 1), (380, 2), (400, 2), (600, 3)):
        clocks(recordings)
        assert len(calls) == times, counts
    clocks(recordings[:1])
    assert len(calls) == 4
