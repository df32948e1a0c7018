"""Communication-bound: GPUs exchange gradients while nothing else runs."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.rules import communication_bound as of_runs
from gpu_util_callback.diagnosis.thresholds import Limits
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["CommunicationBound"]

LIMIT = "exposed_collective_pct"


class CommunicationBound(TraceRule):
    """Collectives not overlapped by kernels take a good part of the steps, or of the trace."""

    cause = "communication_bound"
    title = of_runs.CommunicationBound.title
    sources = ("GPU events",)
    thresholds: ClassVar = {LIMIT: of_runs.CommunicationBound.thresholds[LIMIT]}
    unknown = "the trace has no GPU events"

    def missing(self, scene: Scene) -> bool:
        return not scene.p.devices

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        pct = scene.pct("collective")
        if pct < limits[LIMIT]:
            return
        yield self.of_steps(
            scene,
            pct,
            f"Communication that nothing hides takes {pct:.0f} % of the {scene.whole}",
            of_runs.advice(scene.run),
            threshold={LIMIT: limits[LIMIT]},
            evidence={LIMIT: pct},
        )
