"""What the writer leaves on disk: rows that come back, small files, a flat memory."""

import contextlib
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from make_recording import SyntheticRun
from scripted_runs import MS, Killed, killed_at, step_rows

from gpu_util_callback.recording import RecordingWriter, read_recordings
from gpu_util_callback.recording import writer as writer_module
from gpu_util_callback.recording.schema import TABLES

START = 1_700_000_000_000_000_000


def only(logdir):
    found = read_recordings(logdir)
    assert len(found) == 1, found
    return found[0]


def written_by(writer):
    """The sizes of the files that it writes from now on, as they come."""
    sizes, write = [], writer._storage.write

    def counted(path, data):
        sizes.append(len(data))
        write(path, data)

    writer._storage.write = counted
    return sizes


def test_every_table_comes_back_with_absent_columns_filled_in(make_writer, tmp_path, scripted_time):
    writer = make_writer()
    steps = step_rows(50)
    writer.append("steps", steps)
    times = {"start_ns": [START, START + 1], "end_ns": [START + 2, START + 4]}
    writer.append("phases", {"kind": ["epoch", "validation"], "name": ["epoch 1", "é\nü"], **times})
    writer.append("kernels", {"window": [1], "name": ["sgemm"], "occupancy_pct": [12.5]})
    own = {name: values.copy() for name, values in steps.items()}
    for values in steps.values():  # the caller's buffers may be used again
        values[:] = 99
    scripted_time.advance(1)
    writer.close("ended")
    found = only(tmp_path / "run")
    for name, values in own.items():
        assert (found.steps[name] == values).all(), name
    assert found.phases["name"].tolist() == ["epoch 1", "é\nü"]
    assert found.phases["account"].tolist() == ["", ""]
    assert found.phases["self_ns"].tolist() == [-1, -1]
    assert found.kernels["occupancy_pct"].tolist() == [12.5]
    assert np.isnan(found.kernels["registers"]).all()
    for table, columns in TABLES.items():
        assert list(found.table(table)) == list(columns)
    assert len(found.pipeline["op"]) == 0
    assert found.status == "ended"
    assert found.problems == []


def test_sample_groups_come_back_though_their_columns_vary(make_writer, tmp_path):
    writer = make_writer()
    times = [START + 100, START + 200, START + 300]
    writer.append_samples("gpu0", ["utilization_pct"], times[:2], [[5.0], [np.nan]])
    writer.flush()
    writer.append_samples("gpu0", ["power_mw", "utilization_pct"], times[2:], [[70.0, 8.0]])
    cpu = np.array([[33.3]])
    writer.append_samples("host", ["cpu_pct"], times[:1], cpu)
    cpu[:] = 99
    writer.close("interrupted")
    samples = only(tmp_path / "run").samples
    assert list(samples) == ["gpu0", "host"]
    assert samples["gpu0"]["time_ns"].tolist() == times
    np.testing.assert_array_equal(samples["gpu0"]["utilization_pct"], [5, np.nan, 8])
    np.testing.assert_array_equal(samples["gpu0"]["power_mw"], [np.nan, np.nan, 70])
    assert samples["host"]["cpu_pct"].tolist() == [33.3]


def test_appending_nonsense_is_refused_and_nothing_else_is_lost(make_writer, tmp_path):
    writer = make_writer()
    with pytest.raises(ValueError, match="unknown table"):
        writer.append("stepz", {"step": [1]})
    with pytest.raises(ValueError, match="no column 'stp'"):
        writer.append("steps", {"stp": [1]})
    with pytest.raises(ValueError, match="differ in length"):
        writer.append("steps", {"step": [1], "start_ns": [1, 2]})
    with pytest.raises(ValueError, match="2 times"):
        writer.append_samples("gpu0", ["a"], [1, 2], [[1.0]])
    writer.append("steps", {"step": [1]})
    writer.close("ended")
    assert only(tmp_path / "run").steps["step"].tolist() == [1]


def test_each_flush_writes_its_rows_and_a_minute_seals_them(make_writer, tmp_path, scripted_time):
    writer = make_writer()
    folder = Path(writer.path)

    def segments():
        return sorted(p.name for p in folder.glob("segment-*.npz"))

    seen = []
    for second in range(0, 130, 2):
        writer.append("steps", step_rows(10, first=second * 5))
        writer.flush()
        assert not list(folder.glob(".*"))
        seen.append(segments())
        assert only(tmp_path / "run").step_count == len(only(tmp_path / "run").steps["step"])
        scripted_time.advance(2)
    assert seen[0] == ["segment-000000.npz"]
    assert seen[29] == [f"segment-{n:06d}.npz" for n in range(30)]
    assert seen[30] == ["segment-000000-000030.npz"]
    assert seen[61] == ["segment-000000-000030.npz", "segment-000031-000061.npz"]
    assert len(seen[64]) == 2 + 3
    writer.close("ended")
    assert segments() == [*seen[61], "segment-000062-000064.npz"]
    assert (only(tmp_path / "run").steps["step"] == np.arange(650)).all()


def test_rows_are_sealed_at_some_300_kB(make_writer, tmp_path):
    writer = make_writer()
    random = np.random.default_rng(0)
    for first in range(0, 150_000, 5_000):
        rows = step_rows(5_000, first)
        rows["input_get_ns"] = random.integers(0, 2**40, 5_000)  # nothing to compress
        writer.append("steps", rows)
        writer.flush()
    sizes = [
        path.stat().st_size for path in sorted(Path(writer.path).glob("segment-*.npz")) if path.name.count("-") == 2
    ]
    assert len(sizes) > 2
    assert all(200_000 < size < 400_000 for size in sizes)
    assert (only(tmp_path / "run").steps["step"] == np.arange(150_000)).all()


@pytest.mark.parametrize("call", range(1, 12))
def test_a_kill_at_any_write_shows_each_row_once(make_writer, tmp_path, scripted_time, call):
    """At each write or removal around the sealing of three flushes."""
    writer = make_writer()
    for flush in range(3):
        writer.append("steps", step_rows(10, first=10 * flush))
        scripted_time.advance(2)
        writer.flush()
    calls = killed_at(writer, call)
    scripted_time.advance(61)
    writer.append("steps", step_rows(10, first=30))
    with contextlib.suppress(Killed):
        writer.flush()
        writer.close("ended")
    found = only(tmp_path / "run")
    rows = 40 if calls else 30  # the first write is the sealed segment
    assert found.steps["step"].tolist() == list(range(rows))
    assert found.top.step_range[1] == rows - 1
    assert found.summary["steps"]["duration_ns"]["count"] == rows
    assert found.problems == []


def test_a_burst_of_rows_is_cut_into_segments_a_reader_accepts(make_writer, tmp_path, scripted_time):
    writer = make_writer()
    writer.append("steps", step_rows(200_000))
    writer.append_samples("gpu0", ["a"], START + np.arange(70_000), np.zeros((70_000, 1)))
    scripted_time.advance(1_100)
    writer.close("ended")
    found = only(tmp_path / "run")
    assert [info.steps for info in found.segments] == [65_536, 65_536, 65_536, 3_392]
    assert (found.steps["step"] == np.arange(200_000)).all()
    assert len(found.samples["gpu0"]["time_ns"]) == 70_000


def test_budgets_of_size(tmp_path):
    """At most 32 bytes a step in the steps table and 3 a sampled value, compressed and sealed."""
    sizes = {}
    for gpus in (0, 2):
        run = SyntheticRun(tmp_path / str(gpus), "thirds", 20_000, gpus, scalars=False, diagnose=False)
        if not gpus:
            run._sample = lambda *args: None
        while run.done < 20_000:
            run.advance(400)
        sizes[gpus] = sum(p.stat().st_size for p in run.close().glob("segment-*.npz"))
    samples = only(tmp_path / "2").samples.values()
    values = sum(np.isfinite(column).sum() for group in samples for name, column in group.items() if name != "time_ns")
    print(f"{sizes[0] / 20_000:.1f} bytes a step, {(sizes[2] - sizes[0]) / values:.2f} a value")
    assert sizes[0] / 20_000 <= 32
    assert (sizes[2] - sizes[0]) / values <= 3


@pytest.mark.heavy
def test_the_writers_memory_stays_flat(make_writer, scripted_time):
    writer = make_writer()
    used = []
    tracemalloc.start()
    try:
        for block in range(60):
            writer.append("steps", step_rows(5_000, first=block * 5_000, seed=block))
            writer.flush()
            scripted_time.advance(25)
            if block % 10 == 9:
                used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(used[2:]) < used[1] + 2_000_000, used


def test_a_full_disk_loses_nothing_once_there_is_room_again(make_writer, tmp_path, monkeypatch, scripted_time):
    writer = make_writer()
    writer.append("steps", step_rows(10))
    writer.flush()
    good, full = writer._storage.write, True

    def write(path, data):
        if full:
            raise OSError(28, "No space left on device")
        good(path, data)

    monkeypatch.setattr(writer._storage, "write", write)
    for first in (10, 20):
        writer.append("steps", step_rows(10, first=first))
        with pytest.raises(OSError, match="No space"):
            writer.flush()
    assert (only(tmp_path / "run").steps["step"] == np.arange(10)).all()
    full = False
    writer.append("steps", step_rows(10, first=30))
    scripted_time.advance(1)
    writer.close("ended")
    found = only(tmp_path / "run")
    assert (found.steps["step"] == np.arange(40)).all()
    assert found.problems == []


def test_a_disk_that_stays_full_costs_old_rows_not_memory(make_writer, tmp_path, monkeypatch, scripted_time):
    monkeypatch.setattr(writer_module, "MAX_WAITING_ROWS", 1000)
    writer = make_writer()
    good = writer._storage.write
    monkeypatch.setattr(writer._storage, "write", _no_space)
    for first in range(0, 5000, 500):
        writer.append("steps", step_rows(500, first=first))
        with pytest.raises(OSError):
            writer.flush()
    monkeypatch.setattr(writer._storage, "write", good)
    scripted_time.advance(30)
    writer.close("ended")
    found = only(tmp_path / "run")
    assert (found.steps["step"] == np.arange(4000, 5000)).all()
    assert [p.message for p in found.problems] == [
        "4000 rows were not kept: they came faster than they could be written"
    ]


def _no_space(path, data):
    raise OSError(28, "No space left on device")


def test_a_really_full_file_system(tmp_path, scripted_time):
    """A 64 kB tmpfs where this process may mount one."""
    import subprocess

    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=65536", "tmpfs", str(mount)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no permission to mount a small tmpfs here")
    try:
        writer = RecordingWriter(mount, {}, clock=scripted_time.clock())
        writer.append("steps", step_rows(300))
        writer.flush()
        writer.append("steps", step_rows(30_000, first=300))
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
        assert (only(mount).steps["step"] == np.arange(300)).all()
        assert not list(Path(writer.path).glob(".*.tmp")), "a torn temporary file was left behind"
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_log_directory_that_cannot_be_written_is_an_oserror(tmp_path, scripted_time):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        RecordingWriter(tmp_path / "file", {}, clock=scripted_time.clock())


def test_the_manifest_says_what_was_recorded(make_writer, tmp_path, scripted_time):
    writer = make_writer(facts={"job": "j", "model": {"parameters": np.int64(5), "x": np.nan}})
    writer.update(
        gpus=[{"index": 0}],
        diagnosis={"rules_version": 3, "verdict": "Nothing held it back.", "findings": [], "spans": []},
    )
    writer.append("steps", step_rows(4, step_ns=2_000 * MS))
    scripted_time.advance(9)
    phase = {
        "kind": "validation",
        "name": "v",
        "start_ns": START,
        "end_ns": START + 5,
        "account": "validation",
        "self_ns": 500 * MS,
    }
    writer.append("phases", {name: [value] for name, value in phase.items()})
    writer.close("ended")
    manifest = json.loads((Path(writer.path) / "manifest.json").read_text())
    assert manifest["format"] == [2, 0]
    assert manifest["model"] == {"parameters": 5, "x": None}
    assert manifest["rows"] == {"steps": 4, "phases": 1}
    found = only(tmp_path / "run")
    assert found.stored["rules_version"] == 3
    assert found.account["wall_s"] == pytest.approx(9)
    times = found.account["time_s"]
    assert times["validation"] == 0.5
    assert sum(times.values()) == pytest.approx(9)
    assert found.end_ns - found.start_ns == 9_000 * MS
    assert found.step_count == 4


def test_closing_twice_and_flushing_afterwards_do_no_harm(make_writer, tmp_path):
    writer, second = make_writer(), make_writer()
    assert writer.path != second.path, "two fits in one millisecond"
    second.close("ended")
    writer.append("steps", step_rows(4))
    writer.close("interrupted")
    writer.close("ended")
    assert sorted(one.status for one in read_recordings(tmp_path / "run")) == ["ended", "interrupted"]
    with pytest.raises(ValueError, match="ended or interrupted"):
        writer.close("finished")


def test_flushes_from_many_threads_while_rows_come_in(make_writer, tmp_path):
    import threading

    writer = make_writer()
    errors = []

    def flush():
        try:
            for _ in range(20):
                writer.flush()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=flush) for _ in range(3)]
    for thread in threads:
        thread.start()
    for first in range(0, 2_000, 10):
        writer.append("steps", step_rows(10, first=first))
    for thread in threads:
        thread.join()
    writer.close("ended")
    assert errors == []
    assert (only(tmp_path / "run").steps["step"] == np.arange(2_000)).all()


def test_what_a_flush_writes_depends_on_what_is_new(make_writer, scripted_time):
    """It costs the same after a second and after a minute; an idle run writes nothing but its heartbeat."""
    writer = make_writer()
    written, sizes = written_by(writer), []
    for flush in range(20):
        before = sum(written)
        writer.append("steps", step_rows(1_000, first=1_000 * flush))
        writer.flush()
        sizes.append(sum(written) - before)
        scripted_time.advance(2)
    assert max(sizes) < 1.1 * min(sizes)
    segments = {path: path.stat().st_mtime_ns for path in Path(writer.path).glob("segment-*")}
    before = sum(written)
    for _ in range(5):
        scripted_time.advance(2)
        writer.flush()
    assert segments == {path: path.stat().st_mtime_ns for path in Path(writer.path).glob("segment-*")}
    assert sum(written) - before < 5 * 2_000


def test_a_closed_recording_goes_on(make_writer, tmp_path):
    """As the next fit of a series has it: who has it open reads on, and sees no row twice."""
    writer = make_writer()
    found = None
    for part in range(12):
        if part:
            writer.reopen()
            writer.flush()
            found.refresh()
            assert found.status == "live"
        start = 1_700_000_000_000_000_000 + part * 1_000 * MS
        writer.append("steps", step_rows(20, 20 * part, start))
        writer.append_samples("gpu0", ["utilization_pct"], [start], [[float(part)]])
        writer.close("ended")
        found = only(tmp_path / "run") if found is None else found
        found.refresh()
        assert found.status == "ended"
        assert found.steps["step"].tolist() == list(range(20 * (part + 1)))
        assert len(found.samples["gpu0"]["time_ns"]) == part + 1
        assert found.summary["steps"]["duration_ns"]["count"] == 20 * (part + 1)
    # The made-up steps do not fill the time that the writer's clock saw: no account sums to that.
    assert all("account does not sum" in one.message for one in found.problems), found.problems


def test_a_list_of_files_made_while_they_are_sealed_is_made_again(make_writer, tmp_path, scripted_time):
    """Reading a folder takes a moment: a new file may come behind it, and an old one go before."""
    writer = make_writer()
    for flush in range(3):
        writer.append("steps", step_rows(10, first=10 * flush))
        scripted_time.advance(2)
        writer.flush()
    found = only(tmp_path / "run")
    names, lists = found._storage.names, []

    def hasty(path):
        lists.append([name for name in names(path) if lists or name < "s"])
        return lists[-1]

    found._storage.names = hasty
    assert found.steps["step"].tolist() == list(range(30))
    assert found.problems == [] and len(lists) > 1
