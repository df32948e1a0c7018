"""What recording a step costs the training thread in Python, measured where it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu_util_callback.frameworks.keras_callbacks import CallbackTimer
from gpu_util_callback.frameworks.timeline import Timeline

__all__ = ["hooks_us"]


class _Hooks:
    """The hooks that a list of callbacks calls every step, doing nothing."""

    def __init__(self, callbacks: list[Any]):
        self.callbacks = callbacks

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)

    def nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    on_epoch_begin = on_epoch_end = on_test_begin = on_test_end = nothing
    on_test_batch_begin = on_test_batch_end = nothing


class _Callback(_Hooks):
    on_train_batch_begin = on_train_batch_end = _Hooks.nothing
    on_train_begin = on_train_end = _Hooks.nothing


def hooks_us(steps: int = 300, rounds: int = 5) -> float:
    """Microseconds that our wrappers add to a step's hooks: the median of some short rounds.

    Two callbacks are timed, as in a usual fit: the progress bar and one more. Draining is not in
    it; the timeline measures that itself.
    """

    def run(hooks: _Hooks, work: Callable[[], None]) -> float:
        start = time.perf_counter_ns()
        for step in range(steps):
            hooks.on_train_batch_begin(step)
            work()
            hooks.on_train_batch_end(step)
        return (time.perf_counter_ns() - start) / steps / 1e3

    costs = []
    for _ in range(rounds):
        plain = run(_Hooks([_Callback([]), _Callback([])]), lambda: None)
        timeline = Timeline()
        hooks = _Hooks([_Callback([]), _Callback([])])
        timer = CallbackTimer(timeline, None, lambda error: None)
        timer.attach(hooks)
        clock = time.perf_counter_ns

        def call(timeline: Timeline = timeline, clock: Callable[[], int] = clock) -> None:
            start = clock()
            timeline.called(start, clock(), 0)

        own = run(hooks, call) - timeline.drain_ns / steps / 1e3
        costs.append(max(own - plain, 0.0))
        timer.detach()
    return sorted(costs)[rounds // 2]
