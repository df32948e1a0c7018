"""A recording is found and read while it grows, is merged, deleted or abandoned."""

import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from make_recording import make_recording
from scripted_runs import step_rows
from waiting import wait_until

from gpu_util_callback import read_recordings
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording import manifest as manifests
from gpu_util_callback.recording.segments import segment_range
from gpu_util_callback.recording.storage import LocalStorage

START = 1_700_000_000_000_000_000


@pytest.mark.parametrize("listed", [False, True])
def test_deleted_while_open(three_segments, tmp_path, listed):
    (one,) = read_recordings(tmp_path)
    if listed:
        assert len(one.segments) == 3
    shutil.rmtree(three_segments)
    if not listed:
        assert [one.refresh(), one.refresh()] == [True, False], "told once"
        assert (one.samples, one.summary) == ({}, {})
    assert len(one.steps["step"]) == 0
    assert [p.message for p in one.problems] == ["this recording was deleted while it was open"]


def test_sealed_between_listing_and_reading(make_writer, tmp_path, scripted_time):
    writer = make_writer()

    def flush(first):
        writer.append("steps", step_rows(10, first=first))
        scripted_time.advance(9)
        writer.flush()

    for first in range(0, 60, 10):
        flush(first)
    (one,) = read_recordings(tmp_path)
    assert len(one.segments) == 6
    for first in range(60, 80, 10):  # a minute is over: all of them become one file
        flush(first)
    assert [p.name for p in Path(writer.path).glob("segment-*")] == ["segment-000000-000007.npz"]
    assert one.steps["step"].tolist() == list(range(80))
    assert one.problems == []


# --- kill -9 --------------------------------------------------------------------------------------

KILLED = textwrap.dedent("""
    import sys, time
    import numpy as np
    from gpu_util_callback.recording import Clock, RecordingWriter
    clock = Clock()
    writer = RecordingWriter(sys.argv[1], {"fit_index": 0}, clock=clock)
    step, flushed = 0, time.monotonic()
    while True:
        now = clock.now()
        writer.append("steps", {"step": [step], "start_ns": [now], "duration_ns": [2_000_000]})
        writer.append_samples("gpu0", ["utilization_pct"], [now], [[50.0]])
        step += 1
        time.sleep(0.002)
        if time.monotonic() - flushed > 0.2:
            writer.flush()
            flushed = time.monotonic()
            print(step, time.time_ns(), flush=True)
""")


@pytest.mark.real_clock("what was flushed when a process is killed")
def test_a_killed_process_loses_at_most_its_last_flush(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(6):
            flushed, _ = map(int, process.stdout.readline().split())
        (one,) = read_recordings(tmp_path)
        assert one.status == "live"
        process.send_signal(signal.SIGKILL)
        killed_ns = time.time_ns()
        # Killed, but not waited for: a zombie is as gone as it can be.
        wait_until(lambda: one.status != "live", 20)
        assert one.status == "lost"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    found = read_recordings(tmp_path)
    (one,) = found
    assert found.problems == []
    assert one.status == "lost"
    steps = one.steps
    assert len(steps["step"]) >= flushed
    assert (steps["step"] == np.arange(len(steps["step"]))).all()
    assert killed_ns - (steps["start_ns"][-1] + steps["duration_ns"][-1]) < 2_000_000_000
    assert len(one.samples["gpu0"]["time_ns"]) >= flushed
    assert one.account["wall_s"] > 0
    assert one.summary["steps"]["duration_ns"]["count"] == len(steps["step"])


def test_no_heartbeat_means_lost_only_after_patience():
    beat = {"heartbeat_wall_ns": 1_000 * 10**9, "flush_s": 2.0}
    assert not manifests.lost(beat, age_s=None, now_s=1_029)
    assert manifests.lost(beat, age_s=None, now_s=1_031)
    slow = {**beat, "flush_s": 30.0}
    assert not manifests.lost(slow, age_s=None, now_s=1_149)
    assert manifests.lost(slow, age_s=None, now_s=1_151)
    # Two machines' clocks differ: the file system says that it was written just now.
    assert not manifests.lost(beat, age_s=1.0, now_s=5_000)
    # A heartbeat from the future tells nothing; the file's age does.
    assert manifests.lost(beat, age_s=500.0, now_s=0)
    assert not manifests.lost(beat, age_s=5.0, now_s=0)


def test_a_reused_pid_is_not_the_process(make_writer):
    ours = manifests.process_facts()
    now = {"heartbeat_wall_ns": time.time_ns(), "flush_s": 2.0}
    assert not manifests.lost({**now, **ours})
    if ours["process_started"] is None:
        pytest.skip("this system does not say when a process started")
    assert manifests.lost({**now, **ours, "process_started": ours["process_started"] + 1})
    # Elsewhere (another boot, host, container) a pid means nothing: the heartbeat has to do.
    for other in ("boot_id", "host", "pid_namespace"):
        assert not manifests.lost({**now, **ours, "process_started": 1, other: "elsewhere"})


# --- finding recordings ---------------------------------------------------------------------------


def test_recordings_are_found_from_every_level(tmp_path):
    a = make_recording(tmp_path / "a", "healthy", steps=30)
    make_recording(tmp_path / "deep" / "b c" / "ü", "healthy", steps=30)
    (tmp_path / "empty" / "plugins" / "gpu_utilization").mkdir(parents=True)
    (tmp_path / "unrelated" / "plugins" / "profile").mkdir(parents=True)
    found = read_recordings(tmp_path)
    assert sorted(one.run for one in found) == ["a", "deep/b c/ü"]
    assert len({one.id for one in found}) == 2
    for one in found:
        assert all(c.isalnum() or c in "/._~-" for c in one.id), one.id
    assert [one.run for one in read_recordings(tmp_path / "a")] == ["."]
    assert [one.folder for one in read_recordings(a)] == [a.name]
    assert [one.folder for one in read_recordings(a.parent)] == [a.name]
    assert read_recordings(str(tmp_path / "empty")) == []
    assert [one.run for one in read_recordings(f"file://{tmp_path}/a")] == ["."]


def test_a_logdir_that_is_none_says_so(tmp_path):
    with pytest.raises(UnusableInput, match="does not exist"):
        read_recordings(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableInput, match="is a file"):
        read_recordings(tmp_path / "file")
    with pytest.raises(UnusableInput, match="cannot be opened"):
        read_recordings("nosuchprotocol://bucket/logs")


def test_links_in_a_circle_end(tmp_path):
    make_recording(tmp_path / "a", "healthy", steps=30)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert "a" in {one.run for one in read_recordings(tmp_path)}


def test_ranks_of_one_job_share_a_session_and_a_restart_does_not(tmp_path):
    job = {"job": "slurm-42", "world_size": 2, "steps": 30, "past_s": 3}
    for rank in (0, 1):
        make_recording(tmp_path, "healthy", rank=rank, **job)
    alone = make_recording(tmp_path, "healthy", steps=30, past_s=3)
    for rank in (0, 1):
        make_recording(tmp_path, "healthy", rank=rank, fit_index=1, **job)
    job["past_s"] = -60  # the same job, started again after the first attempt was over
    for rank in (0, 1):
        make_recording(tmp_path, "healthy", rank=rank, **job)
    sessions = {}
    for one in read_recordings(tmp_path):
        sessions.setdefault(one.session, []).append((one.facts["rank"], one.facts["fit_index"]))
    assert sorted(map(sorted, sessions.values())) == [[(0, 0)], [(0, 0), (1, 0)], [(0, 0), (1, 0)], [(0, 1), (1, 1)]]
    assert alone.name in sessions


def test_the_table_for_notebooks_escapes_what_it_shows(tmp_path):
    make_recording(tmp_path / "<script>alert(1)</script>", "thirds", steps=60)
    html = read_recordings(tmp_path)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "60" in html
    assert "ended" in html


@pytest.mark.parametrize("slow", ["manifest.json", "segment-000001.npz"])
def test_who_needs_no_file_does_not_wait_for_a_slow_disk(three_segments, tmp_path, monkeypatch, slow):
    (one,) = read_recordings(tmp_path)
    known = [len(one.segments), one.summary, one.revision, one.top.step_range[1]]
    manifest = three_segments / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")  # another time stamp, the same facts
    reached, go_on = threading.Event(), threading.Event()
    read = LocalStorage.read

    def slowly(self, path, limit):
        if path.endswith(slow):
            reached.set()
            assert go_on.wait(60)
        return read(self, path, limit)

    monkeypatch.setattr(LocalStorage, "read", slowly)
    waits = threading.Thread(target=lambda: (one.refresh(), one.steps))
    waits.start()
    assert reached.wait(60)
    seen = []
    asks = threading.Thread(
        target=lambda: seen.extend([len(one.segments), one.summary, one.revision, one.top.step_range[1]])
    )
    asks.start()
    asks.join(60)
    assert seen == known
    assert waits.is_alive(), "it should still have been waiting"
    go_on.set()
    waits.join(60)
    assert len(one.steps["step"]) == 300


def test_segment_names():
    assert segment_range("segment-000007.npz") == (7, 7)
    assert segment_range("segment-000000-000007.npz") == (0, 7)
    for name in (
        "segment-7x.npz",
        "segment-000007.npz.tmp",
        "segment-2-1.npz",
        "top.npz",
        "segment-.npz",
        "segment-1-2-3.npz",
        "segment-²-³.npz",
        ".segment-000001.npz.tmp",
        "segment-99999999999999.npz",
    ):
        assert segment_range(name) is None, name
