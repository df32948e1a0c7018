"""Hooks of callbacks that stall training, at the ends of epochs or after batches."""

from dataclasses import replace

from gpu_util_callback.diagnosis.advice import callbacks
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.evidence.stalls import lost_in, stalled_range, times, usual_ns
from gpu_util_callback.diagnosis.rule import Evidence, Findings, in_many_steps
from gpu_util_callback.diagnosis.rules.host_stall.stall import stall
from gpu_util_callback.diagnosis.thresholds import A_TWENTIETH, MOSTLY, Limits, chosen

# Backends on which Keras runs end hooks on other threads: their cost is no callback's time.
_DISPATCHED = frozenset({"jax", "torch"})


def find_epoch_hooks(run: Run, limits: Limits) -> Findings:
    """Yield the findings about hooks that have rows of their own: mostly those at the ends of epochs."""
    named = [(kind, *item) for kind in _KINDS for item in run.phases.of(kind, account="callbacks").items()]
    for kind, name, calls in named:
        if calls.count < limits["min_occurrences"]:
            continue
        where = stalled_range(run, calls)
        span_ns = max(1, run.present_in(where))
        if 100 * usual_ns(calls["self_ns"]) < limits["callback_pct"] * span_ns:  # short without the longest call
            continue
        lost_ns, active_pct = lost_in(run, calls, where)
        if 100 * lost_ns < limits["lost_pct"] * span_ns:
            continue
        took, often = calls.self_ns, calls.count
        evidence = {"callback": name} | times(calls, "callback_pct", 100 * took / span_ns)
        evidence |= {"lost_pct": round(100 * lost_ns / span_ns, 1), "gpu_active_meanwhile_pct": active_pct}
        if name.endswith("batch_end"):  # of batches, which Keras runs on other threads
            epochs, steps = _epochs_in(run, where), where.steps
            advice = callbacks.in_steps(callbacks.StepWork(run, name, often, took, span_ns, epochs, steps, pooled=True))
        else:
            advice = callbacks.at_epochs(callbacks.EpochWork(run, name, often, took, span_ns, often))
        fired = chosen(limits, "callback_pct", "lost_pct") | {"times": limits["min_occurrences"]}
        yield stall(run, _title(name, kind), name, where, lost_ns, active_pct, evidence, advice, calls, threshold=fired)


def find_batch_hooks(run: Run, limits: Limits) -> Findings:
    """Yield the findings about hooks after batches, by the time of callbacks in each step."""
    spans = run.spans_of("callbacks", enter=limits["callback_pct"] / 100, min_rows=int(limits["min_steps"]))
    for where, blocks in spans:
        took_ns = run.steps.total("callbacks_ns", blocks)
        # Of the steps: a span may lie across validations, which are reported separately.
        steps_ns = max(1, run.steps.total("duration_ns", blocks))
        rows = max(1, where.steps)
        if took_ns < limits["ms_per_step"] * 1e6 * rows:
            continue
        name, hook_share, named_ns = _heaviest_hook(run, where)
        if run.framework in _DISPATCHED and named_ns < MOSTLY * took_ns:
            continue  # Keras' own dispatch, or threads that compete for Python's lock
        idle, lost = run.idle_in(where), run.lost_of(took_ns, where)
        if 100 * lost < limits["callback_pct"] * steps_ns:
            continue
        active = round(idle.active_pct, 1) if idle else None
        evidence: Evidence = {
            "callback": name or "not known which",
            "callback_pct": round(100 * took_ns / steps_ns, 1),
            "ms_per_step": round(took_ns / rows / 1e6, 3),
            "steps": rows,
            "gpu_active_pct": active,
            "share_of_callback_time_pct": round(100 * hook_share, 1) if name and hook_share < 1 - A_TWENTIETH else None,
        }
        calls, span_ns = run.steps.total("callback_events", blocks), run.present_in(where)
        work = callbacks.StepWork(run, name, calls, took_ns, span_ns, _epochs_in(run, where), rows)
        advice = callbacks.in_steps(work)
        others_stay = hook_share * min(1.0, named_ns / took_ns) if name else 1.0  # the remedy is about one hook
        advice = replace(advice, saves=advice.saves * others_stay)
        title = _title(name, "checkpoint" if "Checkpoint" in name or "Backup" in name else "callback")
        state = in_many_steps(took_ns, run.steps["top_callbacks_ns"][blocks])
        yield stall(run, title, name or "callbacks", where, lost, active, evidence, advice, state=state)


_KINDS = "callback", "checkpoint"


def _epochs_in(run: Run, where: Range) -> int:
    """Return how many epochs a range touches, 1 if unknown."""
    per_epoch = run.fit.get("steps_per_epoch")
    if not per_epoch:
        ends = (rows["step"] for rows in run.phases.of("epoch").values())
        return 1 + sum(int(((steps > where.start_step) & (steps < where.end_step)).sum()) for steps in ends)
    first, last = where.start_step // int(per_epoch), (where.end_step - 1) // int(per_epoch)
    return max(1, last - first + 1)


def _heaviest_hook(run: Run, where: Range) -> tuple[str, float, int]:
    """Return the callback that dominates the batch hooks' time in a range, its share (0-1) of it, and that time in ns.

    ("", 0.0, 0) where no hook is named.
    """
    spent: dict[str, int] = {}
    for kind in _KINDS:
        for name, rows in run.phases.of(kind, account="").items():
            inside = (rows["end_ns"] > where.start_ns) & (rows["start_ns"] < where.end_ns)
            spent[name] = spent.get(name, 0) + int(rows["self_ns"][inside].sum())
    total = sum(spent.values())
    if not total:
        return "", 0.0, 0
    name = max(spent, key=lambda key: spent[key])
    return name, spent[name] / total, total


def _title(name: str, kind: str) -> str:
    who = name.split(".")[0] or "A callback"
    return f"{who} stalls training" if kind == "callback" else f"{who}: saving stalls training"
