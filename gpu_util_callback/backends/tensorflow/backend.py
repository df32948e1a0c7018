"""The TensorFlow backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpu_util_callback.backends.keras import KerasAdapter
from gpu_util_callback.backends.own_cost import Model, Work, function_called, hooks_us
from gpu_util_callback.backends.tensorflow import (
    distribute as tensorflow_distribute,
)
from gpu_util_callback.backends.tensorflow import (
    facts as tensorflow_facts,
)
from gpu_util_callback.backends.tensorflow.functions import FunctionTimer
from gpu_util_callback.backends.tensorflow.iterator import probe, tail_ns
from gpu_util_callback.steps.fit_frame import is_tf_keras
from gpu_util_callback.steps.timeline import Timeline

__all__ = ["TensorFlowAdapter", "adapter"]

log = logging.getLogger("gpu_util_callback")

# How a way of timing is named in the recording.
TIMINGS = {
    "graph": "graph",
    "eager": "eager",
    "python": "python (determinism)",
    "none": "hooks",
}


class TensorFlowAdapter(KerasAdapter):
    """Times batches inside the compiled train and test functions."""

    _train: FunctionTimer | None
    _test: FunctionTimer | None

    def __init__(self) -> None:
        super().__init__("tensorflow", "hooks", tensorflow_facts)
        self._timeline: Timeline | None = None
        self._failed: Callable[[str, BaseException], None] = lambda source, error: None
        self._way = "none"
        self._deterministic = False  # `enable_op_determinism()`
        self._test_stays = False  # wrapped from the fit's begin to its end

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._model, self._timeline, self._failed = model, timeline, failed
        timeline.batches_per_hook = int(getattr(model, "steps_per_execution", 1) or 1)
        self.every_shape_compiles = bool(getattr(model, "jit_compile", False))
        self.shapes_compile = self.every_shape_compiles or bool(
            tf.config.list_physical_devices("GPU")
        )
        failure = tensorflow_distribute.known_failure(model)
        if failure is not None:
            log.warning("gpu_util_callback: %s: %s", *failure)
        self._way = self._choose(model)
        self.timing = TIMINGS[self._way]
        timeline.serial = self._way in ("eager", "python")
        self._train = self._timer("train_function", stale, timeline.no_batch, stale)
        self._test = self._timer("test_function", None, timeline.test_no_batch, stale)
        self._train.wrap()
        if self._way == "graph" and timeline.steps_per_execution > 1:
            timeline.tail_ns = tail_ns()
        self.shapes = self._train.shapes
        self._test_stays = is_tf_keras(model)
        if self._test_stays:
            # Keras 2 takes hold of the test function before it says that a validation begins.
            model.test_function = model.make_test_function()
            self._test.wrap()

    def _choose(self, model: Any) -> str:
        reason = probe()
        self._deterministic = reason == "determinism"
        if getattr(model, "run_eagerly", False):
            return "eager"
        if not reason:
            return "graph"
        if not self._deterministic:
            self.unavailable.append(
                (
                    "input wait in the graph",
                    f"this TensorFlow does not let batches be timed ({reason})",
                    "report it with the version of TensorFlow; step times are measured without it",
                )
            )
            return "none"
        if not _takes_python_iterators(model):
            self.unavailable.append(
                (
                    "input wait",
                    "under enable_op_determinism() batches are timed in Python, and this model's "
                    "train function fetches them in the graph",
                    "Keras 3.7 or newer, and its own make_train_function",
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
        which = "train" if name == "train_function" else "validation"
        return FunctionTimer(
            self._model,
            name,
            self._way,
            called=self._timeline.called,
            no_batch=no_batch,
            stale=stale,
            failed=lambda error: self._failed("input wait", error),
            seen=lambda iterator: self._pipelines.seen(which, iterator),
            raised=raised,  # what raises in there leaves the fit
            takes=self._timeline.takes if which == "train" else self._timeline.test_takes,
        )

    def test_begin(self) -> None:
        if not self._test_stays:
            super().test_begin()

    def test_end(self) -> None:
        if not self._test_stays:
            super().test_end()
        elif self._test is not None:
            self._test.armed = False

    def problems(self) -> list[tuple[str, str, str]]:
        found = list(self.unavailable)
        for timer in (self._train, self._test):
            if timer is None:
                continue
            if timer.rows is not None and timer.rows.failure:
                found.append(("input wait", timer.rows.failure, "report it"))
        return found

    def own_us(self) -> float:
        iterator = iter(tf.data.Dataset.range(1))

        def work(timeline: Timeline) -> tuple[Work, Work]:
            timer = FunctionTimer(
                Model(lambda given: None),
                "train_function",
                "eager",  # the graph's part is no Python
                called=timeline.called,
                no_batch=timeline.no_batch,
                stale=None,
                failed=lambda error: None,
            )
            return function_called(timer, iterator, iterator, inside=True)

        return hooks_us(work)

    def fit_facts(self) -> dict[str, Any]:
        strategy = getattr(self._model, "_distribute_strategy", None)
        return {
            "strategy": type(strategy).__name__ if strategy is not None else None,
            "replicas": tensorflow_distribute.replicas(self._model),
            "op_determinism": self._deterministic,
        }


def _takes_python_iterators(model: Any) -> bool:
    """Whether the train function loops over what is no `tf.data.Iterator` in Python.

    Keras' own does since 3.7; Keras 3.6, Keras 2 and functions of others call `next` while they are
    traced.
    """
    makers = (
        getattr(type(model), name, None) for name in ("make_train_function", "_make_function")
    )
    return all(getattr(maker, "__module__", "").startswith("keras.src.") for maker in makers)


def adapter() -> TensorFlowAdapter:
    """A fresh adapter for one fit."""
    return TensorFlowAdapter()
