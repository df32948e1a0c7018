"""What the profiler windows and GPM say about how full the GPU was while it was active."""

import re
from dataclasses import dataclass

from gpu_util_callback.diagnosis._run import Run

__all__ = ["Fill", "capability", "fill", "headroom", "plain_matrix_pct"]

_MATRIX = re.compile(
    r"gemm|conv(?!ert)|cudnn|winograd|matmul|wgrad|dgrad|fprop|attention", re.IGNORECASE
)
_HELPER = re.compile(
    r"nchwtonhwc|nhwctonchw|convert|im2col|im3d2col|bn_(fw|bw)|norm|pool|reorder|transpose"
    r"|splitkreduce|scalepacked|computeoffsets|gemv|depthwise|softmax|bias|activation",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fill:
    """How full one GPU was over the steps.

    Attributes:
        active_pct: NVML's kernel active.
        sm_active_pct: GPM's SM active, of the time in which kernels ran.
    """

    active_pct: float
    sm_active_pct: float
    samples: int


def fill(run: Run, gpu: int, at_least: int) -> Fill | None:
    """None where the GPU has no GPM values, or too few of them."""
    if not len(run.steps):
        return None
    start, end = int(run.steps["start_ns"][0]), int(run.steps["end_ns"].max())
    active = run.gpu_mean(gpu, "utilization_pct", start, end, at_least)
    sm = run.gpu_mean(gpu, "sm_active_pct", start, end, at_least)
    if active is None or sm is None:
        return None
    # GPM's mean is over all the time; how full the GPU is shows while kernels run.
    full = min(100.0, 100 * sm[0] / max(1.0, active[0]))
    return Fill(active[0], full, min(active[1], sm[1]))


def headroom(run: Run, gpu: int) -> tuple[float, str] | None:
    """Peak share of VRAM really needed (0-1), and by which source; None if nobody knows.

    TensorFlow's pool fills the card whatever the model needs, so the driver's number only counts
    where the framework's own allocator says nothing and the framework is not TensorFlow.
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
    """Compute capability as a number: 9.0 from "9.0", [9, 0] or 9.0."""
    known = run.gpu(gpu).get("compute_capability")
    if isinstance(known, (list, tuple)) and len(known) >= 2:
        known = f"{known[0]}.{known[1]}"
    try:
        return float(str(known)) if known is not None else None
    except ValueError:
        return None


def plain_matrix_pct(run: Run, gpu: int) -> tuple[float, float, str, int] | None:
    """Matrix kernels that surely do not use tensor cores.

    Returns:
        Their share of kernel time (%), the share of kernels of which it is not known (%), the name
        of the largest one, and the share that does use them; None without kernels.
    """
    kernels = [kernel for (index, _, _), kernel in run.traced.kernels.items() if index == gpu]
    total = sum(kernel.total_ns for kernel in kernels)
    if not total:
        return None
    plain = [
        kernel for kernel in kernels
        if kernel.tensor_core == "no"
        and _MATRIX.search(kernel.name) and not _HELPER.search(kernel.name)
    ]  # fmt: skip
    unknown = sum(kernel.total_ns for kernel in kernels if kernel.tensor_core == "unknown")
    used = sum(kernel.total_ns for kernel in kernels if kernel.tensor_core == "yes")
    largest = max(plain, key=lambda kernel: kernel.total_ns).name if plain else ""
    share = sum(kernel.total_ns for kernel in plain)
    return 100 * share / total, 100 * unknown / total, largest, round(100 * used / total)
