"""Cost of each stage of a tf.data pipeline, read from the running iterator."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import model_pb2

__all__ = [
    "Reader",
    "Stage",
    "function_name",
    "match",
    "word",
    "written",
]

# TensorFlow's name of a dataset -> the name in the user's program.
_WORDS = {
    "ParallelMap": "map",
    "Map": "map",
    "MapAndBatch": "map + batch",
    "ParallelBatch": "batch",
    "Batch": "batch",
    "PaddedBatch": "padded_batch",
    "Prefetch": "prefetch",
    "Shuffle": "shuffle",
    "ShuffleAndRepeat": "shuffle + repeat",
    "Repeat": "repeat",
    "ForeverRepeat": "repeat",
    "FiniteRepeat": "repeat",
    "Take": "take",
    "FiniteTake": "take",
    "Skip": "skip",
    "FiniteSkip": "skip",
    "Cache": "cache",
    "MemoryCache": "cache",
    "FileCache": "cache",
    "Filter": "filter",
    "ParallelFilter": "filter",
    "FlatMap": "flat_map",
    "Interleave": "interleave",
    "ParallelInterleave": "interleave",
    "LegacyParallelInterleave": "interleave",
    "Zip": "zip",
    "Concatenate": "concatenate",
    "Range": "range",
    "FromTensor": "from_tensors",
    "TensorSlice": "from_tensor_slices",
    "Tensor": "from_tensors",
    "TFRecord": "TFRecordDataset",
    "TextLine": "TextLineDataset",
    "Generator": "generator",
    "Unbatch": "unbatch",
    "Rebatch": "rebatch",
    "Window": "window",
    "Options": "options",
    "Model": "model",
    "MaxIntraOpParallelism": "options",
    "PrivateThreadPool": "options",
    "Root": "iterator",
    "Shard": "shard",
    "ParallelFlatMap": "flat_map",
    "Snapshot": "snapshot",
    "Sparse": "sparse",
    "Scan": "scan",
}
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_AUTOTUNE = -1

_MOST_STAGES = 1000


@dataclass(frozen=True)
class Stage:
    """One stage as it was written: `word` "map", `title` "map(decode)", its inputs in order."""

    word: str
    title: str
    flags: frozenset[str]
    inputs: list[Stage] = field(default_factory=list, compare=False)


def word(op: str) -> str:
    """Return the user's name for a tf.data op: "ParallelMapV2" -> "map"."""
    name = re.sub(r"(Dataset)?(V\d+)?$", "", op.split("[")[0])
    return _WORDS.get(name, name)


def written(dataset: Any) -> Stage | None:
    """Return the tree of stages behind a dataset, as it was written; None without a dataset."""
    if dataset is None:
        return None
    left = _MOST_STAGES
    root = _stage(dataset)
    open_ends = [(root, dataset)]
    while open_ends and left > 0:
        stage, current = open_ends.pop()
        for below in current._inputs() if hasattr(current, "_inputs") else []:
            left -= 1
            stage.inputs.append(_stage(below))
            open_ends.append((stage.inputs[-1], below))
    return root


def _stage(dataset: Any) -> Stage:
    kind = re.sub(r"^_|Dataset(V\d+)?$", "", type(dataset).__name__)
    name = word(kind)
    flags: set[str] = set()
    title = name
    wrapper = getattr(dataset, "_map_func", None) or getattr(dataset, "_predicate", None)
    function = getattr(wrapper, "function", None)
    operations = _operations(function) if function is not None else set()
    if function is not None:
        own = function_name(getattr(function, "name", b""))
        title = f"{name}({own})" if own else name
        if operations & _PYTHON_OPS:
            flags.add("py_function")
        if getattr(function, "graph", None) is not None and _stateful(function):
            flags.add("stateful")
    if name in ("map", "interleave", "map + batch"):
        calls = _constant(getattr(dataset, "_num_parallel_calls", None))
        if kind.startswith("Parallel"):
            if calls is not None and calls != _AUTOTUNE:
                flags.add("fixed_parallelism")
        else:
            flags.add("sequential")
    if kind == "Prefetch":
        size = _constant(getattr(dataset, "_buffer_size", None))
        if size is not None and size != _AUTOTUNE:
            flags.add("fixed_buffer")
    if kind == "FlatMap" and function is not None and "GeneratorDataset" in operations:
        title = "from_generator"  # the generator itself is a node of its own below
    return Stage(name, title, frozenset(flags))


def function_name(name: bytes | str) -> str:
    """Return a traced function's own name: "__inference_Dataset_map_decode_11" -> "decode"."""
    text = name.decode() if isinstance(name, bytes) else str(name)
    found = re.match(
        r"__inference_Dataset_(?:[a-z]+_)??(?:map|filter|interleave|flat_map|scan)_(.+)_\d+$", text
    )
    own = found.group(1) if found else ""
    return "lambda" if own in ("<lambda>", "lambda") or own.startswith("lambda") else own


def _operations(function: Any) -> set[str]:
    """Return the op types a traced function runs, those of the functions it calls included."""
    graph = getattr(function, "graph", None)
    if graph is None:
        return set()
    definition = graph.as_graph_def()
    found = {node.op for node in definition.node}
    for inner in definition.library.function:
        found |= {node.op for node in inner.node_def}
    return found


def _stateful(function: Any) -> bool:
    return any(
        op.op_def is not None and op.op_def.is_stateful
        for op in function.graph.get_operations()
        if op.type not in ("Placeholder",)
    )


def _constant(value: Any) -> int | None:
    try:
        return int(value) if value is not None else None
    except Exception:
        return None


def match(model: Any, stage: Stage | None) -> dict[int, Stage]:
    """Return the written stage of each node of the running pipeline.

    Args:
        model: the iterator's ModelProto.
        stage: the result of `written`.

    Returns: node id -> stage. The optimizer adds, drops and fuses stages, so a node takes the next
        stage of its own branch that fits its name. The inputs of a node are in the order of the
        dataset's inputs, and finished ones keep their place (seen with `concatenate`).
    """
    found: dict[int, Stage] = {}
    nodes = {node.id: node for node in model.nodes.values()}
    open_ends = [(nodes.get(model.output), stage)]
    while open_ends:
        node, at = open_ends.pop()
        if node is None or at is None:
            continue
        below = [at]  # inputs of a node that is not in the user's program
        fitting = _next(at, word(node.name))
        if fitting is not None:
            found[node.id], below = fitting
        inputs = [nodes.get(i) for i in node.inputs]
        if len(below) == 1 and len(inputs) > 1:
            below = below[0].inputs if len(below[0].inputs) == len(inputs) else below * len(inputs)
        open_ends += list(zip(inputs, below, strict=False))
    return found


def _next(stage: Stage, name: str) -> tuple[Stage, list[Stage]] | None:
    """Return the first stage called `name` at or below `stage`, and its inputs.

    A branching stage ends the search: stages behind it are not this branch's alone.
    """
    fused = name == "map + batch"
    at: Stage | None = stage
    while at is not None:
        if at.word == name:
            return at, at.inputs
        if fused and at.word in ("map", "batch"):
            mapped = _next(at, "map")
            if mapped is None:
                return at, at.inputs
            return replace(mapped[0], title=f"{mapped[0].title} + batch"), mapped[1]
        at = at.inputs[0] if len(at.inputs) == 1 else None
    return None


class Reader:
    """Reader of an iterator's stages, with what each did since that iterator's last reading."""

    def __init__(self, which: str):
        self._which = which
        self._resource: Any = None
        self._last: dict[int, tuple[int, int]] = {}
        self._written: Stage | None = None

    def read(self, iterator: Any) -> list[dict[str, Any]]:
        """Return rows of the `pipeline` table, without `time_ns` and `step`.

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
            except Exception:  # names are optional; the numbers are valid without them
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
