"""Keras from 3.16 on fetches a batch in Python, beside the compiled step: waits and compilations are timed there."""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf
from injected_fit import recorded_fit


class FetchesInPython(keras.Sequential):
    """Takes each batch out of an optional before it calls the compiled function."""

    def make_train_function(self, force=False):
        if self.train_function is None or force:
            self.train_function = self._fetching(self.train_step)

    def make_test_function(self, force=False):
        if self.test_function is None or force:
            self.test_function = self._fetching(self.test_step)

    def _fetching(self, step):
        @tf.function(jit_compile=self.jit_compile, reduce_retracing=True)
        def one_step_on_data(batch):
            return step(batch)

        def function(iterator):
            following = iterator.get_next_as_optional()
            if not following.has_value():
                raise StopIteration
            return one_step_on_data(following.get_value())

        return function


def batches(count, slow_ms=0.0):
    def read():
        for _ in range(count):
            time.sleep(slow_ms / 1e3)
            yield np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    signature = (tf.TensorSpec((4, 3), tf.float32), tf.TensorSpec((4, 1), tf.float32))
    return tf.data.Dataset.from_generator(read, output_signature=signature)


def dense(**options):
    model = FetchesInPython([keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def compiling(recording):
    return np.flatnonzero(recording.steps["compile_ns"] > 0).tolist()


def test_waits_and_compilations_are_there_in_each_fit(tmp_path):
    model, slow = dense(jit_compile=False), batches(12, slow_ms=8)
    first = recorded_fit(model, tmp_path / "logs", x=slow, validation_data=batches(3, slow_ms=8))
    assert len(first.steps["step"]) == 12, "the fetch that finds the end is no step"
    for steps in (first.steps, first.validation_steps):
        assert (steps["input_wait_ns"] >= 0).all()
        assert steps["input_wait_ns"].sum() > 4e6 * len(steps["input_wait_ns"])
    assert compiling(first) == [0]
    again = recorded_fit(model, tmp_path / "logs", x=slow)
    assert compiling(again) == []
    assert [u for u in again.facts["unavailable"] if "input" in u["source"]] == []


def test_a_function_made_anew_compiles_again(tmp_path):
    class Remake(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.make_train_function(force=True)

    recording = recorded_fit(dense(jit_compile=False), tmp_path, x=batches(5), epochs=3, callbacks=[Remake()])
    assert compiling(recording) == [0, 5]


def test_new_shapes_under_xla_compile(tmp_path):
    lengths = [10] * 8 + [11] * 3 + [13] * 2 + [11]
    model = FetchesInPython([keras.layers.Embedding(20, 8), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    data = tf.data.Dataset.from_generator(
        lambda: ((np.zeros((4, n), np.int32), np.zeros((4, 1), np.float32)) for n in lengths),
        output_signature=(tf.TensorSpec((4, None), tf.int32), tf.TensorSpec((4, 1), tf.float32)),
    )
    recording = recorded_fit(model, tmp_path, x=data)
    assert compiling(recording) == [0, 8, 11]
    ids = {n: i for i, n in enumerate(dict.fromkeys(lengths))}
    assert recording.steps["shape_id"].tolist() == [ids[n] for n in lengths]


def test_the_training_is_the_same_bits(tmp_path):
    def trained(log_dir):
        keras.utils.set_random_seed(3)
        model = dense()
        data = tf.data.Dataset.from_tensor_slices((np.eye(9, 3, dtype="float32"), np.arange(9.0)[:, None]))
        data = data.batch(2).filter(lambda *_: True)
        if log_dir is not None:
            recorded_fit(model, log_dir, x=data, epochs=2)
        else:
            model.fit(data, epochs=2, verbose=0)
        return [np.asarray(value).tobytes() for value in (*model.weights, *model.optimizer.variables)]

    assert trained(tmp_path) == trained(None)
