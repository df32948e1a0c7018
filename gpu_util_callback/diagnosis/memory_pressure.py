"""Memory pressure: the allocator itself is full, frees its cache and tries again, or fails."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis._allocator import Allocator, allocator
from gpu_util_callback.diagnosis._rule import MEASURED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold

__all__ = ["MemoryPressure"]


class MemoryPressure(Rule):
    """What the framework really uses comes near to what it may take.

    VRAM that is "used" according to the driver is no evidence: TensorFlow and JAX take nearly all
    of it at the start, whatever the model needs.
    """

    cause = "memory_pressure"
    title = "GPU memory is full"
    sources = ("the framework's allocator",)
    thresholds: ClassVar = {
        "allocator_used_pct": Threshold(
            95, "torch-tb-profiler warns at 90 % of the device; a pool is fine up to its end"
        ),
        "retries": Threshold(1, "each retry frees the cache and synchronises the GPU"),
    }
    unknown = "the framework does not tell what its allocator uses"

    def missing(self, run: Run) -> bool:
        return not any(allocator(run, gpu) for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        for gpu in run.used_gpus:
            memory = allocator(run, gpu)
            if memory is None or _limited(memory):
                continue
            troubled = (memory.retries or 0) + (memory.out_of_memory or 0) >= limits["retries"]
            if memory.used_pct < limits["allocator_used_pct"] and not troubled:
                continue
            evidence: dict[str, object] = {
                "gpu": gpu,
                "allocator_used_pct": round(memory.used_pct, 1),
                "allocator_peak_gib": round(memory.peak / 2**30, 2),
                "allocator_limit_gib": round(memory.limit / 2**30, 2),
                "retries": memory.retries,
                "out_of_memory": memory.out_of_memory,
            }
            yield Loss(
                cause=self.cause,
                title=f"{self.title} (gpu{gpu})",
                where=None,
                lost_ns=None,
                confidence=MEASURED,
                evidence=evidence,
                threshold={
                    "allocator_used_pct": limits["allocator_used_pct"],
                    "retries": limits["retries"],
                },
                advice=_advice(run),
                gpus=[gpu],
                detail=f"gpu{gpu}",
            )


def _limited(memory: Allocator) -> bool:
    """Whether a limit, not the device, is what is full; memory_limit speaks of that."""
    return memory.total is not None and memory.limit < 0.7 * memory.total


def _advice(run: Run) -> Advice:
    policy = str(run.fact("fit", "mixed_precision", default=""))
    text = "The allocator has no room left: the next larger batch or input fails. "
    if not policy.startswith("mixed"):
        return Advice(
            text + "Mixed precision nearly halves what activations take.",
            'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
        )
    batch = run.fact("fit", "batch_size")
    size = str(max(1, int(batch) // 2)) if isinstance(batch, (int, float)) else "batch_size // 2"
    return Advice(
        text + "Halve the batch and add gradients up over two of them, or recompute activations.",
        f"model.fit(..., batch_size={size})  # with gradient_accumulation_steps=2",
    )
