"""A fit, its report and the doctor on what looks like another system with a poor console.

python fit_program.py LOGDIR FOLDER ENCODING: the doctor imports TensorFlow from FOLDER
"""

import os
import sys
import time
from pathlib import Path

import another_system

another_system.pretend()
os.environ |= {"PYTHONIOENCODING": sys.argv[3], "PYTHONUTF8": "0"}
sys.stdout = os.fdopen(1, "w", encoding=sys.argv[3], closefd=False)
sys.stderr = os.fdopen(2, "w", 1, encoding=sys.argv[3], errors="backslashreplace", closefd=False)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from gpu_util_callback import GpuUtilCallback  # noqa: E402
from gpu_util_callback.cli import main  # noqa: E402

assert not hasattr(another_system.os, "fork")
assert not Path("/proc/self/stat").exists()


class Журнал(keras.callbacks.Callback):
    """A callback with a name that the console has no characters for."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)


x = np.ones((240, 8), np.float32)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
ours = GpuUtilCallback(sys.argv[1], logs=True)
history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=2, callbacks=[ours, Журнал()])
assert len(history.history["samples_per_s"]) == 2
assert ours.summary()["steps"] == 120, ours.summary()
assert main(["report", sys.argv[1]]) == 0
assert main(["report", sys.argv[1], "--json"]) == 0
os.environ["PYTHONPATH"] = os.pathsep.join([sys.argv[2], os.environ["PYTHONPATH"]])
assert main(["doctor", "--framework", "tensorflow", "--timeout", "120"]) == 0
