"""Models, inputs and calls of every kind: all steps are recorded, and nothing is said."""

from __future__ import annotations

import functools
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import BATCH, WIDTH, compiled, ended, ours, recordings, small_model
from waiting import wait_for_recorders

from gpu_util_callback import read_recordings
from gpu_util_callback.recorder import recorder

N = 12
X = np.random.default_rng(0).normal(size=(BATCH * N, WIDTH)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


# The work of steps of many shapes is not counted.
WORK = ("model FLOPs",)


def check(folder, caplog, *steps: int, hidden: tuple[str, ...] = ()):
    """The recordings in a folder, of so many steps each, complete and without a word.

    `hidden`: sources that this kind of fit does not let us read.
    """
    found = recordings(folder)
    assert [one.status for one in found] == ["ended"] * len(steps)
    for one, count in zip(found, steps, strict=True):
        assert one.steps["step"].tolist() == list(range(count))
        # On a busy machine a call of several batches may stamp two of them at once.
        assert (one.steps["duration_ns"] >= (one.steps["batches"] == 1)).all()
        assert (one.steps["input_wait_ns"] >= 0).all()
        assert (one.steps["gpu_wait_ns"] >= 0).all()
        missing = {u["source"] for u in one.facts["unavailable"]}
        assert missing <= {"NVML", "profiler windows", *hidden}
        assert not one.problems
    said = [r.getMessage() for r in caplog.records if r.name == "gpu_util_callback"]
    assert all("no GPU samples" in line or "predict is not recorded" in line for line in said), said
    return found


class Pair(keras.Model):
    """Two networks, two optimizers, a train step of its own: a GAN's shape."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.layers.Dense(WIDTH)])
        self.critic = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])

    def build(self, shape):
        self.generator.build((None, 4))
        self.critic.build((None, WIDTH))

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def train_step(self, real):
        noise = tf.random.normal((BATCH, 4))
        losses = {}
        for name, optimizer, network in (
            ("critic", self.first, self.critic),
            ("generator", self.second, self.generator),
        ):
            with tf.GradientTape() as tape:
                made = tf.reduce_mean(self.critic(self.generator(noise)))
                sign = 1.0 if name == "critic" else -1.0
                losses[name] = sign * (made - tf.reduce_mean(self.critic(real)))
            variables = network.trainable_variables
            gradients = tape.gradient(losses[name], variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return losses


def two_optimizers():
    model = Pair()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    return model, {"x": X, "batch_size": BATCH}


def named_parts_with_weights():
    a, b = (keras.layers.Input((WIDTH,), name=name) for name in "ab")
    joined = keras.layers.concatenate([a, b])
    model = keras.Model({"a": a, "b": b}, {name: keras.layers.Dense(1, name=name)(joined) for name in ("one", "two")})
    model.compile("sgd", {"one": "mse", "two": "mae"}, metrics={"one": ["mae"]})
    x, y = {"a": X, "b": X}, {"one": Y, "two": Y}
    weights = {"one": Y[:, 0], "two": Y[:, 0]}
    return model, {"x": x, "y": y, "sample_weight": weights, "batch_size": BATCH, "validation_data": (x, y)}


def class_weights():
    model = small_model()
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    labels = (Y > 0).astype(np.float32)
    return model, {"x": X, "y": labels, "class_weight": {0: 1.0, 1: 3.0}, "batch_size": BATCH}


def sequences_of_any_length(jit):
    """Ragged sequences, padded batch by batch: every batch has a length of its own."""
    lengths = [3 + k % 4 for k in range(BATCH * N)]
    ragged = tf.ragged.constant([list(range(n)) for n in lengths], dtype=tf.int32)
    data = tf.data.Dataset.from_tensor_slices((ragged, Y)).batch(BATCH, drop_remainder=True)
    data = data.map(lambda x, y: (x.to_tensor()[:, :5], y))
    layers = [keras.layers.Embedding(9, 4), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=jit)
    return model, {"x": data}


def ragged_tensors():
    """A ragged batch has no shape: no signature of it can be had, and the times can."""

    class Sums(keras.Sequential):
        def train_step(self, data):
            ragged, y = data
            return super().train_step((tf.reduce_sum(ragged, axis=1, keepdims=True), y))

    values = tf.ragged.constant([[1.0] * (1 + k % 5) for k in range(BATCH * N)])
    data = tf.data.Dataset.from_tensor_slices((values, Y)).batch(BATCH)
    model = Sums([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model, {"x": data}


@pytest.mark.parametrize(
    ("kind", "hidden"),
    [
        (two_optimizers, ()),
        (named_parts_with_weights, ()),
        (class_weights, ()),
        (functools.partial(sequences_of_any_length, False), WORK),
        (functools.partial(sequences_of_any_length, True), WORK),
        (ragged_tensors, WORK),
    ],
)
def test_models_and_inputs_of_every_kind(kind, hidden, tmp_path, caplog):
    model, given = kind()
    model.fit(**given, epochs=2, verbose=0, callbacks=[ours(tmp_path)])
    check(tmp_path, caplog, 2 * N, hidden=hidden)


def test_a_strategy_of_one_device(tmp_path, caplog):
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = compiled()
        model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[ours(tmp_path)])
    check(tmp_path, caplog, 2 * N, hidden=("pipeline",))  # TensorFlow does not tell its stages


def test_callbacks_that_set_weights_and_stop(tmp_path, caplog):
    model = compiled()
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9, restore_best_weights=True)
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    history = model.fit(X, Y, batch_size=BATCH, epochs=9, verbose=0, callbacks=[stop, ours(tmp_path), backup])
    epochs = len(history.history["loss"])
    assert epochs < 9
    check(tmp_path, caplog, epochs * N)


def test_one_callback_list_in_two_fits(tmp_path, caplog):
    """A list that Keras did not make itself keeps its callbacks from fit to fit."""
    model = compiled()
    callbacks = keras.callbacks.CallbackList(
        [ours(tmp_path)], add_history=True, model=model, epochs=1, steps=N, verbose=0
    )
    for _ in range(2):
        model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=callbacks)
    ended(tmp_path)
    check(tmp_path, caplog, 2 * N)
    assert "on_train_batch_begin" not in callbacks.__dict__


def test_fits_on_threads_at_once(tmp_path, caplog):
    """Each in a thread and a log directory of its own, neither disturbing the other."""
    models = [compiled(), compiled()]
    folders = [tmp_path / "a", tmp_path / "b"]
    both = threading.Barrier(2)

    class Meet(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            both.wait(60)

    def run(model, folder):
        model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[ours(folder), Meet()])

    threads = [threading.Thread(target=run, args=both_of) for both_of in zip(models, folders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for folder in folders:
        check(folder, caplog, 2 * N)


def test_evaluation_with_the_same_callback_after_a_fit(tmp_path, caplog):
    model, callback = compiled(), ours(tmp_path)
    model.predict(X, batch_size=BATCH, verbose=0, callbacks=[callback])
    assert len(read_recordings(tmp_path)) == 0
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[callback])
    model.evaluate(X, Y, batch_size=BATCH, verbose=0, callbacks=[callback])
    model.predict(X, batch_size=BATCH, verbose=0, callbacks=[callback])
    model.fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[callback])
    ended(tmp_path)
    (series,) = check(tmp_path, caplog, 2 * N)
    assert not len(series.validation_steps["step"])


class Changed(keras.callbacks.Callback):
    """Takes another number of batches a call from the second epoch on."""

    def __init__(self, batches: int):
        super().__init__()
        self.batches = batches

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.steps_per_execution = self.batches
            self.model.make_train_function(force=True)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 1), (2, 3)])
def test_another_number_of_batches_a_call_in_mid_fit(before, after, tmp_path, caplog):
    """Keras goes on to call at most 12 / before times an epoch, while there is data."""
    model = compiled(steps_per_execution=before)
    callbacks = [ours(tmp_path), Changed(after)]
    validation = (X[: 4 * BATCH], Y[: 4 * BATCH])
    model.fit(X, Y, batch_size=BATCH, epochs=3, verbose=0, callbacks=callbacks, validation_data=validation)
    steps = int(model.optimizer.iterations)
    assert steps == N + 2 * min(N, after * N // before)
    (recording,) = check(tmp_path, caplog, steps)
    batches = recording.steps["batches"].tolist()
    assert batches == [before] * N + [after] * (steps - N)
    assert len(recording.validation_steps["step"]) == 3 * 4
    assert (recording.validation_steps["input_wait_ns"] >= 0).all()


def test_a_wish_that_no_function_was_made_for_changes_nothing(tmp_path, caplog):
    model = compiled(steps_per_execution=2)
    fit = {"x": X, "y": Y, "batch_size": BATCH, "verbose": 0}
    model.fit(**fit, callbacks=[ours(tmp_path)])
    model.steps_per_execution = 3  # the train function that is there still takes two
    model.fit(**fit, epochs=2, callbacks=[ours(tmp_path)])
    steps = int(model.optimizer.iterations) - N
    _, second = check(tmp_path, caplog, N, steps)
    assert second.steps["batches"].tolist() == [2] * steps


def test_a_fit_that_a_callback_ends_is_closed_soon(tmp_path, monkeypatch):
    """No hook of ours is called then; nobody waits for the next flush."""
    monkeypatch.setattr(recorder, "FLUSH_S", 60.0)

    class Broken(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.6)  # past the first flush
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        compiled().fit(X, Y, batch_size=BATCH, verbose=0, callbacks=[ours(tmp_path), Broken()])
    wait_for_recorders()
    (recording,) = read_recordings(tmp_path)
    assert recording.status == "interrupted"
    assert len(recording.steps["step"]) == N
