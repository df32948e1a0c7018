"""The event file: what TensorBoard's own reader makes of it, without TensorFlow."""

import json
import re
import shutil
import socket
import subprocess

import numpy as np
from make_recording import SyntheticRun, make_recording
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, DATA_CLASS_TENSOR
from tensorboard_server import python_without_tensorflow

from gpu_util_callback.recording import event_files
from gpu_util_callback.recording.event_files import MARKER_TAG, ScalarWriter, next_step_offset
from gpu_util_callback.recording.storage import LocalStorage


def events(path):
    """The events of a file, record by record."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        found.append(Event.FromString(data[at + 12 : at + 12 + length]))
        at += 16 + length
    return found


def test_the_marker_and_the_points(tmp_path):
    writer = ScalarWriter(tmp_path)
    writer.marker(wall_time=5.0)
    writer.points([(3, {"a": 1.5, "b": np.float32(2), "c": np.nan, "d": None, "e": np.inf}, 7.0)])
    writer.points([(4, {"a": 2.5}, 8.0)])
    writer.points([(5, {"c": np.nan}, 9.0)])
    writer.close()
    writer.close()
    writer.points([(6, {"a": 1.0}, 10.0)])  # after the end: nothing, and no error
    (path,) = tmp_path.iterdir()
    version, marker, first, second = events(path)
    assert version.file_version == "brain.Event:2"
    (value,) = marker.summary.value
    assert value.tag == MARKER_TAG
    assert value.metadata.plugin_data.plugin_name == "gpu_utilization"
    assert value.metadata.data_class == DATA_CLASS_TENSOR
    assert (first.step, first.wall_time) == (3, 7.0)
    assert [(v.tag, v.tensor.float_val[0]) for v in first.summary.value] == [("a", 1.5), ("b", 2)]
    for value in first.summary.value:
        assert value.metadata.plugin_data.plugin_name == "scalars"
        assert value.metadata.data_class == DATA_CLASS_SCALAR
    assert not second.summary.value[0].HasField("metadata")  # a tag's first point suffices


def test_a_file_that_was_removed_begins_anew_with_the_metadata_of_its_tags(tmp_path):
    writer = ScalarWriter(tmp_path)
    writer.marker()
    writer.points([(step, {"a": 1.5}, 7.0) for step in range(3)])
    writer.flush()
    next(tmp_path.iterdir()).unlink()
    writer.flush()
    writer.points([(step, {"a": 1.5}, 7.0) for step in range(3, 5)])
    writer.close()
    _, marker, first, _ = events(next(tmp_path.iterdir()))
    assert [event.summary.value[0].tag for event in (marker, first)] == [MARKER_TAG, "a"]
    assert first.summary.value[0].metadata.plugin_data.plugin_name == "scalars"


def test_events_are_bytes_as_protobuf_writes_them(tmp_path):
    writer = ScalarWriter(tmp_path)
    writer.marker(wall_time=0.1)
    steps = [0, 1, 127, 128, 300, 2**31, 2**40]
    points = [{"loss": -0.5 * step, **({"ä" * 100: 3e-42} if step > 127 else {})} for step in steps]
    writer.points(zip(steps, points, [7.5] * len(steps), strict=True))
    writer.points([(1 << 41, {"loss": 1e39, "other": -1e39}, 8.0)])  # beyond a float32
    writer.close()
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    assert data == b"".join(event_files.record(event.SerializeToString()) for event in events(path))
    _, _, *read, last = events(path)
    assert [event.step for event in read] == steps
    assert [{v.tag: v.tensor.float_val[0] for v in event.summary.value} for event in read] == [
        {tag: float(np.float32(value)) for tag, value in point.items()} for point in points
    ]
    assert [v.tensor.float_val[0] for v in last.summary.value] == [np.inf, -np.inf]


def test_workers_have_runs_of_their_own(tmp_path):
    for worker in range(3):
        ScalarWriter(tmp_path, worker=worker).close()
    assert sorted(p.parent.name for p in tmp_path.rglob("*tfevents*")) == sorted([tmp_path.name, "worker1", "worker2"])


def test_a_redacted_name_hides_the_host(tmp_path):
    ScalarWriter(tmp_path, redact=True).close()
    (path,) = tmp_path.iterdir()
    host = re.escape(socket.gethostname())
    assert not re.search(rf"(?<![A-Za-z0-9]){host}(?![A-Za-z0-9])", path.name)


def test_the_offset_continues_after_the_highest_step(tmp_path):
    assert next_step_offset(tmp_path / "new") == next_step_offset("nosuchprotocol://x") == 0
    run = SyntheticRun(tmp_path, "healthy", steps=40)
    run.writer.facts.pop("scalar_step_offset")  # of a recorder that did not write its own
    run.advance(40)
    run.close()
    assert next_step_offset(tmp_path) == 40
    second = make_recording(tmp_path, "healthy", steps=25)
    assert next_step_offset(tmp_path) == 65
    (second / "manifest.json").write_text("damaged")
    assert next_step_offset(tmp_path) == 65  # then our event files are looked at
    shutil.rmtree(tmp_path / "plugins")
    assert next_step_offset(tmp_path) == 65
    for path in tmp_path.glob("*tfevents*"):
        path.write_bytes(path.read_bytes()[:-3])  # torn by a kill: its last whole record counts
    assert 1 <= next_step_offset(tmp_path) <= 65


def test_of_two_thousand_recordings_the_newest_are_read_for_it(tmp_path, monkeypatch):
    first = make_recording(tmp_path, "healthy", steps=40)
    facts = json.loads((first / "manifest.json").read_bytes())
    for fit in range(1, 2005):
        folder = first.parent / f"2099{fit:04d}-vm-0-1"
        folder.mkdir()
        text = json.dumps({**facts, "scalar_step_offset": 40 * fit}) if fit > 1990 else "damaged"
        (folder / "manifest.json").write_text(text)
    read = []
    plain = LocalStorage.read
    monkeypatch.setattr(LocalStorage, "read", lambda self, *args: read.append(args) or plain(self, *args))
    assert next_step_offset(tmp_path) == 40 * 2005
    assert len(read) == event_files.NEWEST


def test_writing_reading_and_diagnosing_need_no_framework(tmp_path):
    make_recording(tmp_path, "thirds")
    code = (
        "import sys\nfrom gpu_util_callback import read_recordings\n"
        "from gpu_util_callback.diagnosis import run_report\n"
        f"one, = read_recordings({str(tmp_path)!r})\n"
        "print(len(one.steps['step']), run_report(one)['spans'][0]['cause'])\n"
        "print(sorted({'tensorflow', 'keras', 'jax', 'torch', 'pynvml', 'tensorboard'} & set(sys.modules)))\n"
        "from gpu_util_callback.recording.event_files import ScalarWriter\n"
        f"w = ScalarWriter({str(tmp_path / 'events')!r}); w.marker(); w.points([(1, {{'a': 2.0}}, 3.0)])\n"
        "w.close(); print('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run([python_without_tensorflow(), "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:3] == ["600 input_bound", "[]", "False"], done.stderr
    (path,) = (tmp_path / "events").iterdir()
    assert len(events(path)) == 3
