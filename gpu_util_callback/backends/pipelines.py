"""The stages of the tf.data pipelines that feed a training, on any framework.

TensorFlow is not imported here: code that iterates over a `tf.data.Dataset` has imported it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from gpu_util_callback.backends.base import part_of

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
        self._readers: dict[str, Any] = {}
        self._unread: dict[str, Any] = {}  # datasets, until they were looked at
        self._looking = threading.Lock()
        self._unavailable = unavailable

    def given(self, phase: str, dataset: Any) -> None:
        """Note the dataset of a pipeline; on the training thread."""
        if hasattr(dataset, "_variant_tensor"):  # tf.data's own, and no distributed one
            self._unread[phase] = dataset

    def seen(self, phase: str, iterator: Any) -> Any:
        """Note a new iterator, and return it; on the training thread.

        Args:
            phase: "train" or "validation".
            iterator: of any kind: those without a tf.data pipeline are ignored.
        """
        pipeline_iterator = _with_pipeline(iterator)
        if pipeline_iterator is not None:
            self._iterators[phase] = weakref.ref(pipeline_iterator)
            self.given(phase, getattr(pipeline_iterator, "_dataset", None))
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

    def functions(self) -> list[dict[str, Any]] | None:
        """Return the manifest's `input_maps`; None: no pipeline was looked at."""
        readers = [reader for reader in self._readers.values() if reader.written is not None]
        return [entry for reader in readers for entry in reader.functions()] if readers else None

    def shuffle_bytes(self) -> int | None:
        """Return the manifest's `input_shuffle_bytes`; None where that is not known."""
        reader = self._readers.get("train")
        return None if reader is None else reader.shuffle_bytes()

    def read(self) -> list[dict[str, Any]]:
        """Return rows of the `pipeline` table since the last reading; on any other thread.

        Raises: TensorFlow's error where a pipeline keeps no model.
        """
        rows: list[dict[str, Any]] = []
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


def _with_pipeline(iterator: Any) -> Any | None:
    """Return the tf.data iterator within an iterator, if it has a pipeline to read."""
    inner = getattr(iterator, "_iterator", None)  # `as_numpy_iterator()`
    for candidate in (iterator, inner, *_parts(iterator)):
        if getattr(candidate, "_iterator_resource", None) is not None:
            return candidate
    return None


def _parts(iterator: Any) -> list[Any]:
    """Return what a distributed iterator's workers in this process iterate over; empty = none.

    These are tf.data's own only where batches are not to be prefetched to the devices
    (`experimental_fetch_to_device=False`, by replica). The usual ones have a pipeline for each
    device, which only fetches from the user's.
    """
    workers = getattr(iterator, "_iterators", None)
    if not isinstance(workers, (list, tuple)):
        return []
    return [getattr(worker, "_iterator", None) for worker in workers]
