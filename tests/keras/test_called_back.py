"""Python that TensorFlow's compiled steps call: told from the input's, and what it is given."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from gpu_util_callback.backends.tensorflow.runtime import RUNTIME

ROWS = np.ones((8, 4), np.float32)


def prepared(row):
    return row + 1


def distances(targets):
    return np.abs(targets)


def sizes(drawn):  # of no other model, whose traces may be there still
    return np.abs(drawn)


class Metric(keras.metrics.Mean):
    def update_state(self, targets, guesses, sample_weight=None):
        return super().update_state(tf.reduce_mean(tf.py_function(prepared, [guesses], tf.float32)))


class Layer(keras.layers.Layer):
    def call(self, rows):
        drawn = tf.random.uniform((4, 4))
        return rows + tf.ensure_shape(tf.numpy_function(sizes, [drawn], tf.float32), (4, 4))


class Kept:
    def __call__(self, targets):
        return targets


def loss_with(function):
    def loss(targets, guesses):
        far = tf.numpy_function(function, [2 * targets], tf.float32)
        return tf.reduce_mean((targets - guesses) ** 2 + far)

    return loss


def called(code, loss="mse", metrics=(), layers=()):
    data = tf.data.Dataset.from_tensor_slices((ROWS, ROWS)).map(
        lambda x, y: (tf.ensure_shape(tf.numpy_function(prepared, [x], tf.float32), (4,)), y)
    )
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    model.compile("sgd", loss, metrics=list(metrics), jit_compile=False)
    model.fit(data.batch(4, drop_remainder=True), verbose=0)
    return RUNTIME.called_back(code)


@pytest.mark.parametrize("function", [distances, Kept()], ids=["function", "object"])
def test_a_loss_gives_it_the_batch_alone(function):
    code = getattr(function, "__code__", Kept.__call__.__code__)
    found = called(code, loss_with(function))
    assert found.through == "tf.numpy_function" and found.of_batch is True


def test_a_metric_gives_it_what_the_model_computes():
    found = called(prepared.__code__, metrics=[Metric()])
    assert found.through == "tf.py_function" and found.of_batch is False


def test_what_it_draws_is_not_the_batchs():
    assert called(sizes.__code__, layers=[Layer()]).of_batch is False


def test_a_function_of_the_input_is_no_steps():
    keras.backend.clear_session()

    def of_input(row):
        return row

    data = tf.data.Dataset.from_tensor_slices(ROWS).map(lambda row: tf.numpy_function(of_input, [row], tf.float32))
    assert len(list(data)) == 8
    assert RUNTIME.called_back(of_input.__code__) is None
