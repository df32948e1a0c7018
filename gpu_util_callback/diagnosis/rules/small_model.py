"""Small model: this model cannot fill this GPU, and no setting changes that."""

from gpu_util_callback.diagnosis.advice.snippets import command, idioms
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.rules.small_batch import BUSY_BUT_EMPTY, empty_gpus, fill_is_known, model_is_small
from gpu_util_callback.diagnosis.thresholds import Limits


class SmallModel(Rule):
    """The GPU is active and mostly empty although the batch is large: the model is small."""

    cause = "small_model"
    title = "Model too small for this GPU"
    look = "▵", "grey"
    sources = ("GPM SM active", "GPU utilization, profiler windows or PCIe traffic", "model parameters", "batch size")
    thresholds = BUSY_BUT_EMPTY
    unknown = "SM activity (GPM, Hopper and newer), copies (windows, PCIe traffic), model or batch size are not known"

    def missing(self, run: Run) -> bool:
        sized = None not in (run.model.get("parameters"), run.fit.get("batch_size"))
        return not (sized and any(fill_is_known(run, gpu) for gpu in run.used_gpus))

    def find(self, run: Run, limits: Limits) -> Findings:
        if not model_is_small(run, limits):
            return
        for gpu, evidence in empty_gpus(run, limits):
            size = {"parameters": run.model.get("parameters"), "batch_size": run.fit.get("batch_size")}
            yield self.finding(
                evidence=evidence | size,
                threshold={
                    "gpu_active_pct": limits["gpu_active_pct"],
                    "sm_active_pct": limits["sm_active_pct"],
                    "parameters": limits["small_parameters"],
                    "batch_size": limits["large_batch"],
                },
                advice=Advice(
                    "This model is too small to fill this GPU, even with this batch. Nothing is "
                    "wrong: use a smaller GPU, or train several models on it at the same time.",
                    f"{_beside(run)} & {_beside(run)} & wait",
                ),
                gpus=[gpu],
                detail=f"gpu{gpu}",
            )
            return


def _beside(run: Run) -> str:
    """Return the training's command that leaves memory of the GPU to another training."""
    return command(run, idioms(run).leaves_memory)
