"""FLOPs of a compiled TensorFlow function, read from its graph, which nothing runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from gpu_util_callback.backends.base import CONV, MATMUL, CountedWork, NotCounted, einsum_multiply_adds, product

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")

# The training thread gets Python's lock in between.
_AT_ONCE, _PAUSE_S = 50, 0.0005

Shape = list[int | None]
# Multiply-adds of an operation, given the shapes of its inputs, by number, and that of its output.
_Rule = Callable[[tf.Operation, Callable[[int], Shape], Shape], int]


def function_of_a_step(train_function: object) -> tf.types.experimental.ConcreteFunction | None:
    """Return the newest trace of the function that Keras gives a batch; None before there is one.

    Args:
        train_function: the model's own, without our wrapper.
    """
    step = _step_function(train_function)
    traces = step._list_all_concrete_functions() if step is not None else ()
    return traces[-1] if traces else None


def traces_of_step(train_function: object) -> Callable[[], int]:
    """Return what counts the traces of the function that Keras gives a batch; always 0 if it is not compiled."""
    step = _step_function(train_function)
    return step.experimental_get_tracing_count if step is not None else int


def _step_function(train_function: object) -> Any:
    """Return the `tf.function` that Keras gives a batch; None if there is none (eager)."""
    functions = _functions_in(train_function, set())
    return next((function for function in functions if getattr(function, "__name__", "") == "one_step_on_data"), None)


def _functions_in(function: Any, visited: set[int]) -> Iterator[Any]:
    """Yield the `tf.function`s that a Python function refers to, by its closure and wrappers.

    Args:
        visited: ids of functions looked at so far.
    """
    if id(function) in visited:
        return
    visited.add(id(function))
    if hasattr(function, "_list_all_concrete_functions"):
        yield function
        function = function.python_function
    inside = getattr(function, "__wrapped__", None)
    if inside is not None:
        yield from _functions_in(inside, visited)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if callable(value):
            yield from _functions_in(value, visited)


def count(
    function: tf.types.experimental.ConcreteFunction, batch: int | None, declared: Shape | None = None
) -> CountedWork:
    """Return the work of one call.

    Args:
        function: a concrete function that is given a batch.
        batch: the batch's size, where the trace leaves it open; None = not known.
        declared: the shape of the model's only input as the model declares it, for sizes that
            the trace leaves open: a decoded picture's, for one.

    Raises: NotCounted where nothing can be said.
    """
    graph = function.graph
    tensors = [tensor for tensor in graph.inputs if tensor.dtype != tf.resource]
    # The batch's first part consists of a tensor for each replica.
    leaves = tf.nest.flatten(function.structured_input_signature)
    if not leaves:
        raise NotCounted("the step is given no batch")
    replicas = len(tf.nest.flatten(leaves[0], expand_composites=True))
    shapes = [
        _with_batch(tensor, batch, replicas, declared if place < replicas else None)
        for place, tensor in enumerate(tensors)
    ]
    flat = _Flat()
    next_shape = iter(shapes)
    outside = {id(inner): outer for outer, inner in graph.captures}
    arguments = [
        flat.input(tensor, outside.get(id(tensor), tensor), next(next_shape) if tensor.dtype != tf.resource else None)
        for tensor in graph.inputs
    ]
    flat.inline(graph, arguments)
    work = flat.count()
    work.samples = sum(shape[0] or 0 for shape in shapes[:replicas] if shape)
    return work


def declared_shape(model: Any) -> Shape | None:
    """Return the shape that a model declares for its only input; None where it declares none."""
    try:
        (model_input,) = model.inputs
        return list(model_input.shape)
    except Exception:  # a subclassed model has no inputs, others have several
        return None


def _with_batch(tensor: tf.Tensor, batch: int | None, replicas: int, declared: Shape | None) -> Shape | None:
    """Return the shape of an argument as it ran."""
    static = _static(tensor)
    shape = _merged(static, declared) or static
    first = [max(1, batch // replicas)] if shape and shape[0] is None and batch is not None else None
    return shape if shape is None or first is None else [*first, *shape[1:]]


def _running_ops(graph: tf.Graph) -> set[object]:
    """Return the operations that run: TensorFlow leaves out what nothing needs.

    Its gradients compute that of the first layer's input, for one, which nobody asks for.
    """
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    runs = set(waiting)
    while waiting:
        op = waiting.pop()
        for before in [*(tensor.op for tensor in op.inputs), *op.control_inputs]:
            if before not in runs:
                runs.add(before)
                waiting.append(before)
    return runs


class _Flat:
    """Graphs inlined into one, whose shapes TensorFlow infers again from those of the batch."""

    def __init__(self) -> None:
        self._graph_def = tf.compat.v1.GraphDef()
        self._flows: list[_Flow] = []
        self._loop_of_output: dict[str, _Flow] = {}  # a number that a loop returns: the loop
        self._static: dict[str, list[Shape | None]] = {}

    def input(self, tensor: tf.Tensor, outside: tf.Tensor, shape: Shape | None) -> str:
        """Add a placeholder for an argument of a function; return its name.

        Args:
            tensor: the argument inside the function.
            outside: the caller's tensor, which carries a variable's handle data.
            shape: None = not known.
        """
        name = f"argument{len(self._graph_def.node)}"
        node = self._graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        handle = getattr(outside, "_handle_data", None) or getattr(tensor, "_handle_data", None)
        # a variable, whose shape only its handle has
        if tensor.dtype == tf.resource and handle is not None and handle.shape_and_type:
            node.op = "VarHandleOp"
            node.attr["dtype"].type = handle.shape_and_type[0].dtype
            node.attr["shape"].shape.CopyFrom(handle.shape_and_type[0].shape)
        elif tensor.dtype != tf.resource:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        return f"{name}:0"

    def inline(self, graph: tf.Graph, arguments: Sequence[str], prefix: str = "") -> list[str]:
        """Add a function's nodes, those of the functions it calls included; return the names of its outputs.

        Args:
            graph: of the function.
            arguments: names of its inputs' tensors.
            prefix: of the names of its nodes.
        """
        names = {tensor.name: name for tensor, name in zip(graph.inputs, arguments, strict=True)}
        runs = _running_ops(graph)
        for place, op in enumerate(graph.get_operations()):
            if place % _AT_ONCE == 0:
                time.sleep(_PAUSE_S)
            if op not in runs or (op.outputs and op.outputs[0].name in names):  # an argument
                continue
            inputs = [names[tensor.name] for tensor in op.inputs]
            if op.type in _CALLS:
                function_graph = _graph_of(graph, op.get_attr("f").name)
                returned = self.inline(function_graph, inputs, f"{prefix}{op.name}/")
            elif op.type in _LOOPS or op.type in _BRANCHES:
                returned = self._flow(graph, op, inputs, prefix)
            else:
                returned = self._copy(op, inputs, prefix)
            names.update(zip((tensor.name for tensor in op.outputs), returned, strict=True))
        return [names[tensor.name] for tensor in graph.outputs]

    def _copy(self, op: tf.Operation, inputs: list[str], prefix: str) -> list[str]:
        """Copy an operation into the graph whose shapes are inferred; return its outputs' names."""
        node = self._graph_def.node.add()
        node.CopyFrom(op.node_def)
        node.name = prefix + op.name
        node.device = ""
        node.attr.pop("_class", None)
        node.input[:] = inputs
        self._static[node.name] = [_static(tensor) for tensor in op.outputs]
        return [f"{node.name}:{place}" for place in range(len(op.outputs))]

    def _flow(self, graph: tf.Graph, op: tf.Operation, inputs: list[str], prefix: str) -> list[str]:
        """Note a loop or a branch; return the names of its outputs' placeholders."""
        bodies = {
            name: [_graph_of(graph, function.name) for function in _listed(op.get_attr(name))]
            for name in ("body", "cond", "then_branch", "else_branch", "branches")
            if name in op.node_def.attr
        }
        flow = _Flow(op, prefix + op.name, inputs, bodies)
        self._flows.append(flow)
        returned = []
        for place, tensor in enumerate(op.outputs):
            if op.type in _LOOPS and (tensor.shape.rank or tensor.dtype == tf.resource):
                returned.append(inputs[place])  # of the same shape as at the loop's begin
                continue
            name = self.input(tensor, tensor, _static(tensor))
            self._loop_of_output[name] = flow
            returned.append(name)
        return returned

    def count(self) -> CountedWork:
        """Return the work of what was inlined; operations whose shapes are unknown are noted as missing."""
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(self._graph_def, name="")
        work = CountedWork()
        for op in graph.get_operations():
            try:
                _add(work, op, self._static.get(op.name))
            except NotCounted:
                work.miss(f"{op.type} of an unknown shape ({op.name})")
        for flow in self._flows:
            self._add_flow(work, flow, graph)
        return work

    def _add_flow(self, work: CountedWork, flow: _Flow, graph: tf.Graph) -> None:
        """Add the work of a loop or a branch, if it is the same whenever it runs; else note it as missing.

        Args:
            graph: the flat graph, with shapes.
        """
        inputs = [graph.get_tensor_by_name(name) for name in flow.operands]
        if "body" not in flow.bodies:
            parts = [_body(body, inputs[1:]) for bodies in flow.bodies.values() for body in bodies]
            if len({part.total for part in parts}) > 1 or any(part.missing for part in parts):
                work.miss(f"a branch that does not always run ({flow.name})")
            else:
                work.include(parts[0])
            return
        once = _body(flow.bodies["body"][0], inputs)
        flow.trips = self._trips(flow, inputs)
        if flow.trips is not None:
            work.include(once, flow.trips)
        elif once.total or once.missing:
            work.miss(f"a loop of unknown length ({flow.name})")

    def _trips(self, flow: _Flow, inputs: list[tf.Tensor]) -> int | None:
        """Return how often a loop's body runs, where its condition compares a counter with a known number.

        Else None.
        """
        condition = flow.bodies["cond"][0]
        places = {tensor.name: place for place, tensor in enumerate(condition.inputs)}
        lengths = []
        for op in condition.get_operations():
            if op.type != "Less":
                continue
            counter, bound = (places.get(tensor.name) for tensor in op.inputs)
            start = None if counter is None else tf.get_static_value(inputs[counter])
            if bound is None:
                stop = tf.get_static_value(op.inputs[1])
            else:
                stop = tf.get_static_value(inputs[bound])
                before = self._loop_of_output.get(flow.operands[bound])
                if stop is None and before is not None:
                    stop = before.trips  # a gradient's loop runs as often as the loop it is of
            if start is not None and stop is not None:
                lengths.append(max(0, int(stop) - int(start)))
        return min(lengths, default=None)


class _Flow:
    """A loop or a branch, with the functions in it."""

    def __init__(self, op: tf.Operation, name: str, inputs: list[str], bodies: dict[str, list[tf.Graph]]):
        self.op, self.name, self.operands, self.bodies = op, name, inputs, bodies
        self.trips: int | None = None


def _body(graph: tf.Graph, inputs: Sequence[tf.Tensor]) -> CountedWork:
    """Return the work of a function inside a loop or a branch."""
    flat = _Flat()
    arguments = [
        flat.input(inner, outer, _merged(_static(outer), _static(inner)))
        for inner, outer in zip(graph.inputs, inputs, strict=True)
    ]
    flat.inline(graph, arguments)
    return flat.count()


def _graph_of(graph: tf.Graph, name: str) -> tf.Graph:
    """Return the graph of a function that is called by name. Raises: NotCounted."""
    function = graph._get_function(name)
    inside = getattr(function, "graph", None)
    if inside is None:
        raise NotCounted(f"the function {name} has no graph")
    return inside


def _listed(value: object) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _static(tensor: tf.Tensor) -> Shape | None:
    return None if tensor.shape.rank is None else tensor.shape.as_list()


def _merged(first: Shape | None, second: Shape | None) -> Shape | None:
    """Return a shape with what either knows; None where neither does, or their ranks differ."""
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second):
        return None
    return [b if a is None else a for a, b in zip(first, second, strict=True)]


# ---- the operations ----------------------------------------------------------------------------


def _matmul(op: tf.Operation, shape: Callable[[int], Shape], out: Shape) -> int:
    turned = any(op.get_attr(name) for name in ("transpose_a", "adj_x") if name in op.node_def.attr)
    left_shape = shape(0)
    return product([*out, left_shape[-2] if turned else left_shape[-1]])


def _einsum(op: tf.Operation, shape: Callable[[int], Shape], out: Shape) -> int:
    equation = op.get_attr("equation").decode()
    return einsum_multiply_adds(equation, [shape(place) for place in range(len(op.inputs))])


_OUT = -1  # in place of an input's number: the output


def _convolution_rule(places: int, kernel: int, part: slice) -> _Rule:
    """Return the rule of a convolution: a multiply-add with a part of the kernel's sizes at each of some places."""

    def multiply_adds(op: tf.Operation, shape: Callable[[int], Shape], out: Shape) -> int:
        at, sizes = (out if which == _OUT else shape(which) for which in (places, kernel))
        return product([*at, *sizes[part]])

    return multiply_adds


_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def _cudnn_rnn(op: tf.Operation, shape: Callable[[int], Shape], out: Shape) -> int:
    """Return the multiply-adds of cuDNN's recurrent layers: the gates' products with the input and with the state.

    Input 0 of the operation is the sequence, [steps, samples, width]; input 1 the state, [layers, samples, units].
    Raises: NotCounted for layers of both directions.
    """
    if op.get_attr("direction") != b"unidirectional":
        raise NotCounted("both directions")
    sequence, state = shape(0), shape(1)
    rows, layers, units = product(sequence[:2]), product(state[:1]), product(state[-1:])
    widths = product(sequence[2:]) + units + (layers - 1) * 2 * units
    return rows * _GATES[op.get_attr("rnn_mode").decode()] * units * widths


_DENSE, _DEPTHWISE = slice(-1), slice(2)  # the parts of a kernel that each place is multiplied with

# By the operation's type, in all its versions: kind, multiply-adds.
_OPERATIONS: dict[str, tuple[str, _Rule]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "SparseMatMul"), (MATMUL, _matmul)),
    "Einsum": (MATMUL, _einsum),
    **dict.fromkeys(("Conv", "Conv2D", "Conv3D"), (CONV, _convolution_rule(_OUT, 1, _DENSE))),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), (CONV, _convolution_rule(2, 1, _DENSE))),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), (CONV, _convolution_rule(2, _OUT, _DENSE))),
    "DepthwiseConv2dNative": (CONV, _convolution_rule(_OUT, 1, _DEPTHWISE)),
    "DepthwiseConv2dNativeBackpropInput": (CONV, _convolution_rule(2, 1, _DEPTHWISE)),
    "DepthwiseConv2dNativeBackpropFilter": (CONV, _convolution_rule(2, _OUT, _DEPTHWISE)),
    **dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), (MATMUL, _cudnn_rnn)),
    **dict.fromkeys(
        ("CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3"), (MATMUL, lambda *of: 2 * _cudnn_rnn(*of))
    ),
}
# Of TensorFlow's own, but their work does not follow from their shapes, or we do not know how.
_UNKNOWN = (
    "SparseTensorDenseMatMul",
    "Conv2DBackpropInputV2",
    "Conv2DBackpropFilterV2",
    "XlaDot",
    "XlaDotV2",
    "XlaConv",
    "XlaConvV2",
    "XlaCustomCall",
    "XlaCustomCallV2",
)


def _add(work: CountedWork, op: tf.Operation, static: list[Shape | None] | None) -> None:
    """Add the work of an operation, if it has any.

    Args:
        static: shapes of its outputs in the function's own graph.

    Raises: NotCounted where a size is unknown.
    """
    rule = _OPERATIONS.get(op.type)
    if rule is None:
        foreign = op.type[0] != "_" and not hasattr(tf.raw_ops, op.type)
        is_counted = not (foreign or op.type in _UNKNOWN or op.type in _PYTHON)
        # One without inputs reads a clock, say: it works on nothing of the model's.
        if not is_counted and len(op.inputs):
            what = "a Python function in the graph" if op.type in _PYTHON else op.type
            work.miss(f"{what} ({op.name})")
        return

    def shape(place: int) -> Shape:
        """Return the static shape of an input. Raises: NotCounted."""
        known_shape = _static(op.inputs[place])
        if known_shape is None:
            raise NotCounted("a rank is unknown")
        return known_shape

    kind, multiply_adds = rule
    out = _merged(_static(op.outputs[0]), static[0] if static else None)
    work.add(kind, op.outputs[0].dtype.name, multiply_adds(op, shape, out or [None]))
