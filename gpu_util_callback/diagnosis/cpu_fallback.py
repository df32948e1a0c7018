"""CPU fallback: a GPU is there, and the framework does not use it."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis._rule import MEASURED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._thresholds import Limits

__all__ = ["CpuFallback"]

_NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
_LOOK = {
    "tensorflow": 'python -c "import tensorflow as tf; print(tf.config.list_physical_devices())"',
    "jax": 'python -c "import jax; print(jax.devices())"',
    "torch": 'python -c "import torch; print(torch.cuda.is_available(), torch.version.cuda)"',
}
_INSTALL = {
    "tensorflow": 'pip install "tensorflow[and-cuda]"',
    "jax": 'pip install "jax[cuda12]"',
    "torch": "pip install torch  # from the CUDA index of pytorch.org",
}


class CpuFallback(Rule):
    """The driver shows GPUs that this process may use, the framework lists none of them.

    What it costs cannot be known from the run: the GPU never showed how fast it would be.
    """

    cause = "cpu_fallback"
    title = "The GPU is not used"
    sources = ("GPUs the driver shows", "GPUs the framework lists")
    thresholds: ClassVar = {}
    unknown = "no GPU was seen by the driver"

    def missing(self, run: Run) -> bool:
        return not run.gpus

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        if run.used_gpus or not len(run.steps):
            return
        who = _NAMES.get(run.framework, "The framework")
        names = sorted({str(gpu.get("name") or "GPU") for gpu in run.gpus})
        count = len(run.gpus)
        evidence: dict[str, object] = {
            "gpus_visible": count,
            "gpus_used_by_framework": 0,
            "gpu": ", ".join(names),
        }
        version = run.fact("framework", "version")
        if version:
            evidence["framework"] = f"{run.framework or 'framework'} {version}"
        if run.fact("framework", "cuda_build") is not None:
            evidence["framework_built_for_cuda"] = bool(run.fact("framework", "cuda_build"))
        checks = run.facts.get("gpu_check") or []
        check = next((c for c in checks if c.get("cause") == self.cause), None)
        if check is not None:
            evidence["seen"] = check["reason"]
        cpu_build = run.fact("framework", "cuda_build") is False
        text = (
            f"{who} trained on the CPU although {count} GPU{'s are' if count > 1 else ' is'} "
            "there. " + (
                "This build has no GPU support: install the one that has."
                if cpu_build else
                "Usually it is a build without CUDA, or a CUDA library that does not load: "
                "`gpu-util doctor` says which."
            )
        )  # fmt: skip
        yield Loss(
            cause=self.cause,
            title=f"{who} does not use the {names[0]}",
            where=None,
            lost_ns=None,
            confidence=MEASURED,
            evidence=evidence,
            threshold={},
            advice=Advice(text, _INSTALL[run.framework] if cpu_build and run.framework in _INSTALL
                          else f"gpu-util doctor  # or: {_LOOK[run.framework]}"
                          if run.framework in _LOOK else "gpu-util doctor"),
            gpus=[int(gpu.get("index", i)) for i, gpu in enumerate(run.gpus)],
            blocking=True,
        )  # fmt: skip
