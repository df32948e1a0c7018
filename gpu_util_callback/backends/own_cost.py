"""The cost of recording a step on the training thread in Python, measured where it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu_util_callback.backends.wrapped_function import WrappedFunction
from gpu_util_callback.profiling.planner import Planner
from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.steps.callback_list import CallbackTimer, needless_when_listed
from gpu_util_callback.steps.timeline import Timeline

__all__ = ["Model", "Work", "function_called", "hooks_us", "just_called"]


class _Hooks:
    """Hooks that a list of callbacks calls every step, doing nothing."""

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
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        pass

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass

    on_train_begin = on_train_end = _Hooks.nothing


class _Ours(_Callback):
    @needless_when_listed
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        pass

    @needless_when_listed
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


Work = Callable[[], Any]


def just_called(timeline: Timeline) -> tuple[Work, Work]:
    """Return a step's work, untimed and timed, where the train function is not wrapped."""
    clock = time.perf_counter_ns

    def timed() -> None:
        start = clock()
        timeline.called(start, clock(), 0)

    return lambda: None, timed


def function_called(
    timer: WrappedFunction, source: Any, fed: Any, inside: bool
) -> tuple[Work, Work]:
    """Return a step's work, untimed and timed, of a model that does nothing.

    Args:
        timer: of a `Model` below, not yet in place.
        source: the batches.
        fed: the same batches as the timed function gets them.
        inside: whether the function is given an iterator and calls `next` itself.
    """
    model = timer.model
    plain = model.train_function
    timer.wrap()

    def untimed() -> None:
        plain(source if inside else next(source))

    def timed() -> None:
        given = fed if inside else next(fed)
        timer.arm()
        model.train_function(given)

    return untimed, timed


class Model:
    """A model whose step takes no time."""

    def __init__(self, train_function: Callable[[Any], Any]):
        self.train_function = train_function


def hooks_us(
    work: Callable[[Timeline], tuple[Work, Work]] = just_called, steps: int = 300, rounds: int = 5
) -> float:
    """Return the microseconds our wrappers add to a step: the median of some short rounds.

    Two callbacks are timed besides our own, as in a usual fit: the progress bar and one more.
    Draining is not included; the timeline measures that itself.

    Args:
        work: (a step's work that takes no time, the same under our wrappers), for a timeline.
    """

    def run(hooks: _Hooks, work: Work) -> float:
        start = time.perf_counter_ns()
        for step in range(steps):
            hooks.on_train_batch_begin(step)
            work()
            hooks.on_train_batch_end(step)
        return (time.perf_counter_ns() - start) / steps / 1e3

    costs = []
    for _ in range(rounds):
        timeline = Timeline()
        plain, timed = work(timeline)
        ours, *others = _Ours([]), _Callback([]), _Callback([])
        hooks = _Hooks([ours, *others])
        without = run(hooks, plain)
        timer = CallbackTimer(timeline, ours, lambda error: None, _looks_for_windows())
        timer.attach(hooks)
        own = run(hooks, timed) - timeline.drain_ns / steps / 1e3
        costs.append(max(own - without, 0.0))
        timer.detach()
    return sorted(costs)[rounds // 2]


def _looks_for_windows() -> Callable[..., None]:
    """Return our begin hook with profiler windows enabled and none due."""
    planner = Planner(TraceSchedule(), share=0.01, first_guess_s=3600.0)
    clock = time.perf_counter_ns
    planner.begin(clock())

    def begun(batch: int, logs: Any = None) -> None:
        planner.boundary(batch, clock())

    return begun
