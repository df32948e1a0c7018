"""Sync-bound: the host waits for the GPU after every step, and the GPU then for the host."""

import re

from gpu_util_callback.diagnosis.advice import host as host_advice
from gpu_util_callback.diagnosis.advice.snippets import enlarge_batch, has_keras_fit, idioms, sizes_vary
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.source import shows_idle_host
from gpu_util_callback.diagnosis.evidence.windows import stretches_of, traced_gpus
from gpu_util_callback.diagnosis.rule import Advice, Evidence, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold

PER_CALL = 16  # a sixteenth of the loss is left
EVERY = 100  # steps, after which a loop still shows how its loss goes: a hundredth of the loss of time is left
BY_CALL = "what callbacks see: their batch hooks run once a call"
# What trainers read from the GPU in every step (`findings/trainers_read_the_loss_in_each_step.sh`), and what stops it.
_BY_TRAINER = {
    "transformers": Advice(
        "By its default the Trainer reads the loss in every step, to leave what is not finite out of its log, and the "
        "GPU idles meanwhile. May such a loss be logged as it is? If so, it need not read it.",
        "TrainingArguments(..., logging_nan_inf_filter=False)",
        question=True,
    ),
    "lightning": Advice(
        "The progress bar reads each value that is logged for it in every step, not only as it is drawn, and the "
        "GPU idles meanwhile. Is prog_bar=True among what training_step logs? If so, leave it out there.",
        'self.log("loss", loss)  # without prog_bar=True',
        question=True,
    ),
}


class SyncBound(Rule):
    """Profiler windows show the GPU running dry because the host waited for it.

    On TensorFlow, Keras reads the metrics after every execution.
    """

    cause = "sync_bound"
    title = "Sync-bound"
    look = "‖", "violet"
    sources = ("profiler windows",)
    thresholds = {"idle_sync_pct": Threshold(10, "reading metrics costs 0.2-1 ms a step: a tenth of a step of 2-10 ms")}
    unknown = "no profiler window shows synchronizations"
    unknown_in_trace = "the trace does not show enough GPU work, or nothing of the host"

    def missing(self, run: Run) -> bool:
        if run.source is not None:
            return not shows_idle_host(run.source)
        return not traced_gpus(run)

    def find(self, run: Run, limits: Limits) -> Findings:
        for share in stretches_of(run, limits["idle_sync_pct"], "idle_sync"):
            evidence: Evidence = {
                "idle_sync_pct": run.rounded(share.pct, 1),
                "idle_sync_ms_per_step": run.rounded(share.ms_per_step, 3),
                "steps_per_execution": steps_a_call(run) if run.source is None else None,
            }
            yield self.loss(
                share,
                _advice(run),
                evidence=evidence,
                of_trace=f"The GPU idles {share.pct:.0f} % of the time because the host waits for it",
            )


def steps_a_call(run: Run) -> int:
    """Return how many steps Keras takes in one call."""
    return int(run.fit.get("steps_per_execution", 1))


def _traces_each(run: Run) -> bool:
    """Return whether this Keras on JAX traces and compiles each of the steps of a call (keras#20412)."""
    version = re.match(r"(\d+)\.(\d+)", str(run.framework_facts.get("keras") or ""))
    return version is None or (int(version[1]), int(version[2])) < (3, 7)


def _advice(run: Run) -> Advice:
    """Return advice on waiting for the GPU, by the reader of its results."""
    executed = steps_a_call(run)
    if run.fit.get("run_eagerly", False):
        return host_advice.run_compiled(run)
    steps = run.source is None or run.source["steps_judged"]
    if not run.framework or not steps:
        return Advice(
            f"The program waits for the GPU{' in every step' * steps}, and the GPU idles meanwhile"
            ": read results from it less often, and synchronize only where they are needed."
        )
    if run.trainer in _BY_TRAINER:
        return _BY_TRAINER[run.trainer]
    if not has_keras_fit(run):
        words = idioms(run)
        return Advice(
            f"The loop reads a result from the GPU in every step ({words.reads}, print), and the "
            f"GPU idles meanwhile. Read it every {EVERY}th step.",
            f"if step % {EVERY} == 0: print({words.read})",
            1 - 1 / EVERY,
            proof="loop_reads_loss",
        )
    if executed >= 8:
        return Advice(
            f"{executed} steps run in one call, and still the GPU waits for the host inside them: "
            "look for a print or a metric in train_step that needs its value."
        )
    says = "Keras reads the metrics after every step, and the GPU idles until the next one is launched. "
    return in_one_call(run, says)


def in_one_call(run: Run, says: str) -> Advice:
    """Return advice to let Keras take several steps in one call, where it can."""
    # Keras on torch takes one step per call; with a strategy several steps per call fail.
    # JAX compiles the batches of a call together: anew for each combination of their shapes.
    compiles_often = run.framework == "jax" and (_traces_each(run) or sizes_vary(run))
    if run.framework == "torch" or run.fit.get("strategy") or compiles_often:
        return enlarge_batch(run, says, "Larger batches make this rarer.")
    return Advice(
        f"{says}Let {PER_CALL} steps run in one call; this changes {BY_CALL}.",
        f"model.compile(..., steps_per_execution={PER_CALL})",
        1 - steps_a_call(run) / PER_CALL,
        changes=BY_CALL,
        proof="new_trials/steps_in_one_call",
    )
