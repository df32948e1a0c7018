"""The JAX backend: timing of Keras' batches and steps, and the adapter's facts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import keras

from gpu_util_callback.backends.jax import facts as jax_facts
from gpu_util_callback.backends.jax.compile_clock import Clock
from gpu_util_callback.backends.keras import PythonAdapter
from gpu_util_callback.steps.fit_frame import given_adapter
from gpu_util_callback.steps.rows import DeviceProbe
from gpu_util_callback.steps.timeline import Timeline

__all__ = ["JaxAdapter", "adapter"]


class JaxAdapter(PythonAdapter):
    """Adapter that times the `next` that Keras' functions call in Python, outside of `jit`.

    On an accelerator Keras prefetches one batch: the wait of a step is then the fetch of the next
    batch and its transfer; the first step fetches two, the last one none.
    """

    fetches_inside = True

    def __init__(self) -> None:
        super().__init__("jax", "python", jax_facts, Clock())
        self._distribution: Any = None
        self._probe = OutputProbe()

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._distribution = keras.distribution.distribution()  # each thread has its own
        timeline.batches_per_hook = int(getattr(model, "steps_per_execution", 1) or 1)
        # An accelerator keeps working while Keras fetches the next batch of the same call.
        timeline.serial = jax_facts.on_cpu() or bool(getattr(model, "run_eagerly", False))
        self._begin(model, timeline, stale, failed, self._probe)
        self._watch("train", given_adapter())

    def test_begin(self) -> None:
        super().test_begin()
        if not self._probe.idle():
            output = self._probe.output
            threading.Thread(target=self._wait_for, args=(output,), daemon=True).start()

    def _wait_for(self, output: Any) -> None:
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

    def fit_facts(self) -> dict[str, Any]:
        return jax_facts.distribution(self._distribution)


class OutputProbe(DeviceProbe):
    """Probe of whether a step's logs have been computed.

    Attributes:
        output: a number of the last call's logs, an array of the device; None without any.
    """

    def __init__(self) -> None:
        self.output: Any = None

    def mark(self, result: Any) -> None:
        logs = result[0]  # of (logs, state)
        self.output = next(iter(logs.values()), None) if isinstance(logs, dict) else None

    def idle(self) -> bool:
        ready = getattr(self.output, "is_ready", None)
        return ready is None or bool(ready())


def adapter() -> JaxAdapter:
    """Return a fresh adapter for one fit."""
    return JaxAdapter()
