"""The JAX backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from gpu_util_callback.frameworks import jax_facts
from gpu_util_callback.frameworks.jax_compile import JaxCompileClock
from gpu_util_callback.frameworks.keras_adapter import PythonAdapter
from gpu_util_callback.frameworks.keras_fit import given_adapter
from gpu_util_callback.frameworks.stamps import DeviceProbe
from gpu_util_callback.frameworks.timeline import Timeline

__all__ = ["JaxAdapter", "adapter"]


class JaxAdapter(PythonAdapter):
    """Times the `next` that Keras' train and test functions call in Python, outside of `jit`.

    On an accelerator Keras keeps one batch ahead: the wait of a step is then the fetch of the next
    batch and its transfer; the first step fetches two, the last one none.
    """

    fetches_inside = True

    def __init__(self) -> None:
        super().__init__("jax", "python", jax_facts, JaxCompileClock())
        self._distribution: Any = None

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._distribution = keras.distribution.distribution()  # each thread has its own
        self.steps_per_execution = timeline.steps_per_execution = int(
            getattr(model, "steps_per_execution", 1) or 1
        )
        # An accelerator works on while Keras fetches the next batch of the same call.
        timeline.serial = jax_facts.on_cpu() or bool(getattr(model, "run_eagerly", False))
        self._begin(model, timeline, stale, failed, OutputProbe())
        self._watch("train", given_adapter())

    def fit_facts(self) -> dict[str, Any]:
        return jax_facts.distribution(self._distribution)


class OutputProbe(DeviceProbe):
    """Asks a step's logs whether they have been computed."""

    def __init__(self) -> None:
        self._output: Any = None

    def mark(self, result: Any) -> None:
        logs = result[0]  # of (logs, state)
        self._output = next(iter(logs.values()), None) if isinstance(logs, dict) else None

    def idle(self) -> bool:
        ready = getattr(self._output, "is_ready", None)
        return ready is None or bool(ready())


def adapter() -> JaxAdapter:
    """A fresh adapter for one fit."""
    return JaxAdapter()
