"""Adapters of Keras' fits and of custom loops, and the framework that a loop trains with."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

from gpu_util_callback.backends.base import BACKENDS, Failed, Runtime, framework_module, runtime_of
from gpu_util_callback.backends.functions import Batches, FirstCall, KerasModel, TimedFunction
from gpu_util_callback.backends.input_calls import WatchedIterable, time_fit, timed_iterator
from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.steps.dispatch import DispatchWatch, OperationCount, is_library, path_of, place_of
from gpu_util_callback.steps.frames import calling_fit, given_adapter, is_tf_keras
from gpu_util_callback.steps.loop import Loop
from gpu_util_callback.steps.rows import leaves
from gpu_util_callback.steps.timeline import Timeline

_LOOPS = frozenset({"map_fn", "while_loop", "fori_loop", "scan", "foldl", "foldr"})  # each runs a function many times


class KerasAdapter(Adapter):
    """A Keras model whose `train_function` and `test_function` are timed.

    `begin` of a subclass makes `_train` and `_test`.
    """

    _model: Any = None
    _train: TimedFunction | None = None
    _test: TimedFunction | None = None

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
        for function in filter(None, (self._train, self._test)):
            function.unwrap()

    def _time_input(self, failed: Failed) -> None:
        """Time the Python functions that make the batches of the fit that is calling us, and note its arrays."""
        self._calls.begin()
        try:
            if (frame := calling_fit()) is not None:
                data_adapter, arguments = given_adapter(), frame.f_locals
                time_fit(self._calls, data_adapter, arguments.get("x"), self.first_batch.note)
                if type(data_adapter).__name__ == "ArrayDataAdapter":
                    self.first_batch.note([arguments.get(name) for name in ("x", "y", "sample_weight")])
        except Exception as error:  # a Keras whose data adapters changed
            failed("times of the input's functions", error)

    def facts(self) -> dict[str, Any]:
        """Return the manifest's `framework`, `model` and `fit`, as far as the framework says."""
        model = self._model
        optimizer = getattr(model, "optimizer", None)
        layers = [*getattr(model, "_flatten_layers", list)(), *leaves(getattr(model, "loss", None))]  # or losses
        # of the layers' `call` and the losses
        codes = dict.fromkeys(getattr(getattr(of, "call", of), "__code__", None) for of in layers)
        loops = [code for code in codes if code and not is_library(path_of(code)) and _LOOPS & {*code.co_names}]
        return {
            "framework": {**self.runtime.framework(), "keras": _keras_of(model)},
            "model": {
                "name": getattr(model, "name", None),
                "parameters": int(model.count_params()) if getattr(model, "built", False) else None,
                "thresholds": _thresholds(model),
                "unrolled": sorted({type(layer).__name__ for layer in layers if getattr(layer, "unroll", False)}),
                "frozen_share": _frozen_share(model),
                "looped": {place_of(code, code.co_firstlineno): min(_LOOPS & {*code.co_names}) for code in loops},
            },
            "fit": {
                "steps_per_execution": int(getattr(model, "steps_per_execution", 1) or 1),
                "jit_compile": bool(getattr(model, "jit_compile", False)),
                "run_eagerly": bool(getattr(model, "run_eagerly", False)),
                "mixed_precision": getattr(getattr(model, "dtype_policy", None), "name", None),
                "gradient_accumulation_steps": getattr(optimizer, "gradient_accumulation_steps", None),
                "optimizer": type(optimizer).__name__ if optimizer is not None else None,
                "step_threads": self.runtime.step_threads(),
                **self.fit_facts(),
            },
        }

    def fit_facts(self) -> dict[str, object]:
        """Return the framework's facts of the fit: `strategy` and `replicas`, at least."""
        raise NotImplementedError


_DRAWS = ("_seed_generators", "_random_generator")  # attributes of Keras' layers that draw random numbers


def _frozen_share(model: Any) -> float | None:
    """Return the share (0-1) of a model's parameters in layers before all that train or draw random numbers.

    Embeddings do not count: they are only looked up. None for models whose layers have no order, or are not built.
    """
    if type(model).__name__ not in ("Functional", "Sequential") or not model.built:
        return None
    frozen = 0
    for layer in model.layers:
        random = [part for part in layer._flatten_layers() if any(getattr(part, name, None) for name in _DRAWS)]
        if layer.trainable_variables or random:
            break
        frozen += _computing_parameters(layer)
    return round(frozen / max(1, _computing_parameters(model)), 4)


def _computing_parameters(layer: Any) -> int:
    """Return how many parameters a layer has, with those within it, but for embeddings'."""
    looked_up = [part for part in layer._flatten_layers() if type(part).__name__ == "Embedding"]
    return int(layer.count_params()) - sum(int(part.count_params()) for part in looked_up)


class PythonAdapter(KerasAdapter):
    """A backend whose batches are fetched in Python and timed there (JAX, torch)."""

    _timeline: Timeline | None = None
    _first: FirstCall | None = None

    def __init__(self, name: str, timing: str, runtime: Runtime):
        super().__init__(name, timing, runtime)
        self.compile_clock = runtime.compile_clock()

    def _begin(
        self,
        model: KerasModel,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Failed,
        first: FirstCall | None,
        batches: Batches,
        test_batches: Batches,
    ) -> None:
        """Begin a fit: the part common to all such backends.

        Args:
            stale: called when the training turns out to be over.
            failed: called with what could not be measured, and the error.
            first: looks at the first call of the train function; None where nothing can be seen in it.
            batches: of the train function.
            test_batches: of the test function.
        """
        self._model, self._timeline, self._first = model, timeline, first
        try:
            self.compile_clock.start()
        except Exception as error:  # private to the framework, or moved
            failed("compilation", error)

        # An exception in there leaves the fit.
        self._train = TimedFunction(model, "train_function", timeline, batches, stale=stale, on_exit=stale, first=first)
        self._test = TimedFunction(model, "test_function", timeline, test_batches)
        self._train.wrap()
        self._time_input(failed)
        self._watch("train", given_adapter())

    def test_begin(self) -> None:
        super().test_begin()
        self._watch("validation", self._test_adapter())

    def _test_adapter(self) -> object | None:
        """Return the data adapter of the validation that begins."""
        return getattr(getattr(self._model, "_eval_epoch_iterator", None), "data_adapter", None)

    def end(self) -> None:
        super().end()
        self.compile_clock.stop()

    def _watch(self, phase: str, data_adapter: Any) -> None:
        """Watch the iterators of a `tf.data.Dataset`, if Keras iterates over one.

        Args:
            phase: "train" or "validation".
        """
        dataset: Any = getattr(data_adapter, "_dataset", None)
        of_tf_data = type(data_adapter).__name__ == "TFDatasetAdapter" and dataset is not None
        if of_tf_data and not isinstance(dataset, WatchedIterable):
            self._pipelines.note_dataset(phase, dataset)
            watched = WatchedIterable(dataset, partial(self._pipelines.note_iterator, phase))
            self._calls.replace_attribute(data_adapter, "_dataset", watched)


def adapter_for(backend: str) -> Adapter:
    """Return a fresh adapter for a Keras backend that trains: NumPy's and OpenVINO's have no `fit`."""
    return framework_module(backend, "backend").ADAPTER()


def _keras_of(model: object) -> str:
    """Return the version of the Keras that a model belongs to: Keras 3, or `tf_keras`."""
    if is_tf_keras(model):
        return f"tf_keras {sys.modules['tf_keras'].__version__}"
    return sys.modules["keras"].__version__


def _thresholds(model: object) -> dict[str, int]:
    """Return compiled metric -> thresholds with which it compares each value one by one: not evenly from 0 to 1."""
    metrics = leaves(getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None))
    return {
        type(of).__name__: len(of.thresholds) for of in metrics if not getattr(of, "_thresholds_distributed_evenly", 1)
    }


# ---- custom loops, with or without Keras -----------------------------------------------------------


def framework_in_use() -> tuple[str | None, bool]:
    """Return the framework this process trains with, None if there is none yet; and whether that is a guess.

    A guess where several are imported, and none has been chosen or seen at work.
    """
    imported, backend = [name for name in BACKENDS if name in sys.modules], _chosen_backend()
    if backend in imported:  # chosen as Keras' backend
        return backend, False
    used = imported if len(imported) < 2 else [name for name in imported if _AT_WORK[name]()]
    return next(iter(used or imported), None), not used and bool(imported)


def _chosen_backend() -> str | None:
    """Return Keras' backend if chosen explicitly: TensorFlow imports Keras, which then has one."""
    try:
        backend = sys.modules["keras"].backend.backend()
    except (KeyError, AttributeError):  # not there, or in the middle of its import
        return None
    return backend if backend != "tensorflow" or "KERAS_BACKEND" in os.environ else None


# TensorFlow is last: tf.data and TensorBoard need it too.
_AT_WORK: dict[str, Callable[[], bool]] = {
    # JAX's are created by the first array.
    "jax": lambda: bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)),
    "torch": lambda: bool(framework_module("torch", "runtime").kinds_of_optimizers()),
    "tensorflow": lambda: framework_module("tensorflow", "runtime").running(),
}


class LoopAdapter(Adapter):
    """A loop that `GpuUtilMonitor` times: its batches are fetched in Python.

    Args:
        framework: one of `BACKENDS`, or None.
        guessed: whether the loop may train with another framework.
    """

    def __init__(self, framework: str | None, guessed: bool = False):
        super().__init__(framework or "none", "python", runtime_of(framework))
        # TensorFlow does not report what `jit_compile=True` compiles; JAX and torch do.
        self.shapes_compile = framework == "tensorflow"
        self._guessed = guessed

    def attach(self, loop: Loop, failed: Failed) -> None:
        """Begin monitoring; on the training thread."""
        self._calls.begin()
        self.runtime.watch_graph()
        try:
            self.compile_clock = loop.compile_clock = self.runtime.compile_clock()
            self.compile_clock.start()
        except Exception as error:  # a framework whose internals moved
            failed("compilation", error)

    def dispatch(self, loop: Loop, caller: CodeType) -> DispatchWatch:
        """Return a watch on how the loop in `caller` dispatches steps; on the training thread."""
        count = loop.operations = OperationCount(self.name)
        called_back = self.runtime.called_back
        return DispatchWatch(self.name, threading.get_ident(), lambda: loop.working, caller, count, called_back)

    def end(self) -> None:
        self._calls.end()
        self.compile_clock.stop()

    def facts(self) -> dict[str, Any]:
        framework: dict[str, object] = self.runtime.framework() | ({"guessed": True} if self._guessed else {})
        framework["keras"] = getattr(sys.modules.get("keras"), "__version__", None)
        fit = {"step_threads": self.runtime.step_threads(), **self.runtime.precision()}
        return {"framework": framework, "fit": fit}

    def iterates(self, iterator: Iterator, validating: bool) -> None:
        """Note that the loop starts another pass over a dataset."""
        self._pipelines.note_iterator("validation" if validating else "train", iterator)

    def timed(self, dataset: object, iterator: Iterator) -> Iterator:
        """Return an iterator over the training's dataset whose Python functions are timed."""
        return timed_iterator(self._calls, dataset, iterator)
