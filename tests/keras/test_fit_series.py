"""Short fits of one callback that follow each other closely go on in one recording."""

from __future__ import annotations

import copy
import os
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import BATCH, WIDTH, Raise, compiled, ended, traced
from fork_server import python
from programs import ran
from waiting import wait_for_recorders

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.diagnosis.run_summary import read_summary
from gpu_util_callback.diagnosis.survey import survey
from gpu_util_callback.recorder import messages, recorder
from gpu_util_callback.recorder.outputs import FLUSH_S
from gpu_util_callback.recorder.process_time import WAITING, ProcessTime, activity
from gpu_util_callback.recording.schema import SUMMARY_FILE
from gpu_util_callback.report import notebook
from gpu_util_callback.report.screen import two_lines

pytestmark = pytest.mark.real_clock("what counts as one series hangs on the time between fits")

STEPS = 5
X = np.random.default_rng(0).normal(size=(BATCH * STEPS, WIDTH)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def fit(model, *callbacks, **arguments):
    given = {"x": X, "y": Y, "batch_size": BATCH, "verbose": 0} | arguments
    model.fit(**given, callbacks=list(callbacks))


def of_kind(recording, kind: str) -> dict[str, np.ndarray]:
    phases = recording.phases
    rows = np.array([one == kind for one in phases["kind"]])
    return {name: np.asarray(column)[rows] for name, column in phases.items()}


def check_account(recording) -> None:
    account = recording.account
    assert sum(account["time_s"].values()) == pytest.approx(account["wall_s"], abs=0.001)
    assert min(account["time_s"].values()) >= -0.001, account
    span_s = (recording.end_ns - recording.start_ns) / 1e9
    between_s = account.get("between_fits_s", 0.0)
    assert account["wall_s"] + between_s == pytest.approx(span_s, abs=0.001)


def test_short_fits_are_one_recording(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recorder, "NEWS_S", 600.0)  # also on a machine where they are not so short
    model, callback = traced(), GpuUtilCallback(str(tmp_path))
    started: list[threading.Thread] = []
    for number in range(12):
        if number == 3:  # from here on all is there
            started = threading.enumerate()
        fit(model, callback, initial_epoch=number, epochs=number + 1)
        time.sleep(0.05)
    assert {one for one in threading.enumerate() if "gpu-util" in one.name} <= set(started)
    (recording,) = ended(tmp_path)
    assert recording.status == "ended"
    assert recording.steps["step"].tolist() == list(range(12 * STEPS))
    assert (np.diff(recording.steps["start_ns"]) > 0).all()
    fits, pauses = of_kind(recording, "fit"), of_kind(recording, "between_fits")
    assert fits["name"].tolist() == [f"fit {number}" for number in range(1, 13)]
    assert fits["step"].tolist() == list(range(STEPS, 13 * STEPS, STEPS)), "of each fit, its steps"
    epochs = of_kind(recording, "epoch")["name"].tolist()
    assert epochs == [f"epoch {number}" for number in range(1, 13)]
    assert pauses["start_ns"].tolist() == fits["end_ns"][:-1].tolist()
    assert pauses["end_ns"].tolist() == fits["start_ns"][1:].tolist()
    check_account(recording)
    assert recording.account["between_fits_s"] > 0.5
    run = run_report(recording)
    assert (run["fits"], run["fit_index"]) == (12, 0)
    assert f"{12 * STEPS} steps in 12 fits" in two_lines({**run, "findings": [], "spans": []})
    said = capsys.readouterr().out
    assert said.count("gpu-util:") == 1, "the first fit's, and no two lines of each"
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) < 9, files


def test_the_summary_of_a_recording_is_of_all_its_fits_and_gone_while_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "NEWS_S", 600.0)
    model, callback = traced(), GpuUtilCallback(str(tmp_path))
    during = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: (time.sleep(2 * FLUSH_S), during.extend(tmp_path.rglob(SUMMARY_FILE)))
    )
    for number in range(2):
        fit(model, callback, *[look] * number)
    ended(tmp_path)
    (path,) = tmp_path.rglob(SUMMARY_FILE)
    summary = read_summary(path.read_bytes())
    assert summary is not None and (summary["steps"], summary["status"]) == (2 * STEPS, "ended")
    assert not during, "the second fit goes on in the recording"
    of_summary = survey([str(tmp_path)]).rows
    path.unlink()
    assert of_summary == survey([str(tmp_path)]).rows, "equal to what its manifest says"


def test_a_series_goes_on_after_a_rest(tmp_path, monkeypatch):
    """Its recording has ended by then; it is live once more, with one file of scalars."""
    monkeypatch.setattr(recorder, "IDLE_FIT_S", 0.0)
    monkeypatch.setattr(recorder, "FLUSH_S", 0.1)
    model, callback = traced(), GpuUtilCallback(str(tmp_path), report=False)
    for number in range(4):
        fit(model, callback)
        (recording,) = ended(tmp_path, (number + 1) * STEPS)
        wait_for_recorders()  # none waits for a fit that may never come
    assert recording.steps["step"].tolist() == list(range(4 * STEPS))
    assert not recording.problems
    check_account(recording)
    assert len(list(tmp_path.glob("events.*"))) == 1
    points = steps_of_scalars(tmp_path)
    assert points == sorted(set(points)) and points[-1] == 4 * STEPS - 1


def steps_of_scalars(folder: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    tag = "gpu_util/step_time_ms"
    return [point.step for point in accumulator.Tensors(tag)]


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 3},
        {"batch_size": 2 * BATCH},
        {
            "x": (pair for pair in [(X[:BATCH], Y[:BATCH])] * STEPS),
            "y": None,
            "batch_size": None,
            "steps_per_epoch": STEPS,
        },
    ],
    ids=["epochs", "batch size", "input"],
)
def test_another_kind_of_fit_is_another_recording(other, tmp_path):
    model, callback = traced(), GpuUtilCallback(str(tmp_path), report=False)
    fit(model, callback)
    fit(model, callback)
    fit(model, callback, **other)
    found = ended(tmp_path)
    assert [one.facts["fit_index"] for one in found] == [0, 2]
    assert len(found[0].steps["step"]) == 2 * STEPS and found[0].facts["fits"] == 2
    assert found[1].steps["step"][0] == 0


@pytest.mark.parametrize("limit", ["SERIES_FIT_S", "SERIES_GAP_S"])
def test_long_fits_and_fits_far_apart_are_separate(limit, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, limit, 0.0)
    model, callback = traced(), GpuUtilCallback(str(tmp_path), report=False)
    for _ in range(3):
        fit(model, callback)
        assert read_recordings(tmp_path)[-1].status == "ended", "nobody waits for another one"
    found = ended(tmp_path)
    assert [one.facts["fit_index"] for one in found] == [0, 1, 2]
    assert [len(one.steps["step"]) for one in found] == [STEPS] * 3


def test_a_fit_of_seconds_has_its_verdict_at_once(tmp_path, monkeypatch, capsys):
    model, callback = traced(), GpuUtilCallback(str(tmp_path))
    fit(model, callback)
    fit(model, callback)
    monkeypatch.setattr(recorder, "NEWS_S", 0.0)
    capsys.readouterr()
    fit(model, callback)
    (recording,) = read_recordings(tmp_path)
    assert recording.status == "ended", "at once"
    assert capsys.readouterr().out.count("gpu-util:") == 1, "and its verdict"
    assert len(recording.steps["step"]) == 3 * STEPS


def test_callbacks_that_take_turns(tmp_path):
    """Each has its log directory; in one for both, recordings follow each other as ever."""
    models = compiled(), compiled()
    for folder, names in ((tmp_path / "two", "ab"), (tmp_path / "one", "aa")):
        callbacks = [GpuUtilCallback(str(folder / name), report=False) for name in names]
        for _ in range(2):
            for model, callback in zip(models, callbacks, strict=True):
                fit(model, callback)
    for name in "ab":
        (recording,) = ended(tmp_path / "two" / name)
        assert len(recording.steps["step"]) == 2 * STEPS
    found = ended(tmp_path / "one")
    assert [one.facts["fit_index"] for one in found] == list(range(4))
    offsets = [one.facts["scalar_step_offset"] for one in found]
    assert offsets == list(range(0, 4 * STEPS, STEPS))


def test_an_interrupted_fit_ends_the_series(tmp_path):
    model, callback = traced(), GpuUtilCallback(str(tmp_path), report=False)
    for _ in range(3):
        fit(model, callback)
    with pytest.raises(KeyboardInterrupt):
        fit(model, callback, Raise(KeyboardInterrupt(), 2))
    fit(model, callback)
    interrupted, after = ended(tmp_path)
    assert (interrupted.status, after.status) == ("interrupted", "ended")
    assert len(interrupted.steps["step"]) in (3 * STEPS + 2, 3 * STEPS + 3)
    assert of_kind(interrupted, "fit")["name"].tolist() == [f"fit {n}" for n in range(1, 5)]
    assert len(after.steps["step"]) == STEPS and after.facts["fit_index"] == 4
    check_account(interrupted)


def test_validation_and_other_callbacks_of_each_fit(tmp_path):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.002)

    model, callback = traced(), GpuUtilCallback(str(tmp_path), report=False)
    validation = (X[: 2 * BATCH], Y[: 2 * BATCH])
    for _ in range(3):
        fit(model, callback, Slow(), validation_data=validation)
    (recording,) = ended(tmp_path)
    assert len(recording.validation_steps["step"]) == 3 * 2
    phases = recording.phases
    slow = np.array(["Slow" in name for name in phases["name"]])
    assert phases["count"][slow].sum() == 3 * STEPS
    assert phases["self_ns"][slow].sum() > 3 * STEPS * 2e6
    check_account(recording)


def test_profiled_steps_are_counted_in_each_fit(tmp_path):
    model = traced()
    callback = GpuUtilCallback(str(tmp_path), report=False, trace=[(1, 3)])
    fit(model, callback)
    fit(model, callback)
    assert len(ended(tmp_path)) == 2


def test_batches_that_are_trained_on_one_by_one_are_steps(tmp_path):
    """As the advice for many short fits has it."""
    model = traced()
    with GpuUtilMonitor(tmp_path, report=False) as monitor:
        for _ in range(STEPS):
            with monitor.step():
                model.train_on_batch(X[:BATCH], Y[:BATCH])
    (recording,) = read_recordings(tmp_path)
    assert recording.steps["step"].tolist() == list(range(STEPS))
    assert (recording.steps["body_ns"] + recording.steps["compile_ns"] > 0).all()
    check_account(recording)


PROGRAM = """
import os, signal, sys, time
import numpy as np
import keras
from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recorder import recorder

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.zeros((40, 8), "float32")
how = sys.argv[2]
if how == "killed at rest":
    recorder.IDLE_FIT_S = recorder.FLUSH_S = 0.2
callback = GpuUtilCallback(sys.argv[1])
for _ in range(6):
    model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[callback])
while how == "killed at rest" and read_recordings(sys.argv[1])[0].status == "live":
    time.sleep(0.1)
if how.startswith("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
print("over", flush=True)
"""
BACKENDS = [name for name in ("tensorflow", "jax", "torch") if find_spec(name)]


@pytest.mark.parametrize(
    ("how", "backend"),
    [*(("over", backend) for backend in BACKENDS), ("killed", "tensorflow"), ("killed at rest", "tensorflow")],
)
def test_the_process_ends_after_a_series(how, backend, tmp_path):
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = ran(*python("keras"), "-c", PROGRAM, tmp_path, how, ends=0 if how == "over" else -9, env=environment)
    assert ("over" in done.stdout) == (how == "over")
    (recording,) = read_recordings(tmp_path)
    steps = recording.steps["step"].tolist()
    assert steps == list(range(len(steps)))
    if how == "killed":  # what was not flushed is lost, and nobody said that it had ended
        assert recording.status in ("live", "lost", "ended")
        assert len(steps) >= STEPS
        assert recording.status != "ended" or len(steps) == 6 * STEPS
        return
    assert recording.status == "ended" and len(steps) == 6 * STEPS
    assert (recording.steps["input_wait_ns"] >= 0).all()
    assert len(of_kind(recording, "fit")["step"]) == 6
    check_account(recording)


FOLDS = 6


def slow_to_compile():
    """A new model, which is traced for 0.1 s at least on any machine: six take more than half a second together."""
    model = compiled()

    def loss(y_true, y_pred):
        time.sleep(0.1)  # as it is traced
        return tf.reduce_mean(tf.square(y_true - y_pred))

    model.compile("sgd", loss)
    return model


def test_that_every_fit_compiles_is_said_once_over_all_of_them(tmp_path, monkeypatch, capsys):
    """As scikit-learn's searches do: a new model and a copy of the callback for each fit."""
    monkeypatch.setattr(recorder, "_process", ProcessTime())
    monkeypatch.setattr(messages, "_fits_at_last_verdict", {})
    monkeypatch.setattr(messages, "_SHORT_S", 0.001)
    callback = GpuUtilCallback(str(tmp_path))
    for _ in range(FOLDS):
        fit(slow_to_compile(), copy.deepcopy(callback), verbose=0)
    found = ended(tmp_path)
    assert len(found) == FOLDS
    process = found[-1].facts["process"]
    assert process["compilations"] >= FOLDS
    spent = [one.account["time_s"]["compile"] for one in found]
    assert process["compile_s"] == pytest.approx(sum(spent), abs=0.01)
    run = run_report(found[-1])
    assert run["verdict"].startswith(f"All {FOLDS} fits compiled, each for itself: ")
    assert run["headline"]["ids"] == ["recompilation:every_fit"]
    (finding,) = [one for one in run["findings"] if one["id"] in run["headline"]["ids"]]
    assert "one model serve all fits" in finding["advice"]["text"] and "learning_rate" in finding["advice"]["code"]
    assert capsys.readouterr().out.count("compiled, each for itself") in (1, 2)  # and again for four times as many


def test_fits_of_models_made_again_for_each_fold_are_one_series_of_no_new_shapes(tmp_path):
    callback = GpuUtilCallback(str(tmp_path), report=False)
    for _ in range(FOLDS):
        fit(slow_to_compile(), callback)
    (recording,) = ended(tmp_path)
    assert (len(recording.steps["step"]), recording.facts["fits"]) == (FOLDS * STEPS, FOLDS)
    run = run_report(recording)
    claims = [one for one in [*run["spans"], *run["findings"]] if one["cause"] == "recompilation"]
    assert {claim["title"] for claim in claims} == {"Every fit compiles its own train function"}
    assert all("shape" not in claim["advice"]["text"] and claim["saves_s"] == 0 for claim in claims)


@pytest.mark.parametrize(
    ("given", "different"),
    [([X, X, X + 1, X], 2), ([tf.data.Dataset.from_tensor_slices((X, Y)).batch(len(X))] * 2, None)],
    ids=["arrays", "datasets"],
)
def test_how_many_different_data_the_fits_were_given(given, different, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_process", ProcessTime())
    model, callback = traced(), GpuUtilCallback(str(tmp_path), report=False)
    for x in given:
        of_arrays = {"y": Y} if isinstance(x, np.ndarray) else {}
        model.fit(x, **of_arrays, epochs=1, verbose=0, callbacks=[callback])
    assert ended(tmp_path)[-1].facts["process"].get("inputs") == different


def test_other_code_is_named_by_its_function_with_all_its_lines():
    """Seen: `prepare` was nine tenths of it, and none of its lines half."""
    process = ProcessTime()
    process._fits, process._samples, process._between_ns = 2, 100, 10 * 10**9
    process._earlier_ns.update({"other code": 100})
    lines = {"train (a.py, line 9)": 34, "prepare (a.py, line 3)": 35, "prepare (a.py, line 5)": 30}
    process._line_ns.update(lines | {"prepare_all (a.py, line 5)": 1})
    facts = process.facts(0)
    assert (facts["other_at"], facts["other_at_s"]) == ("prepare (a.py, line 3)", 6.5)


def test_what_is_tried_or_shown_in_a_notebook_is_no_time_of_the_program():
    """Seen in a kernel: "30 s in fit outside its callbacks", which were those of `try_fix`."""

    def code(name: str, path: str):
        return activity.__code__.replace(co_name=name, co_filename=path)

    cell, ours = code("<module>", "/tmp/ipykernel_1/2.py"), code("try_fix", notebook.__file__)
    keras_fit = code("fit", "/env/keras/src/backend/jax/trainer.py")
    assert activity([keras_fit, cell]) == ("fit outside its callbacks", False)
    assert activity([code("sleep", "/env/x.py"), keras_fit, ours, cell]) == (WAITING, False)
    assert activity([ours, cell]) == (WAITING, False)


@pytest.mark.timed
@pytest.mark.parametrize("shared", [True, False], ids=["one recording", "a recording each"])
def test_the_time_between_fits_is_accounted_by_name(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_process", ProcessTime())
    model, predicted_s, slept_s = traced(), 0.0, 0.0
    callback = GpuUtilCallback(str(tmp_path), report=False)
    for number in range(3):
        if not shared:
            callback = GpuUtilCallback(str(tmp_path / str(number)), report=False)
        fit(model, callback)
        if number == 2:
            break
        start = time.perf_counter()
        while time.perf_counter() - start < 0.4:
            model.predict(X[:1], verbose=0)
        predicted_s += time.perf_counter() - start
        time.sleep(0.3)
        slept_s += 0.3
    newest = ended(tmp_path)[-1]
    process = newest.facts["process"]
    parts = process["between_s"]
    assert process["fits"] == 3
    if shared:  # the sum is exact
        assert sum(parts.values()) == pytest.approx(newest.account["between_fits_s"], abs=0.001)
    assert parts["predict"] == pytest.approx(predicted_s, rel=0.25)
    assert parts["other code"] == pytest.approx(slept_s, rel=0.35)
    assert process["predict_set_up_s"] > 0.3 * parts["predict"]
    assert process["other_at"].startswith("test_the_time_between_fits_is_accounted_by_name (test_fit_series.py, line ")
    assert 0 < process["other_at_s"] <= parts["other code"] and process["inputs"] == 1
    assert "predict" not in vars(model), "nothing is wrapped"

    (finding,) = [one for one in run_report(newest)["findings"] if one["cause"] == "between_fits"]
    run = run_report(newest)
    assert run["headline"]["ids"] == ["between_fits"] and "passed between" in run["verdict"]
    assert run["headline"]["lost_s"] == finding["lost_s"] == pytest.approx(sum(parts.values()))
    assert "predict_on_batch" in finding["advice"]["code"] and finding["saves_s"] > 0
    assert main(["report", str(tmp_path), "--forbid", "between_fits"]) == 1
