"""Fits whose callbacks allow Keras to run their hooks on other threads: CASE ... (KERAS_BACKEND names the backend).

Reports, for each case, the run's report, and how long the training thread waited for those threads.
"""

import json
import sys
import tempfile
import threading
import time

import keras
import numpy as np
from keras.src.callbacks.callback_list import CallbackList

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.diagnosis import run_report

BATCHES, HOOK_S = 30, 0.02
X = np.random.default_rng(0).random((4 * BATCHES, 4)).astype("float32")
waited_s: list[float] = []
_flush = CallbackList._flush_futures


def _timed_flush(self):
    begun = time.perf_counter()
    _flush(self)
    waited_s.append(time.perf_counter() - begun)


CallbackList._flush_futures = _timed_flush
_turn = threading.Lock()


class Slow(keras.callbacks.Callback):
    async_safe = True
    at = ("train",)

    def _work(self, where):
        if where in self.at:
            with _turn:
                time.sleep(HOOK_S)

    def on_train_batch_end(self, batch, logs=None):
        self._work("train")

    def on_test_batch_end(self, batch, logs=None):
        self._work("test")


class Quick(Slow):
    at = ()


class Half(Slow):
    pass


class Testing(Slow):
    at = ("test",)


class SameThread(Slow):
    async_safe = False


CASES = {"one": [Slow], "two": [Slow, Half], "test": [Testing], "quick": [Quick], "same": [SameThread]}

for case in sys.argv[1:]:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], batch_size=4, verbose=0)  # compiles
    waited_s.clear()
    with tempfile.TemporaryDirectory() as log_dir:
        callbacks = [*(kind() for kind in CASES[case]), GpuUtilCallback(log_dir, report=False)]
        validation = {"validation_data": (X, X[:, :1]), "validation_batch_size": 4} if case == "test" else {}
        model.fit(X, X[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks, **validation)
        [recording] = read_recordings(log_dir)
        print("RESULT", case, json.dumps({"run": run_report(recording), "waited_s": sum(waited_s)}))
