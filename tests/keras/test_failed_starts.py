"""Fits that fail before their first step is over: closed soon, and nothing of them is left."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import BATCH, WIDTH, compiled, recordings, untouched
from waiting import newest

from gpu_util_callback import GpuUtilCallback

X = np.zeros((BATCH * 12, WIDTH), np.float32)
Y = X[:, :1]


class Broken(keras.callbacks.Callback):
    """Raises in one of its hooks."""

    def __init__(self, hook: str):
        super().__init__()
        setattr(self, hook, self._raise)

    def _raise(self, *args, **kwargs):
        raise RuntimeError("not ours")


def bad_batches():
    def fail(index):
        raise ValueError("a damaged file")

    return tf.data.Dataset.range(12).map(
        lambda k: (tf.ensure_shape(tf.py_function(fail, [k], tf.float32), (BATCH, WIDTH)),) * 2
    )


FAILURES = {
    "a callback's train begin": ({"callbacks": lambda: [Broken("on_train_begin")]}, RuntimeError),
    "a callback's epoch begin": ({"callbacks": lambda: [Broken("on_epoch_begin")]}, RuntimeError),
    "a callback's batch begin": ({"callbacks": lambda: [Broken("on_train_batch_begin")]}, RuntimeError),
    "the first trace": ({"x": lambda: X[:, :3], "y": lambda: Y}, ValueError),
    "the first batch": ({"x": bad_batches, "y": lambda: None}, Exception),
}


def fit(model, folder, x=lambda: X, y=lambda: Y, callbacks=list):
    y = y()
    model.fit(
        x(),
        y,
        batch_size=None if y is None else BATCH,
        verbose=0,
        shuffle=False,
        callbacks=[GpuUtilCallback(str(folder), report=False), *callbacks()],
    )


@pytest.mark.parametrize("failure", FAILURES)
def test_it_is_closed_by_itself_or_by_the_next_fit_which_is_recorded_whole(failure, tmp_path):
    """As in a notebook: the cell is mended and run again, later or at once, or the next model's turn comes.

    The next call's frame often lies where the failed one's did.
    """
    arguments, error = FAILURES[failure]
    failed = []
    for later in (True, False):
        failed.append(compiled(jit_compile=False))
        with pytest.raises(error):
            fit(failed[-1], tmp_path, **arguments)
        if later:
            newest(tmp_path, "interrupted")
            assert untouched(failed[-1])
        following = compiled(jit_compile=False)
        during = []

        class Look(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None, during=during):
                if batch == 3:
                    during.extend(one.status for one in recordings(tmp_path)[:-1])

        fit(following, tmp_path, callbacks=lambda look=Look: [look()])
        assert "live" not in during, "a failed fit's recording goes on during the next fit"
        assert untouched(following)
    assert all(untouched(model) for model in failed)
    found = recordings(tmp_path)
    assert [one.status for one in found] == ["interrupted", "ended"] * 2
    assert [len(one.steps["step"]) for one in found] == [0, 12] * 2
    assert all((one.steps["input_wait_ns"] >= 0).all() for one in found)
