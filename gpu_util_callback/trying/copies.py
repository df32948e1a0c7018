"""Runs both sides of a trial in the process of their fit, on copies of its model and input."""

import contextlib
import copy
import functools
import gc
import inspect
import pickle
import random
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.trying.changes import VALIDATION, Change
from gpu_util_callback.trying.children import Side, Timed
from gpu_util_callback.trying.hooks import Hooks, watch
from gpu_util_callback.trying.meter import Meter

LARGE_BYTES = 2**26  # an array this large is shared by the copies of a dataset
MANY_EPOCHS = 10**6  # the meter ends a fit earlier
_ON_COPIES = ("PyDataset", "DataLoader", "prefetch", "options", "compile", "cache")
_WHERE_MADE = ("map", "interleave", "reader")
_GENERATORS = ("SeedGenerator", "Generator")  # of random numbers: Keras' and TensorFlow's
_MAKERS = "tensorflow.python.data.ops.dataset_ops", "tensorflow.python.data.ops.readers", "torch.utils.data.dataloader"


def obstacle(change: Change, is_function: bool) -> str:
    """Return why a change needs a process of its own; "" where it can be made on copies."""
    if change.of == VALIDATION or change.target not in _ON_COPIES + _WHERE_MADE:
        return "it is about more than model and input"
    within = change.target in _WHERE_MADE or (change.target == "cache" and change.of) or "whole_batches" in change.args
    return "" if is_function or not within else "it is about the making of the input: give a function that makes it"


class Stopwatch(Meter):
    """A meter that ends its fit, not its process."""

    def __init__(self, plan: dict[str, Any], model: Any):
        super().__init__(plan)
        self.result: dict[str, Any] = {}
        self._model = model

    def begin(self) -> None:
        """The fit is the one to time, whatever else trains in this process."""
        self._claimed = True

    def leave(self) -> None:
        """End the fit after the step that it begins."""
        self._model.stop_training = True

    def _save(self, result: dict[str, Any]) -> None:
        self.result = self.result or result


class Copies:
    """Runs a side as a fit of a copy: a runner for `trial.measure`.

    Args:
        model: compiled; copied, once for each side where the change is about its settings.
        x, fit: input of `fit`, or a function that makes it, and further arguments of it.
        plan: `steps`, `seconds`, `epochs` of `Meter`.

    Raises: UnusableInput where a copy cannot be made, or the change does not meet its call.
    """

    def __init__(self, model: Any, x: Any, fit: dict[str, Any], change: Change, plan: dict[str, Any]):
        self._plan, self._fit = plan, fit
        before = copied_model(model)
        after = copied_model(model) if change.target == "compile" else before
        hooks = Hooks({"change": change.for_child(), "folder": ""}, SimpleNamespace())  # type: ignore[arg-type]
        for name, value in hooks.change.args_for("compile").items():
            setattr(after, name, value)
        make = x if callable(x) else functools.partial(copied_input, x)
        with _patched(hooks):
            given = make()
        given = hooks.fit_args(SimpleNamespace(arguments={"x": given})).get("x", given)  # type: ignore[arg-type]
        if hasattr(given, "batch_sampler") and not hooks.change.applied:  # it was not made here
            vars(given).update({"prefetch_factor": 2} | hooks.change.args_for("DataLoader"))
        if not hooks.change.applied:
            raise UnusableInput("this input never makes the call that the change is about")
        self._sides = (before, make()), (after, given)

    def run(self, side: Side) -> Timed:
        """Train a side's copy on until it is timed. Raises: UnusableInput, and what `fit` raises."""
        model, x = self._sides[bool(side.change)]
        meter = Stopwatch(self._plan, model)
        began = time.monotonic()
        watching = watch(sys.modules["keras"].callbacks.Callback)(meter)
        try:
            model.fit(x, **(self._fit | {"epochs": MANY_EPOCHS, "verbose": 0, "callbacks": [watching]}))
        finally:  # Keras leaves the threads and processes of a PyDataset where a fit ends within an epoch
            for queue in [found for found in gc.get_objects() if type(found).__name__ == "OrderedEnqueuer"]:
                if queue.py_dataset is x:
                    queue.stop()
        meter.at_exit()
        if "problem" in meter.result:
            raise UnusableInput(meter.result["problem"])
        return Timed.of(meter.result | {"losses": {}, "host_bytes": None, "gpu_bytes": None}, began)


def copied_model(model: Any) -> Any:
    """Return a copy that shares nothing with a model, compiled like it. Raises: UnusableInput."""
    keras = sys.modules["keras"]
    own = {"__main__", type(model).__module__}
    objects = {n: v for m in own for n, v in vars(sys.modules[m]).items() if getattr(v, "__module__", "") in own}
    compiled_with = getattr(getattr(model, "_compile_config", None), "config", {})
    objects |= {v.__name__: v for v in keras.tree.flatten(compiled_with) if hasattr(v, "__name__")}
    objects = {name: _maker(found) if hasattr(found, "from_config") else found for name, found in objects.items()}
    try:
        with keras.saving.custom_object_scope(objects):
            twin = pickle.loads(pickle.dumps(model))
    except Exception as error:
        why = f"the model cannot be copied ({type(error).__name__}): its classes need get_config"
        raise UnusableInput(why) from error
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    if not isinstance(model, keras.Model) or replicas > 1 or type(twin) is not type(model) or not twin.compiled:
        raise UnusableInput("the model cannot be copied as it is compiled")
    for name in ("run_eagerly", "jit_compile", "steps_per_execution"):
        setattr(twin, name, getattr(model, name))
    return twin


def _maker(kind: Any) -> Any:
    """Return a stand-in for a class of layers or models whose constructor takes less than Keras keeps of it."""
    parameters = inspect.signature(kind).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return kind
    revive = sys.modules["keras"].saving.deserialize_keras_object

    def from_config(config: dict[str, Any]) -> Any:
        return kind(**{name: revive(value) for name, value in config.items() if name in parameters})

    return SimpleNamespace(from_config=from_config)


def copied_input(data: Any) -> Any:
    """Return a copy of `fit`'s input that leaves the order and counters of the original alone. Raises: UnusableInput.

    Arrays and large parts of datasets are shared.
    """
    if hasattr(data, "__next__"):
        raise UnusableInput("a generator can be read once: give a function that makes it")
    if hasattr(data, "with_options"):
        return _copied_pipeline(data)
    if not hasattr(data, "__getitem__") or hasattr(data, "on_epoch_end") or hasattr(data, "batch_sampler"):
        try:
            parts = sys.modules["keras"].tree.flatten([vars(data), vars(getattr(data, "dataset", data))])
            return copy.deepcopy(data, {id(part): part for part in parts if getattr(part, "nbytes", 0) >= LARGE_BYTES})
        except Exception as error:
            why = f"{type(data).__name__} cannot be copied ({type(error).__name__}): give a function that makes it"
            raise UnusableInput(why) from error
    return data


def _held_bytes(dataset: Any) -> int:
    """Return the bytes of the arrays that a `tf.data` pipeline is made of."""
    own = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in getattr(dataset, "_tensors", ()))
    return own + sum(map(_held_bytes, dataset._inputs()))


def _copied_pipeline(dataset: Any) -> Any:
    """Return a `tf.data` pipeline with the same graph, whose shuffles count for themselves."""
    if _held_bytes(dataset) >= LARGE_BYTES:
        raise UnusableInput("the pipeline holds large arrays: give a function that makes it")
    tf = sys.modules["tensorflow"]
    variant = tf.data.experimental.to_variant(dataset)
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)  # 1: of no matter
    graph = tf.compat.v1.GraphDef.FromString(text.numpy())
    nodes = {node.name: node for node in graph.node}
    for node in graph.node:
        for source in node.input if node.op.startswith("ShuffleDataset") else ():
            if nodes[source].op == "Const":
                for handle in nodes[source].attr["value"].tensor.resource_handle_val:
                    handle.name = "of a copy"  # there is none: it makes its own
    copied = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(copied, dataset.element_spec)


@contextlib.contextmanager
def _patched(hooks: Hooks) -> Iterator[None]:
    """Make the calls of a block otherwise, as in a child; afterwards all is as it was."""
    modules = {name: sys.modules[name] for name in _MAKERS if name in sys.modules}
    kinds = {kind for module in modules.values() for kind in vars(module).values() if isinstance(kind, type)}
    before = {kind: dict(vars(kind)) for kind in kinds if kind.__module__ in modules}
    try:
        for name, module in modules.items():
            hooks.waiting[name](module)
        yield
    finally:
        for kind, members in before.items():
            for name in [name for name, member in vars(kind).items() if members.get(name) is not member]:
                setattr(kind, name, members[name]) if name in members else delattr(kind, name)


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restore all generators that a training draws from: Python's, NumPy's, the framework's, and Keras' wherever."""
    torch, eager = sys.modules.get("torch"), sys.modules.get("tensorflow.python.eager.context")
    kept: list[tuple[Any, Any]] = [(random.setstate, random.getstate()), (np.random.set_state, np.random.get_state())]
    if torch is not None:
        kept += [(torch.set_rng_state, torch.get_rng_state())]
    if torch is not None and torch.cuda.is_initialized():
        kept += [(torch.cuda.set_rng_state, torch.cuda.get_rng_state())]
    if eager is not None and hasattr(eager.context(), "_rng"):  # a seed was set
        kept += [(eager.context()._rng.setstate, eager.context()._rng.getstate())]
    own = [found for found in gc.get_objects() if type(found).__name__ in _GENERATORS]
    states = [found.state for found in own if hasattr(getattr(found, "state", None), "assign")]
    kept += [(state.assign, sys.modules["keras"].ops.convert_to_numpy(state).copy()) for state in states]
    try:
        yield
    finally:
        gc.collect()  # iterators that still read ahead
        for write, state in kept:
            write(state)
