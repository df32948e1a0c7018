"""Advice about stalls between steps fits the run: who holds it up, and how often."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from advised import Given, apply
from advised_runs import DATALOADER, LOOP, PYDATASET, cases, check_line, found, hooks, phases, run_of
from generated_runs import GPU, MS, Generated
from made_up_rows import phase_table

from gpu_util_callback.diagnosis import Evidence, Run
from gpu_util_callback.diagnosis.advice.host import Validations, advise_validations
from gpu_util_callback.diagnosis.advice.snippets import usual_period
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.words import what_to_do

LIGHTNING = LOOP | {"trainer": "lightning"}
HUGGING_FACE = LOOP | {"trainer": "transformers"}
JOINING, FORWARD, FEW = ({"between": n, "between_joining": joining} for n, joining in ((135, 110), (135, 30), (4, 4)))

# cause: run, in the code ("" = no line), never in the code
RUNS = {
    "host_stall": [
        (hooks("Watcher.on_train_batch_end"), "if batch % 100 == 0", "epoch"),
        (hooks("logging", **LOOP), 'monitor.phase("logging")', "batch %"),
        (
            phases(
                "callback", "TensorBoard.on_epoch_end", 0.5, callbacks={"TensorBoard": {"every": {"histogram_freq": 1}}}
            ),
            "histogram_freq=0",
            "on_train_end",
        ),
        (
            phases("callback", "TensorBoard.on_epoch_end", 0.5, epochs=100),
            "class RareTensorBoard(keras.callbacks.TensorBoard):",
            "histogram",
        ),
        (
            phases("checkpoint", "ModelCheckpoint.on_epoch_end", 2000, count=2),
            "ModelCheckpoint(..., save_freq=",
            "instead of",
        ),
        (phases("callback", "SwapEMAWeights.on_epoch_end", 0.5), "", None),
        (hooks("TensorBoard.on_train_batch_end"), "super().on_train_batch_end(batch)", "if batch"),
        (hooks("ProgbarLogger.on_train_batch_end", 1), "verbose=2", "if batch"),
        (
            hooks("BackupAndRestore.on_train_batch_end"),
            "keras.callbacks.BackupAndRestore(..., save_freq=",
            "ModelCheckpoint",
        ),
        (hooks("MyCheckpoint.on_train_batch_end"), "if batch % 100", "ModelCheckpoint"),
        (
            phases("checkpoint", "ModelCheckpoint.on_epoch_end", epochs=100),
            "ModelCheckpoint(..., save_freq=50 * 200)",
            "Backup",
        ),
        (phases("checkpoint", "ModelCheckpoint.on_epoch_end"), "model.save(", "save_freq"),
        (hooks("ModelCheckpoint.on_train_batch_end", 400, epochs=4, steps_per_epoch=100), "model.save(", "save_freq"),
        (phases("callback", "Plots.on_epoch_end", 0.5, epochs=100), "if epoch % 10 == 0", "batch"),
        (phases("callback", "Plots.on_epoch_end", 0.5), "on_train_end", "epoch %"),
        (phases("validation", "validation", 1), "validation_", "cache"),
        (phases("validation", "validation", 1, **LOOP), 'with monitor.phase("validation")', "model.fit"),
        # A trainer's user has no monitor.
        (phases("validation", "validation", 1, **LIGHTNING), "Trainer(..., check_val_every_n_epoch=", "monitor"),
        (phases("validation", "validation", 1, **HUGGING_FACE), 'eval_strategy="steps", eval_steps=', "monitor"),
        (
            phases("validation", "validation", **HUGGING_FACE, dispatch=JOINING),
            "preprocess_logits_for_metrics=",
            "eval_",
        ),
        (phases("validation", "validation", **HUGGING_FACE, dispatch=FORWARD), "eval_steps=", "preprocess"),
        (phases("validation", "validation", **HUGGING_FACE, dispatch=FEW), "eval_steps=", "preprocess"),
        (hooks("checkpoint", **LIGHTNING), "ModelCheckpoint(..., every_n_train_steps=100)", "monitor"),
        (hooks("checkpoint", **HUGGING_FACE), 'save_strategy="steps", save_steps=100)', "monitor"),
        (hooks("checkpoint", **LOOP), 'if step % 100 == 0:\n    with monitor.phase("checkpoint")', "epoch"),
        (phases("checkpoint", "checkpoint", 0.5, epochs=100, **LOOP), 'monitor.phase("checkpoint")', "keras"),
        (hooks("EMA", **LIGHTNING), "if batch_idx % 100 == 0: ...  # what EMA does now", "monitor"),
        (hooks("EMA", **HUGGING_FACE), "if state.global_step % 100 == 0: ...  # what EMA does now", "batch_idx"),
        (phases("callback", "Texts", 0.5, epochs=100, **HUGGING_FACE), "if round(state.epoch) % ", "trainer."),
    ],
    "input_bound": [
        (
            phases("input_setup", "new iterator", **DATALOADER | {"input_workers": 2}),
            "persistent_workers=True",
            "repeat",
        ),
        (
            phases("input_setup", "new iterator", **PYDATASET | {"input_workers": 4, "input_processes": True}),
            "use_multiprocessing = False",
            "repeat",
        ),
    ],
}


@pytest.mark.parametrize("run, cause, there, never", cases(RUNS))
def test_the_line_fits_the_run(run, cause, there, never):
    check_line(run, cause, None, there, never)


@pytest.mark.parametrize(
    "run",
    [hooks("Average.on_train_batch_end"), phases("callback", "Curriculum.on_epoch_end", 0.5), hooks("mine", **LOOP)],
)
def test_work_that_the_training_may_rest_on_is_not_left_out_unasked(run):
    advice = found(run, "host_stall")["advice"]
    assert advice["question"] and "Does training go on the same where it is left out? If so, do it" in advice["text"]


EACH = {"every": {"freq": 1}}


def test_what_is_left_of_a_callback_is_not_promised_away():
    finding = found(hooks("Watcher.on_train_batch_end", callbacks={"Watcher": EACH}), "host_stall")
    assert finding["saves_s"] == pytest.approx(0.99 * finding["lost_s"], rel=0.005)


@pytest.mark.parametrize(
    "run",
    [
        hooks("Watcher.on_train_batch_end", callbacks={"Watcher": EACH}),
        phases("callback", "Plots.on_epoch_end", 0.5, callbacks={"Plots": EACH}),
    ],
)
def test_work_that_is_left_out_saves_no_more_than_it_took(run):
    finding = found(run, "host_stall")
    least, most = finding["saves_range_s"]
    assert 0 < least < finding["saves_s"] < most <= finding["lost_s"]


BATCH, EPOCH = "Plots.on_train_batch_end (train.py, line 12)", "Plots.on_train_epoch_end (train.py, line 30)"
PLACES = {"on_train_batch_end": BATCH, "on_train_epoch_end": EPOCH}


@pytest.mark.parametrize(
    "run, place",
    [
        (hooks("Plots.on_train_batch_end", callbacks={"Plots": {"places": PLACES}}), BATCH),
        (phases("callback", "Plots.on_train_epoch_end", 0.5, callbacks={"Plots": {"places": PLACES}}), EPOCH),
        (hooks("Plots", **LIGHTNING, callbacks={"Plots": {"places": {"on_train_batch_end": BATCH}}}), BATCH),
        (hooks("Plots", **HUGGING_FACE, callbacks={"Plots": {"places": PLACES}}), f"{BATCH} or {EPOCH}"),
        (hooks("Plots.on_test_begin", callbacks={"Plots": {"places": PLACES}}), "Plots"),
        (hooks("Plots", **LIGHTNING), "Plots"),
    ],
)
def test_a_callback_is_named_with_the_line_of_its_hook(run, place):
    finding = found(run, "host_stall")
    assert finding["title"] == "Plots stalls training"
    assert finding["advice"]["text"].startswith(f"{place} takes "), finding["advice"]["text"]


def test_what_other_callbacks_take_is_not_promised():
    run = run_of()
    start = run.now
    run.steps(400, step_ms=10, callback_ms=20)
    run.hook_detail("TensorBoard.on_train_batch_end", start, run.now, 400 * 12 * MS, 400)
    run.hook_detail("Watcher.on_train_batch_end", start, run.now, 400 * 6 * MS, 400)
    finding = found(run, "host_stall")
    assert finding["title"] == "TensorBoard stalls training"
    assert finding["lost_s"] == pytest.approx(400 * 0.02, rel=0.01)
    assert finding["saves_s"] == pytest.approx(400 * 0.012, rel=0.01)


def validated(
    waited: float = 0.0,
    pct: float = 50,
    count: int = 6,
    batches: int = 40,
    cache=False,
    gpus=(),
    ended=0,
    rate=None,
    **facts,
) -> Advice:
    """The advice for a run that spends `pct` % of its time in validations.

    Args:
        waited: share of them in which they wait for data.
        cache: whether the validation's pipeline has a cache; None = it was not read.
        ended: epochs that were seen to end.
        rate: samples that training takes in a second; None = not known.
    """
    facts = {"epochs": count, "input_kind": "tf.data", "validation_kind": "numpy", "validation_batch_size": 32} | facts
    run = run_of(gpus=list(gpus), **facts)
    run.facts["throughput"] = {"samples": rate, "training_s": 1.0}
    run.steps(50, step_ms=10)
    if cache is not None:
        stage = ("cache", "MemoryCache", 1.0, 1.0, "") if cache else ("batch", "Batch", 1.0, 1.0, "")
        run.reading(stage, batches=50, which="validation")
    evidence = Evidence()
    evidence.add(run.tables(), run.samples())
    if ended:
        epochs = phase_table(*(("epoch", f"epoch {n}", n, n + 1, n + 1) for n in range(ended)))
        evidence.add({"phases": epochs}, {})
    took = 10**9
    spent = {"rows": count * batches, "duration_ns": round(0.9 * took)}
    made = SimpleNamespace(total_rows=spent["rows"], total=spent.__getitem__)
    evidence.validation = made
    seen = Run(run.facts, evidence, run.now, ended=True)
    return advise_validations(
        Validations(seen, count, took, wait_ns=round(waited * took), span_ns=round(100 * took / pct))
    )


MAPS = {
    random: [{"name": "map(f)", "which": "validation", "random": random, "python": False}] for random in (False, True)
}
MONITOR = {"callbacks": {"EarlyStopping": {"monitor": "val_loss"}}}


@pytest.mark.parametrize(
    "facts, code, question",
    [
        ({"validation_kind": "tf.data", "input_maps": MAPS[False]}, "val_ds.cache()", True),
        ({"validation_kind": "tf.data"}, "val_ds.cache()", True),  # its maps are not known
        ({"validation_kind": "tf.data", "input_maps": MAPS[True]}, "validation_steps=4", False),
        ({"validation_kind": "tf.data", "input_maps": MAPS[False], "cache": True}, "validation_freq=2", False),
        ({"validation_kind": "PyDataset", "count": 3}, "val_dataset.workers = 4", True),
        ({"validation_kind": "generator", "loop": "custom", "count": 3}, "list(val_dataset)", True),
    ],
)
def test_a_validation_that_waits_for_its_data(facts, code, question):
    advice = validated(0.9, **facts)
    assert code in advice.code and advice.question == question, advice


def test_what_the_first_validation_takes_longer_is_saved_by_nothing():
    """Six validations of a second; one of them took three more, once."""
    runs = [phases("validation", "validation", 1.0) for _ in range(2)]
    runs[1].phase("validation", 4.0, name="validation")
    runs[0].phase("validation", 1.0, name="validation")
    usual, longer = (found(run, "host_stall") for run in runs)
    assert longer["lost_s"] == pytest.approx(usual["lost_s"] + 3.0, rel=0.01)
    assert longer["saves_s"] == pytest.approx(usual["saves_s"], rel=0.01)


def test_a_validation_that_is_rare_already_gets_rarer():
    """Seen: `validation_freq=2` was advised to a fit with `validation_freq=6`."""
    assert validated(pct=20, batches=5, ended=36).code == "model.fit(..., validation_freq=12)"


def test_a_validation_less_often_names_the_callbacks_that_see_fewer():
    few = {"pct": 20, "batches": 5}
    assert validated(**few, **MONITOR).code == "model.fit(..., validation_freq=2)"
    assert "EarlyStopping see fewer of them" in validated(**few, **MONITOR).changes
    assert "EarlyStopping" not in validated(**few).changes


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({}, "validation_batch_size=256"),
        ({"batches": 8}, "validation_batch_size=64"),
        ({"batches": 5}, "validation_freq"),
        ({"validation_batch_size": 128}, "validation_batch_size=1024"),
        ({"validation_batch_size": None}, "validation_freq"),
        ({"validation_kind": "PyDataset"}, "validation_freq"),
        ({"gpus": [GPU]}, "validation_freq"),  # what its memory holds was not measured
    ],
)
def test_a_validation_of_arrays_is_asked_for_larger_batches_before_it_is_cut(facts, code):
    advice = validated(pct=20, **facts)
    assert code in advice.code and advice.question == (code.startswith("validation_batch"))
    assert not advice.question or not advice.changes


ROWS = {"batches": 400, "batch_size": 64, "validation_batch_size": 1, "pct": 80}


@pytest.mark.parametrize(
    ("facts", "code", "question"),
    [
        ({"validation_kind": "tf.data"}, "val_ds = val_ds.batch(64)  # in place of batch(1)", False),
        ({"validation_kind": "tf.data", "batch_size": None, "input_batch_size": 64}, "val_ds.batch(64)", False),
        ({"validation_kind": "numpy"}, "model.fit(..., validation_batch_size=64)", False),
        ({"validation_kind": "torch DataLoader"}, "DataLoader(val_dataset, ..., batch_size=64)", True),
        ({"validation_kind": "PyDataset", "waited": 0.2}, "", True),
    ],
)
def test_a_validation_of_single_rows_is_batched_first(facts, code, question):
    """Seen: every second epoch, of 1,200 batches of one row: 1.6 to 2.2 times; four with batches as training's."""
    advice = validated(**ROWS | {"rate": 24_000.0} | facts)
    assert "400 batches of size 1, where training's have 64." in advice.text
    assert code in advice.code and bool(advice.code) == bool(code) and advice.question == question
    assert advice.saves == pytest.approx(0.9 - 0.1 - facts.get("waited", 0.0))


@pytest.mark.parametrize(
    "facts",
    [
        {"rate": 3_000.0},  # so much work is a row of training
        {"rate": None},
        {"validation_batch_size": 32},
        {"batch_size": None},
        {"waited": 0.6},
        {"waited": 0.3, "cache": None},
    ],
)
def test_other_validations_of_few_rows_are_not(facts):
    assert (
        "where training's have" not in validated(**ROWS | {"rate": 24_000.0, "validation_kind": "tf.data"} | facts).text
    )


@pytest.mark.parametrize(
    "facts, there",
    [
        ({"batches": 5}, True),
        ({"batches": 5} | MONITOR, False),  # the metric that it stops by would be another
        ({"validation_kind": "tf.data", "cache": True}, False),  # which would never be complete
        ({"validation_kind": "tf.data", "cache": None}, False),  # nobody knows
        ({"validation_kind": "tf.data", "cache": False}, True),
        ({"batches": 1}, False),
    ],
)
def test_a_validation_on_fewer_batches(facts, there):
    """Of two epochs: validating less often would leave one validation."""
    advice = validated(count=2, pct=67, **facts)
    assert ("validation_steps" in advice.code) == there
    if there:
        assert advice.changes and advice.saves < 0.9  # what a validation begins and ends with stays
        assert ("validation_batch_size" in advice.code) == ("validation_kind" not in facts)


@pytest.mark.parametrize("epochs", [4, 8, 40])
def test_a_training_keeps_some_of_its_validations(epochs):
    given = Given(dict)
    apply(validated(pct=90, count=epochs).code, model=SimpleNamespace(fit=given))
    assert epochs // given.result.get("validation_freq", 1) >= min(epochs // 2, 4)


@pytest.mark.parametrize("count", [3, 6])
def test_short_loops_do_a_thing_once(count):
    """No `epoch % 50` where there are six."""
    finding = found(phases("callback", "plots", 2, count, **LOOP), "host_stall")
    done = []
    for epoch in range(count):
        apply(
            finding["advice"]["code"],
            work=lambda epoch=epoch: done.append(epoch),
            epoch=epoch,
            monitor=SimpleNamespace(phase=lambda name: contextlib.nullcontext()),
        )
    assert done == [count - 1]


def test_looking_is_nothing_to_do_first():
    text = "Move the other program away."
    for code in ("nvidia-smi pmon -i 0 -c 1", "sudo dmesg | grep -i xid", "nvidia-smi -i 0 -q -d X"):
        assert what_to_do({"text": text, "code": code}) == text
    change = "sudo nvidia-smi -i 0 -pl 300"
    assert what_to_do({"text": text, "code": change}) == change


@pytest.mark.parametrize(
    "every, each_ms, told, code",
    [
        (1, 20, "takes 20 ms a step", "if batch % 100 == 0"),
        (50, 600, "steps, Watcher takes 600 ms", "def on_train_batch_end(self, batch, logs=None):"),
        (20, 100, "About every 20 steps, Watcher takes 100 ms", "if batch % 500 == 0"),
    ],
)
def test_a_hook_that_works_now_and_then_is_told_so(every, each_ms, told, code):
    run = run_of(epochs=2, steps_per_epoch=1000)
    start = run.now
    spent = np.where(np.arange(2000) % every == every - 1, each_ms, 0.0)
    run.steps(2000, step_ms=10, callback_ms=spent)
    run.hook_detail("Watcher.on_train_batch_end", start, run.now, round(spent.sum() * 1e6), 2000)
    finding = found(run, "host_stall")
    assert told in finding["advice"]["text"] and finding["advice"]["code"].startswith(code)
    assert finding["saves_range_s"][1] > 0.5 * finding["lost_s"]


@pytest.mark.parametrize(
    ("steps", "times", "period"),
    [
        (50, 3, 20),  # seen: "about every 17 steps"; at the steps 0, 20 and 40
        (50, 2, 20),  # at 20 and 40
        (250, 13, 20),
        (250, 12, 20),
        (1000, 10, 100),
        (999, 10, 100),
        (384, 6, 64),  # what divides the steps is not rounded
        (1000, 40, 25),
        (250, 5, 50),
        (10, 40, 1),
    ],
)
def test_a_period_is_told_as_it_is_whether_or_not_the_first_step_counts(steps, times, period):
    assert usual_period(steps, times) == period


@pytest.mark.parametrize(("accumulated", "comment"), [(None, ""), (4, "  # of 4 batches each")])
def test_steps_of_the_optimizer_are_explained_where_they_are_not_batches(accumulated, comment):
    facts = {"gradient_accumulation_steps": accumulated} if accumulated else {}
    code = found(phases("checkpoint", "checkpoint", **LIGHTNING, **facts, epochs=1), "host_stall")["advice"]["code"]
    assert code.endswith(f"){comment}") or "every_n_epochs" in code


def test_saving_once_says_what_keeps_the_best():
    """Without ending the training: no epoch of the six is one too many."""
    for who, told in (("ModelCheckpoint", True), ("BackupAndRestore", False)):
        finding = found(phases("checkpoint", f"{who}.on_epoch_end"), "host_stall")
        assert ("EarlyStopping(patience=6, restore_best_weights=True)" in finding["advice"]["text"]) == told


@pytest.mark.parametrize(
    "count, steps, passes, code",
    [
        (6, 200, True, "if epoch % 2 == 0:"),
        (6, 200, False, "if step % 400 == 0:"),
        (20, 100, False, "if step % 500 == 0:"),
    ],
)
def test_a_loop_without_epochs_counts_its_steps(count, steps, passes, code):
    """And keeps some of its validations: one alone shows no course."""
    run = run_of(**LOOP)
    for _ in range(count):
        with run.epoch() if passes else contextlib.nullcontext():
            run.steps(steps, step_ms=10)
            run.phase("validation", steps / 100)
    assert found(run, "host_stall")["advice"]["code"].startswith(code)


def test_a_loop_that_validates_within_a_pass_counts_its_steps():
    run = run_of(**LOOP)
    with run.epoch():
        for _ in range(12):
            run.steps(50, step_ms=10)
            run.phase("validation", 0.5)
    assert found(run, "host_stall")["advice"]["code"].startswith("if step % 150 == 0:")


def moved(code: str, calls: list) -> dict:
    """The hooks that printed code defines; the work moved into them notes what it can see."""
    names = apply(code.replace("...", "_note(dict(locals()))"), _note=calls.append)
    return {name: hook for name, hook in names.items() if name.startswith("on_")}


@pytest.mark.parametrize(
    "name, own, calls, seen",
    [
        ("Plots.on_epoch_end", None, [(3, {"loss": 1.0})], {"epoch": 3, "logs": {"loss": 1.0}}),
        ("Plots.on_epoch_end", "e", [(3, None)], {"e": 3}),
        ("Plots.on_test_end", None, [({"loss": 2.0},)], {"logs": {"loss": 2.0}}),
    ],
)
def test_what_is_moved_keeps_its_arguments(name, own, calls, seen):
    names = {"Plots": {"names": {"on_epoch_end": own}}} if own else {}
    finding = found(phases("callback", name, 0.5, callbacks=names), "host_stall")
    noted = []
    hooks_of = moved(finding["advice"]["code"], noted)
    callback = SimpleNamespace()
    for arguments in calls:
        hooks_of[name.partition(".")[2]](callback, *arguments)
    assert not noted
    hooks_of["on_train_end"](callback)
    assert len(noted) == 1 and seen.items() <= noted[0].items()


def test_a_hook_without_an_epoch_counts_its_calls():
    finding = found(phases("callback", "Plots.on_test_end", 0.5, epochs=100), "host_stall")
    worked, callback = [], SimpleNamespace()
    for number in range(20):
        apply(
            finding["advice"]["code"], work=lambda number=number: worked.append(number), self=callback, getattr=getattr
        )
    assert worked == [0, 10]


def watching(**said) -> Generated:
    return hooks("Watcher.on_train_batch_end", callbacks={"Watcher": said})


PLOTS = {"Plots": {"every": {"plot_period": 1, "every_n_steps": 1}}}
WANDB = "WandbMetricsLogger.on_train_batch_end"


@pytest.mark.parametrize(
    "run, code",
    [
        (watching(every={"print_every": 1}), "Watcher(..., print_every=100)"),
        (watching(every={"log_freq": 2}), "Watcher(..., log_freq=100)"),
        (watching(every={"every_n_epochs": 1}), "if batch % 100 == 0"),
        (watching(every={"interval": 30}), "if batch % 100 == 0"),  # seconds?
        (watching(names={"on_train_batch_end": "step"}), "if step % 100 == 0"),
        (watching(every={"x); import os; (": 1}), "if batch % 100 == 0"),
        (phases("callback", "Plots.on_epoch_end", 0.5, epochs=100, callbacks=PLOTS), "Plots(..., plot_period=10)"),
        # Of somebody's library, whose code is left alone.
        (
            hooks(WANDB, callbacks={"WandbMetricsLogger": {"every": {"log_freq": 1}}}),
            "WandbMetricsLogger(..., log_freq=",
        ),
    ],
)
def test_an_argument_that_the_class_has_is_used(run, code):
    advice = found(run, "host_stall")["advice"]
    assert advice["code"].startswith(code)
    assert "Wandb" not in code or advice["before"] == "WandbMetricsLogger(..., log_freq=1)"


class Theirs:
    """Stands for a callback of somebody's library."""

    def __init__(self):
        self.worked, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.worked.append((batch, logs))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)

    def on_test_end(self, logs=None):
        self.worked.append(logs)


def subclassed(advice):
    """An instance of the class that the advice prints."""
    assert advice["before"] == "callbacks = [Theirs(...)]"
    names = {"Theirs": Theirs}
    exec(advice["code"].replace("(...)", "()"), names)
    (callback,) = names["callbacks"]
    return callback


LIBRARY = {"Theirs": {"library": "theirs"}}


def test_a_librarys_callback_is_subclassed_not_edited():
    """It works at every hundredth batch, by its number; at every tenth call of a hook that has none."""
    callback = subclassed(found(hooks("Theirs.on_train_batch_end", callbacks=LIBRARY), "host_stall")["advice"])
    for batch in range(250):
        callback.on_train_batch_end(batch, {"loss": batch})
    assert callback.worked == [(0, {"loss": 0}), (100, {"loss": 100}), (200, {"loss": 200})]
    run = phases("callback", "Theirs.on_test_end", 0.5, epochs=100, callbacks=LIBRARY)
    callback = subclassed(found(run, "host_stall")["advice"])
    for number in range(20):
        callback.on_test_end({"n": number})
    assert callback.worked == [{"n": 0}, {"n": 10}]


def test_a_librarys_work_moves_to_a_later_hook_with_its_arguments():
    run = run_of(callbacks=LIBRARY)
    start = run.now
    for _ in range(20):  # it works at every twentieth batch
        run.steps(19, step_ms=10)
        run.steps(1, step_ms=10, callback_ms=600)
    run.hook_detail("Theirs.on_train_batch_end", start, run.now, 12 * 10**9, 20)
    callback = subclassed(found(run, "host_stall")["advice"])
    for batch in range(3):
        callback.on_train_batch_end(batch, {"loss": batch})
    callback.on_epoch_end(7, {})
    assert callback.worked == [(2, {"loss": 2})] and callback.epochs == [7]


@pytest.mark.parametrize("run", [hooks("checkpoint", **LOOP), phases("checkpoint", "checkpoint", 0.5, **LOOP)])
def test_saving_less_often_is_no_question_and_says_what_it_changes(run):
    advice = found(run, "host_stall")["advice"]
    assert not advice["question"] and advice["changes"] == "how much of the training a crash loses"
