"""Callbacks that are copied in the middle of a fit, or given to fits that overlap."""

from __future__ import annotations

import copy
import pickle
import threading

import keras
import numpy as np
import pytest
from fit_truth import BATCH, WIDTH, Raise, small_model

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.backends.functions import unwrapped

X = np.zeros((BATCH * 12, WIDTH), np.float32)


def trained(model, *callbacks, epochs=1):
    model.fit(X, X[:, :1], BATCH, epochs=epochs, verbose=0, callbacks=list(callbacks))


@pytest.fixture
def models():
    found = [small_model() for _ in range(2)]
    for model in found:
        model.compile("sgd", "mse")
    return found


@pytest.fixture
def ours(tmp_path):
    return GpuUtilCallback(str(tmp_path), report=False)


def found_in(tmp_path):
    return sorted((r.facts["fit_index"], r.status, len(r.steps["step"])) for r in read_recordings(tmp_path))


def hooks_left(*callbacks):
    return [name for callback in callbacks for name in vars(callback) if name.startswith("on_")]


class Counts(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        pass


class Copies(keras.callbacks.Callback):
    """Copies other callbacks in the middle of a fit, both ways, without their model."""

    def __init__(self, *others):
        super().__init__()
        self.others = others
        self.copies = []

    def on_train_batch_end(self, batch, logs=None):
        if batch != 5:
            return
        for other in self.others:
            model, other._model = other._model, None
            self.copies += [pickle.loads(pickle.dumps(other)), copy.deepcopy(other)]
            other._model = model


@pytest.mark.parametrize("first", [True, False], ids=["ours first", "ours last"])
def test_copies_made_in_the_middle_of_a_fit_are_callbacks_of_their_own(first, models, ours, tmp_path):
    counts = Counts()
    copies = Copies(counts, ours)
    trained(models[0], *([ours, counts, copies] if first else [counts, copies, ours]))
    assert counts.batches == 12 and not hooks_left(counts, ours)
    for one in copies.copies[:2]:  # count for themselves, and nobody else
        before = one.batches
        one.on_train_batch_end(0, logs={})
        assert one.batches == before + 1 and counts.batches == 12
    for one in copies.copies[2:]:
        trained(models[1], one)
    assert found_in(tmp_path) == [(0, "ended", 12), (1, "ended", 12), (2, "ended", 12)]


def test_a_fit_within_a_fit_has_a_callback_of_its_own_or_is_not_recorded(models, ours, tmp_path, caplog):
    """Whichever way it is left, the outer one's recording stays as it is."""
    outer, inner = models
    during = []

    class Within(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                with pytest.raises(ZeroDivisionError):
                    trained(inner, Raise(ZeroDivisionError(), 9), ours)
            else:
                trained(inner, ours, GpuUtilCallback(str(tmp_path / "inner"), report=False))
            during.append(ours.summary()["status"])

    trained(outer, ours, Within(), epochs=2)
    assert during == ["live", "live"], "the outer fit's"
    assert found_in(tmp_path / "inner") == [(0, "ended", 12)]
    outermost = [one for one in read_recordings(tmp_path) if one.run != "inner"]
    assert [(one.status, one.step_count) for one in outermost] == [("ended", 24)]
    assert (ours.summary()["status"], ours.summary()["steps"]) == ("ended", 24)
    assert "records another one; give each fit its own" in caplog.text
    assert all(m.train_function is unwrapped(m.train_function) for m in models)
    assert not hooks_left(ours)


def test_one_callback_in_fits_on_two_threads_records_one_of_them_whole(models, ours, tmp_path, caplog):
    both = threading.Barrier(2)

    class Meets(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                both.wait(60)

    threads = [threading.Thread(target=trained, args=(m, ours, Meets())) for m in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found_in(tmp_path) == [(0, "ended", 12)]
    assert "records another one" in caplog.text
    assert all(m.train_function is unwrapped(m.train_function) for m in models)
    assert not hooks_left(ours)
