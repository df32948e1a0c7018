"""The JAX backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from gpu_util_callback.frameworks import jax_facts
from gpu_util_callback.frameworks.base import Adapter, InputRows
from gpu_util_callback.frameworks.jax_compile import JaxCompileClock
from gpu_util_callback.frameworks.python_functions import DeviceProbe, FunctionTimer
from gpu_util_callback.frameworks.timeline import Timeline

__all__ = ["JaxAdapter", "adapter"]


class JaxAdapter(Adapter):
    """Times the `next` that Keras' train and test functions call in Python, outside of `jit`.

    On an accelerator Keras keeps one batch ahead: the wait of a step is then the fetch of the next
    batch and its transfer; the first step fetches two, the last one none.
    """

    def __init__(self) -> None:
        super().__init__(name="jax", timing="python")
        self._model: Any = None
        self._distribution: Any = None
        self._train: FunctionTimer | None = None
        self._test: FunctionTimer | None = None
        self._compile_clock = JaxCompileClock()

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._model = model
        self._distribution = keras.distribution.distribution()  # each thread has its own
        self.steps_per_execution = timeline.steps_per_execution = int(
            getattr(model, "steps_per_execution", 1) or 1
        )
        # An accelerator works on while Keras fetches the next batch of the same call.
        timeline.serial = jax_facts.on_cpu() or bool(getattr(model, "run_eagerly", False))
        try:
            self._compile_clock.start()
        except Exception as error:  # a JAX whose monitoring moved
            failed("compilation", error)

        def timer(
            name: str,
            no_batch: Callable,
            stale: Callable | None,
            probe: DeviceProbe | None = None,
        ) -> FunctionTimer:
            return FunctionTimer(
                model,
                name,
                self._compile_clock,
                called=timeline.called,
                no_batch=no_batch,
                stale=stale,
                fetches_inside=True,
                probe=probe,
                done=timeline.device_done if probe is not None else None,
            )

        self._train = timer("train_function", timeline.no_batch, stale, OutputProbe())
        self._test = timer("test_function", timeline.test_no_batch, None)
        self._train.wrap()

    def batch_begin(self) -> None:
        if self._train is not None:
            self._train.arm()

    def test_begin(self) -> None:
        if self._test is not None:
            self._test.wrap()

    def test_batch_begin(self) -> None:
        if self._test is not None:
            self._test.arm()

    def test_end(self) -> None:
        if self._test is not None:
            self._test.unwrap()

    def drain(self) -> Callable[[], InputRows] | None:
        return self._train.drain() if self._train is not None else None

    def drain_test(self) -> Callable[[], InputRows] | None:
        return self._test.drain() if self._test is not None else None

    def end(self) -> None:
        self._compile_clock.stop()
        for timer in (self._train, self._test):
            if timer is not None:
                timer.unwrap()

    def facts(self) -> dict[str, Any]:
        return jax_facts.keras_facts(self._model, self.timing, self._distribution)

    def memory(self) -> dict[int, dict[str, float]]:
        return jax_facts.memory()

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        return jax_facts.rendezvous()

    def devices(self) -> list[dict[str, Any]] | None:
        return jax_facts.devices()


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
