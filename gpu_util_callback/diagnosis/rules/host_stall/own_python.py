"""Python within the steps that does not train, while no GPU works."""

from gpu_util_callback.diagnosis.advice import callbacks, loops
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import stack_samples_of
from gpu_util_callback.diagnosis.evidence.stalls import idle_in_steps, usual_body_ns
from gpu_util_callback.diagnosis.rule import ESTIMATED, Advice, Evidence, Finding
from gpu_util_callback.diagnosis.rules.host_stall.stall import CAUSE
from gpu_util_callback.diagnosis.thresholds import MOSTLY, Limits, chosen


def find_python(run: Run, limits: Limits) -> list[Finding]:
    """Return the finding about calls within the steps that are neither the framework's nor the input's.

    Where there is none and a GPU waits, the one about all Python of the program's own.
    """
    calls, of_loop = run.fit.get("python_in_steps") or {}, stack_samples_of(run)
    if calls.get("aside"):
        where = "on another thread" if calls.get("beside") else "in each step"
        title, line = f"{calls['calls']} {where} stalls training", (calls["at"], calls["at_line"])
        samples = calls["samples"], calls["aside"], line
        if findings := _finding(run, limits, samples, {}, title, "aside", callbacks.call_seldom(calls)):
            return findings
    # The samples do not show an operation that the loop starts without any Python of the framework.
    if not run.used_gpus or of_loop is None or (of_loop.op_us or 0) < limits["own_op_us"]:
        return []
    samples = of_loop.count, of_loop.own, of_loop.own_at
    fired: Evidence = {"own_op_us": round(of_loop.op_us or 0)}
    return _finding(run, limits, samples, fired, loops.OWN_PYTHON, "python", loops.own_python(of_loop))


def _finding(
    run: Run,
    limits: Limits,
    samples: tuple[int, float, tuple[str, float]],
    fired: Evidence,
    title: str,
    detail: str,
    advice: Advice,
) -> list[Finding]:
    """Return the finding about Python within the steps, if it takes much of them while no GPU works; else [].

    Args:
        samples: their count, the share (0-1) of them in it, and its line with the share of that.
        fired: evidence that is limited as well.
    """
    count, share, (place, at_line) = samples
    rows, took = max(1, run.steps.total_rows), round(share * run.steps.total("body_ns"))
    lost, active = took, None
    if run.used_gpus:
        idle, in_steps = run.idle(*run.steps.extent_ns), idle_in_steps(run)
        if idle is None or in_steps is None:
            return []  # the GPU may be at work meanwhile
        lost, active = max(0, min(took, in_steps - int(run.steps.explained_ns.sum()))), round(idle.active_pct, 1)
    is_large = 100 * lost >= limits["own_python_pct"] * run.steps.total("duration_ns")
    # The usual step has room for it: else it lies in a few long ones.
    in_each_step = usual_body_ns(run) >= MOSTLY * took / run.steps.total_rows
    if count < limits["min_looks"] or not is_large or not in_each_step:
        return []
    evidence: Evidence = {
        "own_python_pct": round(100 * share, 1),
        "looks": count,
        "own_python_at": place,
        "own_python_at_pct": round(100 * at_line, 1),
        "ms_per_step": round(took / rows / 1e6, 3),
        "steps": run.steps.total_rows,
        "gpu_active_pct": active,
    }
    threshold: Evidence = {**chosen(limits, "own_python_pct", "min_looks", *fired)}
    evidence |= fired
    return [Finding(CAUSE, title, run.whole, lost, ESTIMATED, evidence, threshold, advice, detail=detail, state=True)]
