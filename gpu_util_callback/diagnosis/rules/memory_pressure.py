"""Memory pressure: the allocator itself is full, frees its cache and retries, or fails."""

from dataclasses import replace

from gpu_util_callback.diagnosis.advice import memory as memory_advice
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import Allocator, allocator
from gpu_util_callback.diagnosis.rule import Advice, Evidence, Findings, Rule
from gpu_util_callback.diagnosis.rules.memory_limit import MemoryLimit
from gpu_util_callback.diagnosis.thresholds import FULL_PCT, Limits, Threshold
from gpu_util_callback.words import gpu_names


class MemoryPressure(Rule):
    """The framework's actual memory use comes near to its limit.

    VRAM that is "used" according to the driver is no evidence: TensorFlow and JAX take nearly all
    of it at the start, whatever the model needs.
    """

    cause = "memory_pressure"
    title = "GPU memory is full"
    look = "▤", "red"
    sources = ("the framework's allocator",)
    thresholds = {
        "allocator_used_pct": FULL_PCT,
        "retries": Threshold(
            4,
            "each frees the cache and synchronizes the GPU; cuDNN alone causes one or two when it "
            "tries a large workspace in the first steps",
        ),
    }
    unknown = "the framework does not report what its allocator uses"

    def missing(self, run: Run) -> bool:
        return not any(allocator(run, gpu) for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Findings:
        full = {
            gpu: memory
            for gpu in run.used_gpus
            if (memory := allocator(run, gpu)) and not _limited(memory) and _fired(memory, limits)
        }
        if not full:
            return
        # One line for all GPUs: they hold the same model.
        gpu = max(full, key=lambda index: (len(_fired(full[index], limits)), full[index].used_pct))
        memory, fired = full[gpu], _fired(full[gpu], limits)
        yield self.finding(
            title=f"{self.title} ({gpu_names(list(full))})",
            evidence={
                "gpu": gpu,
                "allocator_used_pct": round(memory.used_pct, 1),
                "allocator_peak_gib": round(memory.peak / 2**30, 2),
                "allocator_limit_gib": round(memory.limit / 2**30, 2),
                "retries": memory.retries,
                "out_of_memory": memory.out_of_memory,
            },
            threshold=fired,
            advice=_advice(run, gpu, "retries" in fired),
            gpus=full,
        )


def _fired(memory: Allocator, limits: Limits) -> Evidence:
    """Return the limits that are reached.

    PyTorch retries before it reports "out of memory": those count among the retries.
    """
    values = {"allocator_used_pct": memory.used_pct, "retries": memory.retries or 0}
    return {name: limits[name] for name, value in values.items() if value >= limits[name]}


def _limited(memory: Allocator) -> bool:
    """Return whether a low limit is full, not the device: `memory_limit` reports that."""
    return memory.total is not None and 100 * memory.limit < MemoryLimit.thresholds["limit_pct"].default * memory.total


def _advice(run: Run, gpu: int, retries: bool) -> Advice:
    """Return the advice to use less memory; `retries`: the allocator already frees its cache."""
    text = "The model and its batch fill the GPU's memory: the next larger input fails. "
    text += "The allocator frees its cache and tries again, which stops the GPU each time. " * retries
    less = memory_advice.smaller(run, gpu, None)
    return replace(less, text=text + less.text)
