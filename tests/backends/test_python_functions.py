"""The wrapper around functions whose batches are fetched in Python, without a framework."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpu_util_callback.backends.functions import FunctionTimer
from gpu_util_callback.steps.compilations import CompileClock


def test_a_call_that_raises_after_its_batch_came_leaves_the_rows_of_the_others():
    """Ctrl+C or an error of the step's own: what was measured before is still there."""

    def step(state, iterator):
        if next(iterator)[0].shape == (3,):
            raise KeyboardInterrupt
        return {}, state

    model = SimpleNamespace(train_function=step)
    called, raised = [], []
    timer = FunctionTimer(
        model, "train_function", CompileClock(), called=lambda *times: called.append(times),
        no_batch=lambda *times: None, stale=None, raised=lambda: raised.append(1),
        fetches_inside=True,
    )  # fmt: skip
    timer.wrap()
    batches = iter([(np.zeros(size),) for size in (1, 2, 3)])
    for _ in range(2):
        timer.arm()
        model.train_function(None, batches)
    timer.arm()
    with pytest.raises(KeyboardInterrupt):
        model.train_function(None, batches)
    rows = timer.drain()()
    assert len(rows.delivered_ns) == len(called) == 2 and raised
    assert len(set(rows.signature)) == 2
