"""What to do about input shapes that make the step be compiled again: by the axes that vary."""

from typing import Any

from gpu_util_callback.diagnosis.advice.snippets import has_keras_fit
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.finding import Advice

__all__ = ["advise_shapes"]

FEW_SHAPES = 2  # that are left when inputs are padded to a few lengths: two at least
MULTIPLE = 128  # lengths that divide by it suit a GPU; shorter ones are padded to a half of them
_NAMES = ("x", "y", "sample_weight")

# As the recording's `input_dims`: for each tensor of a batch its sizes, None where one may vary,
# [smallest, largest] where it was seen to.
Dims = list[list[Any]]


def advise_shapes(run: Run, times: int) -> Advice:
    """The advice for a step that was compiled `times` times."""
    dims = _dims(run)
    if dims is not None and not (_batch_varies(dims) or _others(dims)):
        return Advice(
            f"{times} steps had to be compiled first, although the shape of their input stayed the "
            "same: something else that the step gets changes, a Python number or the size of a "
            "slice. Pass the number as a tensor or an array, and slice equal parts.",
        )
    text = (
        f"{times} steps had to be compiled first, because the shape of their input (or a Python "
        "number in it) was new. "
    )
    if run.framework == "torch" and not has_keras_fit(run):
        return Advice(
            f"{text}Compile it once for all shapes.", "model = torch.compile(model, dynamic=True)"
        )
    if run.framework == "torch":
        return Advice(
            f"{text}Without compilation its shapes may change freely.",
            "model.compile(..., jit_compile=False)",
        )
    # One compilation is not counted as lost: it is the one that stays.
    few = 1 - (FEW_SHAPES - 1) / max(FEW_SHAPES, times - 1)
    if dims is None:
        return Advice(
            f"{text}Give every batch the same number of samples (drop_remainder=True in tf.data), "
            "and pad what varies in length to one length, or a few.",
            "",
            few,
        )
    if str(run.fact("fit", "input_kind", default="")).lower() == "tf.data":
        return _tf_data(run, dims, text)
    return _arrays(run, dims, text, few)


def _tf_data(run: Run, dims: Dims, text: str) -> Advice:
    size = run.fact("fit", "batch_size") or _largest(dims[0][0]) or "batch_size"
    again = "Batch again" if _batch_varies(dims) else "Batch"
    if not _others(dims):
        return Advice(
            f"{text}Batches differ in their number of samples: {again.lower()} with one number, "
            "and without what is left over.",
            f"ds = ds.unbatch().batch({size}, drop_remainder=True)",
        )
    longest = max([512, *(_rounded(size) for _, _, size in _others(dims) if size)])
    shapes = ", ".join(
        str([longest if _varies(size) else size for size in sizes[1:]]) for sizes in dims
    )
    shapes = f"({shapes})" if len(dims) > 1 else shapes
    return Advice(
        f"{text}Pad all inputs to one length, and drop the smaller last batch.",
        f"ds = ds.unbatch().padded_batch({size}, padded_shapes={shapes}, drop_remainder=True)"
        f"  # {longest}: your longest input",
    )


def _arrays(run: Run, dims: Dims, text: str, few: float) -> Advice:
    """For batches that Python makes."""
    lines, says = [], []
    multiple = _multiple(dims)
    names = _NAMES[: len(dims)]
    if _batch_varies(dims):
        size = _largest(dims[0][0]) or run.fact("fit", "batch_size")
        says.append(
            "fill smaller batches up with samples that they have"
            if _others(dims)
            else "Batches differ in their number of samples: fill the smaller ones up with samples "
            "that they have, or leave some out"
        )
        fill = ", ".join(f"{name}[fill]" for name in names)
        lines += [
            f"fill = np.arange({size or 'batch_size'}) % len({names[0]})  # the largest batch's",
            f"{', '.join(names)} = {fill}",
        ]
    for tensor, sizes in enumerate(dims):
        axes = [axis for axis, size in enumerate(sizes) if axis and _varies(size)]
        if not axes:
            continue
        name = names[tensor]
        pads = ", ".join(
            f"(0, -{name}.shape[{axis}] % {multiple})" if axis in axes else "(0, 0)"
            for axis in range(len(sizes))
        )
        lines.append(f"{name} = np.pad({name}, [{pads}])")
    if _others(dims):
        says.insert(0, f"Pad what varies to a few lengths, here to multiples of {multiple}")
    return Advice(
        f"{text}{', and '.join(says)}.",
        "\n".join(lines),
        few if _others(dims) else 1.0,
    )


def _dims(run: Run) -> Dims | None:
    dims = run.fact("fit", "input_dims")
    if not isinstance(dims, list) or not 0 < len(dims) <= len(_NAMES):
        return None
    if any(not isinstance(sizes, list) for sizes in dims) or not dims[0]:
        return None
    return dims


def _varies(size: Any) -> bool:
    return not isinstance(size, int)


def _largest(size: Any) -> int | None:
    return int(size[1]) if isinstance(size, list) else size


def _rounded(size: int) -> int:
    return -(-size // MULTIPLE) * MULTIPLE


def _multiple(dims: Dims) -> int:
    """What lengths are padded to multiples of: two at least are left of them."""
    longest = max((size or 2 * MULTIPLE for _, _, size in _others(dims)), default=2 * MULTIPLE)
    return min(MULTIPLE, 1 << (max(2, longest - 1) // 2).bit_length())


def _batch_varies(dims: Dims) -> bool:
    return any(bool(sizes) and _varies(sizes[0]) for sizes in dims)


def _others(dims: Dims) -> list[tuple[int, int, int | None]]:
    """(tensor, axis, largest size if seen) of all that vary but the number of samples."""
    return [
        (tensor, axis, _largest(size))
        for tensor, sizes in enumerate(dims)
        for axis, size in enumerate(sizes)
        if axis and _varies(size)
    ]
