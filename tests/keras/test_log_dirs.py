"""Log directories that cannot be written, are shared, or lose their writer in mid training."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from fit_truth import BATCH, WIDTH, traced
from fork_server import python
from waiting import flush_often, wait_for_recorders

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recorder import messages, outputs
from gpu_util_callback.recording import RecordingWriter

pytestmark = pytest.mark.real_clock("what was flushed when a process is killed")

X = np.zeros((BATCH * 12, WIDTH), np.float32)
HERE = Path(__file__).resolve().parent


def ours_lines(caplog) -> list[str]:
    """The package's messages, once nothing is left that could send another, into the next test."""
    wait_for_recorders()
    messages.drain()
    return [r.getMessage() for r in caplog.records if r.name == "gpu_util_callback"]


def test_a_log_dir_that_cannot_be_made(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(outputs, "RETRIES_S", (0.1,))
    (tmp_path / "file").write_text("in the way")
    model = traced()
    history = model.fit(X, X[:, :1], epochs=2, verbose=0, callbacks=[GpuUtilCallback(str(tmp_path / "file" / "a"))])
    assert len(history.history["loss"]) == 2
    lines = [line for line in ours_lines(caplog) if "file" in line]
    begin, end = lines
    assert "training continues" in begin and "log_dir" in begin
    assert "the recording's end" in end and "it is missing" in end
    assert "\n" not in begin + end


def test_a_disk_that_fills_up(tmp_path, caplog, monkeypatch):
    """Writes fail after a while: one line then, and one where the end fails, too; training continues."""
    monkeypatch.setattr(outputs, "RETRIES_S", (0.1,))
    writes = []
    write = RecordingWriter._write

    def full(self, name, data):
        writes.append(name)
        if len(writes) > 3:
            raise OSError(28, "No space left on device")
        write(self, name, data)

    monkeypatch.setattr(RecordingWriter, "_write", full)
    flush_often(monkeypatch)

    class Pause(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.15)

    model = traced()
    history = model.fit(
        X, X[:, :1], epochs=5, verbose=0, callbacks=[GpuUtilCallback(str(tmp_path), report=False), Pause()]
    )
    assert len(history.history["loss"]) == 5
    lines = [line for line in ours_lines(caplog) if "No space left" in line]
    assert all("make room" in line for line in lines)
    first, last = lines
    assert "writing the recording" in first and "the recording's end" in last
    assert len(writes) > 4, "it is tried again"


def test_two_fits_in_one_log_dir_keep_all_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = traced()
    for _ in range(2):
        recorded = recorded_fit_with_scalars(model, tmp_path)
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    events.Reload()
    for tag in ("gpu_util/step_time_ms", "gpu_util/input_wait_ms"):
        steps = [event.step for event in events.Tensors(tag)]
        assert steps == list(range(24)), tag
    values = np.array([e.tensor_proto.float_val[0] for e in events.Tensors("gpu_util/step_time_ms")])
    durations = recorded.steps["duration_ns"] / 1e6
    np.testing.assert_allclose(values[12:], durations, rtol=1e-4)


def recorded_fit_with_scalars(model, folder):
    before = {r.id for r in read_recordings(folder)}
    callback = GpuUtilCallback(str(folder), scalar_freq=1, report=False)
    model.fit(X, X[:, :1], batch_size=BATCH, verbose=0, callbacks=[callback])
    (recording,) = [r for r in read_recordings(folder) if r.id not in before]
    return recording


def test_the_verdict_and_its_silence(tmp_path, capsys):
    model = traced()
    model.fit(X, X[:, :1], verbose=0, callbacks=[GpuUtilCallback(str(tmp_path / "a"))])
    printed = capsys.readouterr().out.strip().splitlines()
    assert len(printed) == 2 and printed[0].startswith("gpu-util:"), printed
    callback = GpuUtilCallback(str(tmp_path / "b"), report=False)
    model.fit(X, X[:, :1], verbose=0, callbacks=[callback])
    captured = capsys.readouterr()
    assert captured.out == "" and "gpu-util" not in captured.err


TRAINING = """
import os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, {here!r})
import keras, numpy as np
from fit_truth import given, small_model
from injected import Truth
from gpu_util_callback import GpuUtilCallback
from gpu_util_callback.recorder import outputs, recorder

recorder.FLUSH_S = outputs.FLUSH_S = outputs.DIAGNOSIS_S = 0.2
outputs.DIAGNOSIS_SHARE = 1.0

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(time.time_ns(), flush=True)

truth = Truth([8.0] * 100_000)
model = small_model()
model.compile("sgd", "mse")
model.fit(verbose=0, callbacks=[Tell(), GpuUtilCallback({log_dir!r}, report=False)],
          **given("tf.data", truth))
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_mid_training(kill, tmp_path):
    """At most what came since the last flush is missing, and what is there opens."""
    script = tmp_path / "train.py"
    log_dir = tmp_path / "logs"
    script.write_text(textwrap.dedent(TRAINING.format(here=str(HERE), log_dir=str(log_dir))))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parents[1] / "harness" / "support")]),
    }
    process = subprocess.Popen(
        [*python("keras"), str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        # A shell's background jobs, and what they start, ignore Ctrl+C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        steps, last = 0, 0
        began = None
        while began is None or time.monotonic() - began < 0.8:
            line = process.stdout.readline()
            assert line, "training ended by itself"
            steps, last = steps + 1, int(line)
            began = began or time.monotonic()
        process.send_signal(kill)
        for line in process.stdout.read().split():  # said before the signal came through
            steps, last = steps + 1, int(line)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    (recording,) = read_recordings(log_dir)
    assert not recording.problems
    recorded = recording.steps
    assert recorded["step"].tolist() == list(range(len(recorded["step"])))
    end = int(recorded["start_ns"][-1] + recorded["duration_ns"][-1])
    if kill == signal.SIGKILL:
        assert recording.status == "lost"
        assert (last - end) / 1e9 < 0.2 + 0.5
        assert outputs.FLUSH_S + 0.5 <= 2.0, "the two seconds that are promised"
        assert recording.stored["spans"] or recording.stored["findings"]
    else:
        assert recording.status == "interrupted"
        assert steps - len(recorded["step"]) <= 2
    assert 0 < len(recorded["step"]) <= steps + 1
