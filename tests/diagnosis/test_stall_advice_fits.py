"""Advice about stalls between steps fits the run: who holds it up, and how often."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from advised import Given, apply
from advised_runs import (
    DATALOADER,
    LOOP,
    PYDATASET,
    cases,
    check_line,
    found,
    hooks,
    phases,
    run_of,
)
from generated_runs import MS

from gpu_util_callback.diagnosis._stall_advice import validation
from gpu_util_callback.diagnosis._words import what_to_do

# name, run, in the code, never in the code
RUNS = [
    ("hook", hooks("Watcher.on_train_batch_end"), "if batch % 100 == 0", "epoch"),
    ("hook of a loop", hooks("logging", **LOOP), 'monitor.phase("logging")', "batch %"),
    ("TensorBoard in six epochs", phases("callback", "TensorBoard.on_epoch_end", 0.5),
     "histogram_freq=0", "on_train_end"),
    ("TensorBoard", hooks("TensorBoard.on_train_batch_end"),
     "super().on_train_batch_end(batch)", "if batch"),
    ("progress bar", hooks("ProgbarLogger.on_train_batch_end", 1), "verbose=2", "if batch"),
    ("saving by batch", hooks("BackupAndRestore.on_train_batch_end"),
     "keras.callbacks.BackupAndRestore(..., save_freq=", "ModelCheckpoint"),
    ("own saver by batch", hooks("MyCheckpoint.on_train_batch_end"), "if batch % 100",
     "ModelCheckpoint"),
    ("saving by epoch", phases("checkpoint", "ModelCheckpoint.on_epoch_end", epochs=100),
     "ModelCheckpoint(..., save_freq=50 * 200)", "Backup"),
    ("saving in six epochs", phases("checkpoint", "ModelCheckpoint.on_epoch_end"),
     "model.save(", "save_freq"),
    ("callback by epoch", phases("callback", "Plots.on_epoch_end", 0.5, epochs=100),
     "if epoch % 10 == 0", "batch"),
    ("callback in six epochs", phases("callback", "Plots.on_epoch_end", 0.5), "on_train_end",
     "epoch %"),
    ("validation", phases("validation", "validation", 1), "validation_", "cache"),
    ("restart", phases("input_setup", "new iterator"), "ds.repeat(), ..., steps_per_epoch=200",
     "persistent"),
    ("restart of arrays", phases("input_setup", "new iterator", input_kind="numpy"),
     "from_tensor_slices((x, y)).shuffle(len(x)).batch(32)", "persistent"),
    ("restart of a loader", phases("input_setup", "new iterator",
     **DATALOADER | {"input_workers": 2}), "persistent_workers=True", "repeat"),
    ("restart of processes", phases("input_setup", "new iterator", **PYDATASET |
     {"input_workers": 4, "input_processes": True}), "use_multiprocessing = False", "repeat"),
    ("validation of a loop", phases("validation", "validation", 1, **LOOP),
     'with monitor.phase("validation")', "model.fit"),
]  # fmt: skip
CAUSES = {
    "hook": "host_stall",
    "TensorBoard": "host_stall",
    "progress": "host_stall",
    "saving": "host_stall",
    "own": "host_stall",
    "callback": "host_stall",
    "validation": "host_stall",
    "restart": "input_bound",
}


@pytest.mark.parametrize("run, cause, there, never", cases(RUNS, CAUSES))
def test_the_line_fits_the_run(run, cause, there, never):
    check_line(run, cause, None, there, never)


def test_what_is_left_of_a_callback_is_not_promised_away():
    claim = found(hooks("Watcher.on_train_batch_end"), "host_stall")
    assert claim["saves_s"] == pytest.approx(0.99 * claim["lost_s"], rel=0.005)


def test_what_other_callbacks_take_is_not_promised():
    run = run_of()
    start = run.now
    run.steps(400, step_ms=10, callback_ms=20)
    run.hook_detail("TensorBoard.on_train_batch_end", start, run.now, 400 * 12 * MS, 400)
    run.hook_detail("Watcher.on_train_batch_end", start, run.now, 400 * 6 * MS, 400)
    claim = found(run, "host_stall")
    assert claim["title"] == "TensorBoard stalls training"
    assert claim["lost_s"] == pytest.approx(400 * 0.02, rel=0.01)
    assert claim["saves_s"] == pytest.approx(400 * 0.012, rel=0.01)


class Facts:
    """As much of a run as the advice about a validation asks for: 6 of them, 40 batches each."""

    ended, validation = True, SimpleNamespace(total_rows=240)

    def __init__(self, framework="jax", **facts):
        self.framework = framework
        self.facts = {"fit": {"epochs": 6, "input_kind": "numpy"} | facts, "framework": {}}

    def fact(self, group, name, default=None):
        value = self.facts[group].get(name)
        return default if value is None else value


def slow_validation(waited: float, **facts):
    took = 6 * 2 * 10**9
    return validation(
        Facts(**facts), count=6, took_ns=took, wait_ns=round(waited * took), span_ns=2 * took,
        pct=50,
    )  # fmt: skip


@pytest.mark.parametrize("workers, then", [(0, 4), (1, 4), (4, 8)])
def test_a_validation_that_waits_for_its_own_dataset_gets_workers(workers, then):
    advice = slow_validation(0.93, validation_kind="PyDataset", validation_workers=workers)
    dataset = apply(advice.code, val_dataset=SimpleNamespace())["val_dataset"]
    assert (dataset.workers, dataset.use_multiprocessing) == (then, True)
    assert "waits for its data 93 %" in advice.text and 0.4 < advice.saves < 0.93


def test_a_validation_that_waits_for_a_loader_gets_workers():
    advice = slow_validation(0.8, framework="torch", validation_kind="torch DataLoader")
    given = Given(lambda dataset, **settings: settings)
    apply(advice.code, DataLoader=given, val_dataset=[])
    assert given.result["num_workers"] == 4


def test_a_validation_that_waits_for_batches_of_a_loop_makes_them_once():
    advice = slow_validation(0.8, loop="custom", validation_kind="generator")
    assert apply(advice.code, val_dataset=iter([1, 2]))["val_dataset"] == [1, 2]


@pytest.mark.parametrize("waited, kind", [(0.3, "PyDataset"), (0.8, "numpy")])
def test_a_validation_that_computes_is_made_less(waited, kind):
    assert "model.fit(" in slow_validation(waited, validation_kind=kind).code


@pytest.mark.parametrize("count", [3, 6])
def test_short_loops_do_a_thing_once(count):
    """No `epoch % 50` where there are six."""
    claim = found(phases("callback", "plots", 2, count, **LOOP), "host_stall")
    done = []
    for epoch in range(count):
        apply(
            claim["advice"]["code"], work=lambda epoch=epoch: done.append(epoch), epoch=epoch,
            monitor=SimpleNamespace(phase=lambda name: contextlib.nullcontext()),
        )  # fmt: skip
    assert done == [count - 1]


def test_a_saver_that_saves_every_batch_saves_once_in_a_short_training():
    run = hooks("ModelCheckpoint.on_train_batch_end", 400, epochs=4, steps_per_epoch=100)
    assert "model.save(" in found(run, "host_stall")["advice"]["code"]


def test_looking_is_nothing_to_do_first():
    text = "Move the other program away."
    for code in (
        "nvidia-smi pmon -i 0 -c 1",
        "sudo dmesg | grep -i xid",
        "nvidia-smi -i 0 -q -d X",
    ):
        assert what_to_do({"text": text, "code": code}) == text
    change = "sudo nvidia-smi -i 0 -pl 300"
    assert what_to_do({"text": text, "code": change}) == change


@pytest.mark.parametrize("every, each_ms, told, code", [
    (1, 20, "takes 20 ms a step", "if batch % 100 == 0"),
    (50, 600, "steps, Watcher takes 0.6 s", "def on_epoch_end"),
    (20, 100, "About every 20 steps, Watcher takes 0.1 s", "if batch % 500 == 0"),
])  # fmt: skip
def test_a_hook_that_works_now_and_then_is_told_so(every, each_ms, told, code):
    run = run_of(epochs=2, steps_per_epoch=1000)
    start = run.now
    spent = np.where(np.arange(2000) % every == every - 1, each_ms, 0.0)
    run.steps(2000, step_ms=10, callback_ms=spent)
    run.hook_detail("Watcher.on_train_batch_end", start, run.now, round(spent.sum() * 1e6), 2000)
    claim = found(run, "host_stall")
    assert told in claim["advice"]["text"] and claim["advice"]["code"].startswith(code)
    assert claim["saves_s"] > 0.5 * claim["lost_s"]


def test_saving_once_says_what_keeps_the_best():
    for who, told in (("ModelCheckpoint", True), ("BackupAndRestore", False)):
        claim = found(phases("checkpoint", f"{who}.on_epoch_end"), "host_stall")
        assert ("restore_best_weights=True" in claim["advice"]["text"]) == told


@pytest.mark.parametrize("kind, told", [
    ("numpy", "validation_steps=6, validation_batch_size=64)"), ("tf.data", "validation_steps=6)"),
])  # fmt: skip
def test_a_part_of_validation_arrays_is_cut_into_batches_of_their_size(kind, told):
    """Keras would make six batches of all of them."""
    facts = {"validation_kind": kind, "batch_size": 64, "epochs": 4}
    run = SimpleNamespace(
        framework="tensorflow", ended=False, validation=SimpleNamespace(total_rows=200),
        fact=lambda group, name, default=None: facts.get(name, default),
    )  # fmt: skip
    advice = validation(run, count=2, took_ns=20, wait_ns=0, span_ns=30, pct=67)
    assert told in advice.code


@pytest.mark.parametrize("passes, code", [
    (True, "if epoch == 5:"), (False, "if step == 1199:"),
])  # fmt: skip
def test_a_loop_without_epochs_counts_its_steps(passes, code):
    run = run_of(**LOOP)
    for _ in range(6):
        start = run.now
        run.steps(200, step_ms=10)
        run.phase("validation", 2.0)
        if passes:
            run.epoch(start)
    advice = found(run, "host_stall")["advice"]
    assert advice["code"].startswith(code)
    assert "Validate once" in advice["text"]


def test_a_loop_without_epochs_validates_every_so_many_steps():
    run = run_of(**LOOP)
    for _ in range(20):
        run.steps(100, step_ms=10)
        run.phase("validation", 0.5)
    advice = found(run, "host_stall")["advice"]
    assert "5 times as seldom" in advice["text"]
    assert advice["code"].startswith("if step % 500 == 0:")
