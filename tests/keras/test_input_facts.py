"""What a recording says of the input that a fit or a loop was given."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from gpu_util_callback.frameworks.inputs import describe_fit, describe_input
from gpu_util_callback.frameworks.keras_fit import calling_fit

BATCH = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)


class Made(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return BATCH


def make_batches():
    while True:
        yield BATCH


class Describe(keras.callbacks.Callback):
    facts: dict | None = None

    def on_train_begin(self, logs=None):
        self.facts = {
            backend: describe_fit(calling_fit(), backend) for backend in ("tensorflow", "jax")
        }


def described(**given) -> dict:
    """The facts of a real fit, as its backend's and as if it were JAX."""
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = Describe()
    model.fit(**given, steps_per_epoch=2, verbose=0, callbacks=[callback])
    return callback.facts


def test_arrays():
    x, y = np.ones((16, 4), np.float32), np.ones((16, 1), np.float32)
    found = described(x=x, y=y, batch_size=8)
    assert found["tensorflow"] == found["jax"] == {"input_kind": "numpy", "batch_size": 8}


def test_tf_data():
    dataset = tf.data.Dataset.from_tensors(BATCH).repeat()
    assert described(x=dataset)["jax"] == {
        "input_kind": "tf.data", "batch_size": 8, "input_autotune": True,
    }  # fmt: skip
    assert describe_input(dataset)["input_kind"] == "tf.data"


def test_a_generator_is_named_and_works_ahead_only_under_tf_data():
    found = described(x=make_batches())
    assert found["jax"]["input_kind"] == found["tensorflow"]["input_kind"] == "generator"
    assert found["jax"]["input_class"] == "make_batches"
    assert found["jax"]["input_workers"] == 0
    assert found["tensorflow"]["input_workers"] == 1
    assert found["tensorflow"]["input_processes"] is False
    assert describe_input(BATCH for _ in range(3))["input_class"] is None, "it has no name"


@pytest.mark.parametrize(
    ("given", "workers", "processes", "queue"),
    [
        ({}, 0, None, None),
        ({"workers": 1}, 0, None, None),
        ({"workers": 3, "max_queue_size": 5}, 3, False, 5),
        ({"workers": 1, "use_multiprocessing": True}, 1, True, 10),
    ],
)
def test_the_workers_of_a_pydataset(given, workers, processes, queue):
    data = Made(**given)
    found = described(x=data)["jax"]
    assert found["input_kind"] == "PyDataset" and found["input_class"] == "Made"
    assert found["input_workers"] == workers
    assert found["input_processes"] is processes
    assert found["input_queue"] == queue
    # Whether Keras starts any is Keras' to know.
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    assert (PyDatasetAdapter(data).enqueuer is not None) == (workers > 0)
    # A loop of one's own calls it itself, whatever it was told.
    assert describe_input(data)["input_workers"] == 0
    assert describe_input(data)["steps_per_epoch"] == 2


def test_what_is_not_known_is_left_out():
    assert describe_fit(None, "jax") == {"input_kind": None, "batch_size": None}
    assert describe_input([1, 2, 3]) == {
        "input_kind": "list", "steps_per_epoch": 3, "batch_size": None,
    }  # fmt: skip
