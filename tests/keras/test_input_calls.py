"""Wall and CPU time of the Python functions that make an input, against functions that know."""

from __future__ import annotations

import functools
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import script_ops

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.backends.input_calls import TIMED, InputCalls, _TimedDataset

ROWS = np.ones((4, 8), np.float32), np.ones((4, 1), np.float32)
CALLS = 40
SPENT: list[tuple[float, float]] = []  # what each call really took: wall and CPU, in ms


def sleeps(index):
    return _measured(lambda: time.sleep(0.003))


def spins(index):
    def spin():
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass

    return _measured(spin)


def _measured(work):
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    SPENT.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.thread_time() - cpu)))
    return ROWS


class Batches(keras.utils.PyDataset):
    def __init__(self, make, **kwargs):
        super().__init__(**kwargs)
        self.make = make

    def __len__(self):
        return CALLS

    def __getitem__(self, index):
        return self.make(index)


class Loaded:
    def __call__(self, index):
        return sleeps(index)


def made_by(make):
    for index in range(CALLS):
        yield make(index)


def mapped(make, call):
    def load(index):
        x, y = call(make, [index], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (4, 8)), tf.ensure_shape(y, (4, 1))

    return tf.data.Dataset.range(CALLS).map(load)


def from_generator(make):
    signature = tf.TensorSpec((4, 8)), tf.TensorSpec((4, 1))
    generator = functools.partial(made_by, make)
    return tf.data.Dataset.from_generator(generator, output_signature=signature)


def loaded_by_torch(make):
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return CALLS

        def __getitem__(self, index):
            return tuple(map(torch.from_numpy, make(index)))

    return torch.utils.data.DataLoader(Rows(), batch_size=None)


INPUTS = {
    "numpy_function": (lambda make: mapped(make, tf.numpy_function), None),
    "py_function": (lambda make: mapped(make, tf.py_function), None),
    "from_generator": (from_generator, "made_by"),
    "generator": (made_by, "made_by"),
    "PyDataset": (Batches, "Batches.__getitem__"),
    "PyDataset with threads": (functools.partial(Batches, workers=2), "Batches.__getitem__"),
    "DataLoader": (loaded_by_torch, "Rows.__getitem__"),
}


@functools.cache
def model() -> keras.Model:
    """One model for all tests, since none is about it: its functions are traced once."""
    made = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def recorded(folder, given, **arguments):
    callback = GpuUtilCallback(folder, report=False, trace="off")
    model().fit(given, verbose=0, callbacks=[callback], **arguments)
    return read_recordings(folder)[0].facts["fit"]


@pytest.mark.real_clock("milliseconds of functions that sleep and that compute")
@pytest.mark.parametrize("make", [sleeps, spins])
@pytest.mark.parametrize("kind", list(INPUTS))
def test_wall_and_cpu_of_a_call(tmp_path, kind, make):
    given, name = INPUTS[kind]
    given = given(make)
    SPENT.clear()
    [entry] = (one for one in recorded(tmp_path, given)["input_calls"] if one.get("timed"))  # not a loader's parts
    assert entry["name"] == (name or make.__name__)
    spent = SPENT[len(SPENT) - CALLS + 2 * (kind == "generator") :]  # Keras looks at some before
    assert entry["calls"] == pytest.approx(len(spent), abs=1)  # the end of a generator is a call
    calls = range(1, len(spent) + 1)
    timed = {number: 1 if number <= 16 else 16 for number in calls if number <= 16 or number in TIMED}
    assert entry["timed"] == len(timed)
    truth = [spent[number - 1] for number in timed]
    wall, cpu = np.average(truth, axis=0, weights=list(timed.values()))
    assert entry["wall_ms"] == pytest.approx(wall, rel=0.35, abs=0.5)
    assert entry["cpu_ms"] == pytest.approx(cpu, abs=0.5)
    assert (entry["cpu_ms"] < 1) if make is sleeps else (entry["cpu_ms"] > 2.9)
    # Whatever else this machine does: who waits for a core does not wait for files.
    rest = entry["wall_ms"] - entry["queued_ms"]
    if make is sleeps:
        assert entry["cpu_ms"] < 0.4 * rest
    elif kind != "PyDataset with threads":  # two that compute wait for each other's Python lock
        assert entry["cpu_ms"] > 0.7 * rest


def test_everything_is_as_before_after_the_fit(tmp_path):
    entries = script_ops._py_funcs._funcs
    data = mapped(sleeps, tf.numpy_function).concatenate(mapped(sleeps, tf.py_function))
    before = {token: (entry, vars(entry).get("_func")) for token, entry in entries.items()}
    recorded(tmp_path, data)
    after = {token: (entry, vars(entry).get("_func")) for token, entry in entries.items()}
    assert before.items() <= after.items()
    assert list(data.take(1))


def test_an_object_that_is_called_and_functions_of_one_name(tmp_path):
    def other():
        def sleeps(index):
            return ROWS

        return sleeps

    data = mapped(Loaded(), tf.numpy_function)
    for make in (sleeps, other()):
        data = data.concatenate(mapped(make, tf.numpy_function))
    calls = recorded(tmp_path, data)["input_calls"]
    assert {(one["name"], one["calls"]) for one in calls} == {("Loaded.__call__", CALLS), ("sleeps", CALLS)}
    assert len(calls) == 3


def test_items_that_are_made_in_processes_are_sampled_and_not_timed(tmp_path):
    made, begins = sys.modules[keras.utils.PyDataset.__module__], []
    begin = made.init_pool_generator
    data = Batches(sleeps, workers=1, use_multiprocessing=True)
    noted = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: begins.append(made.init_pool_generator))
    callbacks = [GpuUtilCallback(tmp_path, report=False, trace="off"), noted]
    model().fit(data, verbose=0, callbacks=callbacks)
    entries = read_recordings(tmp_path)[0].facts["fit"].get("input_calls", [])
    assert {entry["name"] for entry in entries} <= {"Batches.__getitem__", "OrderedEnqueuer.get"}
    assert not any("timed" in entry for entry in entries)
    assert begins[0] is not begin and begins[0].args[0] is begin, "workers begin by ours, and then theirs"
    assert made.init_pool_generator is begin


def test_arrays_and_graphs_call_no_python(tmp_path):
    assert "input_calls" not in recorded(tmp_path / "arrays", np.ones((160, 8)), y=np.ones((160, 1)))
    data = tf.data.Dataset.from_tensors(ROWS).repeat(CALLS)
    assert "input_calls" not in recorded(tmp_path / "graph", data)


class Items:
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.make(index)


def drawn(index):
    x = np.full((8, 8), index, np.float32)
    x[1:-1, 1:-1] += np.random.random(())  # what lies at the corners stays
    return x, np.int64(index)


@pytest.mark.parametrize(
    ("make", "repeats"),
    [
        (lambda index: (np.full((8, 8), index, np.float32), index % 10), True),
        (lambda index: {"text": f"sample {index}", "label": index % 10}, True),
        (drawn, False),
        (lambda index: object(), None),
    ],
    ids=["arrays", "texts", "random", "objects"],
)
@pytest.mark.parametrize("passes", [1, 2])
def test_whether_items_are_the_same_when_they_are_asked_for_again(make, repeats, passes):
    calls = InputCalls()
    calls.begin()
    timed = _TimedDataset(Items(make), calls)
    for _ in range(passes):
        for index in np.random.permutation(64).tolist():
            timed[index]
    assert calls.repetition.repeats is (repeats if passes > 1 else None)
    assert calls.repetition.open == (passes == 1 and repeats is not None), "and no more are compared"
