"""Data that can be read once: epochs and validations after the first find nothing, or Keras' two stale batches."""

import pytest
from advised_runs import JAX, KERAS_TORCH, LOOP, TENSORFLOW, run_of
from generated_runs import MS, findings_of

from gpu_util_callback.diagnosis.verdict import order

GENERATOR = {"input_kind": "generator", "input_class": "batches", "input_workers": 0}


def judged(steps: list[int], validations: list[int] = (), wait_ms: float = 12.0, **facts):
    run = run_of(epochs=len(steps), gpus=[], **facts)
    for number, count in enumerate(steps):
        with run.epoch():
            if count:
                run.steps(count, step_ms=3, wait_ms=wait_ms)
            if number < len(validations):
                run.validated(validations[number], 5 * MS, 0, share=0.0)
    return run.diagnose()


@pytest.mark.parametrize("framework", [TENSORFLOW, JAX, KERAS_TORCH])
def test_a_generator_that_is_used_up_comes_before_all_advice_on_speed(framework):
    result = judged([100, 2, 2, 2, 2], framework=framework, **GENERATOR)
    said = "Epochs 2–5 had 2 of 100 steps: the generator is used up; Keras repeats its first two batches"
    assert result["verdict"] == f"{said}."
    first, *others = sorted(findings_of(result), key=order)
    assert first["title"] == said and first["lost_s"] is None
    assert "yield from batches(...)" in first["advice"]["code"]
    assert "steps_per_epoch=100" in first["advice"]["code"]
    assert [other["cause"] for other in others] == ["input_bound"], "its wait was measured"
    assert not others[0]["advice"]["code"] and not others[0]["saves_s"] and not others[0]["saves_range_s"]


@pytest.mark.parametrize(
    ("steps", "facts", "said"),
    [
        ([100, 100, 50, 2, 2], {"steps_per_epoch": 100}, "Epochs 4–5 had 2 of 100 steps: the generator is used up"),
        ([100, 2, 2], {"first_epoch": 6}, "Epochs 8–9 had 2 of 100 steps"),
        ([100, 2], {}, "Epoch 2 had 2 of 100 steps"),
        ([100, 1, 1], {}, "Epochs 2–3 had 1 of 100 steps"),
        ([100] + 1500 * [2], {}, "Epochs 2–1501 had 2 of 100 steps"),
    ],
)
def test_the_epochs_are_named(steps, facts, said):
    assert judged(steps, **GENERATOR, **facts)["verdict"].startswith(said)


def test_a_generator_for_validation_is_used_up_likewise():
    facts = {"input_kind": "numpy", "validation_kind": "generator"}
    result = judged([50] * 4, [20, 2, 2, 2], wait_ms=0.0, **facts)
    assert result["verdict"].startswith("Validations 2–4 had 2 of 20 batches: the generator is used up; Keras repeats")
    [finding] = findings_of(result, "data_ended")
    assert "validation_data=endless(), validation_steps=20" in finding["advice"]["code"]


def test_a_validation_that_goes_on_is_not_judged_yet():
    run = run_of(gpus=[], epochs=2, input_kind="numpy", validation_kind="generator")
    for batches in (20, 2):
        with run.epoch():
            run.steps(50, step_ms=3)
            run.validated(batches, 5 * MS, 0, share=0.0)
    assert findings_of(run.diagnose(), "data_ended")
    run._rows["phases"] = [row for row in run._rows["phases"] if row[0] != "validation" or row[4] == 50]
    assert not findings_of(run.diagnose(ended=False), "data_ended")


def test_passes_of_a_loop_that_find_nothing():
    result = judged([100, 0, 0], framework=KERAS_TORCH, **LOOP, **GENERATOR)
    assert result["verdict"] == "Epochs 2–3 had 0 of 100 steps: the generator is used up."
    [finding] = findings_of(result, "data_ended")
    assert not finding["advice"]["code"] and "another for each epoch" in finding["advice"]["text"]


@pytest.mark.parametrize(
    ("steps", "facts"),
    [
        ([100] * 5, {}),
        ([2] * 5, {}),  # there are two
        ([100, 3, 3], {}),  # another function was called
        ([100, 100, 2], {"input_one_iterator": True, "steps_per_epoch": 100}),  # somebody stopped it
        ([100, 2, 2], {"input_kind": "PyDataset"}),
        ([100, 2, 2], LOOP),  # of a loop that takes as many as it wants
        ([100, 0, 20, 0], LOOP),  # a source that gives nothing for a while
        ([100], {}),
    ],
)
def test_other_epochs_are_left_alone(steps, facts):
    result = judged(steps, **{**GENERATOR, **facts})
    assert not findings_of(result, "data_ended"), result["verdict"]
