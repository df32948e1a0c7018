"""Behaviour of others that our numbers rest on and that no other test would miss: rows of `docs/relied-on.md`."""

import re
import threading

import keras
import numpy as np
import pynvml
import pytest
import tensorflow as tf

from gpu_util_callback.gpus._reader import REASON_COLUMNS

X, Y = np.arange(20, dtype="float32").reshape(20, 1), np.zeros((20, 1), "float32")


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    return model


class Hooks(keras.callbacks.Callback):
    """Notes each hook's name, its number and whether it is called on the thread of `fit`."""

    def __init__(self):
        super().__init__()
        self.seen, self.threads = [], set()

    def __getattribute__(self, name):
        if not re.fullmatch(r"on_(epoch|(train|test)(_batch)?)_(begin|end)", name):
            return super().__getattribute__(name)

        def hook(*given, logs=None):
            self.threads.add(threading.get_ident())
            self.seen.append((name.removeprefix("on_"), *(number for number in given if isinstance(number, int))))

        return hook


def test_hooks_of_a_fit_have_this_order_these_numbers_and_one_thread():
    hooks, batches = Hooks(), [(f"train_batch_{end}", batch) for batch in range(2) for end in ("begin", "end")]
    validation = ["test_begin", ("test_batch_begin", 0), ("test_batch_end", 0), "test_end"]
    compiled().fit(X, Y, batch_size=10, epochs=2, verbose=0, callbacks=[hooks], validation_data=(X[:4], Y[:4]))
    expected = ["train_begin"]
    for epoch in range(2):
        expected += [("epoch_begin", epoch), *batches, *validation, ("epoch_end", epoch)]
    assert hooks.seen == [hook if isinstance(hook, tuple) else (hook,) for hook in [*expected, "train_end"]]
    assert hooks.threads == {threading.get_ident()}


def test_a_data_set_of_unknown_length_begins_a_batch_more_and_counts_an_iteration_more():
    hooks, model = Hooks(), compiled()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).filter(lambda *_: True)
    model.fit(data, verbose=0, callbacks=[hooks])
    names = [hook[0] for hook in hooks.seen]
    assert (names.count("train_batch_begin"), names.count("train_batch_end")) == (11, 10)
    assert int(model.optimizer.iterations) == 11


@pytest.mark.parametrize("steps, scored", [(4, 4), (14, 10)])
def test_each_validation_begins_at_the_first_batch(steps, scored):
    given = {"validation_data": (X, Y), "validation_batch_size": 2, "validation_steps": steps}
    losses = compiled().fit(X[:4], Y[:4], epochs=3, verbose=0, **given).history["val_loss"]
    assert losses == pytest.approx([X[: 2 * scored].mean()] * 3)


def test_by_itself_nothing_is_compiled_by_xla_on_a_cpu():
    assert tf.config.list_physical_devices("GPU") == []
    assert compiled().jit_compile is False


def test_the_binding_has_no_newer_names_for_two_reasons_of_low_clocks():
    names = [name for name in vars(pynvml) if re.match(r"nvmlClocksEventReason[A-Z]", name)]
    assert set(REASON_COLUMNS) - {getattr(pynvml, name) for name in names} == {0x200, 0x400}


def test_shuffle_with_repeat_right_behind_it_fills_its_buffer_once_and_keeps_epochs_apart():
    """What the remedy for a buffer that fills in each epoch promises."""
    read, before, bursts, taken = [], 0, [], []

    def elements():
        for number in range(60):
            read.append(number)
            yield number

    data = tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec((), tf.int64))
    for value in data.shuffle(40).repeat(3):
        if len(read) - before > 20:
            bursts.append(len(taken))
        before = len(read)
        taken.append(int(value))
    assert bursts == [0]
    assert [sorted(taken[epoch : epoch + 60]) for epoch in (0, 60, 120)] == [list(range(60))] * 3
