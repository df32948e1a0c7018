"""CPU fallback: a GPU is there, and the framework does not use it."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis._rule import MEASURED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._thresholds import Limits
from gpu_util_callback.unused_gpu import Unused, called, why_unused

__all__ = ["CpuFallback"]


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
        who = called(run.framework)
        names = sorted({str(gpu.get("name") or "GPU") for gpu in run.gpus})
        count = len(run.gpus)
        built = run.fact("framework", "cuda_build")
        checks = run.facts.get("gpu_check") or []
        check = next((c for c in checks if c.get("cause") == self.cause), None)
        # What was seen on the spot knows the environment, too.
        why = why_unused(run.framework, count, count, built)
        if check is not None and check.get("code"):
            why = Unused(check["reason"], check["cure"], check["code"])
        evidence: dict[str, object] = {
            "gpus_visible": count,
            "gpus_used_by_framework": 0,
            "gpu": ", ".join(names),
        }
        version = run.fact("framework", "version")
        if version:
            evidence["framework"] = f"{run.framework or 'framework'} {version}"
        if built is not None:
            evidence["framework_built_for_cuda"] = bool(built)
        evidence["seen"] = why.reason
        yield Loss(
            cause=self.cause,
            title=f"{who[:1].upper()}{who[1:]} does not use the {names[0]}",
            where=None,
            lost_ns=None,
            confidence=MEASURED,
            evidence=evidence,
            threshold={},
            advice=Advice(_sentence(why, who), why.code),
            gpus=[int(gpu.get("index", i)) for i, gpu in enumerate(run.gpus)],
            blocking=True,
        )


def _sentence(why: Unused, who: str) -> str:
    said = f"Training runs on the CPU: {why.reason}."
    if why.code.startswith("pip"):
        return f"{said} Install the build of {who} that has it."
    if why.code.startswith("unset"):
        return f"{said} Take that setting away and start again."
    return f"{said} gpu-util doctor says which library is missing or does not fit."
