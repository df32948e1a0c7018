"""Prints what our code calls on the training thread in the steps of a training.

In Keras fits on the backend that KERAS_BACKEND names, and in loops under the monitor.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np

import gpu_util_callback
from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor

BACKEND = keras.backend.backend()
OURS = str(Path(gpu_util_callback.__file__).parent)
# Steps with a window that is long enough for what is done now and then, in a fit or loop; fewer in
# eager fits, whose steps take up to 20 ms.
STEPS, EAGER = 400, 70
FIRST, BEHIND = 20, 20
X, Y = np.zeros((8 * STEPS, 4), np.float32), np.zeros((8 * STEPS, 1), np.float32)


class Probe:
    """Calls by our files on this thread, between `begin` and `end`.

    C functions are named by their owner, Python functions that are not ours by their module.
    """

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self.last = steps - BEHIND
        self.calls: Counter[str] = Counter()

    def begin(self) -> None:
        gc.collect()
        gc.disable()  # what a collection calls of others' is called wherever it happens to run
        sys.setprofile(self._see)

    def end(self) -> None:
        sys.setprofile(None)
        gc.enable()

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and frame.f_code.co_filename.startswith(OURS):
            owner = getattr(argument, "__self__", None)
            kind = owner.__name__ if isinstance(owner, type(sys)) else type(owner).__name__
            self.calls[f"{kind}.{argument.__name__}"] += 1
        elif event == "call" and not frame.f_code.co_filename.startswith(OURS):
            caller, module = frame.f_back, frame.f_globals.get("__name__", "")
            generated = module.startswith("gpu_util_callback.")  # a dataclass' methods
            if caller is not None and caller.f_code.co_filename.startswith(OURS) and not generated:
                self.calls[f"{module}:{frame.f_code.co_qualname}"] += 1

    def say(self, name: str) -> None:
        each = {call: count / (self.last - FIRST) for call, count in self.calls.items()}
        print(f"RESULT {name}", json.dumps(each))


class Between(keras.callbacks.Callback):
    """Calls `begin` and `end` of a probe in mid fit."""

    async_safe = True

    def __init__(self, probe: Probe):
        super().__init__()
        self.probe = probe

    def on_train_batch_begin(self, batch, logs=None):
        if batch == FIRST:
            self.probe.begin()
        if batch == self.probe.last:
            self.probe.end()


def fit(synchronous: bool, **compiled: Any) -> Probe:
    probe = Probe(EAGER if compiled else STEPS)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    callbacks = [Between(probe), GpuUtilCallback(tempfile.mkdtemp(), report=False)]
    if synchronous:  # on JAX and torch all end hooks then run on this thread
        own = lambda batch, logs: None  # noqa: E731
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=own))
    rows = 8 * probe.steps
    model.fit(X[:rows], Y[:rows], batch_size=8, verbose=0, callbacks=callbacks)
    return probe


def loop(by_steps: bool) -> Probe:
    batches, probe = [(X[:8], Y[:8])] * STEPS, Probe()
    with GpuUtilMonitor(tempfile.mkdtemp(), report=False) as monitor:
        for step, _ in enumerate(batches if by_steps else monitor.batches(batches)):
            if step == FIRST:
                probe.begin()
            if step == probe.last:
                probe.end()
            if by_steps:
                with monitor.fetch():
                    pass
                with monitor.step():
                    pass
    return probe


if __name__ == "__main__":
    fit(synchronous=False).say("fit")
    fit(synchronous=True).say("fit-synchronous")
    fit(synchronous=True, run_eagerly=True).say("fit-eager")
    loop(by_steps=False).say("loop-batches")
    loop(by_steps=True).say("loop-steps")
