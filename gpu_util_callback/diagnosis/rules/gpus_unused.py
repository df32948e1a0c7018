"""GPUs unused: the run has several GPUs, and some do no work for it."""

from gpu_util_callback.diagnosis.advice.snippets import command, driver_number, has_keras_fit, idioms
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import MIN_SAMPLES, NO_WORK_PCT, Limits, Threshold


class GpusUnused(Rule):
    """The framework holds several GPUs and at least one is hardly active while another works.

    GPUs hidden from the framework are no evidence, nor are those of other ranks: only the GPUs in
    use by a process on its own are judged.
    """

    cause = "gpus_unused"
    title = "Unused GPUs"
    look = "◌", "red"
    unused = True
    sources = ("GPU utilization of each GPU",)
    thresholds = {
        "unused_active_pct": NO_WORK_PCT,
        "busy_active_pct": Threshold(15, "another GPU must do the work, or no GPU works"),
        "min_samples": MIN_SAMPLES,
    }
    unknown = "fewer than two GPUs of this process were sampled"

    def missing(self, run: Run) -> bool:
        return len(run.used_gpus) < 2 or not any(run.column(gpu, "utilization_pct") for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Findings:
        if int(run.manifest.get("world_size", 1)) > 1 or not len(run.steps):
            return
        first, last = int(run.steps["start_ns"][0]), run.end_ns
        least = int(limits["min_samples"])
        means = {gpu: run.gpu_mean(gpu, "utilization_pct", first, last, least) for gpu in run.used_gpus}
        active = {gpu: mean.value for gpu, mean in means.items() if mean is not None}
        unused = [gpu for gpu, pct in active.items() if pct < limits["unused_active_pct"]]
        busy = [gpu for gpu, pct in active.items() if pct >= limits["busy_active_pct"] and gpu in run.working_gpus]
        if not unused or not busy:
            return
        do = "does" if len(unused) == 1 else "do"
        yield self.finding(
            title=f"{len(unused)} of {len(run.used_gpus)} GPUs {do} nothing",
            evidence={
                "gpus_unused": ", ".join(f"gpu{gpu}" for gpu in unused),
                "unused_active_pct": round(max(active[gpu] for gpu in unused), 1),
                "busy_active_pct": round(max(active[gpu] for gpu in busy), 1),
                "faster_at_most": (len(unused) + len(busy)) / len(busy),
            },
            advice=_advice(run, unused),
            gpus=unused,
        )


def _advice(run: Run, unused: list[int]) -> Advice:
    """Return the advice to train on all GPUs of the process, or to leave the unused ones to others."""
    count = len(run.used_gpus)
    text = f"Train on all of the {count} GPUs, with a batch {count} times as large, or leave idle ones to others."
    if run.framework == "torch":
        return Advice(
            text + " The model must be wrapped in DistributedDataParallel.",
            command(run, f"torchrun --nproc-per-node={count}").replace(" python ", " "),
        )
    code = idioms(run).every_gpu
    if not code or not has_keras_fit(run):
        busy = ",".join(str(driver_number(run, gpu)) for gpu in run.used_gpus if gpu not in unused)
        chosen = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={busy}"
        code = command(run, chosen) + "  # leaves the others alone"
        text = f"{text[:-1]}, as this line does."
    return Advice(text, code)
