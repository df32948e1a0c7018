"""Interface of a framework to the recorder: what it is, its state, and the work of its steps."""

from __future__ import annotations

import _tracemalloc  # the module around it takes 1 ms and 100 kB
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any, Required, TypedDict

from gpu_util_callback.recording.manifest_facts import Exchanges, Retraced
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.dispatch import CalledBack

if TYPE_CHECKING:
    from gpu_util_callback.profiling.session import ProfilerSession


# Called with the source that could not be measured, such as "profiler", and the error.
Failed = Callable[[str, BaseException], None]


class ListedGpu(TypedDict, total=False):
    """A GPU as the framework lists it: the arguments of `gpus.FrameworkGpu`."""

    index: Required[int]
    name: Required[str]
    uuid: str | None
    pci_bus_id: str | None
    compute_capability: str | None
    cuda_ordinal: int | None


class Runtime:
    """A framework in this process, with or without Keras: its facts, GPUs, compilations and state.

    The base class is for none that is known.

    Attributes:
        name, version: of the framework; None = not known.
        called_back: returns how a compiled step calls a Python function, None = it is no step's; on any thread.
            None where compiled steps call none.
    """

    name: str | None = None
    version: str | None = None
    called_back: Callable[[CodeType], CalledBack | None] | None = None

    def framework(self) -> dict[str, object]:
        """Return the manifest's `framework`, without Keras."""
        return {"name": self.name, "version": self.version, "backend": self.name, "python": platform.python_version()}

    def step_threads(self) -> int | None:
        """Return how many threads a step may use on the CPU."""
        return None

    def debugging(self) -> list[str]:
        """Return the switches for debugging that are on in all threads and slow each step; on any thread."""
        blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        allocations = [f"tracemalloc.start({_tracemalloc.get_traceback_limit()})"] * _tracemalloc.is_tracing()
        return ["CUDA_LAUNCH_BLOCKING=1"] * blocking + allocations

    def precision(self) -> dict[str, object]:
        """Return the fact that all weights are float64; {} if not, or unknown. On any thread, in some ten ms."""
        return {}

    def devices(self) -> list[ListedGpu] | None:
        """Return the GPUs of this process in the framework's order; None: it has none."""
        return None

    def memory(self) -> dict[int, dict[str, float]]:
        """Return the bytes that each GPU's allocator holds, by ordinal; wait for no device.

        Names: `allocator_used_bytes`, `_peak_bytes`, `_reserved_bytes`, `_limit_bytes`, `_retries`,
        `_ooms`; those that are not known are left out.
        """
        return {}

    def record_memory(self, on: bool) -> None:
        """Begin or end to note the stacks of allocations, where the framework has to be asked."""

    def memory_stacks(self) -> tuple[str, bytes] | None:
        """Return who holds the device's memory now: a file's name and content; None = unknown."""
        return None

    def watch_graph(self) -> None:
        """Note the graph that the calling thread adds operations to, if there is one."""

    def counters(self) -> dict[str, int]:
        """Return counts of what the framework keeps, or has made: "functions", "functions_made", "graph_operations"."""
        return {}

    def retraced(self) -> Retraced | None:
        """Return the compiled function that has the most traces; None where none has several, or that is not known.

        One that XLA compiles for each new shape is left out: that it is traced for them costs little beside that.
        """
        return None

    def exchanges(self) -> Exchanges | None:
        """Return how often and how long gradients were exchanged so far; None = not known. On any other thread."""
        return None

    def local_fetch(self, iterator: object) -> Callable[[], int] | None:
        """Return a clock of this process's own part of the last batch; None = the whole batch."""
        return None

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        """Return (source, shared identity, rank, processes), if known; None for a lone process."""
        return None

    def tf32(self) -> dict[str, bool]:
        """Return True for each kind of work whose float32 is computed in TF32."""
        return {}

    def compile_clock(self) -> CompileClock:
        """Return a clock of the compilations on the training thread."""
        return CompileClock()

    def processes(self) -> int:
        """Return how many processes train together."""
        return 1


# The one registry. Each framework is a package here, with the modules `backend` (`ADAPTER`),
# `runtime` (`RUNTIME`) and `profiler` (`SESSION`). Ordered by preference where several are imported:
# TensorFlow is often there for tf.data or TensorBoard alone.
BACKENDS = ("jax", "torch", "tensorflow")


def framework_module(backend: str, part: str) -> Any:
    """A module of a framework's package; importing it imports the framework."""
    return import_module(f"gpu_util_callback.backends.{backend}.{part}")


def runtime_of(framework: str | None) -> Runtime:
    """Return a framework of this process; for one that is not known, the base class."""
    return framework_module(framework, "runtime").RUNTIME if framework and framework in BACKENDS else Runtime()


def profiler_session_for(backend: str) -> ProfilerSession:
    """The profiler of a backend."""
    return framework_module(backend, "profiler").SESSION


# ---- the work of a training step -----------------------------------------------------------------

# FLOPs of its matrix products and convolutions, by the convention of model FLOPs utilization:
# forward and backward, two FLOPs a multiply-add, nothing else, and nothing that is computed again
# to save memory.

MATMUL, CONV = "matmul", "conv"  # kinds of work: TF32 is switched on and off for each


class NotCounted(Exception):
    """Work that cannot be counted; says why."""


@dataclass
class CountedWork:
    """FLOPs that were counted together.

    Attributes:
        flops: by (kind, type of the operands: "float32").
        samples: in the batch.
        missing: what could not be counted, each named once.
    """

    flops: Counter[tuple[str, str]] = field(default_factory=Counter)
    samples: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.flops.values())

    def add(self, kind: str, dtype: str, multiply_adds: float) -> None:
        """Add the work of an operation."""
        self.flops[kind, dtype] += 2 * int(multiply_adds)

    def miss(self, operation: str) -> None:
        """Note something that cannot be counted."""
        if operation not in self.missing:
            self.missing.append(operation)

    def include(self, other: CountedWork, times: int = 1) -> None:
        """Add the work of a part that runs this often."""
        for key, flops in other.flops.items():
            self.flops[key] += times * flops
        for operation in other.missing:
            self.miss(operation)

    def per_sample(self) -> dict[tuple[str, str], float]:
        """Return the FLOPs of one sample by (kind, type of the operands).

        Raises: NotCounted where the sum is unknown.
        """
        if self.missing:
            more = len(self.missing) - 3
            operations = ", ".join(self.missing[:3]) + (f" and {more} more" if more > 0 else "")
            raise NotCounted(f"the work of {operations} is not known")
        if not self.samples:
            raise NotCounted("the size of the batch is not known")
        if not self.total:
            raise NotCounted("the step has no matrix product and no convolution")
        return {key: flops / self.samples for key, flops in self.flops.items() if flops}


def product(sizes: Iterable[int | None]) -> int:
    """Return the product of sizes. Raises: NotCounted where one is unknown."""
    sizes = list(sizes)
    if None in sizes:
        raise NotCounted("a size is unknown")
    return math.prod(int(size) for size in sizes if size is not None)


def einsum_multiply_adds(equation: str, shapes: Sequence[Sequence[int | None]]) -> int:
    """Return the multiply-adds of an einsum of two operands; 0 of one, which multiplies nothing.

    Raises: NotCounted where a size is unknown, or for more operands, whose order is not known.
    """
    operands = equation.replace(" ", "").partition("->")[0].split(",")
    if len(operands) < 2:
        return 0
    if len(operands) > 2:
        raise NotCounted("an einsum of several operands")
    sizes: dict[str, int | None] = {}
    for labels, shape in zip(operands, shapes, strict=True):
        head, dots, tail = labels.partition("...")
        labelled = len(head) + len(tail)
        batch = [f"#{-place}" for place in range(len(shape) - labelled, 0, -1)] if dots else []
        for label, size in zip([*head, *batch, *tail], shape, strict=True):
            earlier = sizes.get(label)
            sizes[label] = size if earlier in (None, 1) else earlier
    return product(sizes.values())
