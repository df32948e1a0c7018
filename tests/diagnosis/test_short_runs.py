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


def tried(**part: float) -> Generated:
    """A try of ten steps, which is what a long training will be like."""
    run = Generated(seed=1, gpus=[GPU])
    run.steps(10, step_ms=10, gpu_share=0.4, **part)
    return run


def milliseconds(**part: float) -> Generated:
    run = begun()
    run.steps(40, step_ms=3, gpu_share=0.4, **part)
    return run


@pytest.mark.parametrize(
    "run, cause",
    [
        # Less than half a second is noise,
        (epochs(1, hook_ms=50), ""),
        (epochs(3, hook_ms=50), ""),
        (epochs(5, steps=5, callback=0.05), ""),
        (epochs(3, checkpoint=0.03), ""),
        (epochs(4, validation=0.09), ""),
        (epochs(5, input_setup=0.07), ""),
        # more is told,
        (epochs(5, validation=0.2), "host_stall"),
        (epochs(6, checkpoint=0.2), "host_stall"),
        (epochs(8, input_setup=0.15), "input_bound"),
        # and what came often, however short the run.
        *((epochs(12, steps=5, **{kind: 0.03}), "") for kind in ("validation", "callback", "input_setup")),
        (epochs(16, steps=5, validation=0.03), "host_stall"),
        (epochs(16, steps=5, callback=0.03), "host_stall"),
        (epochs(16, steps=5, input_setup=0.03), "input_bound"),
        (tried(wait_ms=12), "input_bound"),
        (tried(callback_ms=12), "host_stall"),
        (milliseconds(wait_ms=1), ""),
        (milliseconds(callback_ms=1), ""),
    ],
)
def test_a_part_of_a_second_is_told_where_it_is_a_state(run, cause):
    assert run.causes() == {cause} - {""}
