"""The Python that a callback adds to a step: a real `fit` whose train function does nothing.

Without a device at work the training thread's processor time is Keras' loop and the callbacks'
alone, and steadier than any wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

STEPS = 3000


def python_us(
    callback: Callable[[], keras.callbacks.Callback],
    data: Callable[[int], Any],
    beside: Callable[[], keras.callbacks.Callback],
    rounds: int = 5,
) -> float:
    """µs per step of the training thread's processor time, with the callback minus without.

    Args:
        callback: makes the one to measure.
        data: the batches, without end, for a width.
        beside: makes one that is there either way.
    """
    spent: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for with_it in (False, True):
            callbacks = [beside(), *([callback()] if with_it else [])]
            model = _idle_model(data)
            start = time.thread_time()
            model.fit(data(16), steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)
            spent[with_it].append(1e6 * (time.thread_time() - start) / STEPS)
    return min(spent[True]) - min(spent[False])


def _idle_model(data: Callable[[int], Any]) -> keras.Model:
    model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data(16), steps_per_epoch=1, verbose=0)  # builds all there is to build
    model.make_train_function = lambda force=False: None
    if keras.backend.backend() == "jax":
        logs = {"loss": keras.ops.convert_to_tensor(np.float32(1))}

        def idle(state, iterator):
            next(iterator)
            return logs, state

        model.train_function = idle
    else:
        model.train_function = lambda given: {"loss": 1.0}
    return model
