"""Interface of a training to the recorder; its input, watched: first arrays, tf.data pipelines, ready batches.

No framework is imported here: code that iterates over its datasets has imported it.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import select
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from gpu_util_callback.backends.base import CountedWork, Failed, NotCounted, Runtime, framework_module
from gpu_util_callback.backends.functions import KerasModel, TimedFunction
from gpu_util_callback.backends.input_calls import InputCalls
from gpu_util_callback.backends.inputs import inside, seen_through
from gpu_util_callback.recording.manifest_facts import InputArray, InputPadding, Unavailable
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.rows import HandedOver, leaves
from gpu_util_callback.steps.timeline import Timeline


class Adapter:
    """Timing of one framework's training loop. The base class times nothing but the hooks.

    `begin`, `test_begin`, `test_end` and `end` run on the training thread
    and must be short; `facts`, `look_at_input`, `input_facts` and `pipeline` run on the recorder's
    thread. Any of them may raise: the recorder then switches that source off and says why.

    Attributes:
        name: of the framework, or of what iterates over its data.
        timing: how batches are timed: "graph", "graph (determinism)", "hooks", ...
        runtime: the framework in this process.
        compile_clock: the time that it spends compiling.
        shapes_compile: whether a new input shape may make the framework compile.
        every_shape_compiles: whether it always does.
        shapes: signature -> shape id, over all fits.
        has_stages: whether the input pipeline may have stages that can be read.
        unavailable: what cannot be measured here.
        first_batch: what the arrays of the first batch hold.
    """

    def __init__(self, name: str = "unknown", timing: str = "hooks", runtime: Runtime | None = None):
        self.name = name
        self.timing = timing
        self.runtime = Runtime() if runtime is None else runtime
        self.compile_clock = CompileClock()
        self.shapes_compile = self.every_shape_compiles = False
        self.shapes: dict[float, int] = {}
        self.has_stages = True
        self.unavailable: list[Unavailable] = []
        self._pipelines = TfDataPipelines(self.unavailable)
        self.first_batch = FirstArrays(self.runtime.processes)
        self._calls = InputCalls()
        self._tracing = tracing()  # an adapter is made on the training thread
        # switch for debugging that was on -> looks at the input; "": all of them
        self._looks_by_switch = Counter[str]()

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

    def before_fetch(self, requested: Callable[[], None]) -> None:
        """Call `requested` before each request for a training batch, where that is before Keras' hooks."""

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

    def problems(self) -> list[Unavailable]:
        """Return all that turned out not to be measurable so far."""
        return list(self.unavailable)

    def work(self, batch: int | None) -> CountedWork | None:
        """The work of a training step, counted; None while it cannot be seen yet.

        Args:
            batch: the batch's size, where the framework leaves it open.

        Raises: NotCounted where it cannot be counted at all.
        """
        raise NotCounted("it cannot be counted for this training")

    def look_at_input(self) -> None:
        """Inspect what is new in the training's input: debug switches, first arrays, functions, pipelines."""
        self._looks_by_switch.update(["", *self._tracing, *self.runtime.debugging()])
        self.first_batch.look()
        self._calls.sample()
        functions = self._pipelines.look()
        if functions:
            framework_module("tensorflow", "written_stages").time_functions(functions, self._calls)

    def sample_input(self, dataset: object) -> None:
        """Sample the functions of a DataLoader from now on, whatever wraps it; on the training thread."""
        loader = seen_through(dataset)
        if hasattr(loader, "collate_fn"):
            self._calls.sample_loader(dataset, loader)

    def input_facts(self) -> dict[str, object]:
        """Return the manifest's `fit` facts of the input that show while it trains; those not known are left out."""
        looks = dict(self._looks_by_switch)
        facts = {
            "debugging": [name for name, count in looks.items() if name and 2 * count >= looks[""]],
            "input_calls": self._calls.facts(),
            "input_repeats": self._calls.repetition.repeats,
            **dict(zip(("input_first", "input_second"), self.first_batch.seen, strict=False)),
            "input_padding": self.first_batch.padding(),
            "exchanges": self.runtime.exchanges(),
            **self._pipelines.facts(),
        }
        # Of no entries, `input_maps` says that no stage calls a function.
        return {name: value for name, value in facts.items() if value or value is False or name == "input_maps"}

    def pipeline(self) -> list[dict[str, object]]:
        """Return the input pipeline's stages: rows of the `pipeline` table, counted since the start."""
        return self._pipelines.read()


def tracing() -> list[str]:
    """Return what Python calls at each line or call on this thread, as the program sets it.

    A function in C, of a coverage or an editor's debugger, is left out: it costs little beside one in Python.
    """
    profiler, monitoring = sys.getprofile(), getattr(sys, "monitoring", None)
    tool = monitoring.get_tool(monitoring.PROFILER_ID) if monitoring else None  # since Python 3.12
    in_python = {"sys.settrace": sys.gettrace(), "sys.setprofile": profiler}
    calls = [name for name, function in in_python.items() if isinstance(function, FunctionType | MethodType)]
    return calls + ["cProfile"] * ("cProfile" in (tool, type(profiler).__module__))


# ---- the first arrays ----------------------------------------------------------------------------


_LOOKED_AT_BYTES = 1 << 20  # of each array's first rows: a millisecond
_MOST_ARRAYS = 64  # more are columns of a table
_MOST_POSITIONS = 1 << 15  # of the first rows of sequences: a millisecond
_PADDED_BATCHES = 8
_RARELY = 0.05  # of a sequence's positions: a text has few of what it is filled up with
_FEWEST_POSITIONS = 16  # of a sequence: shorter rows are those of a table
_FEWEST_VALUES = 3  # in a sequence, but for its padding: masks, one-hot and multi-hot rows have one


class FirstArrays:
    """The first batch, or the arrays given to `fit`, held until they were looked at; of several processes, two batches.

    Of a few more batches only how much of them is padding. Arrays that are not in the host's memory are left out.

    Args:
        processes: returns how many train together.

    Attributes:
        seen: of each, what the manifest has of it.
    """

    def __init__(self, processes: Callable[[], int]) -> None:
        self._processes = processes
        self._leaves_held: list[list[object]] = []
        self._sequences_held: list[object] = []
        self._padded: list[tuple[int, int, int, int]] = []  # what `_padding_of` returns
        self._noted = 0
        self.seen: list[list[InputArray]] = []

    def note(self, batch: object) -> Callable | None:
        """Hold the arrays of a batch, unless enough were noted.

        Return what to call with the next batch, None = nothing. On the training thread.
        """
        self._noted += 1
        on_host = [leaf for leaf in itertools.islice(leaves(batch), _MOST_ARRAYS) if _on_host(leaf)]
        self._sequences_held += [leaf for leaf in on_host if len(leaf.shape) == 2 and "int" in str(leaf.dtype)]
        if self._noted == 1 or (self._noted == 2 and self._processes() > 1):
            self._leaves_held += [on_host]
        return self.note if self._noted < _PADDED_BATCHES else None

    def look(self) -> None:
        """Inspect the arrays that are held, and free them; on any other thread."""
        batches, self._leaves_held = self._leaves_held, []
        self.seen += [[_describe(array) for array in arrays] for arrays in batches]
        sequences, self._sequences_held = self._sequences_held, []
        self._padded += [padded for array in sequences if (padded := _padding_of(array)) is not None]

    def padding(self) -> InputPadding | None:
        """Return how much of the sequences of whole numbers in the first batches is padding; None without any."""
        if not self._padded:
            return None
        rows, positions, filled, beyond = map(sum, zip(*self._padded, strict=True))
        return {"rows": rows, "share": round(filled / positions, 4), "beyond": round(beyond / positions, 4)}


def _padding_of(array: Any) -> tuple[int, int, int, int] | None:
    """Measure how rows of whole numbers are filled up, at one end, with a value that is rare elsewhere in them.

    Returns: rows, positions in them, of these filled up, and filled up beyond the longest row; None for what holds no
        sequences: masks, one-hot rows, images, counts that are mostly zero, labels that leave out parts by -100.
    """
    values = np.asarray(array[: max(1, _MOST_POSITIONS // max(1, int(array.shape[1])))])
    if values.itemsize == 1 or not len(values) or values.shape[1] < _FEWEST_POSITIONS or values.min() < 0:
        return None
    best: tuple[int, int, int, int] | None = None
    for ordered in (values, values[:, ::-1]):  # filled up at the end, and at the beginning
        kinds, counts = np.unique(ordered[:, -1], return_counts=True)
        is_own = ordered != kinds[counts.argmax()]
        lengths = np.where(is_own.any(1), values.shape[1] - is_own[:, ::-1].argmax(1), 0)
        between, filled = int(lengths.sum() - is_own.sum()), int(values.size - lengths.sum())
        if between > _RARELY * lengths.sum() or len(np.unique(ordered[is_own])) < _FEWEST_VALUES:
            continue
        if best is None or filled > best[2]:
            best = len(values), values.size, filled, int(values.size - len(values) * lengths.max())
    return best


def _describe(array: Any) -> InputArray:
    """Describe an array for the manifest: type, shape, size, and range and sum of the values of its first MiB.

    What is not known of it is left out.
    """
    dtype = getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")
    entry: InputArray = {"dtype": dtype, "type": _type(array)}
    try:
        shape = tuple(map(int, array.shape))
    except (AttributeError, TypeError, ValueError):  # ragged, or not known
        return entry
    entry["rank"] = len(shape)
    if shape:
        entry["rows"] = shape[0]
    size = getattr(array, "nbytes", None)
    if isinstance(size, int):
        entry["bytes"] = size
    try:
        values = array if isinstance(array, np.ndarray) else np.asarray(array)
    except Exception:  # a type that NumPy does not have, a layout that is not dense
        return entry
    entry.setdefault("bytes", values.nbytes)
    if not values.size or values.dtype.kind not in "buif":
        return entry
    if values.ndim:
        values = values[: max(1, _LOOKED_AT_BYTES // max(1, values.nbytes // len(values)))]
    lowest, highest = float(values.min()), float(values.max())
    if math.isfinite(lowest) and math.isfinite(highest):
        whole = values.dtype.kind != "f" or bool((values == np.floor(values)).all())
        entry |= {"min": lowest, "max": highest, "sum": float(values.sum(dtype=np.float64)), "integers": whole}
    return entry


def _type(array: object) -> str:
    """Return the type of an array on the host, as the manifest has it."""
    if not isinstance(array, np.ndarray):
        return "torch" if type(array).__module__ == "torch" else "tensorflow"
    part: object = array
    while isinstance(part, np.ndarray):
        if getattr(part, "_mmap", None) is not None:  # None where a memmap's values were copied
            return "memmap"
        part = part.base
    return "numpy"


def _on_host(array: Any) -> bool:
    """Return whether an array's values can be read without waiting for a device."""
    if isinstance(array, np.ndarray):
        return True
    device: Any = getattr(array, "device", None)
    if type(array).__module__ == "torch":
        return device.type == "cpu" and not array.requires_grad
    return type(array).__name__ == "EagerTensor" and str(device).endswith("CPU:0")


# ---- tf.data, on any framework ---------------------------------------------------------------


HIDDEN: Unavailable = {
    "source": "pipeline",
    "reason": "a tf.distribute strategy fetches each device's batches ahead, and TensorFlow does "
    "not report the stages before that",
    "cure": "train once without the strategy to see the slowest stage",
}


class TfDataPipelines:
    """Weak references to the newest iterator of each pipeline, whose stages are read.

    Args:
        unavailable: the reason is added to it where stages cannot be read.
    """

    def __init__(self, unavailable: list[Unavailable]) -> None:
        self._iterators: dict[str, weakref.ref] = {}
        self._readers: dict[str, Any] = {}  # of TensorFlow's `written_stages`
        self._uninspected: dict[str, object] = {}  # datasets, until they were looked at
        self._looking = threading.Lock()
        self._unavailable = unavailable

    def note_dataset(self, phase: str, dataset: object) -> None:
        """Note the dataset of a pipeline; on the training thread."""
        if hasattr(dataset, "_variant_tensor"):  # tf.data's own, and no distributed one
            self._uninspected[phase] = dataset

    def note_iterator(self, phase: str, iterator: Iterator) -> Iterator:
        """Note a new iterator, and return it; on the training thread.

        Args:
            phase: "train" or "validation".
            iterator: of any kind: those without a tf.data pipeline are ignored. A library's generator has
                one once its first batch has come.
        """
        pipeline_iterator = _with_pipeline(iterator)
        if pipeline_iterator is not None:
            self._iterators[phase] = weakref.ref(pipeline_iterator)
            self.note_dataset(phase, getattr(pipeline_iterator, "_dataset", None))
        elif _worker_iterators(iterator) and HIDDEN not in self._unavailable:
            self._unavailable.append(HIDDEN)
        return iterator

    def look(self) -> list[str]:
        """Read how the pipelines were written, of those that are new; on any other thread.

        Returns: the Python functions that such a pipeline of the training calls, as TensorFlow's
            tokens of them.
        """
        tokens: list[str] = []
        with self._looking:
            for phase in list(self._uninspected):
                reader = self._reader(phase)
                reader.look(self._uninspected.pop(phase))
                if phase == "train" and reader.written is not None:
                    tokens += [function for stage in reader.written.all() for function in stage.py_functions]
        return tokens

    def facts(self) -> dict[str, object]:
        """Return the manifest's facts of how the pipelines were written, of those that were inspected.

        Of a single fact the validation's stands where both have it; dropped batches and mapped functions are listed of
        all pipelines, shuffles of training's alone.
        """
        inspected = [reader for reader in self._readers.values() if reader.written is not None]
        facts = {name: value for reader in inspected for name, value in reader.use.items()}
        facts["input_drops"] = [drop for reader in inspected for drop in reader.use["input_drops"]]
        if inspected:
            facts["input_maps"] = [entry for reader in inspected for entry in reader.functions()]
        if train := self._readers.get("train"):
            facts |= {"input_shuffles": train.shuffles(), "input_shuffle_bytes": train.shuffle_bytes()}
        return facts

    def read(self) -> list[dict[str, object]]:
        """Return rows of the `pipeline` table, one a stage, counted since its start; on any other thread.

        Raises: TensorFlow's error where a pipeline keeps no model.
        """
        rows: list[dict[str, object]] = []
        for phase, reference in list(self._iterators.items()):
            iterator = reference()
            if iterator is None:  # exhausted, and its pipeline gone
                continue
            rows += self._reader(phase).read(iterator)
        return rows

    def _reader(self, phase: str) -> Any:
        if phase not in self._readers:
            self._readers[phase] = framework_module("tensorflow", "written_stages").Reader(phase)
        return self._readers[phase]


def _with_pipeline(iterator: object) -> object | None:
    """Return the tf.data iterator within an iterator, if it has a pipeline to read."""
    for part in inside(iterator):
        inner = getattr(part, "_iterator", None)  # `as_numpy_iterator()`
        for candidate in (part, inner, *_worker_iterators(part)):
            if getattr(candidate, "_iterator_resource", None) is not None:
                return candidate
    return None


def _worker_iterators(iterator: object) -> list[object]:
    """Return what a distributed iterator's workers in this process iterate over; [] for another iterator.

    These are tf.data's own only where batches are not to be prefetched to the devices
    (`experimental_fetch_to_device=False`, by replica). The usual ones have a pipeline for each
    device, which only fetches from the user's.
    """
    workers = getattr(iterator, "_iterators", None)
    iterators = workers if isinstance(workers, (list, tuple)) else ()
    return [getattr(worker, "_iterator", None) for worker in iterators]


# ---- whether a DataLoader's next batch is ready when the loop requests it ------------------------

# A wait for a ready batch is the hand-over between processes: more workers do not shorten it. The
# attributes read are private to torch: where they have moved, nothing is known.

# A look takes 5 µs, or 50 where the processor has slept. Each of the first batches is looked at;
# then batches are skipped in an aperiodic sequence, to avoid aliasing with the workers.
_EACH = 32
_LEFT_OUT = (4, 6, 5, 7, 8)
_NEVER = 1 << 62


class FinishedBatches:
    """A look for the batch that a DataLoader's iterator will return next.

    It is among those already taken out of order, or the first in the queue. That the first in the
    queue is out of order is known only when it has been taken.
    """

    __slots__ = ("_handed_over", "_iterator", "_left_out", "_out_of_turn_before", "_queued", "_ready", "_until")

    def __init__(self, iterator: Any, queued: Callable[[], object], handed_over: HandedOver):
        self._iterator = iterator
        self._queued = queued
        self._handed_over = handed_over
        self._until = 0  # batches before the next look
        self._left_out = itertools.cycle(_LEFT_OUT)
        self._ready = False
        self._out_of_turn_before = -1

    def begin(self) -> None:
        """Note whether the next batch is ready, just before the loop requests it; `end` counts it."""
        if self._until > 0:
            return
        try:
            self._look()
        except Exception:  # changed since the start
            self._until = _NEVER

    def end(self, ns: int) -> None:
        """Add the batch that came `ns` after it was requested.

        It was ready unless the one found in the queue was out of order: then one more such batch is held now.
        """
        if self._until > 0:
            self._until -= 1
            return
        ready = self._ready and (self._out_of_turn_before < 0 or self._out_of_turn() <= self._out_of_turn_before)
        self._handed_over.came(ready, ns)
        if self._handed_over.looked >= _EACH:
            self._until = next(self._left_out)

    def _look(self) -> None:
        """Note whether the next batch is held already, or one is in the queue, which may be out of order."""
        tasks = self._iterator._task_info
        task = tasks.get(self._iterator._rcvd_idx)
        self._out_of_turn_before = -1
        self._ready = task is not None and len(task) == 2
        if not self._ready and self._queued():
            self._ready = True
            self._out_of_turn_before = self._out_of_turn()

    def _out_of_turn(self) -> int:
        return sum(len(task) == 2 for task in self._iterator._task_info.values())


class _PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def _readable(file: int) -> Callable[[], bool]:
    """Return a look whether a file can be read, which keeps Python's lock.

    `select.poll` gives it up: where other threads want it, getting it back takes 5 ms.
    """
    poll = ctypes.PyDLL(None).poll
    poll_file = _PollFd(file, select.POLLIN, 0)
    poll_argument = ctypes.byref(poll_file)
    return lambda: poll(poll_argument, 1, 0) > 0


def finished_batches(iterator: Iterator[object], handed_over: HandedOver) -> FinishedBatches | None:
    """Return a look into an iterator; None = it is not a DataLoader's with workers, or another version of torch's."""
    if type(iterator).__name__ != "_MultiProcessingDataLoaderIter":
        return None
    private: Any = iterator
    try:
        results, data = private._worker_result_queue, private._data_queue
        readable = _readable(results._reader.fileno())
        queued: Callable[[], object] = readable
        if data is not results:  # a thread takes them over, pins their memory and queues them again
            pinned = data.queue
            queued = lambda: pinned or readable()  # noqa: E731
        look = FinishedBatches(private, queued, handed_over)
        look._look()  # raises where another attribute has moved
    except Exception:  # another version of torch, or a system without `poll`
        return None
    return look
