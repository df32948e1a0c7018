"""What limits a run on a CPU whose batches are tiny, whose metrics compare much, or whose layers are unrolled."""

from types import SimpleNamespace

import numpy as np
import pytest
from generated_runs import GPU, Generated, findings_of
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


def asked(run: Generated) -> list:
    """Return the findings about slow steps: of unknown cost, and with a question."""
    findings = findings_of(run.diagnose(), cause="slow_steps")
    assert all(finding["advice"]["question"] and finding["lost_s"] is None for finding in findings)
    return findings


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_steps_of_a_few_samples_are_said_with_what_to_try(batch):
    """Seen: 12,500 steps of two samples, and "nothing held up training"; with 64 a batch it took a quarter."""
    (finding,) = asked(steps_of(batch))
    assert finding["title"].endswith(f" ms trains {batch} sample{'s' * (batch > 1)}")
    assert "larger batches" in finding["advice"]["text"]


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
    assert asked(run) == []


OWN = {"aside": 0.5, "calls": "gc.collect", "at": "Net.train_step (net.py, line 9)", "at_line": 1.0}


def started(on_core: float | None, framework="tensorflow", python=(), step_ms=0.6, gpus=(), facts=None, **fit) -> list:
    """Return the findings about steps that start in a thread which has a core for so much of each."""
    calls = {"samples": 60, "on_core": on_core, "parts": {}, **dict(python)}
    run = steps_of(16, step_ms, gpus=gpus, python_in_steps=calls, **fit)
    run.facts["framework"] = {"name": framework, "backend": framework, "device": "cpu", "keras": "3.15.1"}
    run.facts["framework"] |= facts or {}
    return findings_of(run.diagnose(), cause="slow_steps")


@pytest.mark.parametrize(
    ("framework", "on_core", "samples"), [("tensorflow", 0.8, 60), ("jax", 0.81, 60), ("tensorflow", 0.55, 500)]
)
def test_steps_that_mostly_start_have_the_change_and_what_it_gains(framework, on_core, samples):
    """Seen: "the inside of steps was not checked" of steps of which 16 in one call were 6.1 times faster."""
    (finding,) = started(on_core, framework, {"samples": samples})
    assert finding["title"] == "Starting each step takes most of it"
    assert finding["advice"]["code"] == "model.compile(..., steps_per_execution=16)" and finding["advice"]["changes"]
    assert finding["lost_s"] == pytest.approx(on_core * 5000 * 0.0006, rel=0.05)
    assert finding["saves_s"] == pytest.approx(finding["lost_s"] * 15 / 16, rel=0.01)
    assert finding["evidence"]["share_of_step_pct"] > finding["threshold"]["share_of_step_pct"]


@pytest.mark.parametrize(
    "case",
    [
        {"on_core": 0.24, "step_ms": 1.9},  # others compute
        {"on_core": None},
        {"on_core": 0.502, "python": {"samples": 41}},  # seen: half of each as often as not
        {"on_core": 0.56},  # of 60 samples
        {"on_core": 0.8, "step_ms": 5.0},  # a convolution
        {"on_core": 0.9, "framework": "torch"},  # computes on that thread itself
        {"on_core": 0.8, "python": OWN},  # Python of the program's own
        {"on_core": 0.8, "gpus": [GPU]},
        {"on_core": 0.8, "steps_per_execution": 16},
        {"on_core": 0.9, "run_eagerly": True},
        {"on_core": 0.9, "facts": {"eager_by": "jax_disable_jit"}, "framework": "jax"},
        {"on_core": 0.9, "loop": "custom", "dispatch": {"samples": 60, "eager": 50, "compiled": 2}},
    ],
)
def test_steps_that_compute_do_not(case):
    assert started(**case) == []


def short_of_cores(queued_pct: float, wait_ms: float, step_ms=0.6) -> list:
    """Return the findings about steps that mostly start, beside threads that wait for a core."""
    run = steps_of(16, step_ms, steps=100, python_in_steps={"samples": 60, "on_core": 0.8, "parts": {}})
    run.steps(4900, step_ms=step_ms, wait_ms=wait_ms)
    times = np.arange(run.facts["started_ns"], run.now, 100_000_000)
    host = {"process_cpu_pct": 100.0, "cpu_pct": 95.0, "children_cpu_pct": 0.0, "threads_queued_pct": queued_pct}
    run.facts["machine"] = {"cpus": 2, "cpus_allowed": 2}
    columns = {"time_ns": times} | {name: np.full(len(times), value) for name, value in host.items()}
    return findings_of(run.diagnose(samples=run.samples() | {"host": columns}), cause="slow_steps")


@pytest.mark.parametrize(("queued_pct", "wait_ms"), [(60, 0.3), (25, 0.1), (80, 1.0)])
def test_what_starts_take_beside_an_input_that_takes_the_cores_is_not_known(queued_pct, wait_ms):
    """Seen: "starting each step takes most of it" led over a map that kept both cores busy in each epoch."""
    assert short_of_cores(queued_pct, wait_ms) == []


@pytest.mark.parametrize(("queued_pct", "wait_ms", "step_ms", "share"), [(0, 0.3, 0.6, 1.0), (60, 0.0, 1.9, 0.625)])
def test_the_time_in_which_no_core_was_free_is_not_lost_to_starts(queued_pct, wait_ms, step_ms, share):
    (finding,) = short_of_cores(queued_pct, wait_ms, step_ms)
    assert finding["lost_s"] == pytest.approx(0.8 * 5 * step_ms * share, rel=0.05)


def test_a_loop_of_compiled_steps_is_asked_for_larger_batches():
    (finding,) = started(0.7, loop="custom", dispatch={"samples": 60, "eager": 1, "compiled": 50})
    assert finding["advice"]["question"] and "larger batches" in finding["advice"]["text"] and not finding["saves_s"]


def unrolled(layers, compile_ms: float = 9000) -> Generated:
    run = Generated(
        seed=3, framework={"name": "jax", "backend": "jax"}, model={"name": "m", "unrolled": layers}, fit={"epochs": 4}
    )
    run.steps(300, step_ms=10, compile_ms=np.where(np.arange(300) == 0, compile_ms, 0.0))
    return run


@pytest.mark.parametrize("layers", [["GRU"], ["GRU", "LSTM"], ["SimpleRNN"]])
def test_unrolled_layers_are_named_where_compiling_takes_most_of_the_run(layers):
    """Seen: compiling a GRU with unroll=True took three quarters of a run, and no cause was named."""
    (finding,) = asked(unrolled(layers))
    assert finding["title"] == f"Compiling takes 75 % of the run: {' and '.join(layers)} with unroll=True"
    assert finding["advice"]["code"] == f"keras.layers.{layers[0]}(..., unroll=False)"


@pytest.mark.parametrize("run", [unrolled([]), unrolled(["GRU"], compile_ms=900)])
def test_other_compilations_are_as_before(run):
    assert asked(run) == []


def compares(gpus=(), **thresholds: int) -> Generated:
    run = steps_of(64, step_ms=20, steps=300, gpus=gpus)
    run.facts["model"] = {"thresholds": thresholds}
    return run


@pytest.mark.parametrize("metrics", [["Precision"], ["Precision", "Recall"], ["AUC"]])
def test_metrics_of_many_thresholds_are_named_with_what_costs_less(metrics):
    """Seen: two metrics at 199 thresholds took half of each step, and "nothing held up training"."""
    (finding,) = asked(compares(**dict.fromkeys(metrics, 199), F1=1))
    compare = f"{' and '.join(metrics)} compare{'s' * (len(metrics) == 1)}"
    assert finding["title"] == f"{compare} each value of a batch with 199 thresholds, one by one"
    assert f"keras.metrics.{metrics[0]}(" in finding["advice"]["code"] and finding["threshold"]["compared_thresholds"]


@pytest.mark.parametrize(
    "run", [compares(), compares(Precision=1), compares(Precision=5), compares(gpus=[GPU], Precision=199)]
)
def test_metrics_of_few_thresholds_are_not(run):
    assert asked(run) == []


def test_thresholds_that_keras_counts_one_by_one_are_told_from_even_ones():
    need("keras")
    from keras import metrics

    from gpu_util_callback.backends.adapters import _thresholds

    uneven, even = metrics.Precision([i / 200 for i in range(1, 200)]), metrics.Recall(np.linspace(0, 1, 201).tolist())
    given = [["mae", uneven], {"area": metrics.AUC(), "recall": even}, None]
    model = SimpleNamespace(_compile_metrics=SimpleNamespace(_user_metrics=given))
    assert _thresholds(model) == {"Precision": 199} and _thresholds(object()) == {}


@pytest.mark.parametrize(
    "looped",
    [
        {"Bones.call (net.py, line 31)": "map_fn"},
        {"Cells.call (net.py, line 9)": "while_loop"},
        {"Bones.call (net.py, line 31)": "map_fn", "Walk.call (net.py, line 50)": "scan"},
    ],
)
def test_layers_that_loop_over_operations_are_named_by_their_line(looped):
    """Seen: a layer that went through the samples by tf.map_fn was a question within an all-clear."""
    run = Generated(seed=3, framework={"name": "tensorflow", "backend": "tensorflow"}, model={"looped": looped})
    run.steps(300, step_ms=20)
    findings = asked(run)
    assert [finding["title"] for finding in findings] == [
        f"Each step runs a loop of operations: {loop} in {place}" for place, loop in looped.items()
    ]
    assert all("one for each sample?" in finding["advice"]["text"] for finding in findings)
    run.facts["model"] = {"looped": {}}
    assert asked(run) == []


def test_what_is_asked_is_no_part_of_an_all_clear():
    """An all-clear says what was seen and what was not looked into; what can be changed is a finding."""
    run = steps_of(64, step_ms=20, steps=300)
    assert run.diagnose()["verdict"].endswith("No GPU, so the inside of steps was not checked.")
    run.facts["model"] = {"thresholds": {"AUC": 200}, "looped": {"Bones.call (net.py, line 31)": "map_fn"}}
    result = run.diagnose()
    assert len(findings_of(result)) == 2 and "not checked" not in result["verdict"] and "?" not in result["verdict"]
