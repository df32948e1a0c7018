"""A training that runs out of host memory: `oom_program.py KIND LOG_DIR`."""

import os
import resource
import sys
import time

kind, log_dir = sys.argv[1:]
os.environ["KERAS_BACKEND"] = "torch"

import numpy as np  # noqa: E402

ROOM = 400 << 20


def leave_little() -> None:
    """As `ulimit -v` does, with a little above what is in use now."""
    import psutil

    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))


kept = []


def loop() -> None:
    """Keep an array of every step."""
    from gpu_util_callback import GpuUtilMonitor

    np.ones(4) @ np.ones(4)
    with GpuUtilMonitor(log_dir=log_dir, trace=None) as monitor:
        leave_little()
        for _ in monitor.batches(range(1000)):
            kept.append(np.ones(4 << 20, np.uint8))
            time.sleep(0.04)


def fit(in_callback: bool) -> None:
    """A model whose step, or a callback that, keeps more and more."""
    import keras

    from gpu_util_callback import GpuUtilCallback

    class Grows(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            if not in_callback:
                kept.append(np.ones(4 << 20, np.uint8))
            return self.dense(x)

    class Keeps(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            leave_little()

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.03)
            if in_callback:
                kept.append(np.ones(4 << 20, np.uint8))

    model = Grows()
    model.compile("sgd", "mse")
    data = np.ones((1600, 4), "float32"), np.ones((1600, 1), "float32")
    callback = GpuUtilCallback(log_dir=log_dir, trace=None)
    model.fit(*data, batch_size=16, epochs=9, verbose=0, callbacks=[callback, Keeps()])


if kind == "loop":
    loop()
else:
    fit(in_callback=kind == "callback")
