"""Advice executed, slow input and callbacks: the printed code is run, the finding goes, the promise is kept.

The code runs as it was printed, with the user's own names around it (`ds`, `decode`, `model`, …;
see `advised.py`). Times are made by waiting, not by computing, wherever the cause allows: what two
busy cores decide is no truth. What GPUs do is executed over the stand-in driver in `test_advice_gpus`, a
PyDataset's workers in `tests/trying`. The code of other remedies is read, or run, in
`tests/diagnosis`; `gauntlet`, whose programs train as they are and with the printed cure, measures whether
the gain is what was promised.
"""

import time

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from advised import Given, apply, assert_kept, only  # noqa: E402
from timed_fit import Timed, batches, fit, labelled, slowly  # noqa: E402

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


def test_a_callback_after_every_batch_works_every_hundredth(tmp_path):
    class Watcher(keras.callbacks.Callback):
        code = "..."

        def on_train_batch_end(self, batch, logs=None):
            apply(self.code, work=lambda: time.sleep(0.014), batch=batch)

    before = fit(tmp_path / "before", Timed(10), labelled(70), callbacks=[Watcher()])
    span = only(before, "host_stall")
    assert span["title"] == "Watcher stalls training"
    assert (span["start_step"], span["end_step"]) == (0, 70)
    Watcher.code = span["advice"]["code"]
    after = fit(tmp_path / "after", Timed(10), labelled(70), callbacks=[Watcher()])
    assert_kept(before, after, "host_stall")


@pytest.mark.slow
@pytest.mark.parametrize("freq, each", [("batch", True), (50, False)])
def test_tensorboard_makes_no_summaries_between_epochs(tmp_path, freq, each, monkeypatch):
    make = tf.summary.scalar

    def slow(name, data, **kwargs):  # as with many metrics
        time.sleep(0.012)
        return make(name, data, **kwargs)

    monkeypatch.setattr(tf.summary, "scalar", slow)
    given = {"update_freq": freq, "write_steps_per_second": each}
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"), **given)
    before = fit(tmp_path / "before", Timed(16), labelled(120), callbacks=[board])
    span = only(before, "host_stall")
    assert span["title"] == "TensorBoard stalls training"
    *made, used = span["advice"]["code"].splitlines()
    once = apply("\n".join(made), keras=keras)["OncePerEpoch"]
    [quiet] = apply(used, OncePerEpoch=Given(once, board.log_dir, **given))["callbacks"]
    after = fit(tmp_path / "after", Timed(16), labelled(120), callbacks=[quiet])
    assert_kept(before, after, "host_stall")
