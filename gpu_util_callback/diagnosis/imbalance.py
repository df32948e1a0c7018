"""Imbalance: GPUs that share one training do unequal work, and the others wait for the slowest."""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis._rule import ESTIMATED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._sampled import sampled
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold

__all__ = ["Imbalance"]


class Imbalance(Rule):
    """The most and the least busy GPU of one process are far apart for a while.

    GPUs without any work are `gpus_unused`; workers of a job are compared in the session.
    """

    cause = "imbalance"
    title = "GPUs do unequal work"
    sources = ("GPU utilization of each GPU",)
    thresholds: ClassVar = {
        "gap_pct": Threshold(
            25, "utilization scatters by 5-10 points between equal GPUs; 25 are a quarter idle"
        ),
        "least_active_pct": Threshold(2, "below, the GPU has no work at all: gpus_unused"),
        "min_s": Threshold(
            2, "the driver's utilization is a mean over up to a second; two make a state"
        ),
        "worker_wait_pct": Threshold(
            5, "ranks of one job: waits that differ by 5 % of the step are no scatter"
        ),
        "min_run_pct": Threshold(2, "below 2 % of the run, mending it does not show"),
    }
    unknown = "fewer than two GPUs of this process were sampled"

    def missing(self, run: Run) -> bool:
        seen = [gpu for gpu in run.used_gpus if run.column(gpu, "utilization_pct")]
        return len(seen) < 2

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        series = {gpu: one for gpu in run.used_gpus
                  if (one := sampled(run, gpu, "utilization_pct")) is not None}  # fmt: skip
        if len(series) < 2:
            return
        first = next(iter(series.values()))
        use = np.stack([_on(first.start_ns, one.start_ns, one.at("utilization_pct"))
                        for one in series.values()])  # fmt: skip
        working = np.nanmax(np.nan_to_num(use), axis=1) >= limits["least_active_pct"]
        overall = np.array([np.nanmean(row) if np.isfinite(row).any() else 0 for row in use])
        working &= overall >= limits["least_active_pct"]
        if working.sum() < 2:
            return
        gpus = [gpu for gpu, works in zip(series, working, strict=True) if works]
        use = use[working]
        # A second's mean: single samples of GPUs that work in turns are not alike.
        smooth = np.stack([_smoothed(row, first.length_ns) for row in use])
        most, mean = np.nanmax(smooth, axis=0), np.nanmean(smooth, axis=0)
        gap = most - np.nanmin(smooth, axis=0)
        uneven = gap >= limits["gap_pct"]
        lost = np.where(uneven, first.length_ns * (most - mean) / 100, 0)
        for where, mask in first.spans(lost, enter=0.05, min_s=limits["min_s"]):
            total = int(lost[mask].sum())
            spread = np.nanmean(use[:, mask], axis=1)
            if total < limits["min_run_pct"] / 100 * run.wall_ns:
                continue
            if float(spread.max() - spread.min()) < limits["gap_pct"]:
                continue
            low, high = gpus[int(spread.argmin())], gpus[int(spread.argmax())]
            yield Loss(
                cause=self.cause,
                title=self.title,
                where=where,
                lost_ns=total,
                confidence=ESTIMATED,
                evidence={
                    "gap_pct": round(float(spread.max() - spread.min()), 1),
                    "busiest": f"gpu{high}",
                    "busiest_active_pct": round(float(spread.max()), 1),
                    "least_busy": f"gpu{low}",
                    "least_active_pct": round(float(spread.min()), 1),
                },
                threshold={"gap_pct": limits["gap_pct"]},
                advice=Advice(
                    f"gpu{high} works {spread.max():.0f} % of the time, gpu{low} "
                    f"{spread.min():.0f} %: every step waits for the busiest. Give each the same "
                    "share of the batch, and keep extra work off the first GPU.",
                    "global_batch = per_gpu_batch * strategy.num_replicas_in_sync"
                    if run.framework == "tensorflow" else "",
                ),
                gpus=gpus,
            )  # fmt: skip


def _on(times: np.ndarray, stamps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values at other times: those of the sample before."""
    at = np.clip(np.searchsorted(stamps, times, side="right") - 1, 0, len(stamps) - 1)
    return values[at]


def _smoothed(values: np.ndarray, length_ns: np.ndarray) -> np.ndarray:
    """Means over about two seconds."""
    count = max(1, min(len(values), round(2e9 / max(1.0, float(np.median(length_ns))))))
    kernel = np.ones(count)
    known = np.isfinite(values)
    sums = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    counts = np.convolve(known.astype(float), kernel, mode="same")
    return sums / np.maximum(counts, 1)
