"""Which stage of a tf.data pipeline costs what, read from the running iterator."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import model_pb2

__all__ = ["Reader", "describe", "match"]

# What TensorFlow calls a dataset -> what a person wrote.
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
_NAMED = {"map", "map + batch", "filter", "flat_map", "interleave", "scan", "generator"}
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_AUTOTUNE = -1


class Reader:
    """Reads an iterator's stages; says what each did since the last reading of that iterator."""

    def __init__(self, which: str):
        self._which = which
        self._resource: Any = None
        self._last: dict[int, tuple[int, int]] = {}
        self._stages: list[dict[str, Any]] = []

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
                self._stages = describe(getattr(iterator, "_dataset", None))
            except Exception:  # names are a courtesy; the numbers stand without them
                self._stages = []
        rows = []
        names = match(model, self._stages)
        parents = {child: node.id for node in model.nodes.values() for child in node.inputs}
        for node in model.nodes.values():
            stage = names.get(node.id, {})
            parameters = {p.name: p for p in node.parameters}
            parallelism = parameters.get("parallelism")
            buffer = parameters.get("buffer_size")
            elements, processing = self._last.get(node.id, (0, 0))
            self._last[node.id] = (node.num_elements, node.processing_time)
            flags = set(stage.get("flags", ()))
            if node.name.startswith("Generator"):
                flags.add("py_function")
            if parallelism is not None and parallelism.tunable:
                flags.add("autotuned")
            rows.append(
                {
                    "which": self._which,
                    "node": node.id,
                    "parent": parents.get(node.id, -1),
                    "stage": stage.get("stage") or word(node.name),
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


def word(op: str) -> str:
    """What a person calls an op of tf.data: "ParallelMapV2" -> "map"."""
    name = re.sub(r"(Dataset)?(V\d+)?$", "", op.split("[")[0])
    return _WORDS.get(name, name)


def describe(dataset: Any) -> list[dict[str, Any]]:
    """The chain of datasets as it was written, the last stage first.

    Each is {"word", "stage", "flags"}; a stage with several inputs lists the first input's chain
    before the next one's.
    """
    stages: list[dict[str, Any]] = []
    seen: set[int] = set()
    queue = [dataset]
    while queue and len(stages) < 200:
        current = queue.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        kind = re.sub(r"^_|Dataset(V\d+)?$", "", type(current).__name__)
        name = _WORDS.get(re.sub(r"V\d+$", "", kind), kind)
        stages.append(_stage(current, kind, name))
        inputs = current._inputs() if hasattr(current, "_inputs") else []
        queue = [*inputs, *queue]
    return stages


def _stage(dataset: Any, kind: str, name: str) -> dict[str, Any]:
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
    return {"word": name, "stage": title, "flags": flags, "kind": kind}


def function_name(name: bytes | str) -> str:
    """The user's name in a traced function's: "__inference_Dataset_map_decode_11" -> "decode"."""
    text = name.decode() if isinstance(name, bytes) else str(name)
    found = re.match(
        r"__inference_Dataset_(?:[a-z]+_)??(?:map|filter|interleave|flat_map|scan)_(.+)_\d+$", text
    )
    own = found.group(1) if found else ""
    return "lambda" if own in ("<lambda>", "lambda") or own.startswith("lambda") else own


def _operations(function: Any) -> set[str]:
    """The op types a traced function runs, those of the functions it calls included."""
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


def match(model: Any, stages: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Which written stage each node of the running pipeline is.

    Args:
        model: the iterator's ModelProto.
        stages: what `describe` found, the last stage first.

    Returns: node id -> stage. The optimizer adds, drops and fuses stages, so nodes and stages are
        walked together from the end, and a node takes the next stage that fits its name.
    """
    nodes = {node.id: node for node in model.nodes.values()}
    order: list[Any] = []
    queue = [model.output]
    while queue:
        node = nodes.get(queue.pop(0))
        if node is None or node in order:
            continue
        order.append(node)
        queue = [*node.inputs, *queue]
    found: dict[int, dict[str, Any]] = {}
    at = 0
    for node in order:
        name = word(node.name)
        wanted = ["batch", "map"] if name == "map + batch" else [name]
        place = next((i for i in range(at, len(stages)) if stages[i]["word"] in wanted), None)
        if place is None:
            continue
        stage = dict(stages[place])
        at = place + 1
        if name == "map + batch":
            mapped = next((i for i in range(at, len(stages)) if stages[i]["word"] == "map"), None)
            if mapped is not None:
                stage = dict(stages[mapped])
                stage["stage"] = f"{stage['stage']} + batch"
                at = mapped + 1
        found[node.id] = stage
    return found
