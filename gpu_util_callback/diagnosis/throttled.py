"""Throttled: the GPU clocks down because it is hot, or because its power is limited."""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis._rule import ESTIMATED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._sampled import RARE_NS, Sampled, sampled
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold
from gpu_util_callback.diagnosis._worth import worth_telling

__all__ = ["Throttled"]

# column -> (what people call it, whether it is a fault by itself)
_REASONS = {
    "throttle_thermal_pct": ("thermal", True),
    "throttle_other_pct": ("hardware slowdown", True),
    "throttle_power_pct": ("power limit", False),
}


class Throttled(Rule):
    """A GPU under load runs below its clock, and the driver says that it was slowed down.

    The power cap is the normal state of a data-centre GPU at full load: it counts only where
    somebody lowered the limit below the board's own. What is lost is the missing share of the
    clock while kernels ran: an estimate, since memory-bound kernels do not follow the core clock.
    """

    cause = "throttled"
    title = "Throttled"
    sources = ("throttle times of the GPU", "SM clock", "GPU utilization")
    thresholds: ClassVar = {
        "throttled_pct": Threshold(
            20, "a slowdown of a fifth of the time is a state; shorter ones are regulation"
        ),
        "clock_deficit_pct": Threshold(
            5, "below its full clock by less than 5 % the step time differs by less than noise"
        ),
        "power_deficit_pct": Threshold(
            10, "boards hold their power by 5-10 % of clock even at their own limit"
        ),
        "loaded_pct": Threshold(50, "an idle GPU lowers its clock by itself"),
        "min_s": Threshold(
            2, "the driver's utilization is a mean over up to a second; two make a state"
        ),
        "min_run_pct": Threshold(1, "below 1 % of the run, mending it does not show"),
    }
    unknown = "throttle times and clocks of the GPU were not sampled"

    def missing(self, run: Run) -> bool:
        return not any(
            run.column(gpu, column) and run.column(gpu, "sm_clock_mhz")
            for gpu in run.used_gpus for column in _REASONS
        )  # fmt: skip

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        return worth_telling(self._spans(run, limits), run.present_ns, limits)

    def _spans(self, run: Run, limits: Limits) -> Iterable[Loss]:
        for gpu in run.used_gpus:
            for column, (word, fault) in _REASONS.items():
                yield from self._of_gpu(run, limits, gpu, column, word, fault)

    def _of_gpu(self, run, limits, gpu: int, column: str, word: str, fault: bool) -> Iterable[Loss]:
        if (run.highest(gpu, column) or 0) < limits["throttled_pct"]:
            return
        seen = sampled(run, gpu, column)
        if seen is None:
            return
        share, clock, use = seen.at(column), seen.at("sm_clock_mhz"), seen.at("utilization_pct")
        full = _full_clock(run, gpu, seen, share, clock, use, limits["loaded_pct"])
        if full is None:
            return
        loaded = (use >= limits["loaded_pct"]) & (share > 0)
        deficit = np.clip(1 - clock / full, 0, 1)
        deficit = np.where(loaded, deficit, 0)
        if not fault:
            deficit = np.where(_lowered(run, gpu, seen), deficit, 0)
        lost = seen.length_ns * deficit * np.clip(use, 0, 100) / 100
        least = limits["clock_deficit_pct" if fault else "power_deficit_pct"]
        for where, mask in seen.spans(lost, enter=least / 100, min_s=limits["min_s"]):
            time = seen.length_ns[mask]
            throttled = float(np.average(np.nan_to_num(share[mask]), weights=time))
            total = int(np.nansum(lost[mask]))
            if throttled < limits["throttled_pct"]:
                continue
            slow = float(np.nanmean(clock[mask]))
            hot = seen.at("temperature_c")[mask]
            evidence: dict[str, object] = {
                "gpu": gpu,
                "reason": word,
                "throttled_pct": round(throttled, 1),
                "clock_deficit_pct": round(100 * (1 - slow / full), 1),
                "clock_mhz": round(slow),
                "full_clock_mhz": round(full),
                "temperature_c": round(float(np.nanmax(hot))) if np.isfinite(hot).any() else None,
            }
            yield Loss(
                cause=self.cause,
                title=f"Throttled ({word})",
                where=where,
                lost_ns=total,
                confidence=ESTIMATED,
                evidence=evidence,
                threshold={"throttled_pct": limits["throttled_pct"], "clock_deficit_pct": least},
                advice=_advice(run, gpu, word),
                gpus=[gpu],
                detail=f"gpu{gpu}.{word}",
            )


def _lowered(run: Run, gpu: int, seen: Sampled) -> np.ndarray:
    """Where the power limit was below what the board is made for; shape `(n,)`."""
    facts = run.gpu(gpu)
    default, known = facts.get("power_default_mw") or 0, facts.get("power_limit_mw")
    limit = seen.at("power_limit_mw", RARE_NS)
    limit = np.where(np.isnan(limit), known or np.nan, limit)
    return np.nan_to_num(limit, nan=np.inf) < 0.98 * default


def _full_clock(run, gpu: int, seen: Sampled, share, clock, use, loaded_pct: float) -> float | None:
    """The clock under load without throttling: what this run reached, else the board's maximum."""
    free = (use >= loaded_pct) & (share < 1) & np.isfinite(clock)
    if free.sum() >= 20:
        return float(np.percentile(clock[free], 90))
    known = run.gpu(gpu).get("sm_clock_max_mhz")
    if known:
        return float(known)
    highest = seen.at("sm_clock_max_mhz")
    return float(np.nanmax(highest)) if np.isfinite(highest).any() else None


def _advice(run: Run, gpu: int, word: str) -> Advice:
    index = run.gpu(gpu).get("nvml_index")
    which = gpu if index is None else index
    if word == "thermal":
        return Advice(
            f"gpu{gpu} is too hot and slows itself down. Check its fans and the air in front of "
            "it; a lower power limit often loses less than the heat does.",
            f"nvidia-smi -i {which} -q -d TEMPERATURE,PERFORMANCE",
        )
    if word == "power limit":
        default = run.gpu(gpu).get("power_default_mw") or 0
        return Advice(
            f"The power limit of gpu{gpu} was set below the board's own, and it slows down for it.",
            f"sudo nvidia-smi -i {which} -pl {default / 1000:.0f}",
        )
    return Advice(
        f"The board of gpu{gpu} slows the GPU down by itself (power brake or slowdown signal): its "
        "power supply or cooling needs a look.",
        f"nvidia-smi -i {which} -q -d PERFORMANCE,POWER",
    )
