"""Host stall: training stands still while the host validates, saves or runs a callback."""

from itertools import chain

from gpu_util_callback.diagnosis.advice import host
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.source import shows_idle_host
from gpu_util_callback.diagnosis.evidence.windows import Share, stretches_of
from gpu_util_callback.diagnosis.rule import Finding, Findings, Rule, significant
from gpu_util_callback.diagnosis.rules.host_stall.callback_hooks import find_batch_hooks, find_epoch_hooks
from gpu_util_callback.diagnosis.rules.host_stall.long_steps import LONG, find_long_steps
from gpu_util_callback.diagnosis.rules.host_stall.own_python import find_python
from gpu_util_callback.diagnosis.rules.host_stall.stall import CAUSE
from gpu_util_callback.diagnosis.rules.host_stall.unnamed import UNMARKED, find_unnamed
from gpu_util_callback.diagnosis.rules.host_stall.validations import find_validations
from gpu_util_callback.diagnosis.thresholds import (
    ALWAYS_S,
    MATTERS_PCT,
    MIN_SAMPLES,
    MIN_STEPS,
    OP_US,
    SIGNIFICANT,
    Limits,
    Threshold,
)
from gpu_util_callback.recording.manifest_facts import SourceBlockingCall, SourceFacts, SourceOnce
from gpu_util_callback.words import duration

DETECTORS = find_validations, find_epoch_hooks, find_batch_hooks, find_python, find_unnamed, find_long_steps

UNNAMED_PCT = Threshold(
    20, "a loop of one's own keeps its books in a few percent; a fifth without a name hides what costs most"
)


class HostStall(Rule):
    """Validation, a checkpoint or a callback takes a good part of the time, again and again.

    So may what a loop of one's own does without a name: between its steps, or within some of them,
    which take many times as long as the others.

    The GPU's work meanwhile is not lost: if its utilization was sampled, only its idle time counts.
    Without a GPU the time training stood still counts, and the evidence says so.
    """

    cause = CAUSE
    title = "Training stalls"
    look = "◆", "mauve"
    part = "callbacks"
    idling = True
    between_steps = True
    unnamed = UNMARKED
    sources = ("phases", "callback time of each step", "GPU utilization (optional)")
    thresholds = {
        "validation_pct": Threshold(
            20,
            "a validation set of a fifth of the data, forward pass only (a third of a training "
            "step), takes 6 %; 20 % needs one nearly as large as the training set, or a slow path",
        ),
        "validation_idle_pct": Threshold(
            10,
            "a shorter validation is reported only if the GPU was seen to idle in it for a tenth of the "
            "time, as it does in one of 20 % that keeps it half busy",
        ),
        "callback_pct": MATTERS_PCT,
        "own_python_pct": UNNAMED_PCT,
        "eager_op_us": OP_US,
        "exchanges_per_update": Threshold(
            8, "DistributedDataParallel joins gradients to pieces of 25 MB; a model of 200 MB in float32 has eight"
        ),
        "unmarked_pct": UNNAMED_PCT,
        "long_steps_pct": UNNAMED_PCT,
        "ms_per_step": Threshold(
            0.2, "a progress bar takes 0.05-0.1 ms a step; on very short steps that is no finding"
        ),
        "idle_host_pct": Threshold(20, "in a trace: a profiler alone adds 10-20 % to the host's side of small steps"),
        "lost_pct": MATTERS_PCT,  # what the GPU did meanwhile is not lost
        "min_looks": MIN_SAMPLES,
        "min_occurrences": Threshold(2, "one checkpoint or one slow callback is an event, not a state of the run"),
        "min_steps": MIN_STEPS,
        **SIGNIFICANT,
        "always_s": ALWAYS_S,
    }
    unknown = "neither phases nor callback times were recorded"
    unknown_in_trace = "the trace does not show enough GPU work, or nothing of the host"

    def part_of(self, detail: str) -> str:
        if detail in (self.unnamed, "function"):
            return "other"
        if detail == "validation":
            return detail
        return "step" if detail == LONG else self.part

    def missing(self, run: Run) -> bool:
        if not len(run.steps):
            return True
        if run.source is not None:
            return not shows_idle_host(run.source)
        phases = any(run.phases.of(kind) for kind in ("validation", "callback", "checkpoint"))
        # The activity of a custom loop outside steps is observed.
        return not (run.custom_loop or phases or run.steps.total("callbacks_known"))

    def find(self, run: Run, limits: Limits) -> Findings:
        if run.source is not None:
            return self._in_trace(run, limits, run.source)
        findings = chain.from_iterable(detect(run, limits) for detect in DETECTORS)
        return significant(findings, run.present_ns, limits)

    # -- a trace ---------------------------------------------------------------------------------

    def _in_trace(self, run: Run, limits: Limits, source: SourceFacts) -> Findings:
        """Yield what the host does in a trace while its GPUs idle: start-up, a blocking call, or something else."""
        host_calls_ns = source["host_calls"]["idle_host_ns"] if source["host_calls"] else 0  # they have a rule
        once_ns = source["once"]["idle_ns"] if source["once"] else 0
        for share in stretches_of(run, limits["idle_host_pct"], "idle_host"):
            if source["once"] and 2 * once_ns >= share.lost_ns:  # start-up holds half of it
                yield self._start_up(share, source["once"], run)
            share = share.without(once_ns + host_calls_ns)
            if share.pct < limits["idle_host_pct"]:
                continue
            blocking = source.get("blocking_call")
            if blocking and 2 * blocking["idle_ns"] >= share.lost_ns:  # one call of the driver holds half of it
                yield self._blocked(share.limited_to(min(blocking["idle_ns"], share.lost_ns)), blocking, run)
                continue
            yield self.loss(
                share,
                host.host_activity(source["host_activity"]),
                evidence={"idle_host_pct": share.pct, "host_activity": source["host_activity"] or None},
                of_trace=f"The GPU idles {share.pct:.0f} % of the time while the host does something else",
            )

    def _start_up(self, share: Share, once: SourceOnce, run: Run) -> Finding:
        """Return the finding about costs that are paid once, in a trace that began too early."""
        start_up = share.limited_to(once["idle_ns"])
        return self.loss(
            start_up,
            host.traced_too_early(run, once["name"], once["longest_ns"]),
            evidence={"idle_host_pct": start_up.pct, "host_activity": once["name"]},
            of_trace=f"Start-up that is paid once takes {start_up.pct:.0f} % of the {start_up.whole}",
            detail="start_up",
        )

    def _blocked(self, share: Share, call: SourceBlockingCall, run: Run) -> Finding:
        """Return the finding about single calls of the driver that hold the host."""
        took = f"{duration(call['each_ns'] / 1e9)}{' each' if call['count'] > 1 else ''}"
        calls = f"{call['count']:,} calls of {call['name']}" if call["count"] > 1 else f"One call of {call['name']}"
        return self.loss(
            share,
            host.blocked_in(run, call),
            evidence={"idle_host_pct": share.pct, "host_activity": call["name"], "seconds_each": call["each_ns"] / 1e9},
            of_trace=f"{calls} {'take' if call['count'] > 1 else 'takes'} {took}, and the GPU idles meanwhile",
            detail="call",
        )
