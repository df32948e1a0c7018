"""Throttled: the GPU clocks down because it is hot, or because its power is limited."""

from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import driver_number
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import HOLD_NS, RARE_NS, Sampled, sampled, shared_spans
from gpu_util_callback.diagnosis.rule import Advice, Evidence, Findings, Rule, significant
from gpu_util_callback.diagnosis.thresholds import (
    A_FIFTH_PCT,
    LEAST_S,
    MATTERS_PCT,
    MIN_S,
    MIN_SAMPLES,
    Limits,
    Threshold,
)
from gpu_util_callback.words import gpu_names

# column -> (label, whether it is a fault by itself)
_REASONS = {
    "throttle_thermal_pct": ("thermal", True),
    "throttle_other_pct": ("hardware slowdown", True),
    "throttle_power_pct": ("power limit", False),
}


class Throttled(Rule):
    """A GPU under load runs below its clock, and the driver reports a slowdown.

    The power cap is the normal state of a data-centre GPU at full load: it counts only if the
    limit was lowered below the board's own. The loss is the missing share of the clock while
    kernels or copies ran: an estimate, since copies and memory-bound kernels do not follow the core
    clock. Of several GPUs the slowest sets the pace, so that GPUs that are hot together lose time
    once.
    """

    cause = "throttled"
    title = "Throttled"
    look = "▲", "red"
    slowing = True
    sources = ("throttle times of the GPU", "SM clock", "GPU utilization")
    thresholds = {
        "throttled_pct": Threshold(
            A_FIFTH_PCT.default, "a slowdown of a fifth of the time is a state; less is regulation"
        ),
        "clock_deficit_pct": Threshold(
            MATTERS_PCT.default, "a GPU at less than 5 % below its full clock takes no longer than steps scatter"
        ),
        "power_deficit_pct": Threshold(10, "boards hold their power by 5-10 % of clock even at their own limit"),
        "loaded_pct": Threshold(50, "an idle GPU lowers its clock by itself"),
        "min_s": MIN_S,
        "min_run_pct": Threshold(1, "below 1 % of the run, fixing it does not show"),
        "least_s": LEAST_S,
    }
    unknown = "throttle times and clocks of the GPU were not sampled"

    def missing(self, run: Run) -> bool:
        return not any(
            run.column(gpu, column) and run.column(gpu, "sm_clock_mhz") for gpu in run.used_gpus for column in _REASONS
        )

    def find(self, run: Run, limits: Limits) -> Findings:
        return significant(self._spans(run, limits), run.present_ns, limits)

    def _spans(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings about stretches in which clocks were lowered, a reason each.

        Of the GPUs of a stretch the first one gives the evidence; clocks in MHz, temperatures in °C.
        """
        slowed = {gpu: clock for gpu in run.working_gpus if (clock := _slowed(run, gpu, limits)) is not None}
        for column, (word, fault) in _REASONS.items():
            # GPU -> its samples, and the time lost in each for this reason, ns.
            losses_by_gpu = {
                gpu: (clock.samples, clock.lost[column]) for gpu, clock in slowed.items() if column in clock.lost
            }
            least = limits["clock_deficit_pct" if fault else "power_deficit_pct"]
            for stretch in shared_spans(losses_by_gpu, enter=least / 100, min_s=limits["min_s"]):
                gpu, mask = stretch.gpus[0], stretch.inside
                clock = slowed[gpu]
                time, share = clock.samples.length_ns[mask], clock.shares[column][mask]
                throttled = float(np.average(np.nan_to_num(share), weights=time))
                if throttled < limits["throttled_pct"]:  # a low clock, mostly without this reason
                    continue
                slow = float(np.nanmean(clock.mhz[mask]))
                hot = clock.samples.at("temperature_c")[mask]
                evidence: Evidence = {
                    "reason": word,
                    "throttled_pct": round(throttled, 1),
                    "clock_deficit_pct": round(100 * (1 - slow / clock.full_mhz), 1),
                    "clock_mhz": round(slow),
                    "full_clock_mhz": round(clock.full_mhz),
                    "temperature_c": round(float(np.nanmax(hot))) if np.isfinite(hot).any() else None,
                }
                yield self.of_stretch(
                    stretch,
                    title=f"Throttled ({word})",
                    evidence=evidence,
                    threshold={"throttled_pct": limits["throttled_pct"], "clock_deficit_pct": least},
                    advice=_advice(run, stretch.gpus, word),
                    detail=word,
                )


class _Slowed(NamedTuple):
    """A GPU's clock, its expected clock, and by column the share of throttled time and the loss for that reason.

    Attributes:
        mhz: clock at each sample; NaN = not known.
        full_mhz: clock under load without throttling.
        shares: column of `_REASONS` -> % of the time throttled, a value each sample; NaN = not known.
        lost: column of `_REASONS` -> time lost, ns, a value each sample.
    """

    samples: Sampled
    mhz: np.ndarray
    full_mhz: float
    shares: dict[str, np.ndarray]
    lost: dict[str, np.ndarray]


def _slowed(run: Run, gpu: int, limits: Limits) -> _Slowed | None:
    """Return a GPU's clock and its losses; None if it was not slowed down, or its clock is not known.

    Arrays have a value for each sample of the clock; `reason_shares`, %, a row for each reason.
    """
    reasons = [column for column in _REASONS if (run.highest(gpu, column) or 0) >= limits["throttled_pct"]]
    # The clock is read more often than the counters of throttled time.
    samples = sampled(run, gpu, "sm_clock_mhz")
    if not reasons or samples is None:
        return None
    shares = {column: _share_until_read(run, gpu, column, samples) for column in reasons}
    if "throttle_power_pct" in shares:  # counts only while somebody had lowered the limit
        power = np.where(_lowered(run, gpu, samples), shares["throttle_power_pct"], 0)
        shares["throttle_power_pct"] = power
    reason_shares = np.stack(list(shares.values()))
    clock, use = samples.at("sm_clock_mhz"), samples.at("utilization_pct")
    loaded = use >= limits["loaded_pct"]
    full = _full_clock(run, gpu, samples, loaded & (reason_shares.max(axis=0) < 1))
    if full is None:
        return None
    loaded &= (np.nan_to_num(reason_shares) > 0).any(axis=0)
    deficit = np.where(loaded, np.clip(1 - clock / full, 0, 1), 0)
    lost = samples.length_ns * deficit * np.clip(use, 0, 100) / 100
    # A slow clock is counted once: for the reason that held most of the time.
    first = np.argmax(np.nan_to_num(reason_shares), axis=0)
    lost_by_reason = {column: np.where(first == place, lost, 0) for place, column in enumerate(shares)}
    return _Slowed(samples, clock, full, shares, lost_by_reason)


def _share_until_read(run: Run, gpu: int, column: str, samples: Sampled) -> np.ndarray:
    """Return a column of throttled time at each sample, NaN = not known: a counter covers the time before its read."""
    reads = sampled(run, gpu, column)
    if reads is None:
        return np.full(len(samples), np.nan)
    following = np.minimum(np.searchsorted(reads.start_ns, samples.start_ns), len(reads) - 1)
    ahead_ns = reads.start_ns[following] - samples.start_ns
    return np.where((ahead_ns >= 0) & (ahead_ns <= HOLD_NS), reads.at(column)[following], np.nan)


def _lowered(run: Run, gpu: int, samples: Sampled) -> np.ndarray:
    """Return a mask of the samples at which the power limit was below the board's default; shape `(n,)`."""
    facts = run.gpu(gpu)
    default, reported_limit = facts.get("power_default_mw") or 0, facts.get("power_limit_mw")
    limit = samples.at("power_limit_mw", RARE_NS)
    limit = np.where(np.isnan(limit), reported_limit or np.nan, limit)
    return np.nan_to_num(limit, nan=np.inf) < 0.98 * default


def _full_clock(run: Run, gpu: int, samples: Sampled, unthrottled: np.ndarray) -> float | None:
    """Return the clock under load without throttling, MHz, from this run or the board's maximum; None = not known.

    Args:
        unthrottled: mask of the samples under load without throttling.
    """
    clock = samples.at("sm_clock_mhz")
    unthrottled = unthrottled & np.isfinite(clock)
    if unthrottled.sum() >= MIN_SAMPLES.default:  # the run has shown it
        return float(np.percentile(clock[unthrottled], 90))
    maximum = run.gpu(gpu).get("sm_clock_max_mhz")  # as stated once, else as sampled
    if maximum:
        return float(maximum)
    highest = samples.at("sm_clock_max_mhz")
    return float(np.nanmax(highest)) if np.isfinite(highest).any() else None


def _advice(run: Run, gpus: list[int], word: str) -> Advice:
    """Return the advice on GPUs that are slowed down for a reason, a label of `_REASONS`: heat, power or the board.

    Args:
        gpus: their numbers in the run; commands take the driver's.
    """
    names, ask = gpu_names(gpus), f"nvidia-smi -i {','.join(str(driver_number(run, gpu)) for gpu in sorted(gpus))}"
    if word == "thermal":
        says = f"Heat slows {names} down. Check its fans and the air in front; a lower power limit often loses less"
        return Advice(f"{says} than the heat does.", f"{ask} -q -d TEMPERATURE,PERFORMANCE")
    if word == "power limit":
        watts = (run.gpu(gpus[0]).get("power_default_mw") or 0) / 1000
        says = f"The power limit of {names} was set below the board's own, which slows its clock. Set it back."
        return Advice(says, f"sudo {ask} -pl {watts:.0f}")
    says = f"A signal of the board (power brake or slowdown) slows {names} down: look at its power supply and cooling."
    return Advice(says, f"{ask} -q -d PERFORMANCE,POWER")
