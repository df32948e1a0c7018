"""Occupancy of the active GPU, from profiler windows and GPM."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_util_callback.diagnosis.evidence.run import Run

__all__ = ["Fill", "MatrixKernels", "capability", "fill", "headroom", "matrix_kernels",
           "plain_matrix_pct"]  # fmt: skip

_MATRIX = re.compile(
    r"gemm|conv(?!ert)|cudnn|winograd|matmul|wgrad|dgrad|fprop|attention|Cijk_", re.IGNORECASE
)
_HELPER = re.compile(
    r"nchwtonhwc|nhwctonchw|convert|im2col|im3d2col|bn_(fw|bw)|norm|pool|reorder|transpose"
    r"|splitkreduce|scalepacked|computeoffsets|gemv|depthwise|softmax|bias|activation",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fill:
    """Mean occupancy of one GPU over the steps.

    Attributes:
        active_pct: NVML's kernel active.
        sm_active_pct: GPM's SM active, of the time in which kernels ran.
    """

    active_pct: float
    sm_active_pct: float
    samples: int


def fill(run: Run, gpu: int, at_least: int) -> Fill | None:
    """Return None if the GPU has no GPM values, or too few of them."""
    if not len(run.steps):
        return None
    start, end = int(run.steps["start_ns"][0]), int(run.steps["end_ns"].max())
    active = run.gpu_mean(gpu, "utilization_pct", start, end, at_least)
    sm = run.gpu_mean(gpu, "sm_active_pct", start, end, at_least)
    if active is None or sm is None:
        return None
    # GPM averages over all the time; occupancy refers to the time in which kernels run.
    full = min(100.0, 100 * sm[0] / max(1.0, active[0]))
    return Fill(active[0], full, min(active[1], sm[1]))


def headroom(run: Run, gpu: int) -> tuple[float, str] | None:
    """Return the peak share of VRAM really needed (0-1), and its source; None if unknown.

    TensorFlow's pool fills the card whatever the model needs, so the driver's number only counts if
    the framework's own allocator reports nothing and the framework is not TensorFlow.
    """
    total = run.gpu(gpu).get("memory_total_bytes")
    if not total:
        return None
    for name in ("allocator_peak_bytes", "allocator_used_bytes"):
        peak = run.highest(gpu, name)
        if peak:
            return peak / total, "allocator"
    if run.framework == "torch":
        peak = run.highest(gpu, "memory_used_bytes")
        if peak:
            return peak / total, "device"
    return None


def capability(run: Run, gpu: int) -> float | None:
    """Return the compute capability as a number: 9.0 from "9.0", [9, 0] or 9.0."""
    known = run.gpu(gpu).get("compute_capability")
    if isinstance(known, (list, tuple)) and len(known) >= 2:
        known = f"{known[0]}.{known[1]}"
    try:
        return float(str(known)) if known is not None else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class MatrixKernels:
    """Tensor core use of kernels, in % of kernel time.

    Attributes:
        plain_pct: matrix kernels that surely do not use them.
        unknown_pct: kernels for which it is not known.
        used_pct: kernels that do.
        largest: the plain one with most time; "" without one.
    """

    plain_pct: float
    unknown_pct: float
    used_pct: float
    largest: str


def plain_matrix_pct(run: Run, gpu: int) -> MatrixKernels | None:
    """Return those of a GPU's profiler windows; None without kernels."""
    return matrix_kernels(
        (kernel.name, kernel.tensor_core, kernel.total_ns)
        for (index, _, _), kernel in run.traced.kernels.items() if index == gpu
    )  # fmt: skip


def matrix_kernels(kernels: Iterable[tuple[str, str, int]]) -> MatrixKernels | None:
    """Return the same for (name, tensor core "yes", "no" or "unknown", time), in any unit."""
    of: dict[str, int] = {"yes": 0, "no": 0, "unknown": 0}
    total = plain = most = 0
    largest = ""
    for name, tensor_core, spent in kernels:
        if not tensor_core:
            continue  # a collective: waiting in one is not computing
        total += spent
        of[tensor_core] = of.get(tensor_core, 0) + spent
        if tensor_core == "no" and _MATRIX.search(name) and not _HELPER.search(name):
            plain += spent
            if spent > most:
                most, largest = spent, name
    if not total:
        return None
    return MatrixKernels(
        100 * plain / total, 100 * of["unknown"] / total, 100 * of["yes"] / total, largest
    )
