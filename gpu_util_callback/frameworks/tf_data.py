"""The stages of the tf.data pipelines that a training is fed from, whatever framework trains.

TensorFlow is not imported for it: who iterates over a `tf.data.Dataset` has imported it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

__all__ = ["TfDataPipelines", "WatchedDataset", "tf_data_iterator"]


class TfDataPipelines:
    """Remembers the newest iterator of each pipeline, weakly, and reads their stages."""

    def __init__(self) -> None:
        self._iterators: dict[str, weakref.ref] = {}
        self._readers: dict[str, Any] = {}

    def seen(self, which: str, iterator: Any) -> None:
        """A pipeline is iterated over anew; on the training thread.

        Args:
            which: "train" or "validation".
            iterator: a `tf.data.Iterator`.
        """
        self._iterators[which] = weakref.ref(iterator)

    def read(self) -> list[dict[str, Any]]:
        """Rows of the `pipeline` table since the last reading; on any other thread.

        Raises: what TensorFlow raises where a pipeline keeps no model.
        """
        rows: list[dict[str, Any]] = []
        for which, known in list(self._iterators.items()):
            iterator = known()
            if iterator is None:  # it has ended, and its pipeline with it
                continue
            if which not in self._readers:
                from gpu_util_callback.frameworks.tensorflow_pipeline import Reader

                self._readers[which] = Reader(which)
            rows += self._readers[which].read(iterator)
        return rows


class WatchedDataset:
    """A `tf.data.Dataset` that tells of its iterators; everything else is the dataset's own.

    Args:
        dataset: the dataset.
        pipelines: told of the iterators.
        which: "train" or "validation".
    """

    def __init__(self, dataset: Any, pipelines: TfDataPipelines, which: str):
        self._dataset = dataset
        self._pipelines = pipelines
        self._which = which

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dataset"], name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._dataset)
        own = tf_data_iterator(iterator)
        if own is not None:
            self._pipelines.seen(self._which, own)
        return iterator


def tf_data_iterator(iterator: Any) -> Any | None:
    """The iterator of tf.data's within an iterator, if there is one with a pipeline to read."""
    for candidate in (iterator, getattr(iterator, "_iterator", None)):  # `as_numpy_iterator()`
        if getattr(candidate, "_iterator_resource", None) is not None:
            return candidate
    return None
