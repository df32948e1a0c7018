"""FLOPs of a PyTorch training step, counted while the step itself runs once, as it would anyway."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from gpu_util_callback.backends.base import CONV, MATMUL, CountedWork
from gpu_util_callback.steps.frames import uncounted

# Operations of PyTorch itself that do no more than their parts, or nothing that is counted.
_OWN = ("aten", "prim", "prims", "c10d", "_c10d_functional", "profiler", "rngprims", "inductor")
_CHECKPOINT = torch.utils.checkpoint.__file__


def is_compiled(model: object) -> bool:
    """Return whether `torch.compile` runs the step, or may run a part of it.

    It compiles nothing while operations are watched, so that the step would be another one. A
    function that a layer calls cannot be found: whatever was compiled in this process may be one.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", {}).values()
    if getattr(model, "jit_compile", False) or any(backend is not None for backend in backends):
        return True
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        for module in modules
    )


@uncounted
def counted(function: Callable, args: tuple[object, ...]) -> tuple[object, CountedWork]:
    """Call a step; return its result and its work."""
    watch = _Watch()
    with watch:
        result = function(*args)
    watch.work.samples = _batch_size(args)
    return result, watch.work


def _batch_size(args: object) -> int:
    """Return the first dimension of the first array in nested arguments; 0 without one."""
    if isinstance(args, (tuple, list)):
        return next(filter(None, map(_batch_size, args)), 0)
    if isinstance(args, dict):
        return _batch_size(list(args.values()))
    shape = getattr(args, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 0


class _Watch(TorchDispatchMode):
    """Watch of every operation, forward and backward; each runs unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.work = CountedWork()

    @uncounted
    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, _types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        """Run an operation as it is, and add its work."""
        out = func(*args, **(kwargs or {}))
        try:
            self._add(func, args, kwargs or {}, out)
        except Exception as error:  # a formula that does not know these arguments
            self.work.miss(f"{func} ({type(error).__name__})")
        return out

    def _add(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        """Add the work of one operation of a step, or its name where that is not known.

        Nothing is added for what a checkpoint computes again, and for operations that do no more than their parts.
        """
        name = str(func._overloadpacket)
        flops = flop_registry.get(_SAME_AS.get(name, func._overloadpacket))
        if flops is None:
            if func.namespace not in _OWN or _OF_MATRICES.search(name):
                self.work.miss(name)
            return
        if _computes_again():
            return
        if name == "aten.convolution_backward":
            total = 2 * _convolution_backward(*args, **kwargs)
        else:
            total = flops(*args, **kwargs, out_val=out)
        if "attention" in name and name.endswith("_backward"):  # it computes the scores again
            query, key = args[1].shape, args[2].shape
            total -= 2 * query.numel() * key[-2]
        dtype = str(next(argument for argument in args if isinstance(argument, torch.Tensor)).dtype)
        kind = CONV if "conv" in name else MATMUL
        self.work.add(kind, dtype.removeprefix("torch."), total / 2)


def _convolution_backward(
    gradient: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    _output_padding: object,
    _groups: int,
    mask: Sequence[bool],
) -> int:
    """Return multiply-adds: those of the forward pass for each of both gradients, groups or not.

    Args:
        mask: whether the gradients of input, weight (and bias) are computed.
    """
    places = (inputs if transposed else gradient).shape[2:].numel()
    return inputs.shape[0] * places * weight.numel() * (bool(mask[0]) + bool(mask[1]))


def _computes_again() -> bool:
    """Return whether this is the backward pass of a checkpoint, computing the forward again."""
    if torch._C._current_graph_task_id() == -1 or not torch.is_grad_enabled():
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


# Operations that do the work of another one, by name.
_SAME_AS = {
    f"aten._scaled_dot_product_flash_attention_for_cpu{which}": getattr(
        torch.ops.aten, f"_scaled_dot_product_flash_attention{which}"
    )
    for which in ("", "_backward")
}
# PyTorch's own operations that multiply matrices, by name: one without a formula is not counted.
_OF_MATRICES = re.compile(
    r"attention|encoder_layer|\._trilinear|rnn(_layer)?(_backward)?$|(mkldnn|dtypes|structured)_linear|mm(_|$)"
)
