"""Input that is set up anew in each epoch: how often, how long, and the line that fits the run."""

from types import SimpleNamespace

import numpy as np
import pytest
from advised import Given, apply
from advised_runs import DATALOADER, JAX, PYDATASET, found, phases, run_of

from gpu_util_callback.diagnosis import Diagnosis


def test_set_ups_that_follow_one_another_are_one():
    """Keras begins a PyDataset in three pieces: an epoch is set up once, for their sum."""
    run = run_of(epochs=6, steps_per_epoch=200, **PYDATASET)
    for _ in range(6):
        start = run.now
        for seconds in (1.5, 0.001, 0.01):
            run.phase("input_setup", seconds, name="workers", account="input_wait")
            run.now += 1000
        run.steps(200, step_ms=10)
        run.epoch(start)
    [found] = run.diagnose()["findings"] or run.diagnose()["spans"]
    assert found["evidence"]["times"] == 6
    assert found["evidence"]["seconds_each"] == pytest.approx(1.511, abs=0.01)
    assert "on_epoch_end" in found["advice"]["text"] and not found["advice"]["code"]


def set_up_beside_validation(seconds, **facts):
    """Epochs whose input is taken down before their validation, and set up behind it."""
    run = run_of(epochs=len(seconds), steps_per_epoch=100, **facts)
    for epoch_s in seconds:
        start = run.now
        run.phase("input_setup", epoch_s, name="iterator", account="input_wait")
        run.steps(100, step_ms=10)
        run.phase("input_setup", 0.04, name="new iterator", account="input_wait")
        run.phase("validation", 0.05, name="validation", account="validation")
        run.epoch(start)
    return run


def test_what_lies_on_both_sides_of_a_validation_is_one_set_up():
    finding = found(set_up_beside_validation([0.5] * 5), "input_bound")
    assert finding["evidence"]["times"] == 5
    assert finding["evidence"]["seconds_each"] == pytest.approx(0.54, abs=0.01)
    assert "takes 540 ms each time" in finding["advice"]["text"]


def test_set_ups_of_which_some_take_long_are_told_by_their_mean_and_their_longest():
    finding = found(set_up_beside_validation([0.1, 0.1, 0.9, 0.1, 0.8, 0.1, 0.1]), "input_bound")
    assert "takes 354 ms on average, 940 ms at most" in finding["advice"]["text"]


def test_arrays_that_are_split_are_split_before_they_become_a_dataset():
    tf = pytest.importorskip("tensorflow")
    facts = {"input_kind": "numpy", "batch_size": 32, "validation_split": 0.1}
    finding = found(set_up_beside_validation([0.5] * 5, **facts), "input_bound")
    x = np.arange(64.0)
    given = Given(lambda *data, **more: (data, more), x, x, validation_split=0.1)
    model = SimpleNamespace(fit=given)
    apply(finding["advice"]["code"], tf=tf, x=x, y=2 * x, model=model)
    (trained, *_), more = given.result
    assert next(iter(trained))[0].shape == (32,) and more["steps_per_epoch"] == 100
    assert [len(part) for part in more["validation_data"]] == [7, 7]
    assert more["validation_data"][0].tolist() == list(range(57, 64)), "as Keras would split them"


@pytest.mark.parametrize("lengths, told", [
    ((100, 100, 100), "steps_per_epoch=100"), ((100, 90, 100), "number_of_batches"),
])  # fmt: skip
def test_how_many_batches_an_epoch_has_is_seen_where_nobody_told(lengths, told):
    run = run_of(epochs=3, steps_per_epoch=None)
    for length in lengths:
        start = run.now
        run.phase("input_setup", 0.5, name="iterator", account="input_wait")
        run.steps(length, step_ms=10)
        run.epoch(start)
    assert told in found(run, "input_bound")["advice"]["code"]


def two_epochs(stall_s: float, at: int, before_s: float = 0.3):
    """Two epochs of 4 s; training stands still as the input of the one numbered `at` begins."""
    run = run_of(epochs=2, steps_per_epoch=400)
    for epoch in range(2):
        start = run.now
        name = f"epoch {epoch + 1}: iterator"
        seconds = stall_s if epoch == at else before_s
        run.phase("input_setup", seconds, name=name, account="input_wait")
        run.steps(400, step_ms=10)
        run.phase("input_setup", 0.02, name="end of data", account="input_wait")
        run.epoch(start)
    return run


def test_a_long_change_of_epochs_is_told_if_only_seen_once():
    run = two_epochs(3.0, at=1)
    finding = found(run, "input_bound")
    assert finding["lost_s"] == pytest.approx(3.02, rel=0.05)
    assert finding["evidence"]["times"] == 1 and finding["confidence"] == "estimated"
    assert "Seen once in 2 epochs" in finding["advice"]["text"]
    assert "steps_per_epoch=400" in finding["advice"]["code"]
    assert finding["start_step"] <= 400 <= finding["end_step"]


@pytest.mark.parametrize("stall_s, at, ended", [
    (3.0, 0, True),  # what the first epoch begins with had to be
    (0.9, 1, True),  # a hiccup
    (3.0, 1, False),  # more epochs may come without
])  # fmt: skip
def test_other_waits_at_the_beginning_of_an_epoch_are_not(stall_s, at, ended):
    run = two_epochs(stall_s, at)
    diagnosis = Diagnosis(run.facts)
    diagnosis.add(run.tables(), run.samples())
    result = diagnosis.result(now_ns=run.now, ended=ended)
    assert not result["spans"] and not result["findings"]


def test_one_long_change_of_many_epochs_is_told():
    run = run_of(epochs=12, steps_per_epoch=200)
    for epoch in range(12):
        start = run.now
        seconds = 6 if epoch == 7 else 0.02
        run.phase("input_setup", seconds, name="iterator", account="input_wait")
        run.steps(200, step_ms=10)
        run.epoch(start)
    finding = found(run, "input_bound")
    assert "Seen once in 12 epochs" in finding["advice"]["text"]
    assert finding["lost_s"] == pytest.approx(6, rel=0.1)


def test_workers_that_are_kept_are_not_advised_to_be():
    kept = {"input_workers": 2, "input_persistent_workers": True}
    advice = found(phases("input_setup", "iterator", **DATALOADER | kept), "input_bound")["advice"]
    assert "persistent_workers" not in advice["code"]


def test_arrays_that_begin_late_wait_for_a_core():
    """Keras begins them anew in milliseconds; nothing in the script could be set up once."""
    found = phases("input_setup", "iterator", input_kind="numpy", framework=JAX).diagnose()
    [finding] = [*found["findings"], *found["spans"]]
    assert "cores busy" in finding["advice"]["text"] and not finding["advice"]["code"]


@pytest.mark.parametrize("beside, given", [
    ([], "slices(x)"), (["y"], "slices((x, y))"),
    (["y", "sample_weight"], "slices((x, y, sample_weight))"), (None, "slices((x, y))"),
])  # fmt: skip
def test_a_dataset_is_made_of_all_arrays_that_were_given(beside, given):
    facts = {"input_kind": "numpy", "input_beside": beside}
    code = found(set_up_beside_validation([0.5] * 5, **facts), "input_bound")["advice"]["code"]
    assert given in code
    split = {"validation_split": 0.25}
    code = found(set_up_beside_validation([0.5] * 5, **facts, **split), "input_bound")["advice"][
        "code"
    ]
    arrays = ["x", *(["y"] if beside is None else beside)]
    assert all(f"{name}[:n]" in code and f"{name}[n:]" in code for name in arrays)
