"""Work of a loop of one's own that makes some of its steps long."""

import numpy as np

from gpu_util_callback.diagnosis.advice import loops
from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.cores import measure_cores
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.stalls import in_which_steps, long_steps, lost_in, times, usual_ns
from gpu_util_callback.diagnosis.rule import SLICE_MS, Findings
from gpu_util_callback.diagnosis.rules.host_stall.stall import stall
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_TENTH, FOUR_FIFTHS, MOSTLY, Limits
from gpu_util_callback.recording.manifest_facts import Dispatch

LONG = "long_steps"  # detail of the finding
NAMED = " makes some steps long"  # end of its title, where a function is known


def find_long_steps(run: Run, limits: Limits) -> Findings:
    """Yield the finding about steps of a custom loop that take many times as long as the others, if there are some."""
    if not run.custom_loop or not len(run.steps) or (run.framework == "jax" and not run.used_gpus):
        return  # on a CPU JAX queues its steps, and a later one waits for them
    long_ones, usual_step_ns = long_steps(run, 1e6 * SLICE_MS / A_TENTH)
    cores = measure_cores(run, run.whole)
    if not run.used_gpus and cores.full and cores.others_compute and not _in_rhythm(run, long_ones):
        return  # a step that lacks a core takes long, at any time
    span_ns = max(1, run.present_in(run.whole))
    if long_ones.count < max(A_FEW, limits["min_occurrences"]):
        return
    if 100 * usual_ns(long_ones["self_ns"]) < limits["long_steps_pct"] * span_ns:
        return
    lost, active = lost_in(run, long_ones, run.whole)
    if 100 * lost < limits["lost_pct"] * span_ns or (active is None and run.used_gpus):
        return  # the GPU was at work: the loop waited for it
    evidence = times(long_ones, "long_steps_pct", 100 * long_ones.self_ns / span_ns) | {
        "usual_step_ms": round(usual_step_ns / 1e6, 3),
        "lost_pct": round(100 * lost / span_ns, 1),
        "gpu_active_meanwhile_pct": active,
    }
    function = "" if run.trainer else _function_in(run, long_ones, limits["min_looks"])
    calls = run.fit.get("python_in_steps") or {}
    if not function and calls.get("aside") and in_which_steps(run, calls["aside"]) == "some":
        return  # `find_python` names what they call
    title = f"{function}{NAMED}" if function else "Long steps among short ones"
    advice = loops.long_steps(run, long_ones, usual_step_ns, function)
    yield stall(run, title, LONG, run.whole, lost, active, evidence, advice, long_ones)


def _function_in(run: Run, long: Occurrences, least: float) -> str:
    """Return the program's function in which most of the time of the long steps passes; "" if none is known.

    Args:
        least: stack samples that are enough to say so.
    """
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    count = dispatch.get("samples") or 0
    inside_ns = (dispatch.get("in_called") or 0) / max(1, count) * run.steps.total("body_ns")
    # On JAX nothing tells which step a sample met.
    is_most = count >= least and inside_ns >= MOSTLY * long.self_ns and run.framework != "jax"
    return str(dispatch.get("called") or "") if is_most else ""


def _in_rhythm(run: Run, long: Occurrences) -> bool:
    """Return True if nearly all long steps come at one distance, as far as blocks show it."""
    apart, rows = np.diff(long["step"]), run.steps.rows_per_block
    if len(apart) < A_FEW:
        return False
    usual = float(np.median(apart))
    return usual >= A_FEW * rows and bool((abs(apart - usual) <= rows).mean() >= FOUR_FIFTHS)
