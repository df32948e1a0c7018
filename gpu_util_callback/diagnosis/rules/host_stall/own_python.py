"""Python within the steps that does not train, while no GPU works."""

from dataclasses import replace

from gpu_util_callback.diagnosis.advice import callbacks, loops
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import stack_samples_of
from gpu_util_callback.diagnosis.evidence.stalls import idle_in_steps, in_which_steps, usual_body_ns
from gpu_util_callback.diagnosis.rule import ESTIMATED, Advice, Evidence, Finding
from gpu_util_callback.diagnosis.rules.host_stall.long_steps import NAMED, find_long_steps
from gpu_util_callback.diagnosis.rules.host_stall.stall import CAUSE
from gpu_util_callback.diagnosis.rules.launch_bound import LaunchBound
from gpu_util_callback.diagnosis.thresholds import A_TENTH, MOSTLY, Limits, chosen
from gpu_util_callback.recording.manifest_facts import Dispatch, PythonInSteps

Samples = tuple[int, float, tuple[str, float]]  # number, share (0-1) in a kind of Python, its line and that's share


def find_python(run: Run, limits: Limits) -> list[Finding]:
    """Return the finding about calls within the steps that are neither the framework's nor the input's.

    Where there is none and a GPU waits, the one about all Python of the program's own.
    """
    calls, of_loop = run.fit.get("python_in_steps") or {}, stack_samples_of(run)
    if findings := _fetching(run, limits, calls) or _called(run, limits, calls):
        return findings
    if beside := _function_beside_training(run):
        (function, share, at), of_jax = beside, run.framework == "jax"
        samples, title = (of_loop.count if of_loop else 0, share, (at, 1.0)), f"Most of each step passes in {function}"
        advice = loops.copied_arrays(run) or loops.in_each_step(at, share, of_jax)
        findings = _finding(run, limits, samples, {}, title, "aside", advice)
        return [replace(finding, lost_ns=None if of_jax else finding.lost_ns) for finding in findings]
    # The samples do not show an operation that the loop starts without any Python of the framework.
    if not run.used_gpus or of_loop is None or (of_loop.op_us or 0) < limits["eager_op_us"]:
        return []
    samples, fired = (of_loop.count, of_loop.own, of_loop.own_at), Evidence(eager_op_us=round(of_loop.op_us or 0))
    return _finding(run, limits, samples, fired, loops.OWN_PYTHON, "python", loops.own_python(of_loop))


def _called(run: Run, limits: Limits, calls: PythonInSteps) -> list[Finding]:
    """Return the finding about what the steps call, or wait for, that does not train; [] without one."""
    exchanges = (run.fit.get("dispatch") or {}).get("exchanges") or 0
    gradients = bool(calls.get("learned")) and callbacks.is_exchange(calls)
    if not calls.get("aside") or (gradients and exchanges < limits["exchanges_per_update"]):
        return []
    samples: Samples = calls["samples"], calls["aside"], (calls["at"], calls["at_line"])
    fired: Evidence = {"exchanges_per_update": exchanges} if gradients else {}
    steps = "each" if calls.get("beside") else in_which_steps(run, calls["aside"])
    where = "on another thread" if calls.get("beside") else f"in {steps} {'step' if steps == 'each' else 'steps'}"
    title = f"{calls['calls']} {where} stalls training"
    if steps == "few" or (steps == "some" and any(NAMED in long.title for long in find_long_steps(run, limits))):
        return []  # that names the function, and how often it comes
    of_jax = run.framework == "jax"
    advice = callbacks.call_seldom(calls, exchanges, of_jax) if steps == "each" else callbacks.call_half_as_often(calls)
    return _finding(run, limits, samples, fired, title, "aside", advice, steps == "some")


def _fetching(run: Run, limits: Limits, calls: PythonInSteps) -> list[Finding]:
    """Return the finding about a line of the steps that fetches their batches, and waits for them; [] without one."""
    if not calls.get("fetches"):
        return []
    samples, advice = (
        (calls["samples"], calls["fetches"], (calls["fetches_at"], 1.0)),
        loops.fetching_within(run, calls),
    )
    return _finding(run, limits, samples, {}, loops.WAITS_WITHIN, "fetching", advice)


def _function_beside_training(run: Run) -> tuple[str, float, str] | None:
    """Return the program's function that most of a step on a CPU passes in beside its training; None without one.

    With its share (0-1), and its line where that is known. What belongs to a part of the training as well is none.
    JAX's thread may wait in it for the compiled step: it must start a good part of the operations there.
    """
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    samples, called, line = dispatch.get("samples") or 0, dispatch.get("called") or "", dispatch.get("own_at") or ""
    share = (dispatch.get("in_called") or 0) / max(1, samples)
    others = sum(((run.fit.get("python_in_steps") or {}).get("parts") or {}).values())
    is_apart = others > 0 or (dispatch.get("function") == called and (dispatch.get("eager") or 0) >= A_TENTH * samples)
    alone = int(run.manifest.get("world_size", 1)) < 2  # other ranks may be waited for in it
    of_loop, least_pct = stack_samples_of(run), LaunchBound.thresholds["eager_looks_pct"].default
    if of_loop is not None and of_loop.eager_pct >= least_pct and loops.copied_arrays(run) is not None:
        return None  # `launch_bound` claims it
    if run.used_gpus or not alone or not is_apart or not MOSTLY <= share <= 1 + A_TENTH - others:
        return None
    return called, share, line if line.startswith(f"{called} (") else called


def _finding(
    run: Run,
    limits: Limits,
    samples: Samples,
    fired: Evidence,
    title: str,
    detail: str,
    advice: Advice,
    rare: bool = False,
) -> list[Finding]:
    """Return the finding about Python within the steps, if it takes much of them while no GPU works; else [].

    Args:
        fired: evidence that is limited as well.
        rare: whether it is in some of the steps alone.
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
    has_room = usual_body_ns(run) >= MOSTLY * took / rows
    if count < limits["min_looks"] or not is_large or not (has_room or rare):
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
