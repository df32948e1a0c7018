"""Sync-bound: the host waits for the GPU after every step, and the GPU then for the host."""

import re

from gpu_util_callback.diagnosis.advice import host as host_advice
from gpu_util_callback.diagnosis.advice.snippets import enlarge_batch, has_keras_fit, idioms, sizes_vary
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.source import shows_idle_host
from gpu_util_callback.diagnosis.evidence.windows import stretches_of, traced_gpus
from gpu_util_callback.diagnosis.rule import ESTIMATED, Advice, Evidence, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import A_FIFTH_PCT, Limits, Threshold

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

    On TensorFlow, Keras reads the metrics after every execution. Without a window this is visible
    from outside if steps are short, the host does wait for the GPU in each, the GPU is idle a good
    part of the time, and no input wait, callback or compilation explains it. That is judged for one
    GPU only, without a strategy, one step per call, in graphs, and if the idle time of a step is no
    longer than Keras' own work between two calls; else the GPU may wait for the step's own work on
    the CPU, and nothing is reported.
    """

    cause = "sync_bound"
    title = "Sync-bound"
    look = "‖", "violet"
    sources = ("profiler windows", "or: GPU wait of each step and GPU utilization (TensorFlow)")
    thresholds = {
        "idle_sync_pct": Threshold(10, "reading metrics costs 0.2-1 ms a step: a tenth of a step of 2-10 ms"),
        "gpu_active_pct": Threshold(70, "SageMaker Debugger calls p95 < 70 % low utilization"),
        "gpu_wait_pct": Threshold(
            A_FIFTH_PCT.default, "of the step: the host waits for the GPU in each step, not now and then"
        ),
        "step_ms": Threshold(20, "longer steps hide a millisecond of the host"),
        "idle_ms_per_step": Threshold(
            3,
            "between two calls Keras needs 0.3-2 ms; a GPU that idles longer in each step waits "
            "for something the step itself computes on the CPU",
        ),
        "min_steps": Threshold(100, "without windows it takes many steps to be sure"),
    }
    unknown = "no profiler window shows synchronizations"
    unknown_in_trace = "the trace does not show enough GPU work, or nothing of the host"

    def missing(self, run: Run) -> bool:
        if run.source is not None:
            return not shows_idle_host(run.source)
        # Without a profiler window waits for the GPU after each step show synchronizations.
        waits = run.framework == "tensorflow" and run.steps.total("gpu_wait_ns")
        sampled = any(run.column(gpu, "utilization_pct") for gpu in run.used_gpus)
        return not traced_gpus(run) and not (waits and sampled)

    def find(self, run: Run, limits: Limits) -> Findings:
        return self._traced(run, limits) if traced_gpus(run) else self._outside(run, limits)

    def _traced(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings of profiler windows or a trace, one for each stretch in which the host waits much."""
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

    def _outside(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding of a recording without windows, from waits for the GPU after each step.

        Lost is the GPU's idle time in steps that no input wait, callback or compilation explains, ns.
        """
        steps = run.steps
        if steps.total_rows < limits["min_steps"] or run.fit.get("run_eagerly", False):
            return
        if steps_a_call(run) > 1 or run.fit.get("strategy") or len(run.used_gpus) > 1:
            return  # with several, the GPUs wait for each other as well
        clean = run.clean_steps()
        if clean is None or clean.each_ns > limits["step_ms"] * 1e6:  # too few steps, or too long ones
            return
        spent, waited = steps.total("duration_ns"), steps.total("gpu_wait_ns")
        if 100 * waited < limits["gpu_wait_pct"] * spent:  # the host hardly waits for the GPU
            return
        start, end = steps.extent_ns
        idle = run.idle(start, end)
        if idle is None or idle.active_pct >= limits["gpu_active_pct"]:  # not known, or the GPU is at work
            return
        explained = int(steps.explained_ns.sum())
        outside = max(0, end - start - spent)  # between the steps, ns
        lost = min(idle.idle_ns - explained - outside, steps.total("body_ns"))
        # As much as an idle GPU loses, and no more a step than Keras takes between two calls.
        least, most = (1 - limits["gpu_active_pct"] / 100) * spent, limits["idle_ms_per_step"] * 1e6 * steps.total_rows
        if not least <= lost <= most:
            return
        yield self.finding(
            lost_ns=lost,
            confidence=ESTIMATED,
            evidence={
                "gpu_active_pct": round(idle.active_pct, 1),
                "gpu_wait_pct": round(100 * waited / spent, 1),
                "step_ms": round(clean.each_ns / 1e6, 3),
                "idle_ms_per_step": round(lost / steps.total_rows / 1e6, 3),
                "steps_per_execution": 1,
            },
            advice=_advice(run),
            gpus=idle.gpus,
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
    if run.fit.get("run_eagerly", False):  # each operation is started, and may be waited for, by itself
        return host_advice.run_compiled(run)
    steps = run.source is None or run.source["steps_judged"]
    if not run.framework or not steps:  # a trace that shows neither whose code it is nor steps
        return Advice(
            f"The program waits for the GPU{' in every step' * steps}, and the GPU idles meanwhile"
            ": read results from it less often, and synchronize only where they are needed."
        )
    if run.trainer in _BY_TRAINER:
        return _BY_TRAINER[run.trainer]
    if not has_keras_fit(run):  # a loop of the program's own
        words = idioms(run)
        return Advice(
            f"The loop reads a result from the GPU in every step ({words.reads}, print), and the "
            f"GPU idles meanwhile. Read it every {EVERY}th step.",
            f"if step % {EVERY} == 0: print({words.read})",
            1 - 1 / EVERY,
            proof="loop_reads_loss",
        )
    if executed >= 8:  # metrics are read once a call: something inside of it waits
        return Advice(
            f"{executed} steps run in one call, and still the GPU waits for the host inside them: "
            "look for a print or a metric in train_step that needs its value."
        )
    says = "Keras reads the metrics after every step, and the GPU idles until the next one is launched. "
    return in_one_call(run, says)


def in_one_call(run: Run, says: str) -> Advice:
    """Return advice to let Keras take several steps in one call, where it can; else to enlarge the batch.

    Args:
        says: the sentence to begin with.
    """
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
