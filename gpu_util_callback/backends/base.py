"""Interface of a framework adapter to the recorder, and the choice of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict

from gpu_util_callback.backends.step_work import CountedWork, NotCounted

if TYPE_CHECKING:
    from gpu_util_callback.backends.functions import KerasModel, TimedFunction
    from gpu_util_callback.profiling.session import ProfilerSession
    from gpu_util_callback.steps.timeline import Timeline


# Called with (source, error) of whatever fails.
Failed = Callable[[str, BaseException], None]


class ListedGpu(TypedDict, total=False):
    """A GPU as the framework lists it: the arguments of `gpus.FrameworkGpu`."""

    index: Required[int]
    name: Required[str]
    uuid: str | None
    pci_bus_id: str | None
    compute_capability: str | None
    cuda_ordinal: int | None


class About(Protocol):
    """A framework's own facts, with or without Keras: a module of that name."""

    def framework(self) -> dict[str, object]:
        """The manifest's `framework`, without Keras."""

    def step_threads(self) -> int | None:
        """Threads that a step may use on the CPU."""

    def devices(self) -> list[ListedGpu] | None:
        """GPUs of this process; None: it has none."""

    def memory(self) -> dict[int, dict[str, float]]:
        """Return the bytes that each GPU's allocator holds, by ordinal; wait for no device.

        Names: `allocator_used_bytes`, `_peak_bytes`, `_reserved_bytes`, `_limit_bytes`, `_retries`,
        `_ooms`; those that are not known are left out.
        """

    def tf32(self) -> dict[str, bool]:
        """Return True for each kind of work whose float32 is computed in TF32."""

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        """(source, what all processes share, rank, processes), if the framework knows."""


@dataclass
class Adapter:
    """Timing of one framework's training loop. The base class times nothing but the hooks.

    `begin`, `test_begin`, `test_end` and `end` run on the training thread
    and must be short; `facts`, `look_at_input`, `input_facts` and `pipeline` run on the recorder's
    thread. Any of them may raise: the recorder then switches that source off and says why.
    """

    name: str = "unknown"
    timing: str = "hooks"  # how batches are timed: "graph", "graph (determinism)", "hooks", ...
    about: About | None = None
    shapes_compile: bool = False  # whether a new input shape may make the framework compile
    every_shape_compiles: bool = False  # whether it always does
    shapes: dict[float, int] = field(default_factory=dict)  # signature -> shape id, over all fits
    counts_work: bool = False  # whether `work` may know
    has_stages: bool = True  # whether the input pipeline may have stages that can be read
    will_fail: tuple[str, str] | None = None  # (what of Keras' own fit will fail, what to do)
    # (source, reason, cure): what cannot be measured here
    unavailable: list[tuple[str, str, str]] = field(default_factory=list)

    def begin(self, model: KerasModel, timeline: Timeline, stale: Callable[[], None], failed: Failed) -> None:
        """A fit begins.

        Args:
            model: the model being trained.
            timeline: told of every call of the train and test functions.
            stale: to be called when the training turns out to have ended unnoticed.
            failed: to be told (source, error) of whatever fails.
        """

    @property
    def train_function(self) -> TimedFunction | None:
        """The timed train function, whose next call is this fit's once it is armed."""
        return None

    def test_begin(self) -> None:
        """A validation of this fit begins."""

    def test_batch_begin(self) -> None:
        """A validation batch begins."""

    def test_end(self) -> None:
        """A validation of this fit has ended."""

    def end(self) -> None:
        """Leave the model as it was found. May be called on any thread, and more than once."""

    def facts(self) -> dict[str, Any]:
        """Return the facts of framework, model and fit for the manifest."""
        return {}

    def devices(self) -> list[ListedGpu] | None:
        """As `About.devices`."""
        return None if self.about is None else self.about.devices()

    def problems(self) -> list[tuple[str, str, str]]:
        """(source, reason, cure) of all that turned out not to be measurable so far."""
        return list(self.unavailable)

    def memory(self) -> dict[int, dict[str, float]]:
        """As `About.memory`."""
        return {} if self.about is None else self.about.memory()

    def record_memory(self, on: bool) -> None:
        """Begin or end to note the stacks of allocations, where the framework has to be asked."""
        record = getattr(self.about, "record_memory", None)
        if record is not None:
            record(on)

    def memory_stacks(self) -> tuple[str, bytes] | None:
        """Return who holds the device's memory now: a file's name and content; None = unknown."""
        find = getattr(self.about, "memory_stacks", None)
        return find() if find is not None else None

    def counters(self) -> dict[str, int]:
        """Counts of what the framework keeps: "functions", "compilations", "graph_operations"."""
        count = getattr(self.about, "counters", None)
        return count() if count is not None else {}

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        """As `About.rendezvous`."""
        return None if self.about is None else self.about.rendezvous()

    def work(self, batch: int | None) -> CountedWork | None:
        """The work of a training step, counted; None while it cannot be seen yet.

        Args:
            batch: the batch's size, where the framework leaves it open.

        Raises: NotCounted where it cannot be counted at all.
        """
        raise NotCounted("it cannot be counted for this training")

    def tf32(self) -> dict[str, bool]:
        """Return True for each kind of work whose float32 is computed in TF32."""
        return {} if self.about is None else self.about.tf32()

    def look_at_input(self) -> None:
        """Inspect what is new in the training's input."""

    def input_facts(self) -> dict[str, object]:
        """The manifest's `fit` facts of the input that show while it trains."""
        return {}

    def pipeline(self) -> list[dict[str, object]]:
        """The input pipeline's stages: rows of the `pipeline` table, counted since the start."""
        return []


# The one registry. Each framework is a package here, with the modules `backend` (`adapter()`),
# `facts` (an `About`), `compile_clock` (`CLOCK`), `profiler` (`SESSION`) and `state` (what a trial
# run must put back). Ordered by preference where several are imported: TensorFlow is often there
# for tf.data or TensorBoard alone.
BACKENDS = ("jax", "torch", "tensorflow")


class FrameworkState(Protocol):
    """State of a framework that a trial run must put back: its module `state`."""

    def random_states(self) -> list[Callable[[], None]]:
        """Return what restores the global random states."""

    def preserved(self, value: object) -> Callable[[], None] | None:
        """Return what restores an object in place; None where it cannot change, or for others."""

    def immutable(self, value: object) -> Callable[[], object] | None:
        """Return a function that returns a value as it is now, even where training gave it away."""

    def copied(self, data: object) -> object | None:
        """Return an independent copy of a dataset of this framework; None for others."""

    def synchronize(self, result: object) -> None:
        """Wait for all that was launched."""

    def processes(self) -> int:
        """Return how many processes train together."""


def part_of(backend: str, part: str) -> Any:
    """A module of a framework's package; importing it imports the framework."""
    return import_module(f"gpu_util_callback.backends.{backend}.{part}")


def adapter_for(backend: str) -> Adapter:
    """A fresh adapter for a Keras backend; for one that is not known, the base class."""
    if backend not in BACKENDS:
        adapter = Adapter(name=backend)
        adapter.unavailable.append(
            (
                "input wait",
                f"batches are not timed on the {backend} backend",
                "train on the TensorFlow backend to see the input wait",
            )
        )
        return adapter
    return part_of(backend, "backend").adapter()


def profiler_session_for(backend: str) -> ProfilerSession | None:
    """The profiler of a Keras backend; None = there is none for it."""
    return part_of(backend, "profiler").SESSION if backend in BACKENDS else None
