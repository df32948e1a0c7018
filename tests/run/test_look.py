"""`gpu-util look`: a profiler window of a training that runs now."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from fork_server import python
from object_store import empty_bucket
from packages import need

from gpu_util_callback import read_recordings
from gpu_util_callback.cli import look, main
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording import manifest
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.writer import RecordingWriter

TRAINING = """
import sys, time, keras, numpy as np
from gpu_util_callback import GpuUtilCallback
from gpu_util_callback.recorder import outputs, recorder
class Slow(keras.callbacks.Callback):
    async_safe = True
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = (np.ones((4, 3)) for _ in iter(int, 1))
log_dir, trace = sys.argv[1:]
recorder.FLUSH_S = outputs.FLUSH_S = 0.2
outputs.REMOTE_FLUSH_S = 0.5
model.fit(((x, x[:, :1]) for x in data), steps_per_epoch=100_000, epochs=1, verbose=0,
          callbacks=[Slow(), GpuUtilCallback(log_dir, report=False, trace=trace)])
"""


@pytest.fixture
def training(tmp_path, monkeypatch):
    need("jax")
    monkeypatch.setattr(look, "REMOTE_POLL_S", look.POLL_S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(TRAINING)
    started = []

    def start(trace: str, log_dir: str = "logs") -> None:
        command = [*python("keras"), "t.py", log_dir, trace]
        started.append(subprocess.Popen(command, env={**os.environ, "KERAS_BACKEND": "jax"}))
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(UnusableInput):  # no such folder yet
                if any(recording.step_count for recording in read_recordings(log_dir)):
                    return
            time.sleep(0.05)
        pytest.fail("no training began")

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_window_comes_when_it_is_asked_for(training, capsys):
    training("auto")
    asked_ns = time.time_ns()
    assert main(["look", "logs", "--steps", "3", "--timeout", "60"]) == 0
    shown = capsys.readouterr().out
    (recording,) = read_recordings("logs")
    (window,) = recording.facts["windows"]
    assert window["stop_step"] - window["first_step"] == 3
    assert f"profiled steps {window['first_step']:,}–{window['stop_step'] - 1:,}" in shown
    assert "from step markers" in shown  # the file is explained
    phases = recording.phases
    (start_ns,) = phases["start_ns"][phases["kind"] == "profiler_window"]
    assert 0 < (start_ns - asked_ns) / 1e9 < 10
    assert main(["look", "logs", "--timeout", "60"]) == 0  # and another one


@pytest.fixture
def bucket(monkeypatch):
    yield from empty_bucket(monkeypatch)


def test_a_window_of_a_training_that_records_into_a_store(training, bucket, capsys):
    training("auto", f"{bucket}/one")
    assert main(["look", bucket, "--steps", "3", "--timeout", "60"]) == 0
    shown = capsys.readouterr().out
    (recording,) = read_recordings(bucket)
    (window,) = recording.facts["windows"]
    assert f"profiled steps {window['first_step']:,}–{window['stop_step'] - 1:,}" in shown
    assert "from step markers" in shown


def test_a_look_is_refused_with_its_reason(training, capsys):
    training("off")
    assert main(["look", "logs", "--steps", "21"]) == 2
    assert "give 1 to 20" in capsys.readouterr().err
    assert main(["look", "logs", "--timeout", "60"]) == 1
    assert capsys.readouterr().err == 'no window: it was started with trace="off"\n'


@pytest.mark.parametrize(("status", "word"), [("ended", "ended"), ("lost", "killed")])
def test_there_is_nothing_to_look_at_once_training_is_over(tmp_path, capsys, status, word):
    writer = RecordingWriter(tmp_path, {}, clock=Clock())
    writer.flush()
    writer.close("ended")
    path = next(tmp_path.rglob("manifest.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": status}))
    assert main(["look", str(tmp_path)]) == 2
    assert f"trains now (its recordings: {word}" in capsys.readouterr().err


def test_a_training_without_steps_shows_where_it_waits(tmp_path, capsys):
    writer = RecordingWriter(tmp_path, {}, clock=Clock())
    standstill = {"start_ns": 10**18, "seconds": 40.0, "step": 9, "thread": "input", "step_ms": 6.0}
    standstill |= {"place": "`Data.__getitem__` at load.py:9", "calls": "Event.wait", "stacks": "stuck-1.txt"}
    writer.files["stuck-1.txt"] = b"training thread (MainThread), the innermost call first:\n"
    writer.update(step_watch={"seconds": 40.0, "times": 1, "standstills": [standstill], "still": True})
    writer.flush()
    assert main(["look", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("no step for 40 s (a step takes 6 ms): training waits for its input, in `Data.__getitem__`")
    assert "training thread (MainThread)" in shown
    assert not [*tmp_path.rglob(look.LOOK_FILE)], "no window is asked for"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_training_whose_process_is_stopped(tmp_path, capsys):
    with subprocess.Popen(["sleep", "60"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        facts = manifest.process_facts() | {"pid": process.pid}
        facts["process_started"] = manifest._process_started(process.pid)
        writer = RecordingWriter(tmp_path, {}, clock=Clock())
        writer.flush()
        path = next(tmp_path.rglob("manifest.json"))
        path.write_text(json.dumps(json.loads(path.read_text()) | facts | {"heartbeat_wall_ns": 1}))
        os.utime(path, (1, 1))
        assert main(["look", str(tmp_path)]) == 2
        assert "kill -CONT lets it go on" in capsys.readouterr().err
        process.kill()
