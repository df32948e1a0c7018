"""Contention: other processes compute on the same GPU."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis._fixes import command, driver_number
from gpu_util_callback.diagnosis._rule import ESTIMATED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._sampled import sampled
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold
from gpu_util_callback.diagnosis._worth import worth_telling

__all__ = ["Contention"]

OTHERS = "utilization_other_pct"
IDLE_PCT = 3  # a monitor's kernels read 0-1 %


class Contention(Rule):
    """Processes that are not ours keep the GPU's SMs busy while we train.

    Memory that others hold costs no time; only their work does. What it costs is their share of the
    GPU's time, an estimate: two light processes may run side by side without disturbing each other,
    so it counts only beside a GPU that is full.
    """

    cause = "contention"
    title = "Others use this GPU"
    sources = ("utilization by process", "GPU utilization")
    thresholds: ClassVar = {
        "others_active_pct": Threshold(10, "a desktop or a monitor takes 1-5 % of a GPU"),
        "gpu_active_pct": Threshold(80, "while the GPU has time left, nobody takes it from us"),
        "min_s": Threshold(
            2, "the driver's utilization is a mean over up to a second; two make a state"
        ),
        "min_run_pct": Threshold(2, "below 2 % of the run it does not show"),
    }
    unknown = "what other processes do on the GPU was not sampled"

    def missing(self, run: Run) -> bool:
        return not any(run.column(gpu, OTHERS) for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        return worth_telling(self._spans(run, limits), run.present_ns, limits)

    def _spans(self, run: Run, limits: Limits) -> Iterable[Loss]:
        for gpu in run.used_gpus:
            if (run.highest(gpu, OTHERS) or 0) < limits["others_active_pct"]:
                continue
            seen = sampled(run, gpu, OTHERS)
            if seen is None:
                continue
            others, use = seen.at(OTHERS), seen.at("utilization_pct")
            full = np.nan_to_num(use) >= limits["gpu_active_pct"]
            # While we ask nothing of the GPU, whoever uses it takes nothing from us.
            taken = others - run.stalled_pct(seen.start_ns, seen.length_ns)
            lost = np.where(full, seen.length_ns * np.clip(taken, 0, 100) / 100, 0)
            enter = limits["others_active_pct"] / 100
            for where, mask in seen.spans(lost, enter=enter, min_s=limits["min_s"]):
                total = int(np.nansum(lost[mask]))
                memory = seen.at("memory_other_bytes")[mask]
                known = np.isfinite(memory).any()
                yield Loss(
                    cause=self.cause,
                    title=f"{self.title} (gpu{gpu})",
                    where=where,
                    lost_ns=total,
                    confidence=ESTIMATED,
                    evidence={
                        "gpu": gpu,
                        "others_active_pct": round(float(np.nanmean(others[mask])), 1),
                        "gpu_active_pct": round(float(np.nanmean(use[mask])), 1),
                        "others_memory_gib": round(float(np.nanmax(memory)) / 2**30, 2)
                        if known else None,
                    },
                    threshold={
                        "others_active_pct": limits["others_active_pct"],
                        "gpu_active_pct": limits["gpu_active_pct"],
                    },
                    advice=_advice(run, gpu, limits["others_active_pct"]),
                    gpus=[gpu],
                    detail=f"gpu{gpu}",
                )  # fmt: skip


def _advice(run: Run, gpu: int, limit: float) -> Advice:
    """Another GPU where there is one that nobody computes on; else who it is."""
    says = f"Another program computes on gpu{gpu}, and the two take turns. "
    free = [other for other in run.gpus if _free(run, other, gpu, limit)]
    if free:
        other = int(free[0]["index"])
        return Advice(
            f"{says}gpu{other} has nothing to do: train there.",
            command(
                run,
                f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={driver_number(run, other)}",
            ),
        )
    return Advice(
        f"{says}Train on another GPU, or agree on who has this one.",
        f"nvidia-smi pmon -i {driver_number(run, gpu)} -c 1  # shows whose it is",
    )


def _free(run: Run, other: Mapping, gpu: int, limit: float) -> bool:
    """Whether another GPU is known to do nothing, for us or for anybody else."""
    index = other.get("index")
    if index is None or index == gpu or (run.highest(int(index), OTHERS) or 0) >= limit:
        return False
    seen = run.gpu_mean(int(index), "utilization_pct", run.start_ns, run.end_ns)
    return seen is not None and seen[0] < IDLE_PCT
