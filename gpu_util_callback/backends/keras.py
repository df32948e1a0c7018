"""Common base of Keras' backends: a train and a test function that are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_util_callback.backends.base import About, Adapter
from gpu_util_callback.backends.functions import FunctionTimer
from gpu_util_callback.backends.keras_facts import keras_facts
from gpu_util_callback.backends.pipelines import TfDataPipelines, WatchedDataset
from gpu_util_callback.backends.wrapped_function import WrappedFunction
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.rows import DeviceProbe
from gpu_util_callback.steps.timeline import Timeline

__all__ = ["KerasAdapter", "PythonAdapter"]


class KerasAdapter(Adapter):
    """A Keras model whose `train_function` and `test_function` are timed.

    `begin` of a subclass makes `_train` and `_test`.
    """

    def __init__(self, name: str, timing: str, about: About):
        super().__init__(name=name, timing=timing, about=about)
        self._model: Any = None
        self._train: WrappedFunction | None = None
        self._test: WrappedFunction | None = None
        self._pipelines = TfDataPipelines(self.unavailable)

    def begins_batches(self) -> Callable[[], None]:
        return self._train.arm if self._train is not None else super().begins_batches()

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
        for function in (self._train, self._test):
            if function is not None:
                function.unwrap()

    def facts(self) -> dict[str, Any]:
        assert self.about is not None
        return keras_facts(self._model, self.about.framework(), self.timing, **self.fit_facts())

    def fit_facts(self) -> dict[str, Any]:
        """Return the framework's facts of the fit: `strategy` and `replicas`, at least."""
        raise NotImplementedError

    def pipeline(self) -> list[dict[str, Any]]:
        return self._pipelines.read()


class PythonAdapter(KerasAdapter):
    """A backend whose batches are fetched in Python and timed there (JAX, torch).

    Args:
        compile_clock: the framework's.
    """

    fetches_inside = False  # whether the model's functions call `next` themselves
    _train: FunctionTimer | None
    _test: FunctionTimer | None

    def __init__(self, name: str, timing: str, about: About, compile_clock: CompileClock):
        super().__init__(name, timing, about)
        self._timeline: Timeline | None = None
        self._compile_clock = compile_clock
        self._datasets: list[Any] = []  # Keras' adapters of watched datasets

    def _begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
        probe: DeviceProbe | None,
    ) -> None:
        """Begin a fit: the part common to all such backends."""
        self._model, self._timeline = model, timeline
        try:
            self._compile_clock.start()
        except Exception as error:  # private to the framework, or moved
            failed("compilation", error)

        self._train = self._timer(model, "train_function", timeline, stale, probe)
        self._test = self._timer(model, "test_function", timeline)
        self._train.wrap()

    def _timer(
        self,
        model: Any,
        name: str,
        timeline: Timeline,
        stale: Callable[[], None] | None = None,
        probe: DeviceProbe | None = None,
    ) -> FunctionTimer:
        return FunctionTimer(
            model,
            name,
            timeline,
            self._compile_clock,
            stale=stale,
            raised=stale or (lambda: None),  # an exception in there leaves the fit
            fetches_inside=self.fetches_inside,
            probe=probe,
        )

    def test_begin(self) -> None:
        super().test_begin()
        iterator = getattr(self._model, "_eval_epoch_iterator", None)
        self._watch("validation", getattr(iterator, "data_adapter", None))

    def end(self) -> None:
        super().end()
        self._compile_clock.stop()
        while self._datasets:
            data_adapter = self._datasets.pop()
            data_adapter._dataset = data_adapter._dataset._dataset

    def _watch(self, which: str, data_adapter: Any) -> None:
        """Watch the iterators of a `tf.data.Dataset`, if Keras iterates over one."""
        dataset = getattr(data_adapter, "_dataset", None)
        if type(data_adapter).__name__ != "TFDatasetAdapter" or dataset is None:
            return
        if not isinstance(dataset, WatchedDataset):
            data_adapter._dataset = WatchedDataset(dataset, self._pipelines, which)
            self._datasets.append(data_adapter)
