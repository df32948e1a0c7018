"""Unnamed time of a loop of one's own: between its steps, and after them."""

from dataclasses import replace

import numpy as np

from gpu_util_callback.diagnosis.advice import host, loops
from gpu_util_callback.diagnosis.advice.snippets import usual_period
from gpu_util_callback.diagnosis.evidence.blocks import Occurrence, Occurrences
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.evidence.stalls import lost_in
from gpu_util_callback.diagnosis.rule import Advice, Evidence, Findings
from gpu_util_callback.diagnosis.rules.host_stall.stall import stall
from gpu_util_callback.diagnosis.thresholds import A_TENTH, MANY_TIMES, MIN_STEPS, MOSTLY, THREE_QUARTERS, Limits
from gpu_util_callback.recording.manifest_facts import Dispatch

UNMARKED = "unmarked"  # detail of the finding where nothing names the time
READS = "reads"  # ... where it passes in reads of JAX's values: in the steps' own work, perhaps


def find_unnamed(run: Run, limits: Limits) -> Findings:
    """Yield the finding about time of a custom loop that nothing names, if anything like it comes twice.

    Time before the first step is set-up. The account's "other" is its upper bound.
    """
    steps = run.steps
    if not run.custom_loop or not len(steps):
        return
    spent = _by_block(run)
    stretches = spent[spent >= max(1.0, A_TENTH * float(spent.max()))]
    if len(stretches) < 2:
        return
    longest, median_ns, last_ns = float(spent.max()), float(np.median(stretches)), int(steps["end_ns"].max())
    end_ns = max(last_ns, run.end_ns)
    after_last_ns = max(0.0, _unnamed_ns(run, last_ns, end_ns) - run.absent_ns(last_ns, end_ns))
    tail = min(median_ns, after_last_ns)
    took = round(min(float(spent.sum()) + tail, max(0.0, 1e9 * run.account["time_s"].get("other", np.inf))))
    usual = took if len(stretches) < 3 else round(took - longest + median_ns)  # without the longest stretch
    where = Range(run.first_step, run.end_step, int(steps["start_ns"][0]), round(last_ns + tail))
    rare = len(stretches) * steps.rows_per_block <= MOSTLY * steps.total_rows
    each = _occurrences(run, spent, last_ns, tail) if rare and steps.rows_per_block <= MIN_STEPS.default else None
    lost, active = took, None
    if each is not None:  # stretches whose places are known
        lost, active = lost_in(run, each, where)
        lost = min(lost, took)
    elif (idle := run.idle(*where.extent_ns)) is not None:
        lost, active = min(took, idle.idle_ns), round(idle.active_pct, 1)
    span_ns = max(1, run.present_in(where))
    if 100 * usual < limits["unmarked_pct"] * span_ns or 100 * lost < limits["lost_pct"] * span_ns:
        return
    events = len(stretches) + (tail >= A_TENTH * median_ns) if each is not None else steps.total("between_events")
    often, place = _rhythm_and_place(run, took, tail, events, rare)
    evidence: Evidence = {
        "unmarked_pct": round(100 * took / span_ns, 1),
        "unmarked_s": round(took / 1e9, 3),
        "place_in_loop": place,
    }
    if often is not None:
        evidence["times"] = often
        longest = float(steps["top_between_ns"].max()) if each is None else longest
        evidence["longest_s"] = round(round(longest) / 1e9, 3)
    evidence["lost_pct"] = round(100 * lost / span_ns, 1)
    evidence["gpu_active_meanwhile_pct"] = active
    advice = loops.unnamed(run, place, took / (often or max(1, steps.total_rows)) / 1e9)
    title, detail = "Work outside steps and phases", UNMARKED
    if (named := _named_by_samples(run, limits["min_looks"], place)) is not None:
        title, detail, advice, of_samples = named
        evidence |= of_samples
    state = often is None or often >= MANY_TIMES
    finding = stall(run, title, detail, where, lost, active, evidence, advice, each, state=state)
    yield replace(finding, lost_ns=None) if detail == READS else finding


def _by_block(run: Run) -> np.ndarray:
    """Return the unnamed ns in each block and before it, without set-up; float64 (blocks,)."""
    steps = run.steps
    edges = np.concatenate([steps["start_ns"][:1], steps["end_ns"]])
    accounted_ns = np.diff(run.phases.accounted_ns(edges))
    spent = np.maximum(steps["between_ns"] - accounted_ns, 0)
    for block in np.flatnonzero(spent >= 1e9) if run.present_ns < run.wall_ns else ():
        absent = run.absent_ns(int(edges[block]), int(edges[block + 1]))
        spent[block] = max(0.0, spent[block] - absent)
    return spent


def _unnamed_ns(run: Run, start_ns: int, end_ns: int) -> float:
    """Return the time between two moments that no phase accounts for."""
    before, after = run.phases.accounted_ns(np.array([start_ns, end_ns]))
    return end_ns - start_ns - float(after - before)


def _occurrences(run: Run, spent: np.ndarray, last_ns: int, tail: float) -> Occurrences:
    """Return the stretches of unnamed time, each before its block where there is room, else in its middle.

    Args:
        spent: ns for each block, shape `(n,)`; blocks with less than a tenth of the longest have no stretch.
        last_ns, tail: the end of the last step, and the unnamed ns after it.
    """
    steps = run.steps
    stretches: list[Occurrence] = []
    begins, ends = steps["start_ns"], steps["end_ns"]
    for block in np.flatnonzero(spent >= max(1.0, A_TENTH * float(spent.max()))).tolist():
        length = int(spent[block])
        before = int(begins[block] - ends[block - 1]) if block else 0
        end = int(begins[block])
        if 2 * before < length:
            end = int(begins[block] + ends[block] + length) // 2
        stretches.append((end - length, end, length, int(steps["first_step"][block]), 1))
    if tail >= 1:
        stretches.append((last_ns, last_ns + int(tail), int(tail), run.end_step, 1))
    return Occurrences(stretches)


def _rhythm_and_place(run: Run, took: int, tail: float, events: int, rare: bool) -> tuple[int | None, str]:
    """Return how often the unnamed time comes (None = in each step), and its place in the loop in words."""
    rows, epochs = run.steps.total_rows, run.phases.of("epoch").get("")
    if epochs is not None and epochs.count >= 2 and _outside_ns(run, epochs) + tail >= THREE_QUARTERS * took:
        return epochs.count, loops.AFTER_EPOCHS
    if events and (rare or events < MOSTLY * rows):
        return events, f"about every {max(2, usual_period(rows, events))} steps"
    return None, loops.EACH_STEP


def _outside_ns(run: Run, epochs: Occurrences) -> float:
    """Return the unnamed time between epochs, ns."""
    starts, ends = epochs["start_ns"], epochs["end_ns"]
    if epochs.joined:
        return max(0.0, _unnamed_ns(run, int(starts[0]), int(ends[-1])) - epochs.self_ns)
    accounted_ns = run.phases.accounted_ns(starts[1:]) - run.phases.accounted_ns(ends[:-1])
    return float(np.maximum(starts[1:] - ends[:-1] - accounted_ns, 0).sum())


def _named_by_samples(run: Run, least: float, place: str) -> tuple[str, str, Advice, Evidence] | None:
    """Return title, detail, advice and evidence where most stack samples between steps met one thing; None if not.

    Args:
        least: stack samples that are enough.
        place: of the time in the loop, in words.
    """
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    count = dispatch.get("between") or 0
    inside = dispatch.get("between_predict"), dispatch.get("between_predict_set_up"), dispatch.get("between_input")
    predict, set_up, fetching = ((samples or 0) / max(1, count) for samples in inside)
    reading = (dispatch.get("between_reads") or 0) / max(1, count)
    if count >= least and predict >= MOSTLY:
        advice = replace(host.PREDICT_ADVICE, saves=set_up)
        evidence: Evidence = {"predict_set_up_pct": round(100 * set_up, 1)}
        return loops.PREDICTS_BETWEEN, "predict", advice, evidence
    if count >= least and fetching >= MOSTLY:
        evidence = {"between_input_pct": round(100 * fetching, 1)}
        return loops.WAITS_BETWEEN, "fetching", loops.fetching_between(run, fetching), evidence
    function, in_function = dispatch.get("between_function"), (dispatch.get("between_in_function") or 0) / max(1, count)
    # Of a trainer the hooks of the program's own classes.
    if function and count >= least and in_function >= MOSTLY and ("." in function or not run.trainer):
        evidence = {"between_function": function, "between_function_pct": round(100 * in_function, 1)}
        return f"{function} runs {place}", "function", loops.function_between(run, function, place), evidence
    if count >= least and reading >= MOSTLY:
        evidence = {"between_reads_pct": round(100 * reading, 1)}
        return f"The loop waits for values of JAX {place}", READS, loops.reads_between(reading, place), evidence
    return None
