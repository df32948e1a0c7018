"""Sync-bound: the host waits for the GPU, and the GPU then for the host."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.rules import sync_bound as of_runs
from gpu_util_callback.diagnosis.thresholds import Limits
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["SyncBound"]

LIMIT = "idle_sync_pct"


class SyncBound(TraceRule):
    """The GPU ran dry while the host waited for it or for a result of it."""

    cause = "sync_bound"
    title = of_runs.SyncBound.title
    sources = ("steps", "GPU events", "calls of the host")
    thresholds: ClassVar = {LIMIT: of_runs.SyncBound.thresholds[LIMIT]}
    unknown = "the trace shows no steps with enough GPU work, or nothing of the host"

    def missing(self, scene: Scene) -> bool:
        return not (scene.p.devices and scene.p.idle_judged and scene.p.process.has_host)

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        pct = scene.pct("idle_sync")
        if pct < limits[LIMIT]:
            return
        yield self.of_steps(
            scene,
            pct,
            f"The GPU runs dry {pct:.0f} % of the time because the host waits for it",
            of_runs.advice(scene.run),
            threshold={LIMIT: limits[LIMIT]},
            evidence={LIMIT: pct},
        )
