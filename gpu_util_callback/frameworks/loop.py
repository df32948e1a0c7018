"""Training loops of somebody's own, on TensorFlow, JAX or torch, with or without Keras."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from gpu_util_callback.frameworks.base import Adapter, InputRows
from gpu_util_callback.frameworks.loop_timeline import LoopTimeline
from gpu_util_callback.frameworks.python_functions import CompileClock, input_rows, shape_signature

__all__ = ["FRAMEWORKS", "LoopAdapter", "describe_input", "framework_in_use"]

# What each framework says of itself, and who tells when it compiles. In the order of preference:
# TensorFlow is often there for its input pipelines, or for TensorBoard, alone.
FRAMEWORKS = {
    "jax": ("jax_facts", "jax_compile", "JaxCompileClock"),
    "torch": ("torch_facts", "torch_compile", "TorchCompileClock"),
    "tensorflow": ("tensorflow_loop", "tensorflow_loop", "TensorFlowCompileClock"),
}
_PACKAGE = "gpu_util_callback.frameworks."


def framework_in_use() -> str | None:
    """The framework this process has imported; None where there is none yet."""
    keras = sys.modules.get("keras")
    if keras is not None:
        try:
            backend = keras.backend.backend()
        except AttributeError:  # in the middle of its import
            backend = None
        if backend in FRAMEWORKS and backend in sys.modules:
            return backend
    return next((name for name in FRAMEWORKS if name in sys.modules), None)


class LoopAdapter(Adapter):
    """A loop that `GpuUtilMonitor` times: its batches are fetched in Python.

    Args:
        framework: one of `FRAMEWORKS`, or None.
    """

    def __init__(self, framework: str | None):
        super().__init__(name=framework or "none", timing="python")
        self._facts: Any = None
        self._loop: LoopTimeline | None = None
        self._clock: CompileClock | None = None
        if framework is not None:
            self._facts = import_module(_PACKAGE + FRAMEWORKS[framework][0])

    def attach(self, loop: LoopTimeline, failed: Callable[[str, BaseException], None]) -> None:
        """The monitor begins; on the training thread."""
        self._loop = loop
        if self._facts is None:
            return
        try:
            _, home, name = FRAMEWORKS[self.name]
            self._clock = getattr(import_module(_PACKAGE + home), name)()
            self._clock.start()
            loop.compile_clock = self._clock
        except Exception as error:  # a framework whose internals moved
            failed("compilation", error)

    def drain(self) -> Callable[[], InputRows] | None:
        if self._loop is None:
            return None
        stamps, self._loop.stamps = self._loop.stamps, []
        return lambda: input_rows(stamps)

    def drain_test(self) -> Callable[[], InputRows] | None:
        if self._loop is None:
            return None
        stamps, self._loop.test_stamps = self._loop.test_stamps, []
        return lambda: input_rows(stamps)

    def end(self) -> None:
        if self._clock is not None:
            self._clock.stop()

    def facts(self) -> dict[str, Any]:
        if self._facts is None:
            return {"framework": {"name": None, "python": platform.python_version()}}
        facts = {"framework": self._facts.framework()}
        keras = sys.modules.get("keras")
        if keras is not None:
            facts["framework"]["keras"] = getattr(keras, "__version__", None)
        return facts

    def local_fetch(self, iterator: Any) -> Callable[[], int] | None:
        """Tells when this process had its own part of the last batch; None = with all of it."""
        find = getattr(self._facts, "local_fetch", None)
        return None if find is None else find(iterator)

    def own_us(self) -> float:
        return loop_us()

    def devices(self) -> list[dict[str, Any]] | None:
        return None if self._facts is None else self._facts.devices()

    def memory(self) -> dict[int, dict[str, float]]:
        return {} if self._facts is None else self._facts.memory()

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        return None if self._facts is None else self._facts.rendezvous()


def loop_us(steps: int = 300, rounds: int = 5) -> float:
    """Microseconds that timing a loop's step takes in Python: the median of some short rounds."""
    batch = (np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32))
    clock = time.perf_counter_ns
    costs = []
    for _ in range(rounds):
        loop = LoopTimeline(lambda: None, lambda: None)
        loop.batches_begin()
        start = clock()
        for _ in range(steps):
            requested = clock()
            loop.step_begin(requested, clock(), shape_signature(batch))
        costs.append((clock() - start - loop.drain_ns) / steps / 1e3)
    return sorted(costs)[rounds // 2]


# What a dataset is called, by the module its class lives in.
_KINDS = (
    ("torch.utils.data.dataloader", "torch DataLoader"),
    ("tensorflow.python.distribute", "tf.data"),
    ("tensorflow.python.data", "tf.data"),
    ("keras.src.trainers.data_adapters.py_dataset_adapter", "PyDataset"),
    ("grain.", "grain"),
    ("numpy", "numpy"),
)


def describe_input(dataset: Any) -> dict[str, Any]:
    """What the manifest's `fit` says of a dataset: kind, batches a pass, batch size."""
    kind = type(dataset).__name__
    for one in type(dataset).__mro__:
        name = f"{one.__module__}."
        found = next((kind for home, kind in _KINDS if name.startswith(home)), None)
        if found is not None:
            kind = found
            break
    try:
        steps = len(dataset)
    except Exception:  # unknown, endless, or no such thing
        steps = None
    size = getattr(dataset, "batch_size", None)
    return {
        "input_kind": kind,
        "steps_per_epoch": steps,
        "batch_size": size if isinstance(size, int) else None,
    }
