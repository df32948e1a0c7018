"""Whatever is damaged, one clear line says so and the rest is still shown."""

import json

import numpy as np
import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings


@pytest.mark.parametrize("number", [1, 2])
def test_each_missing_segment_is_one_problem_that_names_its_steps(three_segments, tmp_path, number):
    name, first = f"segment-{number:06d}.npz", 100 * number
    (three_segments / name).unlink()
    found = read_recordings(tmp_path)
    (one,) = found
    assert one.steps["step"].tolist() == [*range(first), *range(first + 100, 300)]
    assert len(one.samples["host"]["time_ns"]) == 10
    (problem,) = found.problems
    assert problem.path.endswith(name)
    assert problem.message.startswith(f"missing; steps {first} to {first + 99} are not shown: ")
    assert "copy it again" in problem.message


def test_every_truncation_of_a_segment_is_one_problem(three_segments, tmp_path):
    path = three_segments / "segment-000001.npz"
    content = path.read_bytes()
    lengths = sorted({0, 1, 4, 30, len(content) - 1, len(content) - 22, len(content) // 2, *range(0, len(content), 97)})
    for length in lengths:
        path.write_bytes(content[:length])
        (one,) = read_recordings(tmp_path)
        assert len(one.steps["step"]) == 200, length
        assert len(one.problems) == 1, (length, one.problems)
        assert one.problems[0].path == str(path)
        assert "\n" not in one.problems[0].message
        assert one.problems[0].message.startswith("damaged: ")
        assert one.problems[0].message.endswith("if this folder is a copy, copy it again")


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


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 5},
        {"rows": {"steps": "many"}},
        {"sealed": "x"},
        {"account": 3},
        {"gpus": 7},
        {"started_ns": "yesterday"},
        {"ended_ns": None, "heartbeat_ns": []},
        {"flush_s": "x"},
        {"diagnosis": 1, "summary": []},
        {"status": "sleeping"},
        {"job": {"a": 1}, "rank": []},
        {"dropped_rows": "x"},
        {"flushes": {}},
    ],
    ids=str,
)
def test_nonsense_in_a_manifest_breaks_nothing(three_segments, tmp_path, change):
    manifest = json.loads((three_segments / "manifest.json").read_text())
    (three_segments / "manifest.json").write_text(json.dumps({**manifest, **change}))
    found = read_recordings(tmp_path)
    (one,) = found
    assert len(one.steps["step"]) == 300
    assert isinstance(one.status, str)
    assert isinstance(one.account["time_s"], dict)
    assert isinstance(one.step_count, int)
    assert one.stored is None
    assert one.end_ns >= one.start_ns
    assert "<table>" in found._repr_html_()
    assert one.revision


@pytest.mark.parametrize(("major", "cure"), [(3, "upgrade gpu-util-callback"), (1, "record it again")])
def test_another_major_version_is_refused_with_what_to_do(three_segments, tmp_path, major, cure):
    path = three_segments / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": [major, 0], "writer": "9.1"}))
    make_recording(tmp_path / "other", "healthy", steps=30)
    found = read_recordings(tmp_path)
    assert [one.run for one in found] == ["other"]
    (problem,) = found.problems
    assert f"gpu-util-callback 9.1 in format {major}" in problem.message
    assert problem.message.endswith(cure)


def test_a_newer_minor_version_is_read(three_segments, tmp_path):
    path = three_segments / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": [2, 7], "unheard_of": {"x": 1}}))
    (one,) = read_recordings(tmp_path)
    assert len(one.steps["step"]) == 300
    assert one.problems == []


def test_a_segment_of_another_format_is_a_problem(three_segments, tmp_path):
    from gpu_util_callback.recording.container import pack

    (three_segments / "segment-000001.npz").write_bytes(pack({"format": 3}, {}))
    (one,) = read_recordings(tmp_path)
    assert len(one.steps["step"]) == 200
    assert [p.message for p in one.problems] == [
        "damaged: segment format 3, expected 2; its rows are not shown: upgrade gpu-util-callback"
    ]
