"""What cannot be read for now is named with what to do, and was not deleted."""

import os
import shutil
import time
from pathlib import Path

from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.recording.storage import LocalStorage


def refusing(monkeypatch, method, part, error):
    """`LocalStorage.method` raises `error` for paths that end with `part` (root reads all)."""
    real = getattr(LocalStorage, method)

    def refused(self, path, *more):
        if path.endswith(part):
            raise error
        return real(self, path, *more)

    monkeypatch.setattr(LocalStorage, method, refused)


DENIED = PermissionError(13, "Permission denied")


def test_an_unreadable_segment_is_a_problem(three_segments, tmp_path, monkeypatch):
    refusing(monkeypatch, "read", "segment-000001.npz", DENIED)
    (one,) = read_recordings(tmp_path)
    assert len(one.steps["step"]) == 200
    (problem,) = one.problems
    assert problem.message.startswith("cannot be read: Permission denied; its rows are not shown: ")
    assert "chmod -R a+rX" in problem.message


def test_a_folder_that_cannot_be_listed_any_more_was_not_deleted(three_segments, tmp_path, monkeypatch):
    (one,) = read_recordings(tmp_path)
    for method in ("names", "stamp"):
        refusing(monkeypatch, method, "manifest.json" if method == "stamp" else one.folder, DENIED)
    assert one.refresh() is True
    assert len(one.steps["step"]) == 0
    assert [p.message.partition(": make")[0] for p in one.problems] == ["cannot be read: Permission denied"]
    monkeypatch.undo()
    assert one.refresh() is True
    assert len(one.steps["step"]) == 300
    assert one.problems == []


def test_a_run_whose_folder_cannot_be_listed_is_named_beside_the_others(three_segments, tmp_path, monkeypatch):
    make_recording(tmp_path / "other", "healthy", steps=30)
    refusing(monkeypatch, "folders", "other/plugins/gpu_utilization", DENIED)
    found = read_recordings(tmp_path)
    assert [one.folder for one in found] == [three_segments.name]
    (problem,) = found.problems
    assert problem.message.startswith("cannot be read: Permission denied: ")


def test_a_folder_made_just_now_is_live_until_its_manifest_should_be_there(tmp_path, make_writer):
    whole = Path(make_writer().path)
    begun = whole.parent / "20260102T030405.678Z-host-0-1"
    begun.mkdir()
    (begun / ".manifest.json.tmp").write_bytes(b"{")
    one = next(one for one in read_recordings(tmp_path) if one.folder == begun.name)
    assert (one.status, one.problems) == ("live", [])
    assert one.start_ns == one.end_ns == 1_767_323_045_678_000_000
    assert one.refresh() is False
    old = time.time() - 3600
    os.utime(begun, (old, old))
    assert one.refresh() is True
    assert one.status == "lost"
    assert "manifest.json is missing" in one.problems[0].message
    shutil.copy(whole / "manifest.json", begun)
    assert one.refresh() is True
    assert one.problems == []
    (whole / "manifest.json").unlink()  # with rows beside it, it was there before
    (whole / "segment-000000.npz").write_bytes(b"")
    other = next(one for one in read_recordings(tmp_path) if one.folder == whole.name)
    assert other.status == "lost"
