"""Keras on JAX and PyTorch waits for hooks on other threads: that is the callbacks' time, by name."""

import pytest
from packages import need
from processes import shared

pytestmark = pytest.mark.real_clock("a share of what real fits spend")


def trained(backend, case):
    need("keras", backend)
    return shared("pooled_program.py", "one", "two", "test", "quick", "same", KERAS_BACKEND=backend)[case]


def stalls(run):
    return {span["evidence"].get("callback"): span for span in run["spans"] if span["cause"] == "host_stall"}


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_waiting_for_a_callback_on_another_thread_is_its_time(backend):
    result = trained(backend, "one")
    run = result["run"]
    assert result["waited_s"] > 0.5 * run["wall_s"], "most of the fit is the wait"
    assert run["time_s"]["callbacks"] == pytest.approx(result["waited_s"], rel=0.1)
    span = stalls(run)["Slow.on_train_batch_end"]
    assert run["verdict"].startswith("Slow stalls training")
    assert "on other threads" in span["advice"]["text"] and "background" not in span["advice"]["text"]
    assert "on_train_batch_end" in span["advice"]["code"]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_two_callbacks_share_the_wait(backend):
    run = trained(backend, "two")["run"]
    lost = {name: span["lost_s"] for name, span in stalls(run).items()}
    assert lost.keys() == {"Slow.on_train_batch_end", "Half.on_train_batch_end"}
    assert sum(lost.values()) <= 1.01 * run["time_s"]["callbacks"]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_validation_waits_for_hooks_too(backend):
    result = trained(backend, "test")
    run = result["run"]
    assert run["time_s"]["callbacks"] == pytest.approx(result["waited_s"], rel=0.15)
    assert "Testing.on_test_batch_end" in stalls(run)
    assert run["time_s"]["validation"] < 0.5 * result["waited_s"] or result["waited_s"] < 0.5


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_hooks_that_do_nothing_are_waited_for_in_vain(backend):
    run = trained(backend, "quick")["run"]
    assert not stalls(run)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_on_the_same_thread_they_are_in_the_steps(backend):
    """The control: not `async_safe`, and Keras calls them between the steps."""
    result = trained(backend, "same")
    assert result["waited_s"] < 0.1 * result["run"]["wall_s"]
    assert "SameThread.on_train_batch_end" in stalls(result["run"])
