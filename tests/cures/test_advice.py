"""Advice executed, slow input: the printed code is run, the finding goes, the promise is kept.

The code runs as it was printed, with the user's own names around it (`ds`, `decode`, `model`, …;
see `advised.py`). Times are made by waiting, not by computing, wherever the cause allows: what two
busy cores decide is no truth. Stalls are executed in `test_advice_stalls`, what GPUs do over the
stand-in driver in `test_advice_gpus`, a PyDataset's workers in `test_promise_and_ceilings`. Of all other
remedies `tests/diagnosis` runs the printed code, and `gauntlet`, whose 79 programs train as they are and
with the printed cure, measures whether the gain is what was promised.
"""

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from advised import apply, assert_kept, only  # noqa: E402
from timed_fit import Timed, batches, fit, slowly  # noqa: E402

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("fresh_keras")]

STEPS = 20


def python_function(x):
    return slowly(60)(x)


def test_a_stage_that_waits_gets_threads(tmp_path):
    source = batches(STEPS)
    before = fit(tmp_path / "before", Timed(20), source.map(python_function))
    span = only(before, "input_bound")
    assert span["evidence"]["slowest_stage"] == "map(python_function)"
    assert "mostly waits" in span["advice"]["text"]
    names = apply(span["advice"]["code"], tf=tf, ds=source, python_function=python_function)
    assert_kept(before, fit(tmp_path / "after", Timed(20), names["ds"]), "input_bound")


@pytest.mark.slow
def test_autotuning_is_switched_on_again(tmp_path):
    options = tf.data.Options()
    options.autotune.enabled = False
    ds = batches(30).map(slowly(80)).with_options(options)
    before = fit(tmp_path / "before", Timed(120), ds)
    span = only(before, "input_bound")
    assert "autotuning is switched off" in span["advice"]["text"]
    names = apply(span["advice"]["code"], tf=tf, ds=ds)
    assert_kept(before, fit(tmp_path / "after", Timed(120), names["ds"]), "input_bound")


def open_file(name):
    """Three batches, each of which takes a while to arrive."""
    from tensorflow.python.data.experimental.ops import testing

    return batches(3).apply(testing.sleep(75_000))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["interleave", "flat_map"])
def test_files_are_read_several_at_a_time(tmp_path, way):
    files = tf.data.Dataset.range(20)  # many, as users have: the last one is read alone
    labelled = lambda x: (x, x[:, :1])  # noqa: E731
    before = fit(tmp_path / "before", Timed(30), getattr(files, way)(open_file).map(labelled))
    span = only(before, "input_bound")
    assert "one file at a time" in span["advice"]["text"]
    names = apply(span["advice"]["code"], tf=tf, files=files, open_file=open_file)
    after = fit(tmp_path / "after", Timed(30), names["ds"].map(labelled))
    assert_kept(before, after, "input_bound")


@pytest.mark.slow
def test_a_cheap_function_works_on_whole_batches(tmp_path):
    def scale(x):
        x = tf.cast(x, tf.float32) / 255.0 - 0.5
        return x, x[..., :1]

    elements = tf.data.Dataset.from_tensors(tf.ones((8,))).repeat(30 * 4096)
    before = fit(tmp_path / "before", Timed(25), elements.map(scale).batch(4096))
    span = only(before, "input_bound")
    assert "work on whole batches" in span["advice"]["text"]
    # Of elements that come one by one nobody knows how many make a batch: the name is the user's.
    names = apply(span["advice"]["code"], tf=tf, ds=elements, scale=scale, batch_size=4096)
    assert_kept(before, fit(tmp_path / "after", Timed(25), names["ds"]), "input_bound")
