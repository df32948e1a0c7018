"""Common base of Keras' backends: the model's facts, and its functions, which are timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from gpu_util_callback.backends.base import Failed, Runtime
from gpu_util_callback.backends.functions import Batches, KerasModel, TimedFunction
from gpu_util_callback.backends.input_calls import WatchedIterable, time_fit
from gpu_util_callback.backends.input_watch import WatchingAdapter
from gpu_util_callback.steps.frames import calling_fit, given_adapter, is_tf_keras
from gpu_util_callback.steps.timeline import Timeline


class KerasAdapter(WatchingAdapter):
    """A Keras model whose `train_function` and `test_function` are timed.

    `begin` of a subclass makes `_train` and `_test`.
    """

    def __init__(self, name: str, timing: str, runtime: Runtime):
        super().__init__(name, timing, runtime, counts_work=True)
        self._model: Any = None
        self._train: TimedFunction | None = None
        self._test: TimedFunction | None = None

    @property
    def train_function(self) -> TimedFunction | None:
        return self._train

    def test_begin(self) -> None:
        if self._test is not None:
            self._test.wrap()

    def test_batch_begin(self) -> None:
        if self._test is not None:
            self._test.arm()

    def test_end(self) -> None:
        if self._test is not None:
            self._test.unwrap()

    def end(self) -> None:
        self._calls.end()
        for function in (self._train, self._test):
            if function is not None:
                function.unwrap()

    def _time_input(self, failed: Failed) -> None:
        """Time the Python functions that make the batches of the fit that is calling us."""
        self._calls.begin()
        frame = calling_fit()
        try:
            if frame is not None:
                data_adapter, arguments = given_adapter(), frame.f_locals
                time_fit(self._calls, data_adapter, arguments.get("x"), self.first_batch.note)
                if type(data_adapter).__name__ == "ArrayDataAdapter":
                    self.first_batch.note([arguments.get(name) for name in ("x", "y", "sample_weight")])
        except Exception as error:  # a Keras whose data adapters changed
            failed("times of the input's functions", error)

    def facts(self) -> dict[str, Any]:
        more = {"step_threads": self.runtime.step_threads(), **self.fit_facts()}
        return keras_facts(self._model, self.runtime.framework(), self.timing, **more)

    def fit_facts(self) -> dict[str, object]:
        """Return the framework's facts of the fit: `strategy` and `replicas`, at least."""
        raise NotImplementedError


class PythonAdapter(KerasAdapter):
    """A backend whose batches are fetched in Python and timed there (JAX, torch)."""

    def __init__(self, name: str, timing: str, runtime: Runtime):
        super().__init__(name, timing, runtime)
        self.compile_clock = runtime.compile_clock()
        self._timeline: Timeline | None = None
        self._datasets: list[Any] = []  # Keras' adapters of watched datasets

    def _begin(
        self,
        model: KerasModel,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Failed,
        batches: Batches,
        test_batches: Batches,
    ) -> None:
        """Begin a fit: the part common to all such backends.

        Args:
            batches: of the train function.
            test_batches: of the test function.
        """
        self._model, self._timeline = model, timeline
        try:
            self.compile_clock.start()
        except Exception as error:  # private to the framework, or moved
            failed("compilation", error)

        self._train = TimedFunction(
            model,
            "train_function",
            timeline,
            batches,
            stale=stale,
            raised=stale,  # an exception in there leaves the fit
        )
        self._test = TimedFunction(model, "test_function", timeline, test_batches)
        self._train.wrap()
        self._time_input(failed)

    def test_begin(self) -> None:
        super().test_begin()
        iterator = getattr(self._model, "_eval_epoch_iterator", None)
        self._watch("validation", getattr(iterator, "data_adapter", None))

    def end(self) -> None:
        super().end()
        self.compile_clock.stop()
        while self._datasets:
            data_adapter = self._datasets.pop()
            data_adapter._dataset = data_adapter._dataset._stands_for

    def _watch(self, phase: str, data_adapter: Any) -> None:
        """Watch the iterators of a `tf.data.Dataset`, if Keras iterates over one."""
        dataset = getattr(data_adapter, "_dataset", None)
        if type(data_adapter).__name__ != "TFDatasetAdapter" or dataset is None:
            return
        if not isinstance(dataset, WatchedIterable):
            self._pipelines.note_dataset(phase, dataset)
            data_adapter._dataset = WatchedIterable(dataset, partial(self._pipelines.note_iterator, phase))
            self._datasets.append(data_adapter)


def keras_facts(model: Any, framework: dict[str, object], timing: str, **fit: object) -> dict[str, object]:
    """Return `framework`, `model` and the model's part of `fit` for the manifest.

    Args:
        model: the model being trained.
        framework: the framework's facts.
        timing: how batches are timed.
        fit: the framework's facts of the fit.
    """
    optimizer = getattr(model, "optimizer", None)
    policy = getattr(model, "dtype_policy", None)
    built = bool(getattr(model, "built", False))
    return {
        "framework": {**framework, "keras": _keras_of(model)},
        "model": {
            "name": getattr(model, "name", None),
            "parameters": int(model.count_params()) if built else None,
            "trainable_variables": len(model.trainable_variables) if built else None,
        },
        "fit": {
            "steps_per_execution": int(getattr(model, "steps_per_execution", 1) or 1),
            "jit_compile": bool(getattr(model, "jit_compile", False)),
            "run_eagerly": bool(getattr(model, "run_eagerly", False)),
            "timing": timing,
            "mixed_precision": getattr(policy, "name", None),
            "gradient_accumulation_steps": getattr(optimizer, "gradient_accumulation_steps", None),
            "optimizer": type(optimizer).__name__ if optimizer is not None else None,
            **fit,
        },
    }


def _keras_of(model: object) -> str:
    """Return the version of the Keras that a model belongs to: Keras 3, or `tf_keras`."""
    if is_tf_keras(model):
        return f"tf_keras {sys.modules['tf_keras'].__version__}"
    return sys.modules["keras"].__version__
