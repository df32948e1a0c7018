"""No tensor cores: matrix kernels run on the ordinary cores of a GPU that has better ones."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.evidence.kernels import capability, matrix_kernels
from gpu_util_callback.diagnosis.rules import no_tensor_cores as of_runs
from gpu_util_callback.diagnosis.thresholds import Limits
from gpu_util_callback.traces.analysis import DeviceAnalysis
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["NoTensorCores"]


class NoTensorCores(TraceRule):
    """Matrix kernels that certainly do not use tensor cores take much of the kernels' time.

    Undecided kernels are not evidence: they must be fewer than the plain ones.
    """

    cause = "no_tensor_cores"
    title = of_runs.NoTensorCores.title
    sources = ("kernels", "compute capability")
    thresholds: ClassVar = of_runs.NoTensorCores.thresholds
    unknown = "the trace has no kernels, or does not say the GPU's compute capability"

    def missing(self, scene: Scene) -> bool:
        return not any(d.kernels and capability(scene.run, d.index) for d in scene.p.active)

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        for d in scene.p.active:
            able, seen = capability(scene.run, d.index), _seen(d)
            if able is None or seen is None:
                continue
            spent = int(d.kernel_busy.measure(scene.p.steps.start_ps, scene.p.steps.end_ps).sum())
            kernel_pct = 100 * spent / max(1, scene.total_ps)
            if not of_runs.unused(able, kernel_pct, seen, limits):
                continue
            some = "No kernel" if not seen.used_pct else "Hardly a kernel"
            yield self.finding(
                f"{some} uses the tensor cores",
                of_runs.advice(scene.run, able, ""),
                lost_ps=None,
                severity=seen.plain_pct / 100,
                gpus=[d.index],
                threshold={name: limits[name] for name in self.thresholds},
                evidence={
                    "plain_matrix_pct": seen.plain_pct,
                    "kernel_pct": kernel_pct,
                    "tensor_core_pct": seen.used_pct,
                    "unknown_kernels_pct": seen.unknown_pct,
                    "largest_kernel": seen.largest[:120],
                    "compute_capability": able,
                },
            )


def _seen(d: DeviceAnalysis):
    return matrix_kernels(
        (k.name, k.tensor_core, k.total_ps) for k in d.kernels if not k.collective
    )
