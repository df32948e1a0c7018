"""The TensorFlow backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpu_util_callback.frameworks import (
    tensorflow_distribute,
    tensorflow_facts,
    tensorflow_loop,
    tensorflow_pipeline,
)
from gpu_util_callback.frameworks.base import Adapter, InputRows
from gpu_util_callback.frameworks.tensorflow_functions import FunctionTimer
from gpu_util_callback.frameworks.tensorflow_iterator import probe, tail_ns
from gpu_util_callback.frameworks.timeline import Timeline

__all__ = ["TensorFlowAdapter", "adapter"]

log = logging.getLogger("gpu_util_callback")

# How a way of timing is named in the recording.
TIMINGS = {
    "graph": "graph",
    "eager": "eager",
    "python": "python (determinism)",
    "none": "hooks",
}


class TensorFlowAdapter(Adapter):
    """Times batches inside the compiled train and test functions."""

    def __init__(self) -> None:
        super().__init__(name="tensorflow")
        self._model: Any = None
        self._train: FunctionTimer | None = None
        self._test: FunctionTimer | None = None
        self._timeline: Timeline | None = None
        self._failed: Callable[[str, BaseException], None] = lambda source, error: None
        self._way = "none"
        self._pipelines = {
            "train": tensorflow_pipeline.Reader("train"),
            "validation": tensorflow_pipeline.Reader("validation"),
        }

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._model, self._timeline, self._failed = model, timeline, failed
        self.steps_per_execution = timeline.steps_per_execution = int(
            getattr(model, "steps_per_execution", 1) or 1
        )
        self.shapes_compile = bool(getattr(model, "jit_compile", False)) or bool(
            tf.config.list_physical_devices("GPU")
        )
        failure = tensorflow_distribute.known_failure(model)
        if failure is not None:
            log.warning("gpu_util_callback: %s: %s", *failure)
        self._way = self._choose(model)
        self.timing = TIMINGS[self._way]
        timeline.serial = self._way in ("eager", "python")
        if self._way == "graph" and self.steps_per_execution > 1:
            timeline.tail_ns = tail_ns()
        self._train = self._timer("train_function", stale, timeline.no_batch, stale)
        self._test = self._timer("test_function", None, timeline.test_no_batch, stale)
        self._train.wrap()
        self.shapes = self._train.shapes

    def _choose(self, model: Any) -> str:
        reason = probe()
        if getattr(model, "run_eagerly", False):
            return "eager"
        if not reason:
            return "graph"
        if reason != "determinism":
            self.unavailable.append(
                (
                    "input wait in the graph",
                    f"this TensorFlow does not let batches be timed ({reason})",
                    "report it with the version of TensorFlow; step times are measured without it",
                )
            )
            return "none"
        return "python"

    def _timer(
        self,
        name: str,
        stale: Callable[[], None] | None,
        no_batch: Callable[..., None],
        raised: Callable[[], None],
    ) -> FunctionTimer:
        assert self._timeline is not None
        return FunctionTimer(
            self._model,
            name,
            self._way,
            called=self._timeline.called,
            no_batch=no_batch,
            stale=stale,
            failed=lambda error: self._failed("input wait", error),
            raised=raised,  # what raises in there leaves the fit
        )

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
            self._test.armed = False
            self._test.unwrap()

    def drain(self) -> Callable[[], InputRows] | None:
        return self._train.drain() if self._train is not None else None

    def drain_test(self) -> Callable[[], InputRows] | None:
        return self._test.drain() if self._test is not None else None

    def end(self) -> None:
        for timer in (self._train, self._test):
            if timer is not None:
                timer.armed = False
                timer.unwrap()

    def problems(self) -> list[tuple[str, str, str]]:
        found = list(self.unavailable)
        for timer in (self._train, self._test):
            if timer is None:
                continue
            if timer.ring is not None and timer.ring.failure:
                found.append(("input wait", timer.ring.failure, "report it"))
        return found

    def facts(self) -> dict[str, Any]:
        return tensorflow_facts.facts(self._model, self.timing)

    def memory(self) -> dict[int, dict[str, float]]:
        return tensorflow_loop.memory()

    def devices(self) -> list[dict[str, Any]] | None:
        return tensorflow_facts.devices()

    def pipeline(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for which, timer in (("train", self._train), ("validation", self._test)):
            iterator = timer.iterator() if timer is not None and timer.iterator else None
            if iterator is not None:
                rows += self._pipelines[which].read(iterator)
        return rows


def adapter() -> TensorFlowAdapter:
    """A fresh adapter for one fit."""
    return TensorFlowAdapter()
