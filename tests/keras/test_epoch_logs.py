"""`GpuUtilCallback(logs=True)`: every callback gets the epoch's numbers, wherever it stands."""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import Inside, compiled, given, traced
from injected import BATCH, WIDTH, Truth
from injected_fit import Made
from waiting import flush_often

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recorder.fit import EpochLogs

NAMES = {"input_wait_pct", "samples_per_s"}  # without a GPU
STEPS = 12


class Seen(keras.callbacks.Callback):
    """What one callback gets at each epoch's end."""

    def __init__(self):
        super().__init__()
        self.logs: list[dict] = []

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs or {}))


def arrays(samples: int = STEPS * BATCH) -> dict:
    x = np.random.default_rng(0).normal(size=(samples, WIDTH)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1, keepdims=True), "batch_size": BATCH, "shuffle": False}


def expected(recording) -> list[dict[str, float]]:
    """The same numbers, epoch by epoch, from what was recorded."""
    steps, phases = recording.steps, recording.phases
    epochs = np.flatnonzero(phases["kind"] == "epoch")
    found = []
    for epoch in epochs:
        start, end = phases["start_ns"][epoch], phases["end_ns"][epoch]
        rows = (steps["start_ns"] >= start) & (steps["start_ns"] < end)
        training = np.isin(phases["account"].astype(str), ["step", "input_wait"])
        around = (phases["start_ns"] >= start) & (phases["end_ns"] <= end) & training
        waits = around & (phases["account"] == "input_wait")
        spent = steps["duration_ns"][rows].sum() + phases["self_ns"][around].sum()
        waited = steps["input_wait_ns"][rows].sum() + phases["self_ns"][waits].sum()
        rate = 1e9 * rows.sum() * BATCH / spent
        found.append({"input_wait_pct": 100 * waited / spent, "samples_per_s": rate})
    return found


def fitted(folder, *others, model=None, epochs=2, **data) -> dict[str, list[float]]:
    """The history of a fit with the epoch's numbers among its logs, by default of arrays."""
    ours = GpuUtilCallback(str(folder), report=False, logs=True)
    return (model or traced()).fit(**(data or arrays()), epochs=epochs, verbose=0, callbacks=[ours, *others]).history


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "in the middle", "last"])
def test_every_callback_gets_them_whatever_the_order(place, tmp_path):
    truth = Truth([4.0] * STEPS)
    before, after = Seen(), keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    callbacks = [before, after]
    callbacks.insert(place, GpuUtilCallback(str(tmp_path / "run"), report=False, logs=True))
    model = traced()
    history = model.fit(epochs=3, verbose=0, callbacks=callbacks, **given("tf.data", truth)).history
    (recording,) = read_recordings(tmp_path / "run")
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(before.logs) == 3
    for epoch, truly in enumerate(expected(recording)):
        for name, value in truly.items():
            assert before.logs[epoch][name] == pytest.approx(value, rel=1e-6)
            assert history[name][epoch] == before.logs[epoch][name]
            assert float(rows[epoch][name]) == pytest.approx(value, rel=1e-6)
    assert min(history["input_wait_pct"][1:]) > 30, "each batch takes 4 ms, a step less than one"
    assert "gpu_utilization_pct" not in history, "nothing is known of a GPU that is not there"


def test_nothing_else_changes(tmp_path):
    def fit(*callbacks):
        keras.utils.set_random_seed(3)
        model = compiled()
        kept = model.fit(**arrays(), epochs=3, verbose=0, validation_split=0.25, callbacks=list(callbacks))
        return kept.history, model.get_weights(), model.optimizer.iterations.numpy()

    plain, weights, count = fit()
    more, same_weights, same_count = fit(GpuUtilCallback(str(tmp_path), report=False, logs=True))
    assert {name: more[name] for name in plain} == plain
    assert set(more) - set(plain) == NAMES
    assert all((a == b).all() for a, b in zip(weights, same_weights, strict=True))
    assert count == same_count
    (recording,) = read_recordings(tmp_path)
    assert recording.steps["step"].tolist() == list(range(27)), "no row is lost or doubled"


def test_validation_is_no_training_time(tmp_path):
    class Slow(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            time.sleep(0.1)

    seen = Seen()
    data = arrays()
    fitted(tmp_path, Slow(), seen, **data, validation_data=(data["x"][:8], data["y"][:8]))
    (recording,) = read_recordings(tmp_path)
    assert recording.account["time_s"]["validation"] > 0.2
    for logs, truly in zip(seen.logs, expected(recording), strict=True):
        assert logs["samples_per_s"] == pytest.approx(truly["samples_per_s"], rel=1e-6)
    assert "val_loss" in seen.logs[1]


@pytest.mark.parametrize("kind", ["batched", "dictionary", "PyDataset", "generator"])
def test_batches_of_any_size_are_counted(kind, tmp_path):
    """The size of each is known from its shape, also where no two are alike."""
    samples = 5 * BATCH + 3
    x = np.ones((samples, WIDTH), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH)
    model, extra = traced(), {}
    if kind == "dictionary":
        inputs = {name: keras.Input((WIDTH,), name=name) for name in ("b", "a")}
        outputs = keras.layers.Dense(1)(keras.layers.add(list(inputs.values())))
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "mse")
        dataset = dataset.map(lambda x, y: ({"b": x, "a": x}, y))
    elif kind == "PyDataset":
        dataset = Made(Truth([0.0] * STEPS))
        samples = STEPS * BATCH
    elif kind == "generator":
        parts = [x[first : first + BATCH] for first in range(0, samples, BATCH)]
        dataset = ((part, part[:, :1]) for _ in range(3) for part in parts)
        extra = {"steps_per_epoch": len(parts)}
    seen = Seen()
    fitted(tmp_path, seen, model=model, x=dataset, **extra)
    (recording,) = read_recordings(tmp_path)
    for logs, truly in zip(seen.logs, expected(recording), strict=True):
        share = samples / (len(recording.steps["step"]) / 2 * BATCH)
        assert logs["samples_per_s"] == pytest.approx(truly["samples_per_s"] * share, rel=1e-6)


def test_what_is_unknown_is_left_out_and_columns_stay(tmp_path, monkeypatch):
    texts = tf.data.Dataset.range(STEPS * BATCH).map(lambda k: (tf.ones([3 + k % 5], tf.int32), tf.ones([1])))
    odd = texts.padded_batch(BATCH, ([None], [1]))
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(8, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    history = fitted(tmp_path / "a", model=model, x=odd)
    assert "samples_per_s" not in history, "two sizes of a batch vary, of which one is kept"
    assert len(history["input_wait_pct"]) == 2
    history = fitted(tmp_path / "c", model=model, x=texts.padded_batch(BATCH, ([None], [1]), drop_remainder=True))
    assert min(history["samples_per_s"]) > 0

    means = EpochLogs._means
    rounds = iter(range(9))

    def once(self):
        return means(self) if next(rounds) == 0 else {}

    monkeypatch.setattr(EpochLogs, "_means", once)
    history = fitted(tmp_path / "b")
    assert history["samples_per_s"][0] > 0 and math.isnan(history["samples_per_s"][1])


def test_an_error_of_ours_leaves_fit_and_recording_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(EpochLogs, "_means", lambda self: 1 / 0)
    history = fitted(tmp_path, epochs=3)
    assert set(history) == {"loss"} and len(history["loss"]) == 3
    (recording,) = read_recordings(tmp_path)
    assert recording.steps["step"].tolist() == list(range(3 * STEPS))
    (missing,) = [x for x in recording.facts["unavailable"] if x["source"] == "epoch logs"]
    assert "ZeroDivisionError" in missing["reason"]
    assert sum("epoch logs" in record.getMessage() for record in caplog.records) == 1


def test_inside_another_callback_those_after_it_get_them(tmp_path):
    inner = GpuUtilCallback(str(tmp_path), report=False, logs=True)
    seen = Seen()
    traced().fit(**arrays(), epochs=2, verbose=0, callbacks=[Inside(inner), seen])
    assert all(logs["samples_per_s"] > 0 for logs in seen.logs)


def test_many_epochs_of_two_fits_in_a_series(tmp_path):
    callback = GpuUtilCallback(str(tmp_path), report=False, logs=True)
    model, seen = traced(), Seen()
    for _ in range(3):
        model.fit(**arrays(), verbose=0, callbacks=[callback, seen])
    assert len(seen.logs) == 3
    summary = callback.summary()
    (recording,) = read_recordings(tmp_path)
    assert recording.facts["fits"] == 3 and summary["steps"] == 3 * STEPS
    for logs, truly in zip(seen.logs, expected(recording), strict=True):
        assert logs["samples_per_s"] == pytest.approx(truly["samples_per_s"], rel=1e-6)


# ---- the summary ----------------------------------------------------------------------------


def test_the_summary_is_flat_and_always_has_the_same_keys(tmp_path):
    callback = GpuUtilCallback(str(tmp_path / "run"), report=False)
    before = callback.summary()
    assert before["verdict"].startswith("Nothing was recorded") and before["steps"] is None
    traced().fit(**given("tf.data", Truth([10.0] * 60)), verbose=0, callbacks=[callback])
    summary = callback.summary()
    assert set(summary) == set(before)
    (recording,) = read_recordings(tmp_path / "run")
    assert (summary["recording"], summary["status"]) == (recording.path, "ended")
    assert summary["steps"] == 60 and summary["wall_s"] > 0.2
    account = [summary[f"{name}_pct"] for name in recording.account["time_s"]]
    assert sum(account) == pytest.approx(100, abs=0.1)
    waited = recording.account["time_s"]["input_wait"]
    assert waited > 0.3 and summary["input_wait_pct"] == pytest.approx(100 * waited / summary["wall_s"], abs=0.01)
    run = run_report(recording)
    causes = {one["cause"]: one for one in [*run["findings"], *run["spans"]]}
    assert "input_bound" in causes and summary["findings"] == len(causes)
    assert summary["advice"] == causes[summary["cause"]]["advice"]["text"]
    assert json.loads(json.dumps(summary)) == summary, "flat numbers and texts"
    assert not any(isinstance(value, dict | list) for value in summary.values())
    html = summary._repr_html_()
    assert summary["title"] in unwrapped(html) and "waiting for input" in unwrapped(html) and html.startswith("<pre")


def test_its_keys_are_documented():
    import re

    from gpu_util_callback.report.notebook import Summary

    documented = re.findall(r"[a-z][a-z0-9_]+", Summary.__doc__.split("Keys:")[1])
    assert set(Summary(None)) <= set(documented)


def test_a_summary_in_the_middle_of_a_fit(tmp_path, monkeypatch):
    flush_often(monkeypatch)
    callback = GpuUtilCallback(str(tmp_path), report=False)
    during = []

    class Ask(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.2)  # past a flush
            during.append(callback.summary())

    traced().fit(**arrays(), epochs=2, verbose=0, callbacks=[callback, Ask()])
    assert [one["status"] for one in during] == ["live", "live"]
    assert callback.summary()["status"] == "ended" and callback.summary()["steps"] == 2 * STEPS


def test_a_summary_outlives_its_files(tmp_path):
    callback = GpuUtilCallback(str(tmp_path / "run"), report=False)
    traced().fit(**arrays(), verbose=0, callbacks=[callback])
    summary = callback.summary()
    for one in Path(summary["recording"]).iterdir():
        one.write_bytes(b"\x00broken")
    assert summary["steps"] == STEPS and summary["verdict"] in unwrapped(callback.summary()._repr_html_())
    tf.io.gfile.rmtree(str(tmp_path / "run"))
    assert callback.summary() == summary and summary["verdict"] in unwrapped(summary._repr_html_())


def unwrapped(text: str) -> str:
    """A sentence longer than the page's lines breaks between two words."""
    return " ".join(text.split())
