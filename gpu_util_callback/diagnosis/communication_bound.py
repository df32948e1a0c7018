"""Communication-bound: GPUs exchange gradients and nothing runs beside it."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis._rule import ESTIMATED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold
from gpu_util_callback.diagnosis._windows import share_of, traced_gpus

__all__ = ["CommunicationBound"]


class CommunicationBound(Rule):
    """Collectives that no kernel hides take a good part of the traced steps."""

    cause = "communication_bound"
    title = "Communication-bound"
    sources = ("profiler windows",)
    thresholds: ClassVar = {
        "exposed_collective_pct": Threshold(
            10, "torch-tb-profiler warns at 10 % communication, XProf calls 15 % high"
        ),
    }
    unknown = "no profiler window shows the collectives"

    def missing(self, run: Run) -> bool:
        return not traced_gpus(run)

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        share = share_of(run, "collective")
        if share is None or share.pct < limits["exposed_collective_pct"]:
            return
        yield Loss(
            cause=self.cause,
            title=self.title,
            where=None,
            lost_ns=share.lost_ns,
            confidence=ESTIMATED,
            evidence={
                "exposed_collective_pct": round(share.pct, 1),
                "collective_ms_per_step": round(share.ms_per_step, 3),
                "gpus": len(run.used_gpus) or len(share.gpus),
                "world_size": run.fact("world_size"),
                "traced_steps": share.steps,
            },
            threshold={"exposed_collective_pct": limits["exposed_collective_pct"]},
            advice=_advice(run),
            gpus=list(share.gpus),
        )


def _advice(run: Run) -> Advice:
    text = (
        "Exchanging gradients takes longer than the computation can hide. Exchange less often "
        "(add up gradients over several batches), with a larger batch, or in 16 bits."
    )
    if run.framework == "torch":
        return Advice(text, "with model.no_sync(): ...  # in all but every 4th batch")
    return Advice(text, "keras.optimizers.Adam(gradient_accumulation_steps=4)")
