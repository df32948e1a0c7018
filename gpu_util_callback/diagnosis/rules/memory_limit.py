"""Memory limit: the framework may use a small part of the GPU's memory, and that part is full."""

from gpu_util_callback.diagnosis.advice.snippets import idioms
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import Allocator, allocator
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.words import gpu_names


class MemoryLimit(Rule):
    """The allocator is nearly full, and its limit is far below the device's memory."""

    cause = "memory_limit"
    title = "Memory limit too low"
    look = "▥", "teal"
    sources = ("the framework's allocator and its limit", "memory of the GPU")
    thresholds = {
        "limit_pct": Threshold(70, "TensorFlow and JAX take 75-95 % of the device by default"),
        "allocator_used_pct": Threshold(90, "a limit that is not reached does no harm"),
    }
    unknown = "the framework does not report its allocator's limit"

    def missing(self, run: Run) -> bool:
        return not any((memory := allocator(run, gpu)) and memory.total for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Findings:
        low = {
            gpu: memory
            for gpu in run.used_gpus
            if (memory := allocator(run, gpu))
            and memory.total
            and _share(memory) < limits["limit_pct"]
            and memory.used_pct >= limits["allocator_used_pct"]
        }
        if not low:
            return
        gpu = max(low, key=lambda index: low[index].used_pct)
        memory, total = low[gpu], low[gpu].total or 0.0
        yield self.finding(
            title=f"{self.title} ({gpu_names(list(low))})",
            evidence={
                "gpu": gpu,
                "limit_pct": round(_share(memory), 1),
                "allocator_used_pct": round(memory.used_pct, 1),
                "limit_gib": round(memory.limit / 2**30, 2),
                "device_gib": round(total / 2**30, 2),
            },
            advice=Advice(
                f"The framework is limited to {memory.limit / 2**30:.1f} of the GPU's {total / 2**30:.0f} GiB, and "
                "has used nearly all of it. Raise that limit.",
                idioms(run).memory_limit,
                proof="tests/cures/test_advice_gpus.py::test_a_memory_limit_is_raised",
            ),
            gpus=low,
        )


def _share(memory: Allocator) -> float:
    """Return the limit in percent of the device's memory."""
    return 100 * memory.limit / (memory.total or memory.limit)
