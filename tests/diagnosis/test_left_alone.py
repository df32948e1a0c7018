"""A GPU that the framework lists and the model is not on; a framework that is only guessed."""

import subprocess
import sys

import pytest
from generated_runs import GPU, Generated

from gpu_util_callback.backends.adapters import LoopAdapter

GIB = 2**30
TORCH = {"name": "torch", "backend": "torch", "version": "2.13"}


JAX = {"name": "jax", "backend": "jax"}
UNUSED = {"framework": JAX, "gpus": [GPU | {"used_by_framework": False}]}


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


@pytest.mark.parametrize(
    "facts, values, blamed",
    [
        # Five seconds decide, however often the driver is read: an H200 renews its utilization every 200 ms.
        ({"steps": 300}, {"memory_used_bytes": 3 * 2**20}, True),
        ({"steps": 200}, {"memory_used_bytes": 3 * 2**20}, False),
        ({"share": 0.05}, {"memory_used_bytes": 3 * 2**20}, False),  # a small model
        ({}, {}, False),  # nobody knows what it holds
        ({}, {"memory_used_bytes": 20 * GIB}, False),  # somebody's; whose is not known
        ({}, {"memory_used_bytes": 20 * GIB, "memory_process_bytes": 20 * GIB}, False),
        ({}, {"allocator_peak_bytes": 2048.0}, False),  # a tiny model at work
        ({"model": {"name": "m", "parameters": 18}}, {"allocator_peak_bytes": 4096.0}, False),
        ({"model": {"name": "m", "parameters": 1_000_000}}, {"allocator_peak_bytes": 4096.0}, True),  # less than it
        # A GPU that the framework does not use, but this process by other means: CuPy, TensorRT, Triton.
        (UNUSED, {"utilization_pct": 60, "utilization_process_pct": 55}, False),
        (UNUSED, {"utilization_pct": 60, "memory_process_bytes": 2 * GIB}, False),
        (UNUSED, {"utilization_pct": 60, "utilization_process_pct": 0}, True),  # others'
        (UNUSED, {"utilization_pct": 0, "memory_process_bytes": 2 * GIB}, True),  # opened, and left alone
        (UNUSED, {"utilization_pct": 60, "memory_process_bytes": 2**20}, True),
        (UNUSED, {}, True),
        (UNUSED | {"framework": JAX | {"guessed": True}}, {}, False),
    ],
)
def test_who_is_blamed_for_a_gpu_left_alone(facts, values, blamed):
    assert bool(run_of(values=values.items(), **facts).findings("cpu_fallback")) == blamed


@pytest.mark.parametrize("name, there", [("tensorflow", "tf.device"), ("jax", "jax.device_put"), ("torch", "model.to")])
def test_each_framework_has_its_line(name, there):
    framework = {"name": name, "backend": name}
    [finding] = run_of(framework=framework, values=[("memory_used_bytes", 0)]).findings("cpu_fallback")
    assert there in finding["advice"]["code"]


IN_USE = """
import sys, types, torch
from gpu_util_callback.backends.adapters import framework_in_use
seen = [framework_in_use()]
sys.modules["jax"] = types.ModuleType("jax")
seen += [framework_in_use()]
mine = type("Mine", (torch.optim.SGD,), {})([torch.zeros(1)])
print(*seen, framework_in_use())
"""


def test_it_is_a_guess_where_none_of_several_is_at_work_yet():
    pytest.importorskip("torch")
    run = subprocess.run([sys.executable, "-c", IN_USE], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "('torch', False) ('jax', True) ('torch', False)"


def test_a_guess_is_kept_in_the_facts():
    pytest.importorskip("torch")
    assert LoopAdapter("torch", guessed=True).facts()["framework"]["guessed"] is True
    assert "guessed" not in LoopAdapter("torch").facts()["framework"]
