"""Small batch: the GPU is always active and mostly empty, and there is memory for more."""

from collections.abc import Iterator
from typing import Any

from gpu_util_callback.diagnosis.advice.snippets import LARGER_STEPS, larger_batch, room_for
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.windows import copying_pct, fill, needed_vram
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import BUSY_PCT, MIN_SAMPLES, Limits, Threshold

# Shared with small_model: the same symptom without a better batch size to offer.
BUSY_BUT_EMPTY = {
    "gpu_active_pct": BUSY_PCT,
    "sm_active_pct": Threshold(30, "busy but empty: kernels run, and on average less than a third of the SMs has work"),
    "min_samples": MIN_SAMPLES,
    "small_parameters": Threshold(200_000, "200,000 parameters are 0.8 MB: a fraction of a modern GPU's cache"),
    "large_batch": Threshold(1024, "with a thousand samples a batch the model is what is small"),
}


def model_is_small(run: Run, limits: Limits) -> bool:
    """Return whether a larger batch is no remedy: a tiny model, or an already large batch."""
    parameters, batch = run.model.get("parameters"), run.fit.get("batch_size")
    tiny = parameters is not None and parameters < limits["small_parameters"]
    return bool(tiny and batch is not None and batch >= limits["large_batch"])


def fill_is_known(run: Run, gpu: int) -> bool:
    """Return whether SM activity was sampled, and it is known for how long the GPU may only have copied."""
    return bool(run.column(gpu, "sm_active_pct")) and copying_pct(run, gpu) is not None


def empty_gpus(run: Run, limits: Limits) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the GPUs that are busy but empty, with the evidence for it."""
    for gpu in run.working_gpus:
        mean = fill(run, gpu, int(limits["min_samples"]))
        if mean is None or mean.kernels_pct < limits["gpu_active_pct"]:  # not known, or not busy
            continue
        if mean.sm_active_pct < limits["sm_active_pct"]:
            active, sm_active = round(mean.active_pct, 1), round(mean.sm_active_pct, 1)
            yield gpu, {"gpu": gpu, "gpu_active_pct": active, "sm_active_pct": sm_active}


class SmallBatch(Rule):
    """Kernels run all the time, most SMs have nothing to do, and most of the VRAM is free.

    NVML's utilization counts copies as well. Those that profiler windows show without a kernel are
    subtracted; without windows, the time that the PCIe traffic can have taken. Without either it is
    not known that kernels ran.

    The gain of a larger batch cannot be known from one batch size, so no loss is claimed.
    """

    cause = "small_batch"
    title = "Batch too small for this GPU"
    look = "▫", "teal"
    sources = ("GPM SM active", "GPU utilization, profiler windows or PCIe traffic", "allocator peak", "batch size")
    thresholds = BUSY_BUT_EMPTY | {"vram_used_pct": Threshold(40, "below 40 % at least twice the batch fits")}
    unknown = (
        "SM activity (GPM, Hopper and newer), copies (windows, PCIe traffic) or the allocator's peak are not known"
    )

    def missing(self, run: Run) -> bool:
        return not any(fill_is_known(run, gpu) and needed_vram(run, gpu) for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield one finding, of the first GPU that is busy but empty and has memory for a larger batch."""
        if model_is_small(run, limits):  # `small_model` reports it
            return
        for gpu, evidence in empty_gpus(run, limits):
            needed = needed_vram(run, gpu)
            # The share of the GPU's memory that the training needs, 0-1; None = not known.
            if needed is None or 100 * needed >= limits["vram_used_pct"]:
                continue
            batch = {"vram_used_pct": round(100 * needed, 1), "batch_size": run.fit.get("batch_size")}
            yield self.finding(
                evidence=evidence | batch,
                advice=_advice(run, evidence["sm_active_pct"], 100 * needed),
                gpus=[gpu],
                detail=f"gpu{gpu}",
            )
            return  # one line for all GPUs: they run the same model


def _advice(run: Run, sm: float, used: float) -> Advice:
    """Return the advice to enlarge the batch: `sm` and `used` are the % of processors with work, and of memory."""
    factor = max(2, room_for(run, 8))
    often = "twice" if factor == 2 else f"{factor} times"
    return Advice(
        f"Kernels run all the time, but only {sm:.0f} % of the GPU's processors have work, and "
        f"{used:.0f} % of its memory is needed. A batch {often} as large fits; this changes {LARGER_STEPS}. "
        "Raise the learning rate with it.",
        larger_batch(run, factor),
        alters_training=True,
        changes=LARGER_STEPS,
    )
