"""Every way a fit can begin, go on and end: it is recorded, and it is left as it was."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import BATCH, UNROLLED, WIDTH, Inside, Raise, compiled, ours, recordings, traced, untouched
from injected_fit import recorded_fit
from waiting import newest, wait_until

from gpu_util_callback.recorder.messages import drain

pytestmark = pytest.mark.real_clock("what came between steps within a share of the time")

X = np.zeros((BATCH * 12, WIDTH), np.float32)
Y = X[:, :1]


def fit(model, *callbacks, **arguments):
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False, **arguments}
    data = {"x": X, "y": Y} if "x" not in arguments else {}
    return model.fit(**data, callbacks=list(callbacks), **arguments)


@pytest.fixture
def model():
    return traced()


def test_another_fit_reuses_the_trace_also_after_one_without_us(tmp_path):
    model = compiled()
    fit(model, ours(tmp_path))
    function = model.train_function
    fit(model)
    fit(model, ours(tmp_path))
    assert model.train_function is function and untouched(model)
    first, second = recordings(tmp_path)
    assert (first.steps["compile_ns"] > 0).sum() == 1
    assert (second.steps["compile_ns"] > 0).sum() == 0
    assert [r.status for r in (first, second)] == ["ended", "ended"]
    assert [r.facts["fit_index"] for r in (first, second)] == [0, 1]
    assert [len(r.steps["step"]) for r in (first, second)] == [12, 12]
    assert (second.steps["input_wait_ns"] >= 0).all()


def test_steps_per_epoch_over_an_endless_dataset(model, tmp_path):
    dataset = tf.data.Dataset.from_tensors((X[:BATCH], Y[:BATCH])).repeat()
    recording = recorded_fit(model, tmp_path / "logs", x=dataset, steps_per_epoch=7, epochs=3)
    assert recording.steps["step"].tolist() == list(range(21))
    epochs = recording.phases["name"][recording.phases["kind"] == "epoch"]
    assert epochs.tolist() == ["epoch 1", "epoch 2", "epoch 3"]
    assert recording.facts["fit"]["input_kind"] == "tf.data"


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_the_end_of_data_is_no_step(steps_per_execution, tmp_path):
    """Keras begins a batch more than there are where it does not know how many there are."""
    model = compiled(steps_per_execution=steps_per_execution)

    count = 12 if UNROLLED else 10  # 10: the last call has half its steps

    def batches():
        for _ in range(count):
            yield X[:BATCH], Y[:BATCH]
        time.sleep(0.03)  # looking for an eleventh batch takes a while

    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec((None, WIDTH), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    )
    recording = recorded_fit(model, tmp_path / "logs", x=dataset, epochs=3)
    # From the second epoch on Keras knows the number.
    assert recording.steps["step"].tolist() == list(range(3 * count))
    assert (recording.steps["input_wait_ns"] >= 0).all()
    if steps_per_execution == 1:
        ends = recording.phases["name"] == "end of data"
        assert ends.sum() >= 1
        assert recording.phases["self_ns"][ends].max() > 10e6
        assert (recording.phases["account"][ends] == "input_wait").all()


def test_gradient_accumulation_and_mixed_precision_and_own_train_step(tmp_path):
    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Own([keras.layers.Dense(4, dtype="mixed_bfloat16"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=3), "mse")
    recording = recorded_fit(model, tmp_path / "logs", x=X, y=Y, batch_size=BATCH, epochs=2)
    assert len(recording.steps["step"]) == 24
    assert (recording.steps["input_wait_ns"] >= 0).all()
    assert recording.facts["fit"]["gradient_accumulation_steps"] == 3


def test_facts_and_a_validation_in_every_epoch(model, tmp_path):
    recording = recorded_fit(
        model,
        tmp_path / "logs",
        x=X,
        y=Y,
        batch_size=BATCH,
        epochs=3,
        validation_data=(X[: BATCH * 5], Y[: BATCH * 5]),
        validation_batch_size=BATCH,
    )
    facts = recording.facts
    assert facts["framework"]["name"] == "tensorflow"
    assert facts["framework"]["keras"] == keras.__version__
    assert facts["model"]["parameters"] == model.count_params()
    assert facts["fit"]["epochs"] == 3 and facts["fit"]["steps_per_epoch"] == 12
    assert facts["fit"]["batch_size"] == BATCH and facts["fit"]["input_kind"] == "numpy"
    assert facts["fit"]["timing"] == "graph" and facts["fit"]["steps_per_execution"] == 1
    assert facts["overhead"]["callback_us_per_step"] > 0
    assert facts["overhead"]["recorder_cpu_pct"] > 0
    steps = recording.validation_steps
    assert steps["step"].tolist() == [12] * 5 + [24] * 5 + [36] * 5
    assert (steps["input_wait_ns"] >= 0).all() and (steps["duration_ns"] > 0).all()
    assert (recording.phases["kind"] == "validation").sum() == 3
    assert untouched(model)


# ---- fits that do not end well -----------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_a_fit_that_raises_keeps_its_error_and_its_rows(error, model, tmp_path):
    callback = ours(tmp_path)
    with pytest.raises(type(error)):
        fit(model, callback, Raise(error))
    recording = newest(tmp_path, "interrupted")
    assert untouched(model)
    # Five batches were complete; the sixth was interrupted among its callbacks.
    assert recording.steps["step"].tolist()[:5] == list(range(5))
    assert len(recording.steps["step"]) <= 6
    # Its account ends where training did, not where that was noticed.
    assert recording.account["time_s"]["other"] < 0.1


def test_an_error_inside_the_step_is_seen_at_once(tmp_path):
    class Failing(keras.Sequential):
        def train_step(self, data):
            raise ValueError("a mistake in the model")

    model = Failing([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="a mistake in the model"):
        fit(model, ours(tmp_path))
    assert untouched(model)


@pytest.mark.parametrize("with_us", [True, False])
def test_a_stale_wrapper_ends_with_the_next_fit(with_us, model, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(model, ours(tmp_path / "a"), Raise(KeyboardInterrupt()))
    history = fit(model, *([ours(tmp_path / "b")] if with_us else []))
    assert len(history.history["loss"]) == 1
    assert untouched(model)
    (recording,) = _closed(tmp_path / "a")
    assert recording.status == "interrupted" and len(recording.steps["step"]) <= 6
    if with_us:
        (recording,) = recordings(tmp_path / "b")
        assert recording.status == "ended" and len(recording.steps["step"]) == 12


def _closed(folder):
    wait_until(lambda: all(r.status != "live" for r in recordings(folder)), 20)
    return recordings(folder)


def test_hooks_go_when_the_recorders_thread_fails(model, tmp_path, monkeypatch):
    """Nobody would take what they append."""
    from gpu_util_callback.recorder.recorder import Recorder

    def fail(self, *more, **last):
        raise RuntimeError("mine")

    monkeypatch.setattr(Recorder, "_tick", fail)
    gone = []

    class Wait(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            session = callback._session
            wait_until(lambda: session.recorder.off, 20)
            time.sleep(0.05)
            gone.append(untouched(self.model))

    callback = ours(tmp_path)
    fit(model, callback, Wait())
    assert gone[-1]


def test_the_wrapper_removes_itself_without_the_watch(model, tmp_path, monkeypatch):
    """Where the fit's frame cannot be found, the next fit's first call gives it away."""
    from gpu_util_callback.recorder import fit as keras_session

    monkeypatch.setattr(keras_session, "calling_fit", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        fit(model, ours(tmp_path), Raise(KeyboardInterrupt()))
    assert not untouched(model)
    fit(model)
    assert untouched(model)
    (recording,) = _closed(tmp_path)
    assert recording.status == "interrupted" and len(recording.steps["step"]) <= 6


def test_training_on_a_batch_inside_a_callback_is_no_new_fit(model, tmp_path):
    class Extra(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                self.model.train_on_batch(X[:BATCH], Y[:BATCH])

        def on_train_batch_end(self, batch, logs=None):
            if batch == 6:
                self.model.evaluate(X[:BATCH], Y[:BATCH], verbose=0)

    recording = recorded_fit(
        model,
        tmp_path / "logs",
        callbacks=[Extra()],
        x=X,
        y=Y,
        batch_size=BATCH,
        epochs=2,
        validation_data=(X[:BATCH], Y[:BATCH]),
    )
    assert recording.status == "ended"
    assert recording.steps["step"].tolist() == list(range(24))
    assert (recording.steps["input_wait_ns"] >= 0).all()


def test_two_callbacks_in_one_fit_record_once(model, tmp_path, caplog):
    fit(model, ours(tmp_path), ours(tmp_path))
    (recording,) = recordings(tmp_path)
    assert len(recording.steps["step"]) == 12
    assert "two GpuUtilCallbacks" in caplog.text


def test_who_only_predicts_is_told_that_fit_is_recorded(model, tmp_path, caplog):
    model.predict(X, callbacks=[ours(tmp_path)], verbose=0)
    drain()
    assert caplog.text.count("predict is not recorded") == 1


def test_one_callback_listed_twice_records_once(model, tmp_path, caplog):
    callback = ours(tmp_path)
    fit(model, callback, callback)
    (recording,) = recordings(tmp_path)
    assert recording.status == "ended" and len(recording.steps["step"]) == 12
    assert "the same GpuUtilCallback twice" in caplog.text
    fit(model, callback)
    assert [r.status for r in recordings(tmp_path)] == ["ended", "ended"]


def test_inside_another_callback_it_still_records(model, tmp_path):
    """Where the list of callbacks cannot be reached, what needs it is missing and named."""
    fit(model, Inside(ours(tmp_path)), epochs=2, validation_data=(X, Y))
    (recording,) = recordings(tmp_path)
    assert recording.status == "ended"
    assert recording.steps["step"].tolist() == list(range(24))
    assert (recording.steps["input_wait_ns"] >= 0).all()
    assert (recording.steps["gpu_wait_ns"] == -1).all()
    assert "callback times" in [u["source"] for u in recording.facts["unavailable"]]
    assert recording.account["time_s"]["validation"] > 0


# ---- the observed stays as it was --------------------------------------------------------


def test_the_pipeline_is_not_kept_alive(model, tmp_path):
    """An epoch's iterator goes when Keras lets go of it: its buffers may be large."""
    import gc
    import weakref

    alive: list[int] = []
    iterators: list[weakref.ref] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            session = callback._session
            reference = session.recorder.adapter._pipelines._iterators["train"]
            if all(reference() is not known() for known in iterators):
                iterators.append(reference)

        def on_epoch_end(self, epoch, logs=None):
            gc.collect()
            alive.append(sum(reference() is not None for reference in iterators))

    callback = ours(tmp_path)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    fit(model, callback, Watch(), x=dataset, batch_size=None, epochs=3)
    assert len(iterators) == 3
    assert max(alive) <= 1


def test_rows_that_nobody_takes_for_long_are_all_there(model, tmp_path, monkeypatch):
    from gpu_util_callback.recorder import recorder

    monkeypatch.setattr(recorder, "FLUSH_S", 10**6)
    dataset = tf.data.Dataset.from_tensors((X[:BATCH], Y[:BATCH])).repeat(600)
    recording = recorded_fit(model, tmp_path / "logs", x=dataset)
    assert len(recording.steps["step"]) == 600
    assert (recording.steps["input_wait_ns"] >= 0).all()
    assert (recording.steps["duration_ns"] > 0).all()
