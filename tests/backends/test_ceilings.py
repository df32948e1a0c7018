"""`ceilings`: both rates, the gain that they promise, and nothing changed afterwards."""

import json
import os
import random
import time

import numpy as np
import pytest
from packages import need
from processes import shared

from gpu_util_callback import GpuUtilMonitor, ceilings, read_recordings
from gpu_util_callback.backends.copies import Preserved, independent
from gpu_util_callback.report.ceilings import Ceilings, Instead

# What a process tries on each backend: the first few, and what takes as long again.
TRIED = {
    "tensorflow": ("tfdata/graph", "-/loop", "dataset/callback"),
    "jax": ("dataset/compiled", "-/loop"),
    "torch": ("loader/eager", "-/loop"),
}
SLOW = {"tensorflow": ("arrays/compiled",), "jax": ("dataset/callback",), "torch": ("loader/callback",)}
INPUT_S = 0.02


@pytest.fixture(params=[*TRIED, *(pytest.param(f"{name} slow", marks=pytest.mark.slow) for name in SLOW)])
def found(request):
    """What a backend's program found, by input and mode."""
    backend, _, slow = request.param.partition(" ")
    need("keras", backend)
    return backend, shared("ceilings_program.py", *(SLOW if slow else TRIED)[backend], KERAS_BACKEND=backend)


def test_nothing_has_changed_and_the_next_training_is_the_same(found):
    """Nor after Ctrl+C in the middle, nor after what a callback measures before its fit."""
    for name, one in found[1].items():
        if "loop" not in name:
            assert one["with"] == one["without"], f"{name}: losses and weights, bit for bit"
        if "callback" not in name:  # of a loop, donated arrays come back
            assert one["changed"] == [], name
            assert one.get("interrupted", True), name


@pytest.mark.real_clock("a rate of real waits")
def test_stamped_delays_bound_the_rates(found):
    """Of a model, and of a loop, whose modules, optimizer, closure and generators are found."""
    backend, cases = found
    for name, one in cases.items():
        if name != "arrays/compiled":
            assert 0.4 / INPUT_S < one["result"]["input_per_s"] <= 1.05 / INPUT_S, "a busy machine only lowers it"
        assert one["result"]["batch_size"] == 8 and one["result"]["framework"] == backend
        assert one.get("reported", one["result"]) == one["result"]


def sleeping(seconds):
    import time

    def step(batch):
        time.sleep(seconds)

    return step


class Slow:
    """Batches that take their time; ahead: made in a thread while the loop computes."""

    def __init__(self, seconds, ahead=False):
        self.seconds, self.ahead = seconds, ahead

    def __iter__(self):
        import queue
        import threading
        import time

        if not self.ahead:
            for at in range(10_000):
                time.sleep(self.seconds)
                yield at
            return
        ready = queue.Queue(4)
        stopped = threading.Event()

        def make():
            for at in range(10_000):
                time.sleep(self.seconds)
                while not stopped.is_set():
                    try:
                        ready.put(at, timeout=0.1)
                        break
                    except queue.Full:
                        continue
                if stopped.is_set():
                    return

        threading.Thread(target=make, daemon=True).start()
        try:
            while True:
                yield ready.get()
        finally:
            stopped.set()


@pytest.mark.timed
@pytest.mark.parametrize(("input_s", "step_s", "which"), [(0.03, 0.012, "input"), (0.012, 0.03, "model")])
def test_both_rates_of_stamped_delays_and_the_gain_that_is_promised(input_s, step_s, which):
    """Within 5 %; and once the input is made ahead, training is as fast as was promised."""
    before = ceilings(step=sleeping(step_s), data=Slow(input_s), seconds=0.9, progress=False)
    assert before.input_per_s == pytest.approx(1 / input_s, rel=0.05)
    assert before.model_per_s == pytest.approx(1 / step_s, rel=0.05)
    assert before.together_per_s == pytest.approx(1 / (input_s + step_s), rel=0.05)
    assert before.ceiling == which
    ahead = Slow(input_s, ahead=True)
    after = ceilings(step=sleeping(step_s), data=ahead, seconds=0.9, progress=False)
    got = after.together_per_s / before.together_per_s
    assert got == pytest.approx(before.overlap_gain, rel=0.08)


def test_what_it_says():
    slow = Ceilings(412.4, 1020, 290, 32, 10.0, "jax")
    assert str(slow).splitlines() == [
        "The input is the ceiling: a perfect one makes training up to 3.5× faster; made while the "
        "model computes, 1.4×.",
        "  input alone: 412 batches/s, 13,197 samples/s",
        "  model alone: 1,020 batches/s, 32,640 samples/s",
        "  both, as now: 290 batches/s, 9,280 samples/s",
    ]
    assert "<b>The input is the ceiling" in slow._repr_html_()
    assert slow.to_dict()["input_gain"] == pytest.approx(3.5172)
    fine = Ceilings(1000, 100, 99)
    assert str(fine).startswith("The model is the ceiling: a perfect input would gain 1 % at most.")
    turns = Ceilings(100, 50, 33)
    assert str(turns).startswith("The input takes time from the model: made while")
    json.dumps(fine.to_dict())


class Cached:
    """Batches that take their time in the first pass of a copy, and none later."""

    def __init__(self, seconds):
        self.seconds, self.kept = seconds, []

    def __iter__(self):
        if not self.kept:
            for at in range(10):
                time.sleep(self.seconds)
                yield at
            self.kept.append(1)
        yield from range(10)


@pytest.mark.timed
def test_another_input_is_measured_with_its_caches_full(tmp_path):
    cached = Cached(0.02)
    found = ceilings(step=sleeping(0.01), data=Slow(0.02), instead=cached, seconds=0.6, progress=False)
    least, most = found.instead_gains
    assert 2.4 < least <= most < 3.2, "30 ms a step without it, 10 with it"
    assert not cached.kept, "a copy of it was read"
    assert found.instead.passed and "The other input makes training" in str(found)
    with GpuUtilMonitor(str(tmp_path), ceilings=found, report=False) as monitor, monitor.step():
        pass
    (kept,) = read_recordings(str(tmp_path))
    assert kept.facts["ceilings"]["instead"]["gain"] == [round(least, 4), round(most, 4)]
    assert not kept.problems


@pytest.mark.parametrize(
    ("rates", "passed", "sentence"),
    [
        ((28.0, 30.0), True, "The other input makes training 2.8 to 3× faster."),
        ((5.0, 5.0), True, "The other input makes training 2× slower."),
        ((9.0, 14.0), True, "no clear difference: 0.90 to 1.40 times as fast"),
        ((20.0, 20.0), False, "Its first pass was not over: a cache would show only after it."),
    ],
)
def test_a_difference_is_claimed_only_where_every_turn_shows_it(rates, passed, sentence):
    found = Ceilings(10, 50, 10, instead=Instead(40.0, rates, (10.0, 10.0), None, passed))
    assert sentence in str(found).splitlines()[-1]
    assert "the other input and the model" in found._repr_html_()


def test_batches_of_another_size_are_compared_by_their_samples():
    found = Ceilings(10, 50, 10, 32, instead=Instead(5.0, (5.0, 5.0), (10.0, 10.0), 64, True))
    assert found.instead_gains == (1.0, 1.0)


def test_a_generator_is_left_alone():
    batches = iter(range(5))
    with pytest.raises(ValueError, match=r"can be iterated over only once.*lambda"):
        ceilings(step=print, data=batches, seconds=1, progress=False)
    made = (one for one in [1, 2])
    with pytest.raises(ValueError, match="a generator can be iterated over only once"):
        ceilings(step=print, data=made, seconds=1, progress=False)
    assert (list(batches), list(made)) == ([0, 1, 2, 3, 4], [1, 2])


def test_a_function_makes_fresh_data_and_short_data_are_enough():
    calls = []

    def make():
        calls.append(1)
        return iter([np.zeros((4, 2))])

    found = ceilings(step=lambda batch: None, data=make, seconds=0.2, progress=False)
    assert found.batch_size == 4 and len(calls) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "data is missing"),
        ({"data": [1]}, "either a Keras model or step="),
        ({"data": [1], "step": print, "seconds": 0}, "seconds must be above 0"),
        ({"data": [], "step": print}, "the data have no batch"),
    ],
)
def test_arguments_that_cannot_be_measured(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ceilings(progress=False, **arguments)


def test_an_error_of_the_step_passes_and_state_is_put_back(capsys):
    held = {"a": [1, 2], "b": np.arange(3.0)}
    rng = np.random.default_rng(4)
    before, drawn = random.getstate(), rng.bit_generator.state["state"]["state"]

    def step(batch):
        held["a"].append(batch)
        held["b"] += 1
        held["c"] = rng.random() + random.random()
        raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        ceilings(step=step, data=[1, 2, 3], seconds=0.2)
    assert held["a"] == [1, 2] and "c" not in held
    np.testing.assert_array_equal(held["b"], [0, 1, 2])
    assert rng.bit_generator.state["state"]["state"] == drawn
    assert random.getstate() == before
    assert capsys.readouterr().err.startswith("\rgpu-util: measuring the input alone")


def test_tf_data_is_copied_with_what_it_shares(tmp_path):
    tf = pytest.importorskip("tensorflow")
    tf.random.set_seed(1)

    def make():
        tf.random.set_seed(1)
        return tf.data.Dataset.range(12).shuffle(12, seed=2).cache(str(tmp_path / "cache")).batch(4)

    counter = tf.Variable(0, dtype=tf.int64)
    counted = make().map(lambda x: x + counter.assign_add(1))
    plain, used = make(), make()
    copy = independent(used)
    assert len(list(copy)) == len(list(copy)) == 3
    assert not list(tmp_path.iterdir()), "nothing is written for a trial"
    assert [x.numpy().tolist() for x in used] == [x.numpy().tolist() for x in plain]
    list(independent(counted))
    assert counter.numpy() == 0


def test_tf_data_with_an_eager_python_function_is_copied():
    tf = pytest.importorskip("tensorflow")
    seen = []

    def load(index):
        seen.append(int(index))
        return tf.fill((2,), tf.cast(index, tf.float32))

    def mapped(index):
        x = tf.py_function(load, [index], tf.float32)
        return tf.ensure_shape(x, (2,))

    data = tf.data.Dataset.range(3).map(mapped)
    assert [x.numpy().tolist() for x in independent(data)] == [[0, 0], [1, 1], [2, 2]]
    assert seen == [0, 1, 2]
    found = ceilings(step=lambda batch: None, data=data, seconds=0.2, progress=False)
    assert found.input_per_s > 0


def drawn_by_tensorflow(measure):
    """What TensorFlow draws after `measure` was given a step and a dataset that draw, too."""
    import tensorflow as tf

    tf.random.set_seed(1)
    tf.random.set_global_generator(tf.random.Generator.from_seed(4))
    traced, untraced = (tf.function(lambda: tf.random.normal((2,))) for _ in range(2))

    def draw():
        seeded = tf.random.normal((2,), seed=5)  # keeps its state in a kernel, by the seed
        plain, own = tf.random.normal((2,)), tf.random.get_global_generator().normal((2,))
        return [one.numpy().tolist() for one in (seeded, plain, own, traced())]

    data = tf.data.Dataset.range(6).shuffle(6).map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform(()))
    under_way = iter(data)
    begun = [draw(), next(under_way).numpy()]
    measure(lambda batch: (draw(), untraced()), data)
    return [begun, draw(), draw(), untraced().numpy().tolist()] + [
        [one.numpy() for one in each] for each in (under_way, data, data)
    ]


def test_eager_tensorflow_draws_on_as_if_nothing_had_been():
    pytest.importorskip("tensorflow")

    def measure(step, data):
        ceilings(step=step, data=data, seconds=0.3, progress=False)

    assert drawn_by_tensorflow(measure) == drawn_by_tensorflow(lambda step, data: None)


def trained_eagerly(measure):
    """Losses and weights of a fit that goes on, step by step in Python, after `measure`."""
    import keras
    import tensorflow as tf

    class Noisy(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.dropout = keras.layers.Dense(1), keras.layers.Dropout(0.5)

        def call(self, x, training=False):
            noise = tf.random.normal(tf.shape(x)) + tf.random.normal(tf.shape(x), seed=3)
            return self.dense(self.dropout(x + noise, training=training))

    keras.utils.set_random_seed(1)
    data = tf.data.Dataset.range(24).shuffle(24).batch(4)
    data = data.map(lambda x: (tf.random.uniform((4, 3)), tf.cast(x, tf.float32)[:, None]))
    model = Noisy()
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(data, verbose=0)
    measure(model, data)
    after = model.fit(data, epochs=2, verbose=0)
    return after.history["loss"], [one.tolist() for one in model.get_weights()]


@pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow", reason="TF's")
def test_an_eager_fit_goes_on_as_if_nothing_had_been():
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")

    def measure(model, data):
        ceilings(model, data, instead=data.prefetch(1), seconds=0.3, progress=False)

    assert trained_eagerly(measure) == trained_eagerly(lambda model, data: None)


def test_preserved_puts_back_what_python_code_changed():
    class Own:
        def __init__(self):
            self.count, self.items, self.rng = 0, [1], random.Random(3)

    one = Own()
    expected = random.Random(3).random()
    with Preserved() as preserved:
        preserved.state(one)
        one.count, one.more = 5, True
        one.items.append(2)
        one.rng.random()
    assert (one.count, one.items, hasattr(one, "more")) == (0, [1], False)
    assert one.rng.random() == expected
