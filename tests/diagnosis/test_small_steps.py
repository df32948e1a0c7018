"""What limits a run on a CPU whose batches are tiny, whose metrics compare much, or whose layers are unrolled."""

from types import SimpleNamespace

import numpy as np
import pytest
from generated_runs import GPU, Generated
from packages import need


def steps_of(batch: int | None, step_ms: float = 0.6, steps: int = 5000, gpus=(), **fit) -> Generated:
    run = Generated(
        seed=3,
        gpus=list(gpus),
        framework={"name": "tensorflow", "backend": "tensorflow", "device": "cpu"},
        fit={"input_kind": "numpy", "batch_size": batch, **fit},
    )
    run.steps(steps, step_ms=step_ms)
    return run


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_steps_of_a_few_samples_are_said_with_what_to_try(batch):
    """Seen: 12,500 steps of two samples, and "nothing held up training"; with 64 a batch it took a quarter."""
    verdict = steps_of(batch).diagnose()["verdict"]
    samples = f"{batch} sample{'s' * (batch > 1)}"
    assert f"A step trains {samples} in 0." in verdict and verdict.endswith("try whether a larger batch is faster.")


@pytest.mark.parametrize(
    "run",
    [
        steps_of(16),
        steps_of(None),
        steps_of(2, step_ms=5),  # it computes
        steps_of(2, gpus=[GPU]),
    ],
)
def test_other_steps_are_not(run):
    assert "A step trains" not in run.diagnose()["verdict"]


def unrolled(layers, compile_ms: float = 9000) -> Generated:
    run = Generated(
        seed=3, framework={"name": "jax", "backend": "jax"}, model={"name": "m", "unrolled": layers}, fit={"epochs": 4}
    )
    run.steps(300, step_ms=10, compile_ms=np.where(np.arange(300) == 0, compile_ms, 0.0))
    return run


@pytest.mark.parametrize("layers", [["GRU"], ["GRU", "LSTM"], ["SimpleRNN"]])
def test_unrolled_layers_are_named_where_compiling_takes_most_of_the_run(layers):
    """Seen: compiling a GRU with unroll=True took three quarters of a run, and no cause was named."""
    verdict = unrolled(layers).diagnose()["verdict"]
    assert verdict.startswith("Compiling took 75 % of 12 s")
    assert f"{' and '.join(layers)} with unroll=True" in verdict and "unroll=False compiles sooner." in verdict


@pytest.mark.parametrize("run", [unrolled([]), unrolled(["GRU"], compile_ms=900)])
def test_other_compilations_are_as_before(run):
    assert "unroll" not in run.diagnose()["verdict"]


def compares(**thresholds: int) -> str:
    run = steps_of(64, step_ms=20, steps=300)
    run.facts["model"] = {"thresholds": thresholds}
    return str(run.diagnose()["verdict"])


@pytest.mark.parametrize("metrics", [["Precision"], ["Precision", "Recall"], ["AUC"]])
def test_metrics_of_many_thresholds_are_named_with_what_costs_less(metrics):
    """Seen: two metrics at 199 thresholds took half of each step, and "nothing held up training"."""
    verdict = compares(**dict.fromkeys(metrics, 199), F1=1)
    compare = f"{' and '.join(metrics)} compare{'s' * (len(metrics) == 1)}"
    assert f"{compare} each value of a batch with 199 thresholds" in verdict and "np.linspace(0, 1, 201)" in verdict


@pytest.mark.parametrize("thresholds", [{}, {"Precision": 1}, {"Precision": 5}])
def test_metrics_of_few_thresholds_are_not(thresholds):
    assert "thresholds" not in compares(**thresholds)


def test_thresholds_that_keras_counts_one_by_one_are_told_from_even_ones():
    need("keras")
    from keras import metrics

    from gpu_util_callback.backends.adapters import _thresholds

    uneven, even = metrics.Precision([i / 200 for i in range(1, 200)]), metrics.Recall(np.linspace(0, 1, 201).tolist())
    given = [["mae", uneven], {"area": metrics.AUC(), "recall": even}, None]
    model = SimpleNamespace(_compile_metrics=SimpleNamespace(_user_metrics=given))
    assert _thresholds(model) == {"Precision": 199} and _thresholds(object()) == {}


@pytest.mark.parametrize(
    ("looped", "said"),
    [
        ({"Bones": "map_fn"}, " Bones calls map_fn, a loop of small operations: try whether"),
        ({"Cells": "while_loop"}, " Cells calls while_loop, a loop of small operations"),
        ({"Bones": "map_fn", "Walk": "scan"}, " Bones calls map_fn and Walk calls scan, a loop of small operations"),
    ],
)
def test_layers_that_loop_over_small_operations_are_asked_about(looped, said):
    run = Generated(seed=3, framework={"name": "tensorflow", "backend": "tensorflow"}, model={"looped": looped})
    run.steps(300, step_ms=20)
    assert said in run.diagnose()["verdict"]
    assert not run.diagnose()["findings"], "nothing is promised"
    run.facts["model"] = {"looped": {}}
    assert "small operations" not in run.diagnose()["verdict"]
