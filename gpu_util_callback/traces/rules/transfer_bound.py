"""Transfer-bound: copies between host and GPU that do not overlap with kernels."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.rules import transfer_bound as of_runs
from gpu_util_callback.diagnosis.thresholds import Limits
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["TransferBound"]

LIMIT = "exposed_copy_pct"


class TransferBound(TraceRule):
    """Copies not overlapped by kernels take a good part of the steps, or of the trace."""

    cause = "transfer_bound"
    title = of_runs.TransferBound.title
    sources = ("GPU events",)
    thresholds: ClassVar = {LIMIT: of_runs.TransferBound.thresholds[LIMIT]}
    unknown = "the trace has no GPU events"

    def missing(self, scene: Scene) -> bool:
        return not scene.p.devices

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        down, up = scene.pct("copy_h2d"), scene.pct("copy_d2h")
        pct = down + up
        if pct < limits[LIMIT]:
            return
        copies = [c for d in scene.p.active for c in d.copies if c.direction in ("h2d", "d2h")]
        pageable = sum(c.total_ps for c in copies if c.memory == "pageable")
        total = sum(c.total_ps for c in copies) or 1
        worst = max(copies, key=lambda c: c.total_ps, default=None)
        yield self.of_steps(
            scene,
            pct,
            f"Copies that nothing hides take {pct:.0f} % of the {scene.whole}",
            of_runs.advice(scene.run, None, up > down),
            threshold={LIMIT: limits[LIMIT]},
            evidence={
                LIMIT: pct,
                "exposed_h2d_pct": down,
                "exposed_d2h_pct": up,
                "pageable_pct": 100 * pageable / total,
                "gb_per_s": worst.gb_per_s if worst else None,
                "bytes": sum(c.bytes or 0 for c in copies) or None,
            },
        )
