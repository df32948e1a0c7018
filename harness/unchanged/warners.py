"""Warnings of callbacks, train steps and data iterators: the lines that they are said to be from.

Run as a program, it prints what two fits and two loops of this backend warned of, as JSON: without
us and with us, each warning always shown and once for each of its lines.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings

import keras
import numpy as np

LEVELS = range(1, 12)
HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_epoch_end",
    "on_train_end",
)
log = logging.getLogger("warners")


def warn(where: str) -> None:
    for level in LEVELS:
        warnings.warn(f"{where}, level {level}", stacklevel=level + 1)
        log.warning("%s, level %s", where, level, stacklevel=level + 1)


def hook(name: str):
    def warns(self, *args, logs=None):
        warn(name)

    def plain(self, batch, logs=None):
        warn(name)

    return plain if "batch" in name else warns


Warner = type("Warner", (keras.callbacks.Callback,), {name: hook(name) for name in HOOKS})


class Model(keras.Model):
    def train_step(self, *args):
        warn("train_step")
        return super().train_step(*args)

    def test_step(self, *args):
        warn("test_step")
        return super().test_step(*args)


class Batches:
    """An iterator that warns of each batch it makes."""

    def __init__(self, count: int = 3):
        self.left = count

    def __iter__(self):
        warn("iter")
        return self

    def __next__(self):
        warn("next")
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def generated():
    yield from Batches()


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        warn("getitem")
        return np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def fit(data, validation, eagerly: bool, callback) -> None:
    inputs = keras.Input((2,))
    model = Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", run_eagerly=eagerly)
    model.fit(data, validation_data=validation, epochs=1, verbose=0, callbacks=callback)


def train(ours: bool) -> None:
    """Two fits and a loop."""
    from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor

    for data, eagerly in ((generated(), False), (Rows(), True)):
        recorder = GpuUtilCallback(tempfile.mkdtemp(), report=False, trace="off")
        callbacks = [recorder, Warner()] if ours else [Warner()]
        fit(data, Rows(), eagerly, callbacks)
    with GpuUtilMonitor(tempfile.mkdtemp(), report=False, trace="off") as monitor:
        for _ in monitor.batches(Batches()) if ours else Batches():
            pass


def seen(ours: bool, action: str) -> list[list]:
    """What was warned of, and where from."""
    for module in list(sys.modules.values()):
        vars(module).get("__warningregistry__", {}).clear()
    keras.utils.set_random_seed(1)
    keras.backend.clear_session()
    logged = []
    handler = logging.Handler()
    handler.emit = lambda r: logged.append([r.getMessage(), r.pathname, r.lineno])
    log.handlers, log.propagate = [handler], False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        train(ours)
    found = [[str(w.message), w.filename, w.lineno] for w in caught if "level" in str(w.message)]
    return [found, logged]


if __name__ == "__main__":
    actions = ("always", "default")
    print("WARNED " + json.dumps({a: [seen(ours, a) for ours in (False, True)] for a in actions}))
