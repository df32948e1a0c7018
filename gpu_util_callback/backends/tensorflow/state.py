"""State of TensorFlow programs that a trial run must not change."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpu_util_callback.redaction import shortened


def random_states() -> list[Callable[[], None]]:
    """Return what restores the global random states; until then, other seeds are drawn."""
    restore: list[Callable[[], None]] = []
    try:
        from tensorflow.python.eager import context

        restore.append(_other_seeds(context.context()))
        from tensorflow.python.ops import stateful_random_ops

        generator = getattr(stateful_random_ops, "global_generator", None)
        restore_generator = None if generator is None else preserved(generator)
        restore += [] if restore_generator is None else [restore_generator]
    except (ImportError, AttributeError):  # private, and moved
        pass
    return restore


def _other_seeds(context: Any) -> Callable[[], None]:
    """Give eager operations other seeds; return a function that restores the former ones.

    An operation with a seed keeps its state in a kernel that TensorFlow caches by that seed, and
    which cannot be put back: a trial must not draw from the same kernels.
    """
    seed, generator = context._seed, context._rng
    state = None if generator is None else generator.getstate()
    context._seed = (seed or 0) ^ _APART
    context._rng = random.Random(context._seed)

    def restore() -> None:
        context._seed, context._rng = seed, generator
        if generator is not None:
            generator.setstate(state)

    return restore


_APART = 0x5EED_A1DE


def untraced(function: tf.types.experimental.PolymorphicFunction) -> Callable[[], None]:
    """Make a `tf.function` as if it had not been called; return what restores its traces.

    Operations with a seed keep their state in a trace: a trial needs traces of its own.
    """
    try:
        names, other = vars(function), vars(function._clone(None))
    except Exception:  # private, and moved
        return lambda: None
    before = dict(names)
    names.update(other)

    def restore() -> None:
        names.clear()
        names.update(before)

    return restore


def preserved(source: object) -> Callable[[], None] | None:
    """Return what restores a variable or generator in place; None for other objects."""
    if isinstance(source, tf.random.Generator):
        return preserved(source.state)
    if not isinstance(source, tf.Variable):
        return None
    try:
        with tf.device("CPU"):  # a GPU may have no room for another one
            value = tf.identity(source)
    except Exception:  # not initialized
        return None

    def restore() -> None:
        source.assign(value)

    return restore


def immutable(value: object) -> Callable[[], object] | None:
    """Return None: tensors do not change."""
    return None


def copied(data: object) -> object | None:
    """Return an independent copy of a `tf.data.Dataset`: tensors are their own; None for others.

    The copy begins as the dataset itself did: shuffling, caches and variables in its functions are
    its own. What its Python functions share, they share.

    Raises: ValueError where it cannot be copied.
    """
    if isinstance(data, tf.Tensor):
        return data
    if hasattr(data, "element_spec") and not isinstance(data, tf.data.Dataset):
        if hasattr(data, "__next__"):
            return None
        raise ValueError("a distributed dataset cannot be copied; pass the dataset it was made of")
    if not isinstance(data, tf.data.Dataset):
        return None
    try:
        return _rebuilt(data)
    except Exception as error:
        reason = shortened(str(error), 200) or type(error).__name__
        raise ValueError(
            f"this tf.data.Dataset cannot be copied ({reason}); pass a function that makes it, "
            "such as lambda: make_dataset()"
        ) from error


def _rebuilt(dataset: tf.data.Dataset) -> tf.data.Dataset:
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    variant = dataset._variant_tensor
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant, external_state_policy=1, strip_device_assignment=True
    )
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = {node.name: node for node in graph.node}
    for node in itertools.chain(graph.node, *(each.node_def for each in graph.library.function)):
        if node.device.startswith("/device::"):  # the host, without its address: `tf.py_function`
            node.device = "/device:CPU:0"
    for node in graph.node:
        if node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum:
            handles = [handle.name for handle in node.attr["value"].tensor.resource_handle_val]
            for part, operation in _OWNED.items():
                if handles and all(part in name for name in handles):
                    _replace(node, operation)
        elif node.op.startswith("Cache") and len(node.input) > 1:
            _move_cache(nodes.get(node.input[1].partition(":")[0]))
    rebuilt_variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return _VariantDataset(rebuilt_variant, dataset.element_spec).with_options(dataset.options())


# What datasets share by a handle, and the operation that gives each its own.
_OWNED = {"SeedGenerator": "DummySeedGenerator", "MemoryCache": "DummyMemoryCache"}


def _replace(node: tf.compat.v1.NodeDef, operation: str) -> None:
    name = node.name
    node.Clear()
    node.name, node.op = name, operation


def _move_cache(node: tf.compat.v1.NodeDef) -> None:
    """Redirect a cache on disk that is not complete: a trial writes nothing."""
    if node is None or node.op != "Const":
        return
    for at, path in enumerate(node.attr["value"].tensor.string_val):
        if path and not os.path.exists(os.fsdecode(path) + ".index"):  # noqa: PTH110
            folder = tempfile.mkdtemp(prefix="gpu-util-")
            node.attr["value"].tensor.string_val[at] = os.fsencode(os.path.join(folder, "cache"))  # noqa: PTH118


def synchronize(result: object) -> None:
    """Wait for all that was launched."""
    wait = getattr(tf.test.experimental, "sync_devices", None)
    if wait is not None and tf.config.list_logical_devices("GPU"):
        wait()


def processes() -> int:
    """Return how many processes train together."""
    strategy = tf.distribute.get_strategy()
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None:
        return 1
    return max(1, len(resolver.cluster_spec().as_dict().get("worker", ())))


def repeated(batch: object) -> tf.data.Dataset:
    """Return one batch as a dataset without an end."""
    return tf.data.Dataset.from_tensors(batch).repeat()
