"""The training's input, watched while it trains: its first arrays, and its tf.data pipelines.

TensorFlow is not imported here: code that iterates over a `tf.data.Dataset` has imported it.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpu_util_callback.backends.base import Adapter, Runtime, part_of
from gpu_util_callback.backends.input_calls import InputCalls
from gpu_util_callback.recording.manifest_facts import InputArray, InputMap


class WatchingAdapter(Adapter):
    """Common base of the adapters of fits and of loops. Takes the arguments of `Adapter`."""

    def __init__(self, name: str, timing: str, runtime: Runtime, **more: Any):
        super().__init__(name=name, timing=timing, runtime=runtime, **more)
        self._pipelines = TfDataPipelines(self.unavailable)
        self.first_batch = FirstArrays()
        self._calls = InputCalls()

    def look_at_input(self) -> None:
        self.first_batch.look()
        functions = self._pipelines.look()
        if functions:
            part_of("tensorflow", "py_funcs").time_functions(functions, self._calls)

    def input_facts(self) -> dict[str, object]:
        maps = self._pipelines.functions()
        facts: dict[str, object] = {} if maps is None else {"input_maps": maps}
        entries_by_name = {
            "input_calls": self._calls.facts(),
            "input_first": self.first_batch.facts(),
            "input_shuffle_bytes": self._pipelines.shuffle_bytes(),
        }
        return facts | {name: entries for name, entries in entries_by_name.items() if entries}

    def pipeline(self) -> list[dict[str, object]]:
        return self._pipelines.read()


# ---- the first arrays ----------------------------------------------------------------------------


_LOOKED_AT_BYTES = 1 << 20  # of each array's first rows: a millisecond
_MOST_ARRAYS = 64  # more are columns of a table


class FirstArrays:
    """The first batch, or the arrays given to `fit`, held until they were looked at.

    Arrays that are not in the host's memory are left out.
    """

    def __init__(self) -> None:
        self._leaves_held: list[object] = []
        self._noted = False
        self._entries: list[InputArray] = []

    def note(self, batch: object) -> None:
        """Hold a batch, unless one was noted; on the training thread."""
        if not self._noted:
            self._noted = True
            leaves = itertools.islice(_leaves(batch), _MOST_ARRAYS)
            self._leaves_held = [leaf for leaf in leaves if _on_host(leaf)]

    def look(self) -> None:
        """Inspect the arrays that are held, and free them; on any other thread."""
        leaves, self._leaves_held = self._leaves_held, []
        if leaves:
            self._entries = [_described(array) for array in leaves]

    def facts(self) -> list[InputArray]:
        """Return the manifest's `input_first`; empty where nothing was seen."""
        return self._entries


def _leaves(nest: object) -> Iterator[object]:
    if isinstance(nest, Mapping):
        nest = tuple(nest.values())
    if isinstance(nest, (tuple, list)):
        for part in nest:
            yield from _leaves(part)
    elif nest is not None:
        yield nest


def _described(array: Any) -> InputArray:
    """Return an entry of `input_first`."""
    dtype = getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")
    entry: InputArray = {"dtype": dtype}
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
        entry |= {"min": lowest, "max": highest, "integers": whole}
    return entry


def _on_host(array: Any) -> bool:
    """Return whether an array's values can be read without waiting for a device."""
    if isinstance(array, np.ndarray):
        return True
    device: Any = getattr(array, "device", None)
    if type(array).__module__ == "torch":
        return device.type == "cpu" and not array.requires_grad
    return type(array).__name__ == "EagerTensor" and str(device).endswith("CPU:0")


# ---- tf.data, on any framework ---------------------------------------------------------------


HIDDEN = (
    "pipeline",
    "a tf.distribute strategy fetches each device's batches ahead, and TensorFlow does "
    "not report the stages before that",
    "train once without the strategy to see the slowest stage",
)


class TfDataPipelines:
    """Weak references to the newest iterator of each pipeline, whose stages are read.

    Args:
        unavailable: (source, reason, cure) are added to it where stages cannot be read.
    """

    def __init__(self, unavailable: list[tuple[str, str, str]]) -> None:
        self._iterators: dict[str, weakref.ref] = {}
        self._readers: dict[str, Any] = {}  # of TensorFlow's `written_stages`
        self._unread: dict[str, object] = {}  # datasets, until they were looked at
        self._looking = threading.Lock()
        self._unavailable = unavailable

    def note_dataset(self, phase: str, dataset: object) -> None:
        """Note the dataset of a pipeline; on the training thread."""
        if hasattr(dataset, "_variant_tensor"):  # tf.data's own, and no distributed one
            self._unread[phase] = dataset

    def note_iterator(self, phase: str, iterator: Iterator) -> Iterator:
        """Note a new iterator, and return it; on the training thread.

        Args:
            phase: "train" or "validation".
            iterator: of any kind: those without a tf.data pipeline are ignored.
        """
        pipeline_iterator = _with_pipeline(iterator)
        if pipeline_iterator is not None:
            self._iterators[phase] = weakref.ref(pipeline_iterator)
            self.note_dataset(phase, getattr(pipeline_iterator, "_dataset", None))
        elif _parts(iterator) and HIDDEN not in self._unavailable:
            self._unavailable.append(HIDDEN)
        return iterator

    def look(self) -> list[str]:
        """Read how the pipelines were written, of those that are new; on any other thread.

        Returns: the Python functions that such a pipeline of the training calls, as TensorFlow's
            tokens of them.
        """
        tokens: list[str] = []
        with self._looking:
            for phase in list(self._unread):
                reader = self._reader(phase)
                reader.look(self._unread.pop(phase))
                if phase == "train" and reader.written is not None:
                    tokens += [function for stage in reader.written.all() for function in stage.py_functions]
        return tokens

    def functions(self) -> list[InputMap] | None:
        """Return the manifest's `input_maps`; None: no pipeline was looked at."""
        readers = [reader for reader in self._readers.values() if reader.written is not None]
        return [entry for reader in readers for entry in reader.functions()] if readers else None

    def shuffle_bytes(self) -> int | None:
        """Return the manifest's `input_shuffle_bytes`; None where that is not known."""
        reader = self._readers.get("train")
        return None if reader is None else reader.shuffle_bytes()

    def read(self) -> list[dict[str, object]]:
        """Return rows of the `pipeline` table since the last reading; on any other thread.

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
            self._readers[phase] = part_of("tensorflow", "written_stages").Reader(phase)
        return self._readers[phase]


def _with_pipeline(iterator: object) -> object | None:
    """Return the tf.data iterator within an iterator, if it has a pipeline to read."""
    inner = getattr(iterator, "_iterator", None)  # `as_numpy_iterator()`
    for candidate in (iterator, inner, *_parts(iterator)):
        if getattr(candidate, "_iterator_resource", None) is not None:
            return candidate
    return None


def _parts(iterator: object) -> list[object]:
    """Return what a distributed iterator's workers in this process iterate over; empty = none.

    These are tf.data's own only where batches are not to be prefetched to the devices
    (`experimental_fetch_to_device=False`, by replica). The usual ones have a pipeline for each
    device, which only fetches from the user's.
    """
    workers = getattr(iterator, "_iterators", None)
    if not isinstance(workers, (list, tuple)):
        return []
    return [getattr(worker, "_iterator", None) for worker in workers]
