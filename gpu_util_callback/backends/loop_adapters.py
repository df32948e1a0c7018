"""Custom training loops on TensorFlow, JAX or torch, with or without Keras."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any

from gpu_util_callback.backends.base import BACKENDS, Failed, runtime_of
from gpu_util_callback.backends.input_calls import timed_iterator
from gpu_util_callback.backends.input_watch import WatchingAdapter
from gpu_util_callback.steps.dispatch import DispatchWatch, OperationCount
from gpu_util_callback.steps.loop import Loop


def framework_in_use() -> str | None:
    """Return the framework this process trains with, as far as known; None if there is none yet."""
    imported = [name for name in BACKENDS if name in sys.modules]
    backend = _chosen_backend()
    if backend in imported:
        return backend
    if len(imported) < 2:
        return next(iter(imported), None)
    return next((name for name in imported if _AT_WORK[name]()), imported[0])


def is_a_guess(framework: str | None) -> bool:
    """Return whether others are imported too, and this one has not been seen at work yet."""
    imported = [name for name in BACKENDS if name in sys.modules]
    if framework not in imported or len(imported) < 2 or framework == _chosen_backend():
        return False
    return not _AT_WORK[framework]()


def _chosen_backend() -> str | None:
    """Return Keras' backend if chosen explicitly: TensorFlow imports Keras, which then has one."""
    try:
        backend = sys.modules["keras"].backend.backend()
    except (KeyError, AttributeError):  # not there, or in the middle of its import
        return None
    return backend if backend != "tensorflow" or "KERAS_BACKEND" in os.environ else None


def _jax_works() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "_backends", None))  # created by the first array


def _torch_works() -> bool:
    optimizer = sys.modules["torch"].optim.Optimizer
    return any(issubclass(type(member), optimizer) for member in gc.get_objects())


def _tensorflow_works() -> bool:
    from gpu_util_callback.backends.tensorflow import runtime

    return runtime.running()


# TensorFlow is last: tf.data and TensorBoard need it too.
_AT_WORK = {"jax": _jax_works, "torch": _torch_works, "tensorflow": _tensorflow_works}


class LoopAdapter(WatchingAdapter):
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
        return DispatchWatch(self.name, threading.get_ident(), lambda: loop.working, caller, count)

    def end(self) -> None:
        self._calls.end()
        self.compile_clock.stop()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, dict[str, object]] = {
            "framework": self.runtime.framework(),
            "fit": {"step_threads": self.runtime.step_threads()},
        }
        if self._guessed:
            facts["framework"]["guessed"] = True
        keras = sys.modules.get("keras")
        if keras is not None:
            facts["framework"]["keras"] = getattr(keras, "__version__", None)
        return facts

    def iterates(self, iterator: Iterator, validating: bool) -> None:
        """Note that the loop starts another pass over a dataset."""
        self._pipelines.note_iterator("validation" if validating else "train", iterator)

    def timed(self, dataset: object, iterator: Iterator) -> Iterator:
        """Return an iterator over the training's dataset whose Python functions are timed."""
        return timed_iterator(self._calls, dataset, iterator)
