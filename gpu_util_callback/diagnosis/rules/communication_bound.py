"""Communication-bound: GPUs exchange gradients while no kernels run."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.advice.snippets import (
    has_keras_fit,
    larger_batch,
    no_room,
    room_for,
)
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.evidence.windows import stretches_of, traced_gpus
from gpu_util_callback.diagnosis.finding import Advice, Evidence, Finding, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold

__all__ = ["CommunicationBound"]

LESS_OFTEN = 4  # a quarter of the exchanges is left


class CommunicationBound(Rule):
    """Collectives not hidden by kernels take a good part of the traced steps."""

    cause = "communication_bound"
    title = "Communication-bound"
    sources = ("profiler windows",)
    thresholds: ClassVar = {
        "exposed_collective_pct": Threshold(
            10, "torch-tb-profiler warns at 10 % communication, XProf calls 15 % high"
        ),
    }
    unknown = "no profiler window shows the collectives"
    unknown_in_trace = "the trace has no GPU events"

    def missing(self, run: Run) -> bool:
        return not traced_gpus(run)

    def find(self, run: Run, limits: Limits) -> Iterable[Finding]:
        limit = limits["exposed_collective_pct"]
        for share in stretches_of(run, limit, "collective"):
            evidence: Evidence = {
                "exposed_collective_pct": run.rounded(share.pct, 1),
                "collective_ms_per_step": run.rounded(share.ms_per_step, 3),
                "gpus": len(run.used_gpus) or len(share.gpus),
            }
            if run.source is None:
                evidence["world_size"] = run.manifest.get("world_size")
            yield share.loss(
                self,
                _advice(run),
                threshold={"exposed_collective_pct": limit},
                evidence=evidence,
                of_trace=f"Communication that nothing hides takes {share.pct:.0f} % of the "
                f"{share.whole}",
            )


def _advice(run: Run) -> Advice:
    """Return advice on exchanging gradients: less often."""
    text = "The GPUs exchange gradients for longer than the computation hides. "
    if run.framework == "torch" and not has_keras_fit(run):
        return Advice(
            f"{text}Add up the gradients of {LESS_OFTEN} batches, and exchange them once.",
            f"last = step % {LESS_OFTEN} == {LESS_OFTEN - 1}\n"
            "with contextlib.nullcontext() if last else model.no_sync():\n"
            f"    (loss_function(model(x), y) / {LESS_OFTEN}).backward()\n"
            "if last:\n"
            "    optimizer.step()\n"
            "    optimizer.zero_grad()",
            1 - 1 / LESS_OFTEN,
        )
    # Keras' gradient_accumulation_steps is no remedy: it fails under tf.distribute, and on JAX the
    # gradients of each step are exchanged before they are added up.
    factor = room_for(run, LESS_OFTEN)
    if factor < 2:
        return no_room(run, text)
    larger, often = ("twice", "half") if factor == 2 else (f"{factor} times", "a quarter")
    return Advice(
        f"{text}With a batch {larger} as large they do so {often} as often; raise the learning "
        "rate with it.",
        larger_batch(run, factor),
        1 - 1 / factor,
        alters_training=True,
    )
