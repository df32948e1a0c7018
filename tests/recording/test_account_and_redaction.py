"""The account closes; a redacted recording names nobody."""

import json
import os
import re
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
from make_recording import SyntheticRun
from scripted_runs import MS

from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.manifest import safe_name
from gpu_util_callback.recording.schema import ACCOUNTS
from gpu_util_callback.recording.summary import account
from gpu_util_callback.redaction import Redactor, hashed_host


def test_the_categories_are_disjoint_and_sum_to_the_wall():
    steps = {
        "input_wait_ns": np.array([2, 3]) * MS,
        "compile_ns": np.array([100, -1]) * MS,
        "body_ns": np.array([10, 11]) * MS,
        "gpu_wait_ns": np.array([4, -1]),
        "callbacks_ns": np.array([1, 2]) * MS,
    }
    steps["gpu_wait_ns"][0] *= MS
    phases = {
        "account": np.array(["", "validation", "callbacks", "input_wait", "compile"], object),
        "self_ns": np.array([500, 50, 7, 8, -1]) * MS,
    }
    found = account(steps, phases, 0, 1_000 * MS)
    assert found["wall_s"] == 1
    assert set(found["time_s"]) == set(ACCOUNTS)
    expected = {"input_wait": 13, "step": 25, "compile": 100, "validation": 50, "callbacks": 10}
    for name, ms in expected.items():
        assert found["time_s"][name] == pytest.approx(ms / 1000), name
    assert sum(found["time_s"].values()) == pytest.approx(1)


def test_a_redacted_recording_names_neither_host_nor_process(tmp_path):
    host = socket.gethostname()
    run = SyntheticRun(tmp_path, steps=60, redact=True)
    run.writer.update(
        job=f"tcp://{host}:1234",
        pid=4242,
        gpus=[{"index": 0, "processes": [{"pid": 77, "user": "eve-the-user", "name": "miner"}]}],
        unavailable=[{"source": "x", "reason": f"refused by {host}"}],
        memory={"oom_kills": {"machine": 1}, "control_group": "/sys/fs/cgroup/pod-of-eve", "group_inode": 7},
    )
    run.writer.append("phases", {"kind": ["gap"], "name": [f"nfs on {host} hung"]})
    run.advance(30)
    assert read_recordings(tmp_path)[0].status == "live", "by its heartbeat"
    run.advance(30)
    path = run.close()
    manifest = (path / "manifest.json").read_text()
    facts = json.loads(manifest)
    assert facts["redacted"] is True
    assert facts["host"] == hashed_host(host)
    for key in ("pid", "boot_id", "process_started", "pid_namespace"):
        assert key not in facts
    assert "processes" not in facts["gpus"][0]
    assert "eve-the-user" not in manifest
    assert facts["memory"] == {"oom_kills": {"machine": 1}}
    everything = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")]
    assert len(everything) > 5
    (one,) = read_recordings(tmp_path)
    everything += [manifest, *one.phases["name"]]
    for file in path.glob("*.npz"):
        everything.append(zipfile.ZipFile(file).read("index.json").decode())
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(host)}(?![A-Za-z0-9])")
    for text in everything:
        assert not word.search(text), text
    assert f"nfs on {hashed_host(host)} hung" in one.phases["name"].tolist()
    assert one.status == "ended"


def test_names_are_replaced_as_words_only():
    redactor = Redactor(["node7", "node7.cluster.example"])
    assert redactor.text("node7.cluster.example") == hashed_host("node7.cluster.example")
    assert redactor.text("node70 and supernode7") == "node70 and supernode7"
    assert redactor.text("a node7:22 b") == f"a {hashed_host('node7')}:22 b"
    assert redactor.value({"Host": "other", "n": [{"pid": 1, "x": "node7"}], "k": 1.5}) == {
        "Host": hashed_host("other"),
        "n": [{"x": hashed_host("node7")}],
        "k": 1.5,
    }
    assert Redactor([]).text("node7") == "node7"


def test_a_recording_that_is_not_redacted_says_where_it_was_made(make_writer, tmp_path):
    writer = make_writer(facts={"rank": 3})
    writer.close("ended")
    assert f"-{safe_name(socket.gethostname())}-3-{os.getpid()}" in Path(writer.path).name
    (one,) = read_recordings(tmp_path)
    assert one.facts["host"] == socket.gethostname()
    assert isinstance(one.facts["pid"], int)


def test_time_between_the_fits_of_a_series_is_in_no_category():
    """Two fits of 3 and 4 s, 10 s apart: 7 s of training."""
    second = 10**9
    steps = {"input_wait_ns": np.array([second, second]), "body_ns": np.array([2, 3]) * second}
    phases = {
        "kind": np.array(["fit", "between_fits", "fit"], object),
        "account": np.array(["", "", ""], object),
        "self_ns": np.array([3, 10, 4]) * second,
    }
    found = account(steps, phases, 0, 17 * second)
    assert found["wall_s"] == 7.0 and found["between_fits_s"] == 10.0
    assert found["time_s"]["input_wait"] == 2.0 and found["time_s"]["step"] == 5.0
    assert found["time_s"]["other"] == 0.0
