"""A GPU that waits for Python between steps: a cause of its own, and nobody else's time."""

import pytest
from generated_runs import GPU, Generated

IDLE = {"idle_host": 0.65, "idle_launch": 0.05}


def run_with(gpu_share=0.3, wait_ms=0.0, callback_ms=0.0, traced=True, shares=None, **facts):
    run = Generated(seed=7, gpus=[GPU], framework={"backend": "jax", "keras": "3.15"}, **facts)
    for part in range(2):
        run.steps(
            300, step_ms=10 - wait_ms - callback_ms, wait_ms=wait_ms, callback_ms=callback_ms, gpu_share=gpu_share
        )
        if traced and not part:
            run.trace(8, 10, kernels=60, **(IDLE if shares is None else shares))
    return run


def test_an_idle_gpu_between_steps_is_found_and_named():
    found = run_with(fit={"batch_size": 32, "input_kind": "numpy"}).diagnose()
    [finding] = found["findings"]
    assert finding["cause"] == "launch_bound"
    assert finding["title"] == "The host keeps the GPU waiting"
    assert finding["evidence"]["idle_host_pct"] == pytest.approx(70, abs=4)
    assert finding["evidence"]["gpu_active_pct"] == pytest.approx(30, abs=4)
    assert finding["lost_s"] == pytest.approx(0.7 * 6, rel=0.1)
    assert finding["advice"]["code"] == "model.fit(..., batch_size=128)"
    assert "The host keeps the GPU waiting" in found["verdict"]


@pytest.mark.parametrize(
    "run",
    [
        {"gpu_share": 0.95},  # the driver saw it busy: the profiler made the host slow
        {"shares": {"idle_host": 0.1, "idle_launch": 0.05}},
        {"traced": False},  # idle, and nothing says why
    ],
    ids=["busy outside of windows", "little", "no window"],
)
def test_it_is_silent_where_it_is_not_sure(run):
    assert run_with(**run).causes() == set()


def test_waiting_for_input_is_not_counted_again():
    """JAX' windows do not show the wait for input: to them the host was busy otherwise."""
    assert run_with(wait_ms=6.5, gpu_share=0.95).causes() == {"input_bound"}


@pytest.mark.parametrize("named_ms, found", [(6.4, {"host_stall"}), (0.01, set())])
def test_a_callbacks_time_is_not_counted_again(named_ms, found):
    """On JAX and torch only what a hook took is that callback's; the rest is Keras' dispatch."""
    run = Generated(seed=7, gpus=[GPU], framework={"backend": "jax", "keras": "3.15"})
    begin = run.now
    run.steps(600, step_ms=3.5, callback_ms=6.5, gpu_share=0.95)
    run.hook_detail("Slow.on_train_batch_end", begin, run.now, int(600 * named_ms * 1e6), 600)
    run.trace(8, 10, kernels=60, **IDLE)
    assert run.causes() == found
