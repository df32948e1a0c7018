"""Whatever is damaged, one clear line says so and the rest is still shown."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.recording.storage import LocalStorage

DENIED = PermissionError(13, "Permission denied")


def refusing(monkeypatch, method, part, error=DENIED):
    """`LocalStorage.method` raises `error` for paths that end with `part` (root reads all)."""
    real = getattr(LocalStorage, method)

    def refused(self, path, *more):
        if path.endswith(part):
            raise error
        return real(self, path, *more)

    monkeypatch.setattr(LocalStorage, method, refused)


# What is wrong with a segment, how its problem begins, and what to do.
SEGMENTS = {
    "missing": (lambda path, _: path.unlink(), "missing; steps 100–199 not shown: ", "copy it again"),
    "cut": (lambda path, _: path.write_bytes(path.read_bytes()[:-22]), "damaged: ", "copy it again"),
    "empty": (lambda path, _: path.write_bytes(b""), "damaged: ", "copy it again"),
    "not to be read": (
        lambda path, patch: refusing(patch, "read", path.name),
        "cannot be read: Permission denied; 100 steps not readable: ",
        "chmod -R a+rX",
    ),
}


@pytest.mark.parametrize("what", SEGMENTS)
def test_a_segment_that_is_not_read_is_one_problem(three_segments, tmp_path, monkeypatch, what):
    spoil, begins, cure = SEGMENTS[what]
    path = three_segments / "segment-000001.npz"
    spoil(path, monkeypatch)
    (one,) = read_recordings(tmp_path)
    assert one.steps["step"].tolist() == [*range(100), *range(200, 300)]
    assert len(one.samples["host"]["time_ns"]) == 10
    (problem,) = one.problems
    assert problem.path == str(path) and "\n" not in problem.message
    assert problem.message.startswith(begins) and cure in problem.message


def test_a_flipped_byte_anywhere_is_a_problem_or_harmless(three_segments, tmp_path):
    (whole,) = read_recordings(tmp_path)
    truth = whole.steps
    path = three_segments / "segment-000001.npz"
    content = path.read_bytes()
    told = 0
    for at in range(0, len(content), 11):
        spoiled = bytearray(content)
        spoiled[at] ^= 0xFF
        path.write_bytes(bytes(spoiled))
        (one,) = read_recordings(tmp_path)
        steps, samples = one.steps, one.samples
        assert len(one.problems) <= 1
        told += len(one.problems)
        rows = {300: slice(None), 200: np.r_[0:100, 200:300]}[len(steps["step"])]
        for name in steps:
            assert (steps[name] == truth[name][rows]).all(), (at, name)
        if len(steps["step"]) == 200 or len(samples["host"]["time_ns"]) == 10:
            assert len(one.problems) == 1, at
    assert told > 10


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"format": "x"}', b'{"status": "ended"}', b"[" * 50_000],
    ids=lambda content: repr(content and content[:12]),
)
def test_an_unreadable_or_missing_manifest_leaves_the_rows(three_segments, tmp_path, content):
    if content is None:
        (three_segments / "manifest.json").unlink()
    else:
        (three_segments / "manifest.json").write_bytes(content)
    (one,) = read_recordings(tmp_path)
    assert len(one.steps["step"]) == 300
    assert len(one.samples["host"]["time_ns"]) == 15
    assert one.status == "lost"
    assert one.step_count == 300
    assert one.account["time_s"]["step"] > 0
    assert one.end_ns > one.start_ns > 0
    (problem,) = one.problems
    assert problem.path.endswith("manifest.json") or content is None
    assert problem.message.startswith("manifest.json is missing; ") == (content is None)
    assert "; showing what the segments hold: if this folder is a copy" in problem.message


NONSENSE = {
    "rows": {"steps": "many"},
    "sealed": "x",
    "account": 3,
    "gpus": 7,
    "started_ns": "yesterday",
    "ended_ns": None,
    "heartbeat_ns": [],
    "flush_s": "x",
    "diagnosis": 1,
    "summary": [],
    "status": "sleeping",
    "job": {"a": 1},
    "rank": [],
    "dropped_rows": "x",
    "flushes": {},
}


def test_nonsense_in_a_manifest_breaks_nothing(three_segments, tmp_path):
    manifest = json.loads((three_segments / "manifest.json").read_text())
    (three_segments / "manifest.json").write_text(json.dumps({**manifest, **NONSENSE}))
    found = read_recordings(tmp_path)
    (one,) = found
    assert len(one.steps["step"]) == 300
    assert isinstance(one.status, str)
    assert isinstance(one.account["time_s"], dict)
    assert isinstance(one.step_count, int)
    assert one.stored is None
    assert one.end_ns >= one.start_ns
    assert "<pre>" in found._repr_html_()
    assert one.revision


@pytest.mark.parametrize(
    ("major", "remedy"),
    [
        (3, "upgrade gpu-util-callback"),
        (10**9, "upgrade gpu-util-callback"),
        (1, "only the older version reads it; record the training again"),
        (0, "only the older version reads it; record the training again"),
    ],
)
def test_another_major_version_is_refused_with_what_to_do(three_segments, tmp_path, major, remedy):
    path = three_segments / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": [major, 0], "writer": "9.1"}))
    make_recording(tmp_path / "other", "healthy", steps=30)
    found = read_recordings(tmp_path)
    assert [one.run for one in found] == ["other"]
    (problem,) = found.problems
    assert "gpu-util-callback 9.1 in format" in problem.message
    assert problem.message.endswith(remedy)


def test_a_newer_minor_version_is_read(three_segments, tmp_path):
    path = three_segments / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": [2, 7], "unheard_of": {"x": 1}}))
    (one,) = read_recordings(tmp_path)
    assert len(one.steps["step"]) == 300
    assert one.problems == []


def test_a_folder_that_cannot_be_listed_any_more_was_not_deleted(three_segments, tmp_path, monkeypatch):
    (one,) = read_recordings(tmp_path)
    for method in ("names", "stamp"):
        refusing(monkeypatch, method, "manifest.json" if method == "stamp" else one.folder)
    assert one.refresh() is True
    assert len(one.steps["step"]) == 0
    assert [p.message.partition(": make")[0] for p in one.problems] == ["cannot be read: Permission denied"]
    monkeypatch.undo()
    assert one.refresh() is True
    assert len(one.steps["step"]) == 300
    assert one.problems == []


def test_a_run_whose_folder_cannot_be_listed_is_named_beside_the_others(three_segments, tmp_path, monkeypatch):
    make_recording(tmp_path / "other", "healthy", steps=30)
    refusing(monkeypatch, "folders", "other/plugins/gpu_utilization")
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
