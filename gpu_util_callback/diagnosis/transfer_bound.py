"""Transfer-bound: copies between host and GPU that nothing hides, or a link that is too slow."""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis._rule import ESTIMATED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._sampled import link_bytes_per_s, sampled
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold
from gpu_util_callback.diagnosis._windows import share_of, traced_gpus

__all__ = ["TransferBound"]


class TransferBound(Rule):
    """Profiler windows show exposed copies; or PCIe traffic fills the link for a while.

    A link below its best generation or width is normal at idle, and of no importance while little
    is copied: it is named only where the traffic fills it.
    """

    cause = "transfer_bound"
    title = "Transfer-bound"
    sources = ("profiler windows", "or: PCIe traffic and link of the GPU")
    thresholds: ClassVar = {
        "exposed_copy_pct": Threshold(
            10, "TraceLens flags 5 % per direction; two directions make ten"
        ),
        "link_used_pct": Threshold(
            70, "a PCIe link delivers 75-85 % of its nominal rate: from 70 % on it is full"
        ),
        "min_s": Threshold(
            2, "the driver's utilization is a mean over up to a second; two make a state"
        ),
        "min_run_pct": Threshold(2, "below 2 % of the run, mending it does not show"),
    }
    unknown = "neither profiler windows nor PCIe traffic were recorded"

    def missing(self, run: Run) -> bool:
        return not traced_gpus(run) and not any(
            run.column(gpu, "pcie_rx_bytes_per_s") for gpu in run.used_gpus
        )

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        traced = list(self._traced(run, limits))
        yield from traced
        if not traced_gpus(run):
            for gpu in run.used_gpus:
                yield from self._full_link(run, limits, gpu)

    def _traced(self, run: Run, limits: Limits) -> Iterable[Loss]:
        share = share_of(run, "copy_h2d", "copy_d2h")
        if share is None or share.pct < limits["exposed_copy_pct"]:
            return
        down, up = share_of(run, "copy_h2d"), share_of(run, "copy_d2h")
        assert down is not None and up is not None
        degraded = next((text for gpu in share.gpus if (text := _degraded(run, gpu))), None)
        yield Loss(
            cause=self.cause,
            title=self.title,
            where=None,
            lost_ns=share.lost_ns,
            confidence=ESTIMATED,
            evidence={
                "exposed_copy_pct": round(share.pct, 1),
                "to_gpu_ms_per_step": round(down.ms_per_step, 3),
                "from_gpu_ms_per_step": round(up.ms_per_step, 3),
                "pcie_link": degraded,
                "traced_steps": share.steps,
            },
            threshold={"exposed_copy_pct": limits["exposed_copy_pct"]},
            advice=_advice(run, degraded, up.ms_per_step > down.ms_per_step),
            gpus=list(share.gpus),
        )

    def _full_link(self, run: Run, limits: Limits, gpu: int) -> Iterable[Loss]:
        seen = sampled(run, gpu, "pcie_rx_bytes_per_s")
        if seen is None:
            return
        rate = np.fmax(seen.at("pcie_rx_bytes_per_s"), seen.at("pcie_tx_bytes_per_s"))
        generation, width = seen.at("pcie_generation"), seen.at("pcie_width")
        limit = link_bytes_per_s(generation, width)
        use = 100 * rate / limit
        full = np.nan_to_num(use) >= limits["link_used_pct"]
        if not full.any():
            return
        active = np.nan_to_num(seen.at("utilization_pct"), nan=100.0)
        # Copies run beside kernels: only idle time can have been lost to them.
        lost = np.where(full, seen.length_ns * (1 - np.clip(active, 0, 100) / 100), 0)
        for where, mask in seen.spans(lost, enter=0.05, min_s=limits["min_s"]):
            total = int(lost[mask].sum())
            if total < limits["min_run_pct"] / 100 * run.wall_ns:
                continue
            degraded = _degraded(run, gpu)
            yield Loss(
                cause=self.cause,
                title=f"{self.title} (gpu{gpu}: the PCIe link is full)",
                where=where,
                lost_ns=total,
                confidence=ESTIMATED,
                evidence={
                    "link_used_pct": round(float(np.nanmean(use[mask & full])), 1),
                    "gb_per_s": round(float(np.nanmean(rate[mask & full])) / 1e9, 2),
                    "link_gb_per_s": round(float(np.nanmean(limit[mask])) / 1e9, 2),
                    "gpu_active_pct": round(float(np.mean(active[mask])), 1),
                    "pcie_link": degraded,
                },
                threshold={"link_used_pct": limits["link_used_pct"]},
                advice=_advice(run, degraded, False),
                gpus=[gpu],
                detail=f"gpu{gpu}",
            )


def _degraded(run: Run, gpu: int) -> str | None:
    """The link under load against what it could be, where it is less."""
    facts = run.gpu(gpu)
    best_generation, best_width = facts.get("pcie_generation_max"), facts.get("pcie_width_max")
    generation, width = (run.highest(gpu, name) for name in ("pcie_generation", "pcie_width"))
    if not (best_generation and best_width and generation and width):
        return None
    if generation >= best_generation and width >= best_width:
        return None
    return (
        f"generation {generation:.0f} x{width:.0f}, "
        f"could be generation {best_generation} x{best_width}"
    )


def _advice(run: Run, degraded: str | None, from_gpu: bool) -> Advice:
    if degraded:
        return Advice(
            f"The PCIe link runs below what it could ({degraded}). Reseat the card, use another "
            "slot, or look for a riser cable and a BIOS setting.",
            "nvidia-smi -q -d PCI  # or: lspci -vv | grep LnkSta",
        )
    if from_gpu:
        return Advice(
            "Results are copied back in every step. Return fewer outputs from the step and keep "
            "metrics on the GPU.",
            "",
        )
    if run.framework == "torch":
        return Advice(
            "Batches are copied to the GPU while it has nothing else to do. Copy from pinned "
            "memory, ahead of time, and send small types (uint8 images).",
            "x = x.to(device, non_blocking=True)  # with DataLoader(..., pin_memory=True)",
        )
    if run.framework == "jax":
        return Advice(
            "Batches are copied to the GPU while it has nothing else to do. Send small types "
            "(uint8 images) and convert on the GPU.",
            "layers.Rescaling(1 / 255)  # first layer; feed uint8",
        )
    return Advice(
        "Batches are copied to the GPU while it has nothing else to do. Copy the next one while "
        "this one computes, and send small types (uint8 images), converted on the GPU.",
        'ds = ds.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))',
    )
