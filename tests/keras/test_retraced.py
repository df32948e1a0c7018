"""What is new in the traces of a `tf.function` that is traced again and again."""

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from gpu_util_callback.backends.tensorflow.runtime import RUNTIME


@pytest.fixture(autouse=True)
def _functions_of_this_test(monkeypatch):
    """Hide those that other tests of this process have left."""
    everything = context.Context.list_function_names
    before = everything(context.context())
    monkeypatch.setattr(context.Context, "list_function_names", lambda self: everything(self) - before)


@tf.function
def scaled(x, factor):
    return tf.reduce_sum(x) * factor


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ([(tf.ones((4, 5)), 1.0 + number) for number in range(4)], True),
        ([(tf.ones((4 + number, 5)), 7.0) for number in range(4)], False),
        ([(tf.ones((4, 5), dtype), 8.0) for dtype in (tf.float16, tf.float32, tf.float64)], False),
    ],
)
def test_python_numbers_are_told_from_new_tensors(arguments, same):
    for each in arguments:
        scaled(*each)
    assert RUNTIME.retraced() == {"function": "scaled", "traces": len(arguments), "same_tensors": same}


def test_what_xla_compiles_for_each_shape_is_not_named_for_its_traces():
    @tf.function(jit_compile=True)
    def compiled(x, factor):
        return tf.reduce_sum(x) * factor

    for size in range(4):
        compiled(tf.ones((4 + size, 5)), 7.0)
    assert RUNTIME.retraced() is None
    for number in range(8):
        compiled(tf.ones((9, 5)), 1.0 + number)
    assert RUNTIME.retraced() == {"function": "compiled", "traces": 12, "same_tensors": True}


def test_one_trace_serves_all_shapes_with_the_line_of_the_advice():
    @tf.function(reduce_retracing=True)
    def eased(x):
        return tf.reduce_sum(x)

    for size in range(4, 30):
        eased(tf.ones((size, 5)))
    assert eased.experimental_get_tracing_count() == 2
    assert RUNTIME.retraced() is None


def test_few_traces_and_stages_of_a_pipeline_say_nothing():
    scaled(tf.ones((9, 9)), 1.0)
    for size in range(2, 7):
        assert len(list(tf.data.Dataset.range(size).map(lambda x: x + 1).batch(size))) == 1

    @tf.function
    def summed(batches):
        return next(batches)

    for size in range(2, 7):
        summed(iter(tf.data.Dataset.range(8).batch(size, drop_remainder=True)))
    assert RUNTIME.retraced() is None


def test_functions_made_are_counted():
    before = RUNTIME.counters()["functions_made"]
    for _ in range(3):
        tf.function(lambda x: x + 1)(tf.constant(1))
    assert RUNTIME.counters()["functions_made"] == before + 3


def test_a_function_that_the_program_lets_go_of_meanwhile_says_nothing(monkeypatch):
    def freed(self, name):
        raise tf.errors.NotFoundError(None, None, name)

    for number in range(4):
        scaled(tf.ones((3, 3)), 100.0 + number)
    assert RUNTIME.retraced() is not None
    monkeypatch.setattr(context.Context, "get_function_def", freed)
    assert RUNTIME.retraced() is None
