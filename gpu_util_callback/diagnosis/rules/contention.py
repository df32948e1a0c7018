"""Contention: other processes compute on the same GPU."""

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import command, driver_number
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import Sampled, mean_of, sampled, shared_spans
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule, significant
from gpu_util_callback.diagnosis.thresholds import BUSY_PCT, MIN_S, SIGNIFICANT, Constant, Limits, Threshold
from gpu_util_callback.words import gpu_names

OTHERS = "utilization_other_pct"
IDLE_PCT = Constant(3, "a monitor's kernels read 0-1 %")


class Contention(Rule):
    """Other processes keep the GPU's SMs busy during training.

    Memory that others hold costs no time; only their work does. Its cost is their share of the
    GPU's time, an estimate: two light processes may run concurrently without disturbing each other,
    so it counts only on a GPU that is full. Of several GPUs the slowest sets the pace: time that
    others take from two of them at once is lost once.
    """

    cause = "contention"
    title = "GPU shared with other processes"
    look = "⊗", "violet"
    slowing = True
    sources = ("utilization by process", "GPU utilization")
    thresholds = {
        "others_active_pct": Threshold(10, "a desktop or a monitor takes 1-5 % of a GPU"),
        "gpu_active_pct": Threshold(BUSY_PCT.default, "while the GPU has time left, no other process takes it away"),
        "min_s": MIN_S,
        **SIGNIFICANT,
    }
    unknown = "what other processes do on the GPU was not sampled"

    def missing(self, run: Run) -> bool:
        return not any(run.column(gpu, OTHERS) for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Findings:
        return significant(self._spans(run, limits), run.present_ns, limits)

    def _spans(self, run: Run, limits: Limits) -> Findings:
        """Yield a finding for each stretch in which other processes took a GPU's time."""
        losses = ((gpu, _time_of_others(run, gpu, limits)) for gpu in run.working_gpus)
        losses_by_gpu = {gpu: of_gpu for gpu, of_gpu in losses if of_gpu}
        enter = limits["others_active_pct"] / 100
        for stretch in shared_spans(losses_by_gpu, enter=enter, min_s=limits["min_s"]):
            gpu, mask = stretch.gpus[0], stretch.inside  # the GPU that lost most, and its samples in the stretch
            samples = losses_by_gpu[gpu][0]
            memory = samples.at("memory_other_bytes")[mask]
            has_memory = np.isfinite(memory).any()
            yield self.of_stretch(
                stretch,
                title=f"{self.title} (gpu{gpu})"
                if len(stretch.gpus) == 1
                else f"Other processes use {gpu_names(stretch.gpus)}",
                evidence={
                    "others_active_pct": mean_of(samples.at(OTHERS)[mask]),
                    "gpu_active_pct": mean_of(samples.at("utilization_pct")[mask]),
                    "others_memory_gib": round(float(np.nanmax(memory)) / 2**30, 2) if has_memory else None,
                },
                advice=_advice(run, stretch.gpus, limits["others_active_pct"]),
            )


def _time_of_others(run: Run, gpu: int, limits: Limits) -> tuple[Sampled, np.ndarray] | None:
    """Return a GPU's samples and the ns that other processes took in each, float64 (n,); None if none did."""
    if (run.highest(gpu, OTHERS) or 0) < limits["others_active_pct"]:
        return None
    samples = sampled(run, gpu, OTHERS)
    if samples is None:
        return None
    full = np.nan_to_num(samples.at("utilization_pct")) >= limits["gpu_active_pct"]
    # While we ask nothing of the GPU, others take nothing from us.
    taken_pct = samples.at(OTHERS) - run.stalled_pct(samples.start_ns, samples.length_ns)
    return samples, np.where(full, samples.length_ns * np.clip(taken_pct, 0, 100) / 100, 0)


def _advice(run: Run, shared: list[int], limit: float) -> Advice:
    """Return the advice to train on free GPUs, or where there are too few, how to find the other process.

    Args:
        shared: indices of the GPUs that another process uses, too.
        limit: least percent of a GPU's time that makes it another process' own.
    """
    says = f"Another process computes on {gpu_names(shared)}, too, and the two take turns."
    own_gpus = [gpu for gpu in run.working_gpus if gpu not in shared]
    unused_gpus = [gpu["index"] for gpu in run.gpus if gpu["index"] not in (*shared, *own_gpus)]
    free = [gpu for gpu in unused_gpus if _free(run, gpu, limit)][: len(shared)]
    if len(free) == len(shared):
        numbers = ",".join(str(driver_number(run, gpu)) for gpu in sorted([*own_gpus, *free]))
        return Advice(
            f"{says} Nobody uses {gpu_names(free)}: train there{' instead' * bool(own_gpus)}.",
            command(run, f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={numbers}"),
            saves=1.0,
            proof="tests/cures/test_advice_gpus.py::test_a_training_moves_to_the_gpu_that_is_free",
        )
    numbers = ",".join(str(driver_number(run, gpu)) for gpu in sorted(shared))
    code = f"nvidia-smi pmon -i {numbers} -c 1  # shows whose it is"
    return Advice(f"{says} Train elsewhere, or agree on whose turn it is.", code)


def _free(run: Run, gpu: int, limit: float) -> bool:
    """Return whether a GPU is known to be idle: neither this process nor another uses it."""
    if (run.highest(gpu, OTHERS) or 0) >= limit:
        return False
    mean = run.gpu_mean(gpu, "utilization_pct", run.start_ns, run.end_ns)
    return mean is not None and mean.value < IDLE_PCT
