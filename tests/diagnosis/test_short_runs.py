"""Runs of a few seconds: what costs them a part of a second is told only where it is a state."""

import numpy as np
import pytest
from generated_runs import GPU, Generated


def begun(**facts) -> Generated:
    """A fit that has compiled, as each does first."""
    run = Generated(seed=1, gpus=[GPU], **facts)
    values = np.zeros(5)
    values[0] = 900
    run.steps(5, step_ms=4, compile_ms=values, gpu_share=0.4)
    return run


def epochs(count: int, *, steps: int = 20, hook_ms: float = 0, **phases: float) -> Generated:
    """What real fits of a small model looked like; `phases`: seconds of each at every end."""
    run = begun(epochs=count)
    for _ in range(count):
        with run.epoch():
            callbacks = np.zeros(steps)
            callbacks[2] = hook_ms
            run.steps(steps, step_ms=4, callback_ms=callbacks, gpu_share=0.4)
            for kind, seconds in phases.items():
                run.phase(kind, seconds, f"Some.{kind}")
    return run


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(epochs(1, hook_ms=50), id="one slow callback"),
        pytest.param(epochs(3, hook_ms=50), id="a slow callback in each of three epochs"),
        pytest.param(epochs(5, steps=5, callback=0.05), id="a callback at the end of five epochs"),
        pytest.param(epochs(3, checkpoint=0.03), id="three checkpoints"),
        pytest.param(epochs(4, validation=0.09), id="four validations"),
        pytest.param(epochs(5, input_setup=0.07), id="five epochs of arrays"),
    ],
)
def test_less_than_half_a_second_is_noise(run):
    assert run.causes() == set()


@pytest.mark.parametrize(
    "run, cause",
    [
        (epochs(5, validation=0.2), "host_stall"),
        (epochs(6, checkpoint=0.2), "host_stall"),
        (epochs(8, input_setup=0.15), "input_bound"),
    ],
)
def test_more_is_told(run, cause):
    assert run.causes() == {cause}


@pytest.mark.parametrize(
    "kind, cause", [("validation", "host_stall"), ("callback", "host_stall"), ("input_setup", "input_bound")]
)
def test_what_came_often_is_told_however_short_the_run(kind, cause):
    assert epochs(12, steps=5, **{kind: 0.03}).causes() == set()
    assert epochs(16, steps=5, **{kind: 0.03}).causes() == {cause}


@pytest.mark.parametrize("part, cause", [("wait_ms", "input_bound"), ("callback_ms", "host_stall")])
def test_what_came_in_every_step_is_told_of_ten_steps(part, cause):
    """A try of ten steps is what a long training will be like."""
    run = Generated(seed=1, gpus=[GPU])
    run.steps(10, step_ms=10, gpu_share=0.4, **{part: 12})
    assert run.causes() == {cause}


@pytest.mark.parametrize("part", ["wait_ms", "callback_ms"])
def test_milliseconds_are_noise_in_however_many_steps(part):
    run = begun()
    run.steps(40, step_ms=3, gpu_share=0.4, **{part: 1})
    assert run.causes() == set()


def test_the_least_can_be_set():
    run = epochs(5, steps=5, callback=0.05)
    found = run.diagnose(thresholds={"host_stall.least_s": 0.1})
    assert [span["cause"] for span in found["spans"]] == ["host_stall"]
