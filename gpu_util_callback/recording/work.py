"""Model FLOPs utilization (MFU): the model's work against what the GPUs could have done.

    MFU = FLOPs of a sample x samples per second / peak FLOPs per second of the GPUs at work

over the time of training: steps with their input wait, without validation and compiling.
"""

from collections.abc import Mapping
from typing import Any

from gpu_util_callback.recording.manifest_facts import MOST_PCT

SAMPLES_PER_S, MFU_PCT = "samples_per_s", "mfu_pct"  # columns of samples


def batch_size(fit: Mapping[str, Any]) -> int | None:
    """Return the samples of a batch: as given, or the first dimension of an input that has one."""
    first = next((dims[0] for dims in fit.get("input_dims") or () if dims), None)
    return fit.get("batch_size") or (first if isinstance(first, int) and first > 0 else None)


def batches_a_step(fit: Mapping[str, Any]) -> int:
    """Return the batches of a step: those of an update of the weights in a Hugging Face `Trainer`, else 1."""
    return (fit.get("gradient_accumulation_steps") or 1) if fit.get("trainer") == "transformers" else 1


def stated_samples(facts: Mapping[str, Any]) -> int | None:
    """Return the samples of a step, as the batch size that a fit was given says; None if none was."""
    fit = facts.get("fit") or {}
    return (fit.get("batch_size") or 0) * batches_a_step(fit) or None


def samples_per_s(facts: Mapping[str, Any]) -> float | None:
    """Return the samples per second of a run; None where the batches' sizes are not known."""
    throughput = facts.get("throughput") or {}
    seconds, samples = throughput.get("training_s"), throughput.get("samples")
    return samples / seconds if seconds and samples else None


def full_rates(facts: Mapping[str, Any]) -> dict[int, float]:
    """Return the samples per second at which each GPU at work would be at its peak.

    GPUs share the work evenly. Empty where work or peak is not known.
    """
    flops = (facts.get("work") or {}).get("flops_per_sample")
    at_work = [gpu for gpu in facts.get("gpus") or () if (gpu.get("peak") or {}).get("tflops")]
    if not flops or not at_work:
        return {}
    return {gpu["index"]: len(at_work) * 1e12 * gpu["peak"]["tflops"] / flops for gpu in at_work}


def mfu_of(rate: float | None, full_rate: float | None) -> float | None:
    """Return a rate as a percentage of the full one; None where that is implausible."""
    if not rate or not full_rate:
        return None
    return pct if (pct := 100 * rate / full_rate) <= MOST_PCT else None


def peak_text(peak: Mapping[str, Any]) -> str:
    """Return the denominator: "bf16, 989 TFLOP/s"."""
    tflops = peak["tflops"]
    shown = f"{tflops:,.0f}" if tflops >= 99.5 else f"{tflops:.3g}"
    derived = ", derived" if peak.get("derived") else ""
    return f"{peak['precision']}, {shown} TFLOP/s{derived}"
