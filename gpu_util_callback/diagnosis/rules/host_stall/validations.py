"""Validations that stall training."""

from dataclasses import replace

import numpy as np

from gpu_util_callback.diagnosis.advice import host
from gpu_util_callback.diagnosis.advice.snippets import has_keras_fit
from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.stalls import lost_in, stalled_range, times, usual_ns
from gpu_util_callback.diagnosis.rule import Findings
from gpu_util_callback.diagnosis.rules.host_stall.stall import stall
from gpu_util_callback.diagnosis.rules.input_bound import ends_of_short_epochs
from gpu_util_callback.diagnosis.thresholds import Limits, chosen


def find_validations(run: Run, limits: Limits) -> Findings:
    """Yield the findings about validations: large ones, and shorter ones in which the GPU mostly idles."""
    kind = "validation"
    if ends_of_short_epochs(run) is not None:
        return  # longer epochs spare their set-up as well
    for validations in run.phases.of(kind, account=kind).values():
        if validations.count < 2 and not run.ended:
            continue  # the first one traces and fills; wait for another
        where = stalled_range(run, validations)
        took_ns = validations.self_ns
        span_ns = max(1, run.present_in(where))
        # Compiling the test function happens once, however long the run gets.
        usual_ns_of_all = usual_ns(np.maximum(validations["self_ns"] - _compiling_ns(run, validations), 0))
        # What an outlier took longer, no other takes: it is no part of the usual time either.
        usual_span_ns = max(1, span_ns - took_ns + usual_ns_of_all)
        if 100 * usual_ns_of_all < limits["validation_idle_pct"] * usual_span_ns:
            continue
        lost, active = lost_in(run, validations, where)
        # JAX queues steps without waiting for them, and Keras waits at the end of the validation, which is queued after
        # the device's remaining work of the epoch: its time contains training steps. Idle time belongs to neither.
        if run.framework == "jax" and has_keras_fit(run):
            if active is None:
                continue  # unknown how much of it was validation
            usual_ns_of_all, took_ns = round(lost * usual_ns_of_all / max(1, took_ns)), lost
        is_long = 100 * usual_ns_of_all >= limits["validation_pct"] * usual_span_ns
        fired = ("validation_pct", "lost_pct") if is_long else ("validation_idle_pct",)
        measured_idle = 0 if active is None else round(lost * usual_ns_of_all / max(1, took_ns))
        idle = lost if is_long else measured_idle
        if 100 * idle < limits[fired[-1]] * span_ns:
            continue  # the GPU was at work most of the time, or was not sampled
        measure = host.Validations(run, validations.count, took_ns, run.validation.total("wait_ns"), span_ns)
        evidence = times(validations, "validation_pct", measure.pct) | {
            fired[-1]: round(100 * idle / span_ns, 1),
            "gpu_active_meanwhile_pct": active,
            "validation_wait_pct": round(100 * measure.waiting, 1) if len(run.validation) else None,
        }
        advice = host.advise_validations(measure)
        # What the first one takes longer, to trace and to compile, no remedy saves.
        advice = replace(advice, saves=advice.saves * min(1.0, usual_ns_of_all / max(1, took_ns)))
        title, threshold, slack_ns = "Validation stalls training", chosen(limits, *fired), run.validation.slack_ns()
        yield stall(run, title, kind, where, lost, active, evidence, advice, validations, threshold, slack_ns=slack_ns)


def _compiling_ns(run: Run, validations: Occurrences) -> np.ndarray:
    """Return the ns that each validation spent compiling the test function; shape `(n,)`."""
    spent = np.zeros(len(validations), np.int64)
    for rows in run.phases.of("compilation").values():
        at = np.searchsorted(validations["start_ns"], rows["start_ns"], side="right") - 1
        inside = (at >= 0) & (rows["end_ns"] <= validations["end_ns"][at])
        np.add.at(spent, at[inside], rows["self_ns"][inside])
    return spent
