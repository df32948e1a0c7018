"""The doctor's main question, asked quietly when training begins: is the GPU used at all?"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_util_callback.unused_gpu import why_unused

__all__ = ["quick_check"]


def quick_check(
    framework_gpus: Sequence[Any] | None,
    nvml_gpus: Sequence[Mapping[str, Any]],
    build_info: Mapping[str, Any] | None,
    environ: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What is wrong with the GPUs this training uses.

    Args:
        framework_gpus: the framework's GPUs; None or empty = it has none.
        nvml_gpus: `Sampler.nvml_gpus`: all that the driver sees, with "visible".
        build_info: {"framework", "is_cuda_build", …} of the framework, None = unknown.
        environ: os.environ of the training.

    Returns: [{"cause": "cpu_fallback" | "gpus_unused", "status": "problem" | "warning", "reason",
    "cure", "evidence"}] and, of the first, "code": the line to run; [] when all is well or there
    is no GPU.
    """
    environ = os.environ if environ is None else environ
    own = len(framework_gpus or ())
    visible = sum(bool(gpu.get("visible", True)) for gpu in nvml_gpus)
    build = dict(build_info or {})
    evidence = {
        "gpus": len(nvml_gpus),
        "visible_gpus": visible,
        "framework_gpus": own,
        "is_cuda_build": build.get("is_cuda_build"),
    }
    if not nvml_gpus:
        return []
    if own == 0:
        framework = str(build.get("framework") or "")
        why = why_unused(framework, len(nvml_gpus), visible, build.get("is_cuda_build"), environ)
        status = "warning" if why.chosen else "problem"
        found = _finding("cpu_fallback", status, why.reason, why.cure, evidence)
        return [found | {"code": why.code}]
    if own < visible:
        return [
            _finding(
                "gpus_unused", "warning", f"{visible} GPUs are free to use and {own} is used"
                if own == 1 else f"{visible} GPUs are free to use and {own} are used",
                "train on all of them with `tf.distribute.MirroredStrategy` (JAX, torch: "
                "`keras.distribution`), or set CUDA_VISIBLE_DEVICES to the one that is meant",
                evidence,
            )
        ]  # fmt: skip
    return []


def _finding(
    cause: str, status: str, reason: str, cure: str, evidence: dict[str, Any]
) -> dict[str, Any]:
    return {
        "cause": cause, "status": status, "reason": reason, "cure": cure, "evidence": evidence
    }  # fmt: skip
