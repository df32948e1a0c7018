"""A real fit that is killed and resumed from Keras' backup is one training in the total."""

import json
import signal
import textwrap
from pathlib import Path

import pytest
from fork_server import python
from programs import ran

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis.survey import survey
from gpu_util_callback.diagnosis.total_time import total

pytestmark = pytest.mark.real_clock("what was flushed when a process is killed")

EPOCHS, STEPS = 4, 30
PROGRAM = f"""
import os, signal, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np
from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recorder import outputs, recorder

recorder.FLUSH_S = outputs.FLUSH_S = 0.2
folder, dies_at = sys.argv[1], int(sys.argv[2])

class Dies(keras.callbacks.Callback):
    done = 0

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        time.sleep(0.005)
        if self.done == dies_at:
            while read_recordings(f"{{folder}}/logs")[-1].step_count < {STEPS}:  # what it did reaches the disk
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)

x = np.zeros(({STEPS} * 4, 3), np.float32)
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=4, epochs={EPOCHS}, verbose=0, callbacks=[
    GpuUtilCallback(f"{{folder}}/logs/run", report=False),
    keras.callbacks.BackupAndRestore(f"{{folder}}/backup"),
    Dies(),
])
"""


def test_a_fit_killed_and_resumed_twice_counts_each_step_once(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    # In epochs of 30 steps: each start is killed in its second, and does that one again.
    deaths = [40, 50, 0]
    for dies_at in deaths:
        ran(*python("keras"), program, tmp_path, dies_at, ends=-signal.SIGKILL if dies_at else 0)
    recordings = read_recordings(tmp_path / "logs")
    counts = [one.step_count for one in recordings]
    # The last steps before a kill may not have been drained yet.
    assert all(STEPS <= count <= most for count, most in zip(counts[:2], deaths, strict=False))
    assert counts[2] == 2 * STEPS
    found = total(survey([str(Path(tmp_path, "logs"))]))
    [training] = found["runs"]
    assert training["steps"] == EPOCHS * STEPS
    assert [one["begins"] for one in training["restarts"]] == [30, 60]
    assert found["restarts"]["steps_done_again"] == sum(counts) - EPOCHS * STEPS
    assert training["status"] == "ended"
    assert json.loads(json.dumps(found | {"runs": list(found["runs"])}, allow_nan=False)) == found
