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
from gpu_util_callback.steps.frames import instances
from gpu_util_callback.trying.changes import VALIDATION, Change
from gpu_util_callback.trying.children import Side, Timed
from gpu_util_callback.trying.hooks import Hooks, watch
from gpu_util_callback.trying.meter import Meter

LARGE_BYTES = 2**26  # an array this large is shared by the copies of a dataset
MANY_EPOCHS = 10**6  # the meter ends a fit earlier
_TARGETS_ON_COPIES = ("PyDataset", "DataLoader", "prefetch", "options", "compile", "cache")
_TARGETS_IN_INPUT = ("map", "interleave", "reader")
_ENQUEUERS = "keras.src.trainers.data_adapters.py_dataset_adapter"
# Those whose calls make an input.
_MODULES = "tensorflow.python.data.ops.dataset_ops", "tensorflow.python.data.ops.readers", "torch.utils.data.dataloader"


def obstacle(change: Change, is_function: bool) -> str:
    """Return why a change needs a process of its own; "" where it can be made on copies."""
    if change.of == VALIDATION or change.target not in _TARGETS_ON_COPIES + _TARGETS_IN_INPUT:
        return "it is about more than model and input"
    inside_input = change.target in _TARGETS_IN_INPUT or (change.target == "cache" and change.of)
    if not is_function and (inside_input or "whole_batches" in change.args):
        return "it is about the making of the input: give a function that makes it"
    return ""


class Stopwatch(Meter):
    """A meter that ends its fit, not its process."""

    def __init__(self, plan: dict[str, Any], model: Any):
        super().__init__(plan)
        self.result: dict[str, Any] = {}  # the first that is saved: the times, or a `problem`
        self._model = model

    def begin(self) -> None:
        """The fit is the one to time, whatever else trains in this process."""
        self._is_trainer = True

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
        # One model serves both sides, in turns, unless the change is about its settings.
        before = copied_model(model)
        after = copied_model(model) if change.target == "compile" else before
        hooks = Hooks({"change": change.for_child()}, SimpleNamespace())  # type: ignore[arg-type]
        for name, value in hooks.change.args_for("compile").items():
            setattr(after, name, value)
        make = x if callable(x) else functools.partial(copied_input, x)
        with _calls_changed(hooks):  # of an input that is made here
            dataset = make()
        dataset = hooks.fit_args(SimpleNamespace(arguments={"x": dataset})).get("x", dataset)  # type: ignore[arg-type]
        if hasattr(dataset, "batch_sampler") and not hooks.change.applied:  # it was not made here
            vars(dataset).update({"prefetch_factor": 2} | hooks.change.args_for("DataLoader"))
        if not hooks.change.applied:
            raise UnusableInput("this input never makes the call that the change is about")
        self._sides = (before, make()), (after, dataset)  # (model, input) as it is, and changed

    def run(self, side: Side) -> Timed:
        """Train a side's copy on until it is timed. Raises: UnusableInput, and what `fit` raises."""
        model, x = self._sides[bool(side.change)]
        meter = Stopwatch(self._plan, model)
        began = time.monotonic()
        watching = watch(sys.modules["keras"].callbacks.Callback)(meter)
        try:
            model.fit(x, **(self._fit | {"epochs": MANY_EPOCHS, "verbose": 0, "callbacks": [watching]}))
        finally:  # Keras leaves the threads and processes of a PyDataset where a fit ends within an epoch
            for queue in instances(sys.modules[_ENQUEUERS].OrderedEnqueuer):
                if queue.py_dataset is x:
                    queue.stop()
        meter.at_exit()
        if "problem" in meter.result:
            raise UnusableInput(meter.result["problem"])
        return Timed.of(meter.result | {"losses": {}, "host_bytes": None, "gpu_bytes": None}, began)


def copied_model(model: Any) -> Any:
    """Return a copy that shares nothing with a model, compiled like it. Raises: UnusableInput.

    Keras finds classes and functions of the program by their names (`objects`): of `__main__`, of the model's module,
    and those that it was compiled with.
    """
    keras = sys.modules["keras"]
    users = {"__main__", type(model).__module__}  # modules, whose classes and functions the copy needs
    objects = {n: v for m in users for n, v in vars(sys.modules[m]).items() if getattr(v, "__module__", "") in users}
    compiled_with = getattr(getattr(model, "_compile_config", None), "config", {})
    objects |= {v.__name__: v for v in keras.tree.flatten(compiled_with) if hasattr(v, "__name__")}
    objects = {n: _class_with_known_args(v) if hasattr(v, "from_config") else v for n, v in objects.items()}
    try:
        with keras.saving.custom_object_scope(objects):
            copied = pickle.loads(pickle.dumps(model))
    except Exception as error:
        why = f"the model cannot be copied ({type(error).__name__}): its classes need get_config"
        raise UnusableInput(why) from error
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    if not isinstance(model, keras.Model) or replicas > 1 or type(copied) is not type(model) or not copied.compiled:
        raise UnusableInput("the model cannot be copied as it is compiled")
    for name in ("run_eagerly", "jit_compile", "steps_per_execution"):
        setattr(copied, name, getattr(model, name))
    return copied


def _class_with_known_args(kind: Any) -> Any:
    """Return a stand-in for a class of layers or models whose constructor takes less than Keras keeps of it.

    The class itself where it takes any keyword. The stand-in has `from_config` alone, which leaves out the rest.
    """
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
    if hasattr(data, "__next__"):  # an iterator
        raise UnusableInput("a generator can be read once: give a function that makes it")
    if hasattr(data, "with_options"):  # a `tf.data.Dataset`
        return _copied_dataset(data)
    # A PyDataset, a DataLoader, or another object with a state of its own.
    if not hasattr(data, "__getitem__") or hasattr(data, "on_epoch_end") or hasattr(data, "batch_sampler"):
        try:
            parts = sys.modules["keras"].tree.flatten([vars(data), vars(getattr(data, "dataset", data))])
            return copy.deepcopy(data, {id(part): part for part in parts if getattr(part, "nbytes", 0) >= LARGE_BYTES})
        except Exception as error:
            why = f"{type(data).__name__} cannot be copied ({type(error).__name__}): give a function that makes it"
            raise UnusableInput(why) from error
    return data  # arrays, which `fit` only reads


def _array_bytes(dataset: Any) -> int:
    """Return the bytes of the arrays that a `tf.data` pipeline is made of."""
    own = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in getattr(dataset, "_tensors", ()))
    return own + sum(map(_array_bytes, dataset._inputs()))


def _copied_dataset(dataset: Any) -> Any:
    """Return a `tf.data` pipeline with the same graph, whose shuffles count for themselves. Raises: UnusableInput.

    In the graph a shuffle refers to its counters by a handle, a constant.
    """
    if _array_bytes(dataset) >= LARGE_BYTES:
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
def _calls_changed(hooks: Hooks) -> Iterator[None]:
    """Apply the change to calls inside the block, as in a child; restore the changed classes afterwards."""
    modules = {name: sys.modules[name] for name in _MODULES if name in sys.modules}
    # Classes of these modules, and their members as they were.
    kinds = {kind for module in modules.values() for kind in vars(module).values() if isinstance(kind, type)}
    before = {kind: dict(vars(kind)) for kind in kinds if kind.__module__ in modules}
    try:
        for name, module in modules.items():
            hooks.actions[name](module)
        yield
    finally:
        for kind, members in before.items():
            for name in [name for name, member in vars(kind).items() if members.get(name) is not member]:
                setattr(kind, name, members[name]) if name in members else delattr(kind, name)


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restore the state of all random generators of a training at a block's end: Python's, NumPy's, the framework's.

    Keras' too. `states`: (what writes a state, the state at the block's begin) of each.
    """
    keras, torch = sys.modules["keras"], sys.modules.get("torch")
    eager = sys.modules.get("tensorflow.python.eager.context")
    states: list[tuple[Any, Any]] = [(random.setstate, random.getstate()), (np.random.set_state, np.random.get_state())]
    if torch is not None:
        states += [(torch.set_rng_state, torch.get_rng_state())]
    if torch is not None and torch.cuda.is_initialized():
        states += [(torch.cuda.set_rng_state, torch.cuda.get_rng_state())]
    if eager is not None and hasattr(eager.context(), "_rng"):  # a seed was set
        states += [(eager.context()._rng.setstate, eager.context()._rng.getstate())]
    kinds = [keras.random.SeedGenerator] + ([sys.modules["tensorflow"].random.Generator] if eager is not None else [])
    states += [(it.state.assign, keras.ops.convert_to_numpy(it.state).copy()) for it in instances(*kinds)]
    try:
        yield
    finally:
        gc.collect()  # iterators that still read ahead
        for write, state in states:
            write(state)
