"""Which stage of a tf.data pipeline costs what, read from the running iterator."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import model_pb2

from gpu_util_callback.backends.tensorflow.stages import Stage, match, word, written

__all__ = ["Reader"]


class Reader:
    """Reads an iterator's stages; says what each did since the last reading of that iterator."""

    def __init__(self, which: str):
        self._which = which
        self._resource: Any = None
        self._last: dict[int, tuple[int, int]] = {}
        self._written: Stage | None = None

    def read(self, iterator: Any) -> list[dict[str, Any]]:
        """Rows of the `pipeline` table, without `time_ns` and `step`.

        Raises: tf.errors.NotFoundError (among others) where the pipeline keeps no model, as with
            autotuning switched off.
        """
        data = tf.raw_ops.IteratorGetModelProto(iterator=iterator._iterator_resource).numpy()
        model = model_pb2.ModelProto.FromString(data)
        if id(iterator) != self._resource:
            self._resource = id(iterator)
            self._last = {}
            try:
                self._written = written(getattr(iterator, "_dataset", None))
            except Exception:  # names are a courtesy; the numbers stand without them
                self._written = None
        rows = []
        names = match(model, self._written)
        parents = {child: node.id for node in model.nodes.values() for child in node.inputs}
        for node in model.nodes.values():
            stage = names.get(node.id)
            parameters = {p.name: p for p in node.parameters}
            parallelism = parameters.get("parallelism")
            buffer = parameters.get("buffer_size")
            elements, processing = self._last.get(node.id, (0, 0))
            self._last[node.id] = (node.num_elements, node.processing_time)
            flags = set(stage.flags) if stage else set()
            if node.name.startswith("Generator"):
                flags.add("py_function")
            if parallelism is not None and parallelism.tunable:
                flags.add("autotuned")
            rows.append(
                {
                    "which": self._which,
                    "node": node.id,
                    "parent": parents.get(node.id, -1),
                    "stage": stage.title if stage else word(node.name),
                    "op": node.name,
                    "elements": max(node.num_elements - elements, 0),
                    "processing_ns": max(node.processing_time - processing, 0),
                    "parallelism": float(parallelism.value) if parallelism else float("nan"),
                    "buffered": float(node.buffered_elements),
                    "buffer_limit": float(buffer.value) if buffer else float("nan"),
                    "flags": ",".join(sorted(flags)),
                }
            )
        return rows
