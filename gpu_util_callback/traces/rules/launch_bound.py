"""Launch-bound: the GPU waits for the host between many short kernels."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.rules import launch_bound as of_runs
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.traces.model import PS_PER_US
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["LaunchBound"]

LIMIT, LENGTH, COUNT, LINKED = (
    "idle_launch_pct", "mean_kernel_us", "kernels_per_step", "linked_kernels_pct",
)  # fmt: skip


class LaunchBound(TraceRule):
    """The GPU idles between launches for a good part of the steps, and its kernels are short."""

    cause = "launch_bound"
    title = of_runs.LaunchBound.title
    sources = ("steps", "GPU events", "the launch of each kernel")
    thresholds: ClassVar = {
        LIMIT: of_runs.LaunchBound.thresholds[LIMIT],
        LENGTH: of_runs.LaunchBound.thresholds[LENGTH],
        COUNT: Threshold(10, "fewer: their launches are not what a step consists of"),
        LINKED: Threshold(50, "of most kernels it must be known what started them"),
    }
    unknown = "the trace shows no steps with enough GPU work, or no launches"

    def missing(self, scene: Scene) -> bool:
        linked = sum(d.launches.linked for d in scene.p.active)
        return not (scene.p.idle_judged and linked)

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        active = scene.p.active
        kernels = sum(d.launches.kernels for d in active)
        linked = 100 * sum(d.launches.linked for d in active) / kernels
        pct = scene.pct("idle_launch")
        mean_us = sum(k.total_ps for d in active for k in d.kernels) / kernels / PS_PER_US
        per_step = kernels / len(scene.p.steps) / len(active)
        if pct < limits[LIMIT] or linked < limits[LINKED]:
            return
        if mean_us > limits[LENGTH] or per_step < limits[COUNT]:
            return
        yield self.of_steps(
            scene,
            pct,
            f"The GPU waits {pct:.0f} % of the time between short kernels",
            of_runs.advice(scene.run, round(per_step)),
            threshold={name: limits[name] for name in (LIMIT, LENGTH, COUNT, LINKED)},
            evidence={
                LIMIT: pct,
                LENGTH: mean_us,
                COUNT: per_step,
                LINKED: linked,
                "short_kernels_pct": max(100 * (d.launches.short_share or 0.0) for d in active),
            },
        )
