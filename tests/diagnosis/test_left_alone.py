"""A GPU that the framework lists and the model is not on; a framework that is only guessed."""

import sys
from types import SimpleNamespace

import pytest
from generated_runs import GPU, Generated

from gpu_util_callback.backends.adapters import LoopAdapter, is_a_guess
from gpu_util_callback.backends.base import BACKENDS

GIB = 2**30
TORCH = {"name": "torch", "backend": "torch", "version": "2.13"}


def run_of(share=0.0, framework=TORCH, values=(), gpus=(GPU,), steps=800, **facts) -> Generated:
    run = Generated(seed=4, gpus=list(gpus), framework=framework, **facts)
    run.steps(steps, step_ms=20, gpu_share=share)
    for column, value in values:
        run.gpu_value(column, 16, value)
    return run


@pytest.mark.parametrize(
    "values",
    [
        [("memory_used_bytes", 3 * 2**20)],  # not even a context
        [("memory_used_bytes", 40 * GIB), ("memory_process_bytes", 0)],  # others hold it
        [("memory_used_bytes", 70 * GIB), ("allocator_peak_bytes", 0)],  # TensorFlow's empty pool
    ],
)
def test_a_model_that_was_never_moved_is_told(values):
    run = run_of(values=values)
    [finding] = run.findings("cpu_fallback")
    assert finding["title"] == "Training does not run on the NVIDIA H200"
    assert 'model.to("cuda")' in finding["advice"]["code"]
    assert run.diagnose()["verdict"] == "Training does not run on the NVIDIA H200."


@pytest.mark.parametrize(("steps", "found"), [(300, True), (200, False)])
def test_five_seconds_decide_however_often_the_driver_is_read(steps, found):
    """An H200's utilization is renewed every 200 ms: of 5.3 s there are 25 readings."""
    run = run_of(steps=steps)
    run.gpu_value("memory_used_bytes", 16, 3 * 2**20)
    assert bool(run.findings("cpu_fallback")) == found


@pytest.mark.parametrize(
    "share, values",
    [
        (0.0, []),  # nobody knows what it holds
        (0.0, [("memory_used_bytes", 20 * GIB)]),  # somebody's; whose is not known
        (0.0, [("memory_used_bytes", 20 * GIB), ("memory_process_bytes", 20 * GIB)]),
        (0.0, [("allocator_peak_bytes", 2048.0)]),  # a tiny model at work
        (0.05, [("memory_used_bytes", 3 * 2**20)]),
    ],
)
def test_a_small_model_or_an_unknown_memory_is_not(share, values):
    assert run_of(share, values=values).findings("cpu_fallback") == []


def test_what_the_allocator_holds_is_less_than_the_model():
    values = [("allocator_peak_bytes", 4096.0)]
    assert run_of(values=values, model={"name": "m", "parameters": 1_000_000}).findings("cpu_fallback")
    assert not run_of(values=values, model={"name": "m", "parameters": 18}).findings("cpu_fallback")


@pytest.mark.parametrize("name, there", [("tensorflow", "tf.device"), ("jax", "jax.device_put"), ("torch", "model.to")])
def test_each_framework_has_its_line(name, there):
    framework = {"name": name, "backend": name}
    [finding] = run_of(framework=framework, values=[("memory_used_bytes", 0)]).findings("cpu_fallback")
    assert there in finding["advice"]["code"]


@pytest.mark.parametrize(
    "values, blamed",
    [
        ([("utilization_pct", 60), ("utilization_process_pct", 55)], False),  # CuPy, TensorRT, Triton
        ([("utilization_pct", 60), ("memory_process_bytes", 2 * GIB)], False),
        ([("utilization_pct", 60), ("utilization_process_pct", 0)], True),  # others'
        ([("utilization_pct", 0), ("memory_process_bytes", 2 * GIB)], True),  # opened, and left alone
        ([("utilization_pct", 60), ("memory_process_bytes", 2**20)], True),
    ],
)
def test_a_gpu_that_this_process_keeps_busy_by_other_means_is_used(values, blamed):
    jax = {"name": "jax", "backend": "jax"}
    run = run_of(framework=jax, gpus=[GPU | {"used_by_framework": False}], values=values)
    assert bool(run.findings("cpu_fallback")) == blamed


def test_a_guessed_framework_is_not_blamed():
    unused = [GPU | {"used_by_framework": False}]
    jax = {"name": "jax", "backend": "jax"}
    assert run_of(framework=jax, gpus=unused).findings("cpu_fallback")
    assert not run_of(framework={**jax, "guessed": True}, gpus=unused).findings("cpu_fallback")


def test_it_is_a_guess_where_none_of_several_is_at_work_yet(monkeypatch):
    for name in (*BACKENDS, "keras", "jax._src.xla_bridge"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    optimizer = type("Optimizer", (), {})
    torch = SimpleNamespace(optim=SimpleNamespace(Optimizer=optimizer))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert not is_a_guess("torch")  # the only one
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    assert is_a_guess("torch") and is_a_guess("jax")
    mine = optimizer()
    assert not is_a_guess("torch") and mine is not None


def test_a_guess_is_kept_in_the_facts():
    pytest.importorskip("torch")
    assert LoopAdapter("torch", guessed=True).facts()["framework"]["guessed"] is True
    assert "guessed" not in LoopAdapter("torch").facts()["framework"]
