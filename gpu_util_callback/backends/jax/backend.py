"""The JAX backend: timing of Keras' batches and steps, and the adapter's facts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras

from gpu_util_callback.backends.adapters import PythonAdapter
from gpu_util_callback.backends.base import CountedWork, Failed, NotCounted
from gpu_util_callback.backends.functions import FirstCall, KerasModel, PythonBatches
from gpu_util_callback.backends.jax.flops import StepShapes, count, jitted_in
from gpu_util_callback.backends.jax.runtime import RUNTIME, distribution, on_cpu
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import DeviceProbe
from gpu_util_callback.steps.timeline import Timeline

log = logging.getLogger("gpu_util_callback")


class JaxAdapter(PythonAdapter):
    """Adapter that times the `next` that Keras' functions call in Python, outside of `jit`.

    On an accelerator Keras prefetches one batch: the wait of a step is then the fetch of the next
    batch and its transfer; the first step fetches two, the last one none.
    """

    def __init__(self) -> None:
        super().__init__("jax", "python", RUNTIME)
        self._distribution: object = None
        self._probe = OutputProbe()

    def begin(self, model: KerasModel, timeline: Timeline, stale: Callable[[], None], failed: Failed) -> None:
        """Time a fit: its train and test functions, which are given iterators."""
        self._distribution = keras.distribution.distribution()  # each thread has its own
        timeline.batches_per_hook = int(getattr(model, "steps_per_execution", 1) or 1)
        # An accelerator keeps working while Keras fetches the next batch of the same call.
        eager = bool(getattr(model, "run_eagerly", False))
        timeline.serial = on_cpu() or eager
        clock = self.compile_clock
        batches = [
            PythonBatches(clock, inside=True, probe=self._probe, first=self.first_batch.note),
            PythonBatches(clock, inside=True),
        ]
        self._begin(model, timeline, stale, failed, None if eager else FirstCall(_first_step), *batches)

    def test_begin(self) -> None:
        super().test_begin()
        if not self._probe.idle():
            output = self._probe.output
            threading.Thread(target=self._wait_for, args=(output,), daemon=True).start()

    def _wait_for(self, output: jax.Array) -> None:
        """Note when the device has finished the epoch's steps, which a validation has to wait for.

        The training thread does not wait here: it sets up the validation meanwhile, as without us.
        """
        assert self._timeline is not None
        start = time.perf_counter_ns()
        try:
            output.block_until_ready()
        except Exception:  # deleted, or the computation failed, which Keras will notice, too
            return
        self._timeline.steps_computed(start, time.perf_counter_ns())

    def work(self, batch: int | None) -> CountedWork | None:
        first = self._first
        function = jitted_in(first.function()) if first is not None else None
        if first is None or function is None:
            raise NotCounted("the model is not compiled")
        return None if first.observed is None else count(function, first.observed)

    def fit_facts(self) -> dict[str, object]:
        return distribution(self._distribution)


@uncounted
def _first_step(function: Callable, args: tuple) -> tuple[object, object]:
    """Call the train function; return its result and its first step's shapes, if it had one."""
    state, iterator = args
    batches = _Noted(iterator, state)
    return function(state, batches), batches.shapes


@uncounted
class _Noted:
    """An iterator whose first batch is looked at: its shapes, and those of the state."""

    def __init__(self, iterator: Iterator, state: object):
        self._iterator, self._state = iterator, state
        self.shapes: StepShapes | None = None

    def __iter__(self) -> _Noted:
        return self

    def __next__(self) -> object:
        """Return the next batch; of the first one, keep its shapes."""
        data = next(self._iterator)
        state, self._state = self._state, None
        if state is not None:
            try:
                self.shapes = StepShapes(state, data)
            except Exception as error:
                log.debug("gpu_util_callback: %s", error, exc_info=True)
        return data


class OutputProbe(DeviceProbe):
    """Probe of whether a step's logs have been computed."""

    def __init__(self) -> None:
        self._logs: object = None

    def mark(self, result: Any) -> None:
        self._logs = result[0]  # of (logs, state)

    @property
    def output(self) -> object:
        """Return a number of the last call's logs, an array of the device; None without any."""
        logs = self._logs
        return next(iter(logs.values()), None) if isinstance(logs, dict) else None

    def idle(self) -> bool:
        ready = getattr(self.output, "is_ready", None)
        return ready is None or bool(ready())


ADAPTER = JaxAdapter
