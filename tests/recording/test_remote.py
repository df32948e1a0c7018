"""Recordings on any fsspec URL: nothing is appended, the same readers open them."""

import fsspec
import numpy as np
import pytest
from scripted_runs import step_rows

from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.event_files import ScalarWriter, next_step_offset
from gpu_util_callback.recording.storage import RemoteStorage


@pytest.fixture
def bucket():
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def test_a_recording_in_an_object_store(bucket, make_writer, scripted_time):
    writer = make_writer("memory://bucket/logs/run", {"scalar_step_offset": 5}, flush_s=30)
    for minute in range(3):
        writer.append("steps", step_rows(100, first=minute * 100))
        writer.flush()
        scripted_time.advance(61)
    (one,) = read_recordings("memory://bucket/logs")
    assert one.run == "run"
    assert one.facts["flush_s"] == 30
    assert one.steps["step"].tolist() == list(range(300))
    writer.append("steps", step_rows(100, first=300))
    writer.append_samples("host", ["cpu_pct"], np.arange(3), np.ones((3, 1)))
    writer.close("ended")
    assert one.refresh()
    assert one.status == "ended"
    assert one.steps["step"].tolist() == list(range(400))
    assert one.top.step_range[1] == 399
    assert one.problems == []
    names = [name.rsplit("/", 1)[1] for name in bucket.find("/bucket")]
    assert not [name for name in names if name.endswith(".tmp")]
    assert next_step_offset("memory://bucket/logs/run") == 405


def test_a_remote_failure_is_an_oserror(bucket, make_writer, monkeypatch):
    writer = make_writer("memory://bucket/run")

    def broken(self, path, data, **options):
        raise RuntimeError("botocore.exceptions.EndpointConnectionError")

    monkeypatch.setattr(type(bucket), "pipe_file", broken)
    writer.append("steps", step_rows(5))
    with pytest.raises(OSError, match="EndpointConnectionError"):
        writer.flush()


def test_scalars_in_an_object_store_are_numbered_files_written_whole(bucket, monkeypatch):
    monkeypatch.setattr("gpu_util_callback.recording.event_files.REMOTE_FILE_BYTES", 2_000)
    writer = ScalarWriter("memory://bucket/run")
    writer.marker()
    for step in range(300):
        writer.points([(step, {"gpu_util/step_time_ms": 1.0}, 1e9 + step)])
        if step % 10 == 0:
            writer.flush()
    writer.close()
    sizes = [entry["size"] for entry in bucket.ls("/bucket/run", detail=True)]
    assert len(sizes) > 3
    assert max(sizes) < 4_000
    assert next_step_offset("memory://bucket/run") == 300  # found in the last file


def test_writing_elsewhere_than_in_an_object_store_goes_by_a_temporary_name(tmp_path):
    storage, root = RemoteStorage(fsspec.filesystem("file")), str(tmp_path)
    storage.write(storage.join(root, "x"), b"1")
    storage.write(storage.join(root, "x"), b"22")
    assert storage.read(storage.join(root, "x"), 10) == b"22"
    assert storage.names(root) == ["x"]
    with pytest.raises(OSError, match="refused"):
        storage.read(storage.join(root, "x"), 1)
