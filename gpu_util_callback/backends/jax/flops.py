"""FLOPs of a jitted JAX function, read from its jaxpr, which is never traced again for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType

import jax

from gpu_util_callback.backends.base import CONV, MATMUL, CountedWork, NotCounted


def jitted_in(train_function: object) -> object:
    """Return the jitted function that Keras' train function calls, by its closure; None without one."""
    for cell in getattr(train_function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if callable(getattr(value, "trace", None)) and callable(getattr(value, "lower", None)):
            return value
    return None


class StepShapes:
    """Shapes and types of what a step is given, without its values."""

    def __init__(self, state: object, data: object):
        self.given = jax.tree_util.tree_map(_without_values, (state, data))
        leaves = jax.tree_util.tree_leaves(self.given[1])
        self.batch = int(leaves[0].shape[0]) if leaves and leaves[0].shape else 0


def _without_values(value: jax.Array) -> object:
    """Return an array's shape and type alone; other values as they are."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return value
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    weak = bool(getattr(value, "weak_type", False))
    return jax.ShapeDtypeStruct(value.shape, dtype, weak_type=weak)


def count(function: jax.stages.Wrapped, shapes: StepShapes) -> CountedWork:
    """Return the work of one call.

    Args:
        function: jitted, and called with such shapes before.
        shapes: of its arguments.

    Raises: NotCounted where its jaxpr is no longer known.
    """
    work = CountedWork(samples=shapes.batch)
    with _NoTracing(function):
        jaxpr = function.trace(*shapes.given).jaxpr
    _add_all(work, jaxpr.jaxpr)
    return work


class _NoTracing:
    """Refuse to run the user's function on this thread: what JAX keeps is looked up, or nothing."""

    def __init__(self, function: object):
        inside = getattr(function, "__wrapped__", function)
        self._code = getattr(getattr(inside, "__func__", inside), "__code__", None)

    def __enter__(self) -> None:
        if self._code is None:
            raise NotCounted("the step is no plain function")
        self._before = sys.getprofile()
        sys.setprofile(self._on_call)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _on_call(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is self._code:
            raise NotCounted("JAX no longer has the step as it traced it")


# ---- the operations ----------------------------------------------------------------------------


def _add_all(work: CountedWork, jaxpr: jax.extend.core.Jaxpr, *, recomputes: bool = False) -> None:
    """Add the work of a jaxpr's equations.

    Args:
        recomputes: leave out what a `jax.checkpoint` computes again for its gradient.
    """
    for equation in _equations_in_use(jaxpr):
        if not (recomputes and _RECOMPUTED in str(equation.source_info.name_stack)):
            _add_equation(work, equation)


def _equations_in_use(jaxpr: jax.extend.core.Jaxpr) -> list[jax.extend.core.JaxprEqn]:
    """Return the equations that an output depends on, or that have effects, last first: XLA leaves out all others."""
    needed_ids = {id(variable) for variable in jaxpr.outvars}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(variable) in needed_ids for variable in equation.outvars):
            needed_ids |= {id(variable) for variable in equation.invars}
            equations.append(equation)
    return equations


def _add_equation(work: CountedWork, equation: jax.extend.core.JaxprEqn) -> None:
    """Add the work of an equation: its own, or that of the code it calls."""
    name, params = equation.primitive.name, equation.params
    if name in _OPERATIONS:
        kind, multiply_adds = _OPERATIONS[name]
        work.add(kind, str(equation.invars[0].aval.dtype), multiply_adds(equation))
    elif name == "scan":
        work.include(_work_of(params["jaxpr"]), int(params["length"]))
    elif name == "while":
        once = _work_of(params["body_jaxpr"])
        if once.total or once.missing:
            work.miss("a loop of unknown length")
    elif name == "cond":
        branches = [_work_of(branch) for branch in params["branches"]]
        if len({branch.total for branch in branches}) > 1:
            work.miss("a branch that does not always run")
        work.include(branches[0])
    elif name in _FOREIGN or _is_foreign(equation.primitive):
        work.miss(name)
    else:  # `jit`, `custom_vjp_call`, `remat2`, ...: it is called once
        for value in params.values():
            if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
                work.include(_work_of(value, recomputes=bool(params.get("differentiated"))))
                break


def _work_of(jaxpr: jax.extend.core.Jaxpr | jax.extend.core.ClosedJaxpr, *, recomputes: bool = False) -> CountedWork:
    work = CountedWork()
    _add_all(work, getattr(jaxpr, "jaxpr", jaxpr), recomputes=recomputes)
    return work


def _is_foreign(primitive: object) -> bool:
    """Return whether a library other than JAX says how an operation is compiled."""
    try:
        from jax._src.interpreters import mlir

        lowering = mlir._lowerings.get(primitive)
        rule = getattr(lowering, "rule", lowering)
        while hasattr(rule, "func"):
            rule = rule.func
        return rule is not None and not str(rule.__module__).startswith("jax")
    except (ImportError, AttributeError):  # private to JAX
        return False


def _dot(equation: jax.extend.core.JaxprEqn) -> int:
    """Return the multiply-adds of a matrix product."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    left_shape = equation.invars[0].aval.shape
    shape = equation.outvars[0].aval.shape
    return math.prod(shape) * math.prod(left_shape[axis] for axis in contracted)


def _convolution(equation: jax.extend.core.JaxprEqn) -> int:
    """Return the multiply-adds of a convolution, without those of zeros put between elements.

    Every output takes a kernel's worth of inputs, or every input goes into a kernel's worth of
    outputs: whichever is less. In the gradient of a transposed convolution's kernel, only every so
    many of these inputs are not zero.
    """
    params = equation.params
    left_shape, kernel = (variable.aval.shape for variable in equation.invars[:2])
    outputs, inputs = (kernel[axis] for axis in params["dimension_numbers"].rhs_spec[:2])
    groups = params["feature_group_count"] * params["batch_group_count"]
    each = math.prod(kernel)
    of_outputs = math.prod(equation.outvars[0].aval.shape) * each // max(1, outputs)
    of_inputs = math.prod(left_shape) * each // max(1, inputs * groups)
    if of_inputs <= of_outputs:
        return of_inputs
    return of_outputs // math.prod(params["lhs_dilation"] or (1,))


_OPERATIONS: dict[str, tuple[str, Callable[[jax.extend.core.JaxprEqn], int]]] = {
    "dot_general": (MATMUL, _dot),
    "conv_general_dilated": (CONV, _convolution),
}
# Their work does not follow from their shapes, or we do not know how.
_FOREIGN = (
    "pure_callback",
    "io_callback",
    "ffi_call",
    "pallas_call",
    "triton_kernel_call",
    "ragged_dot",
    "ragged_dot_general",
    "scaled_matmul",
    "dot_product_attention_fwd",
    "dot_product_attention_bwd",
)
_RECOMPUTED = "rematted_computation"  # in the names of what a checkpoint computes again
