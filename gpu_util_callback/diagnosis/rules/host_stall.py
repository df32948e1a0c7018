"""Host stall: training stands still while the host validates, saves or runs a callback."""

from dataclasses import replace
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.advice import callbacks
from gpu_util_callback.diagnosis.advice import host as host_advice
from gpu_util_callback.diagnosis.advice.snippets import has_keras_fit, roundest, usual_period
from gpu_util_callback.diagnosis.evidence.blocks import Occurrence, Occurrences
from gpu_util_callback.diagnosis.evidence.cores import measure_cores
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import stack_samples_of
from gpu_util_callback.diagnosis.evidence.source import shows_idle_host
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.evidence.stalls import (
    idle_in_steps,
    intervals,
    long_steps,
    lost_in,
    owned,
    times,
    usual_body_ns,
    usual_ns,
)
from gpu_util_callback.diagnosis.evidence.windows import Share, stretches_of
from gpu_util_callback.diagnosis.rule import (
    ESTIMATED,
    MEASURED,
    SLICE_MS,
    Advice,
    Evidence,
    Finding,
    Findings,
    Rule,
    in_many_steps,
    significant,
)
from gpu_util_callback.diagnosis.thresholds import (
    A_FEW,
    A_TENTH,
    A_TWENTIETH,
    ALWAYS_S,
    DOUBLE,
    FOUR_FIFTHS,
    MANY_TIMES,
    MATTERS_PCT,
    MIN_SAMPLES,
    MIN_STEPS,
    MOSTLY,
    OP_US,
    SIGNIFICANT,
    THREE_QUARTERS,
    Limits,
    Threshold,
    chosen,
)
from gpu_util_callback.recording.manifest_facts import Dispatch, SourceBlockingCall, SourceFacts, SourceOnce
from gpu_util_callback.words import capitalized, duration, percent

# -- unnamed time of a custom loop -------------------------------------------------------------


def _by_block(run: Run) -> np.ndarray:
    """Return unnamed ns of each block and before it, without setup; shape `(n,)`."""
    steps = run.steps
    edges = np.concatenate([steps["start_ns"][:1], steps["end_ns"]])
    accounted_ns = np.diff(run.phases.accounted_ns(edges))
    spent = np.maximum(steps["between_ns"] - accounted_ns, 0)
    for block in np.flatnonzero(spent >= 1e9) if run.present_ns < run.wall_ns else ():
        absent = run.absent_ns(int(edges[block]), int(edges[block + 1]))
        spent[block] = max(0.0, spent[block] - absent)
    return spent


def _tail(run: Run, last_ns: int) -> float:
    """Return unnamed ns after the last step."""
    end_ns = max(last_ns, run.end_ns)
    return max(0.0, _unnamed_ns(run, last_ns, end_ns) - run.absent_ns(last_ns, end_ns))


def _unnamed_ns(run: Run, start_ns: int, end_ns: int) -> float:
    """Return the time between two moments that no phase accounts for."""
    before, after = run.phases.accounted_ns(np.array([start_ns, end_ns]))
    return end_ns - start_ns - float(after - before)


def _occurrences(run: Run, spent: np.ndarray, last_ns: int, tail: float) -> Occurrences:
    """Return the stretches, each at its place: before its block, else within it."""
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


MARK = " Mark it, so that it is named and judged accordingly."
_NOT_SEEN = f" The monitor does not see what the loop does there: validation, saving, logging?{MARK}"
_SEEN = "for batch in monitor.batches(dataset): ...  # then without monitor.step()"


def _place(run: Run, took: int, tail: float, count: int, rare: bool, separate: bool) -> tuple[int | None, str, Advice]:
    """Return the number of the stretches, their place in the loop, and the advice for that place."""
    rows, epochs = run.steps.total_rows, run.phases.of("epoch").get("")
    events = count if separate else run.steps.total("between_events")
    says = _NOT_SEEN
    times: int | None
    if epochs is not None and epochs.count >= 2 and _outside(run, epochs) + tail >= THREE_QUARTERS * took:
        times, place, which = epochs.count, "after each epoch", "{} after each epoch"
        code = 'with monitor.phase("validation"): ...  # what runs after each epoch, by its name'
    elif events and (rare or events < MOSTLY * rows):
        place = f"about every {max(2, usual_period(rows, events))} steps"
        times, which = events, f"{capitalized(place)}, {{}}"
        code = f'with monitor.phase("checkpoint"): ...  # what runs {place}, under its name'
    else:
        times, place, which, says = None, "between the steps", "{} between steps", ""
        code = 'with monitor.phase("logging"): ...  # what the loop does between two steps, by its name'
    time = which.format(duration(took / (times or max(1, rows)) / 1e9))
    if times is None and not run.trainer and not run.steps.total("wait_known"):
        asks = "Does the loop fetch its next batch there? If so, let it see the fetching."
        return times, place, Advice(f"{time} is not seen by the monitor. {asks}", _SEEN, question=True)
    text = f"{time} is unaccounted for."
    if run.trainer:  # it marks what it does by itself
        return times, place, Advice(text)
    text += says or MARK
    return times, place, Advice(text, code)


def _outside(run: Run, epochs: Occurrences) -> float:
    """Return unnamed time between epochs."""
    starts, ends = epochs["start_ns"], epochs["end_ns"]
    if epochs.joined:
        return max(0.0, _unnamed_ns(run, int(starts[0]), int(ends[-1])) - epochs.self_ns)
    accounted_ns = run.phases.accounted_ns(starts[1:]) - run.phases.accounted_ns(ends[:-1])
    return float(np.maximum(starts[1:] - ends[:-1] - accounted_ns, 0).sum())


def _named_by_samples(run: Run, least: float, place: str) -> tuple[str, str, Advice, Evidence] | None:
    """Return title, detail, advice and evidence where most stack samples between steps met one thing."""
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    count = dispatch.get("between") or 0
    inside = dispatch.get("between_predict"), dispatch.get("between_predict_set_up"), dispatch.get("between_input")
    predict, set_up, fetching = ((samples or 0) / max(1, count) for samples in inside)
    if count >= least and predict >= MOSTLY:
        advice = replace(host_advice.PREDICT_ADVICE, saves=set_up)
        evidence: Evidence = {"predict_set_up_pct": round(100 * set_up, 1)}
        return "predict is called between the steps", "predict", advice, evidence
    if count >= least and fetching >= MOSTLY:
        text = f"{100 * fetching:.0f} % of the time between the steps passes in the iterator of a dataset."
        advice = Advice(text)
        if not run.trainer:
            advice = Advice(f"{text} The monitor sees why only where it is given the dataset.", _SEEN)
        evidence = {"between_input_pct": round(100 * fetching, 1)}
        return "Training waits for its input between the steps", "fetching", advice, evidence
    function, in_function = dispatch.get("between_function"), (dispatch.get("between_in_function") or 0) / max(1, count)
    loads = run.trainer == "lightning" and str(function).endswith(".train_dataloader")
    if function and count >= least and in_function >= MOSTLY and (loads or not run.trainer):
        often = "" if place == "between the steps" else f" {place}"
        evidence = {"between_function": function, "between_function_pct": round(100 * in_function, 1)}
        advice = Advice(_LOADS.format(function)) if loads else _less_often(function, often, place)
        return f"{function} runs {place}", "function", advice, evidence
    return None


_LOADS = "Lightning calls {} again and again. Read the data once, in setup, or set reload_dataloaders_every_n_epochs=0."


def _less_often(function: str, often: str, place: str) -> Advice:
    """Return the advice on a function of the program that runs outside the steps, at this place of the loop."""
    text = f"{function} runs{often or ' between the steps'}, and the monitor does not see what it does there."
    marked = f'with monitor.phase("validation"): {function}(...)  # or what else it is'
    if place != "after each epoch":
        return Advice(f"{text} Marked, it is judged as what it is.", marked)
    every = f"if epoch % 2 == 0:\n    {function}(...)"
    return Advice(f"{text} Is every second epoch enough?", every, saves=1 / DOUBLE, question=True, leaves_out=True)


# -- the rule ----------------------------------------------------------------------------------
# Backends on which Keras runs end hooks on other threads: their cost is no callback's time.
_DISPATCHED = frozenset({"jax", "torch"})
LONG = "long_steps"
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

    cause = "host_stall"
    title = "Training stalls"
    look = "◆", "mauve"
    part = "callbacks"
    idling = True
    between_steps = True
    unnamed = "unmarked"
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
        "own_op_us": OP_US,
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
        if detail == LONG:
            return "step"
        return detail if detail == "validation" else self.part

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
        findings = [
            *self._validation(run, limits),
            *self._at_ends(run, limits),
            *self._in_steps(run, limits),
            *self._in_python(run, limits),
            *self._unmarked(run, limits),
            *self._long_steps(run, limits),
        ]
        return significant(findings, run.present_ns, limits)

    # -- a trace ---------------------------------------------------------------------------------

    def _in_trace(self, run: Run, limits: Limits, source: SourceFacts) -> Findings:
        calls = source["host_calls"]["idle_host_ns"] if source["host_calls"] else 0  # they have a rule
        once = source["once"]["idle_ns"] if source["once"] else 0
        for share in stretches_of(run, limits["idle_host_pct"], "idle_host"):
            if source["once"] and 2 * once >= share.lost_ns:
                yield self._start_up(share, source["once"], run)
            share = share.without(once + calls)
            if share.pct < limits["idle_host_pct"]:
                continue
            blocking = source.get("blocking_call")
            if blocking and 2 * blocking["idle_ns"] >= share.lost_ns:
                yield self._blocked(share.only(min(blocking["idle_ns"], share.lost_ns)), blocking, run)
                continue
            yield self.loss(
                share,
                host_advice.host_activity(source["host_activity"]),
                evidence={"idle_host_pct": share.pct, "host_activity": source["host_activity"] or None},
                of_trace=f"The GPU idles {share.pct:.0f} % of the time while the host does something else",
            )

    def _start_up(self, share: Share, once: SourceOnce, run: Run) -> Finding:
        """Return the finding about costs that are paid once, in a trace that began too early."""
        start_up = share.only(once["idle_ns"])
        return self.loss(
            start_up,
            host_advice.traced_too_early(run, once["name"], once["longest_ns"]),
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
            host_advice.blocked_in(run, call),
            evidence={"idle_host_pct": share.pct, "host_activity": call["name"], "seconds_each": call["each_ns"] / 1e9},
            of_trace=f"{calls} {'take' if call['count'] > 1 else 'takes'} {took}, and the GPU idles meanwhile",
            detail="call",
        )

    # -- validation ----------------------------------------------------------------------------

    def _validation(self, run: Run, limits: Limits) -> Findings:
        groups = run.phases.of("validation", account="validation")
        for occurrences in groups.values():
            if occurrences.count < 2 and not run.ended:
                continue  # the first one traces and fills; wait for another
            where = owned(run, occurrences)
            took = occurrences.self_ns
            span_ns = max(1, run.present_in(where))
            # Compiling the test function happens once, however long the run gets.
            again = usual_ns(np.maximum(occurrences["self_ns"] - _compiled(run, occurrences), 0))
            if 100 * again < limits["validation_idle_pct"] * span_ns:
                continue
            lost, active = lost_in(run, occurrences, where)
            if _holds_steps(run):
                if active is None:
                    continue  # unknown how much of it was validation
                again, took = round(lost * again / max(1, took)), lost
            if 100 * again >= limits["validation_pct"] * span_ns:
                least: str = "lost_pct"
                fired: tuple[str, ...] = ("validation_pct", "lost_pct")
                idle = lost
            else:
                least, fired = "validation_idle_pct", ("validation_idle_pct",)
                idle = 0 if active is None else round(lost * again / max(1, took))
            if 100 * idle < limits[least] * span_ns:
                continue  # the GPU was at work most of the time, or was not sampled
            wait = run.validation.total("wait_ns")
            validations = host_advice.Validations(run, occurrences.count, took, wait, span_ns)
            evidence = times(occurrences, "validation_pct", validations.pct) | {
                least: round(100 * idle / span_ns, 1),
                "gpu_active_meanwhile_pct": active,
            }
            if len(run.validation):
                evidence["validation_wait_pct"] = round(100 * validations.waiting, 1)
            advice = host_advice.advise_validations(validations)
            # What the first one takes longer, to trace and to compile, no remedy saves.
            advice = replace(advice, saves=advice.saves * min(1.0, again / max(1, took)))
            yield self._stall(
                run,
                active,
                title="Validation stalls training",
                where=where,
                lost_ns=lost,
                evidence=evidence,
                threshold=chosen(limits, *fired),
                advice=advice,
                detail="validation",
                pieces=intervals(occurrences),
                state=occurrences.count >= MANY_TIMES,
                slack_ns=run.validation.slack_ns(),
            )

    # -- callbacks at the ends of epochs ---------------------------------------------------------

    def _at_ends(self, run: Run, limits: Limits) -> Findings:
        for kind in ("callback", "checkpoint"):
            for name, occurrences in run.phases.of(kind, account="callbacks").items():
                if occurrences.count < limits["min_occurrences"]:
                    continue
                where = owned(run, occurrences)
                span_ns = max(1, run.present_in(where))
                if 100 * usual_ns(occurrences["self_ns"]) < limits["callback_pct"] * span_ns:
                    continue
                lost, active = lost_in(run, occurrences, where)
                if 100 * lost < limits["lost_pct"] * span_ns:
                    continue
                pct = 100 * occurrences.self_ns / span_ns
                evidence = (
                    {"callback": name}
                    | times(occurrences, "callback_pct", pct)
                    | {"lost_pct": round(100 * lost / span_ns, 1), "gpu_active_meanwhile_pct": active}
                )
                took, often = occurrences.self_ns, occurrences.count
                if name.endswith("batch_end"):
                    epochs = _epochs_in(run, where)
                    advice = callbacks.in_steps(
                        callbacks.StepWork(run, name, often, took, span_ns, epochs, where.steps, pooled=True)
                    )
                else:
                    advice = callbacks.at_epochs(callbacks.EpochWork(run, name, often, took, span_ns, often))
                yield self._stall(
                    run,
                    active,
                    title=_title(name, kind),
                    where=where,
                    lost_ns=lost,
                    evidence=evidence,
                    threshold=chosen(limits, "callback_pct", "lost_pct") | {"times": limits["min_occurrences"]},
                    advice=advice,
                    detail=name,
                    pieces=intervals(occurrences),
                    state=occurrences.count >= MANY_TIMES,
                )

    # -- callbacks inside steps --------------------------------------------------------------------

    def _in_steps(self, run: Run, limits: Limits) -> Findings:
        spans = run.spans_of("callbacks", enter=limits["callback_pct"] / 100, min_rows=int(limits["min_steps"]))
        for where, blocks in spans:
            took = run.steps.total("callbacks_ns", blocks)
            # Of the steps: a span may lie across validations, which are reported separately.
            steps_ns = max(1, run.steps.total("duration_ns", blocks))
            rows = max(1, where.steps)
            if took < limits["ms_per_step"] * 1e6 * rows:
                continue
            name, of_it, hook_ns = _heaviest_hook(run, where)
            if run.framework in _DISPATCHED and hook_ns < MOSTLY * took:
                continue  # Keras' own dispatch, or threads that compete for Python's lock
            idle, lost = run.idle_in(where), run.lost_of(took, where)
            if 100 * lost < limits["callback_pct"] * steps_ns:
                continue
            active = round(idle.active_pct, 1) if idle else None
            evidence: Evidence = {
                "callback": name or "not known which",
                "callback_pct": round(100 * took / steps_ns, 1),
                "ms_per_step": round(took / rows / 1e6, 3),
                "steps": rows,
                "gpu_active_pct": active,
            }
            if name and of_it < 1 - A_TWENTIETH:
                evidence["share_of_callback_time_pct"] = round(100 * of_it, 1)
            kind = "checkpoint" if "Checkpoint" in name or "Backup" in name else "callback"
            worked = run.steps.total("callback_events", blocks)
            span_ns = run.present_in(where)
            epochs = _epochs_in(run, where)
            advice = callbacks.in_steps(callbacks.StepWork(run, name, worked, took, span_ns, epochs, rows))
            others_stay = of_it * min(1.0, hook_ns / took) if name else 1.0
            advice = replace(advice, saves=advice.saves * others_stay)
            yield self._stall(
                run,
                active,
                title=_title(name, kind),
                where=where,
                lost_ns=lost,
                evidence=evidence,
                advice=advice,
                detail=name or "callbacks",
                state=in_many_steps(took, run.steps["top_callbacks_ns"][blocks]),
            )

    # -- Python in the steps that does not train -----------------------------------------------------

    def _in_python(self, run: Run, limits: Limits) -> list[Finding]:
        """Return the finding about calls within the steps that are neither the framework's nor the input's.

        Where there is none and a GPU waits, the one about all Python of the program's own.
        """
        calls, of_loop = run.fit.get("python_in_steps") or {}, stack_samples_of(run)
        if calls.get("aside"):
            title, line = f"{calls['calls']} in each step stalls training", (calls["at"], calls["at_line"])
            advice = callbacks.call_seldom(calls)
            samples = calls["samples"], calls["aside"], line
            if found := self._python(run, limits, samples, {}, title=title, advice=advice, detail="aside"):
                return found
        # The samples do not show an operation that the loop starts without any Python of the framework.
        if not run.used_gpus or of_loop is None or (of_loop.op_us or 0) < limits["own_op_us"]:
            return []
        place, of_it = of_loop.own_at
        part = "most" if of_it > MOSTLY else percent(100 * of_it)
        advice = Advice(
            f"{percent(100 * of_loop.own)} of a step the training thread is in Python of the program's "
            f"own, {part} of it in {place}, and the GPU waits. Make that cheaper, or let the input do it, whose "
            "workers prepare a batch during steps."
        )
        title = "The program's own Python in each step keeps the GPU waiting"
        samples = of_loop.count, of_loop.own, of_loop.own_at
        fired: Evidence = {"own_op_us": round(of_loop.op_us or 0)}
        return self._python(run, limits, samples, fired, title=title, advice=advice, detail="python")

    def _python(
        self, run: Run, limits: Limits, samples: tuple[int, float, tuple[str, float]], fired: Evidence, **what: Any
    ) -> list[Finding]:
        """Return the finding about Python within the steps, if it takes much of them while no GPU works.

        Args:
            samples: their count, the share (0-1) of them in it, and its line with the share of that.
            fired: evidence that is limited as well; what: title, advice and detail.
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
        if count < limits["min_looks"] or not is_large or not _in_each_step(run, took):
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
        return [
            self.finding(
                where=run.whole,
                lost_ns=lost,
                confidence=ESTIMATED,
                evidence=evidence | fired,
                threshold=chosen(limits, "own_python_pct", "min_looks", *fired),
                state=True,
                **what,
            )
        ]

    # -- unmarked time of a custom loop ------------------------------------------------------------

    def _unmarked(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding about unnamed time, if anything like it comes twice.

        Time before the first step is setup. The account's "other" is its upper bound.
        """
        steps = run.steps
        if not run.custom_loop or not len(steps):
            return
        spent = _by_block(run)
        stretches = spent[spent >= max(1.0, A_TENTH * float(spent.max()))]
        if len(stretches) < 2:
            return
        longest, middle, last_ns = float(spent.max()), float(np.median(stretches)), int(steps["end_ns"].max())
        tail = min(middle, _tail(run, last_ns))
        took = round(min(float(spent.sum()) + tail, max(0.0, 1e9 * run.account["time_s"].get("other", np.inf))))
        usual = took if len(stretches) < 3 else round(took - longest + middle)
        where = Range(run.first_step, run.end_step, int(steps["start_ns"][0]), round(last_ns + tail))
        rare = len(stretches) * steps.rows_per_block <= MOSTLY * steps.total_rows
        separate = rare and steps.rows_per_block <= MIN_STEPS.default
        lost, active, pieces = took, None, []
        if separate:
            occurrences = _occurrences(run, spent, last_ns, tail)
            pieces = intervals(occurrences)
            lost, active = lost_in(run, occurrences, where)
            lost = min(lost, took)
        elif (idle := run.idle(*where.extent_ns)) is not None:
            lost, active = min(took, idle.idle_ns), round(idle.active_pct, 1)
        span_ns = max(1, run.present_in(where))
        if 100 * usual < limits["unmarked_pct"] * span_ns or 100 * lost < limits["lost_pct"] * span_ns:
            return
        count = len(stretches) + (tail >= A_TENTH * middle)
        often, place, advice = _place(run, took, tail, count, rare, separate)
        evidence: Evidence = {
            "unmarked_pct": round(100 * took / span_ns, 1),
            "unmarked_s": round(took / 1e9, 3),
            "place_in_loop": place,
        }
        if often is not None:
            evidence["times"] = often
            evidence["longest_s"] = round(round(longest if separate else float(steps["top_between_ns"].max())) / 1e9, 3)
        evidence["lost_pct"] = round(100 * lost / span_ns, 1)
        evidence["gpu_active_meanwhile_pct"] = active
        title, detail = "Work outside steps and phases", self.unnamed
        named = _named_by_samples(run, limits["min_looks"], place)
        if named is not None:
            title, detail, advice, of_samples = named
            evidence |= of_samples
        yield self._stall(
            run,
            active,
            title=title,
            where=where,
            lost_ns=lost,
            evidence=evidence,
            advice=advice,
            detail=detail,
            pieces=pieces,
            state=often is None or often >= MANY_TIMES,
        )

    # -- work of a custom loop that lies in its steps ----------------------------------------------

    def _long_steps(self, run: Run, limits: Limits) -> Findings:
        if not run.custom_loop or not len(run.steps) or (run.framework == "jax" and not run.used_gpus):
            return  # on a CPU JAX queues its steps, and a later one waits for them
        occurrences, usual = long_steps(run, 1e6 * SLICE_MS / A_TENTH)
        cores = measure_cores(run, run.whole)
        if not run.used_gpus and cores.full and cores.others_compute and not _in_rhythm(run, occurrences):
            return  # a step that lacks a core takes long, at any time
        span_ns = max(1, run.present_in(run.whole))
        if occurrences.count < max(A_FEW, limits["min_occurrences"]):
            return
        if 100 * usual_ns(occurrences["self_ns"]) < limits["long_steps_pct"] * span_ns:
            return
        lost, active = lost_in(run, occurrences, run.whole)
        if 100 * lost < limits["lost_pct"] * span_ns or (active is None and run.used_gpus):
            return  # the GPU was at work: the loop waited for it
        evidence = times(occurrences, "long_steps_pct", 100 * occurrences.self_ns / span_ns) | {
            "usual_step_ms": round(usual / 1e6, 3),
            "lost_pct": round(100 * lost / span_ns, 1),
            "gpu_active_meanwhile_pct": active,
        }
        ratio = occurrences.self_ns / occurrences.count / max(1.0, usual)
        as_long = f"{float(f'{ratio:.2g}'):,.0f} times as long as the others"
        text = f"{occurrences.count:,} of {run.steps.total_rows:,} steps take {as_long}."
        title, advice = "Long steps among short ones", Advice(text)
        function = _in_long_steps(run, occurrences, limits["min_looks"])
        if function and not run.trainer:
            title, advice = f"{function} makes some steps long", _half_as_often(run, function, text, occurrences)
        elif not run.trainer:
            code = 'with monitor.phase("validation"): ...  # what runs in them, by its name'
            advice = Advice(text + _NOT_SEEN, code)
        yield self._stall(
            run,
            active,
            title=title,
            where=run.whole,
            lost_ns=lost,
            evidence=evidence,
            advice=advice,
            detail=LONG,
            pieces=intervals(occurrences),
            state=occurrences.count >= MANY_TIMES,
        )

    def _stall(self, run: Run, active_pct: float | None, *, evidence: Evidence, **more: Any) -> Finding:
        """Return the finding of a stall; `active_pct` of the GPU meanwhile, None = not sampled."""
        if active_pct is None:
            evidence["counted"] = "the time training stood still: GPU utilization was not measured"
        confidence = ESTIMATED if active_pct is None and run.used_gpus else MEASURED
        return self.finding(confidence=confidence, evidence=evidence, gpus=run.used_gpus, **more)


def _in_long_steps(run: Run, long: Occurrences, least: float) -> str:
    """Return the program's function in which most of the time of the long steps passes; "" if none is known."""
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    count = dispatch.get("samples") or 0
    inside_ns = (dispatch.get("in_called") or 0) / max(1, count) * run.steps.total("body_ns")
    most = (
        count >= least and inside_ns >= MOSTLY * long.self_ns and run.framework != "jax"
    )  # nothing there tells a step
    return str(dispatch.get("called") or "") if most else ""


def _half_as_often(run: Run, function: str, text: str, long: Occurrences) -> Advice:
    """Return the advice on a function of the program that runs in the long steps."""
    apart, block = (long["step"][-1] - long["step"][0]) / (len(long["step"]) - 1), run.steps.rows_per_block
    off = block / (len(long["step"]) - 1)  # of a block the first step is known
    every = max(2, 2 * roundest(apart - off, apart + off))
    samples: Dispatch = run.fit.get("dispatch") or {}
    line = samples.get("own_at") or ""
    named = line.startswith(f"{function} (") and samples["at_place"] >= MOSTLY * samples["own"]
    says = f"{text} Most of that passes in {line if named else function}. Is half as often enough?"
    return Advice(
        says, f"if step % {every} == 0:\n    {function}(...)", saves=1 / DOUBLE, question=True, leaves_out=True
    )


def _in_rhythm(run: Run, long: Occurrences) -> bool:
    """Return whether nearly all long steps come as many steps after the one before, as far as blocks show it."""
    apart, rows = np.diff(long["step"]), run.steps.rows_per_block
    if len(apart) < A_FEW:
        return False
    usual = float(np.median(apart))
    return usual >= A_FEW * rows and bool((abs(apart - usual) <= rows).mean() >= FOUR_FIFTHS)


def _in_each_step(run: Run, took_ns: int) -> bool:
    """Return whether the usual step has room for its share of a time, which else lies in a few long ones."""
    return usual_body_ns(run) >= MOSTLY * took_ns / run.steps.total_rows


def _holds_steps(run: Run) -> bool:
    """Return whether the time of a validation contains training steps as well.

    JAX queues steps without waiting for them, and Keras waits at the end of the validation, which
    is queued after the device's remaining work of the epoch. The GPU's idle time belongs to
    neither.
    """
    return run.framework == "jax" and has_keras_fit(run)


def _epochs_in(run: Run, where: Range) -> int:
    """Return how many epochs a range touches, 1 if unknown."""
    per_epoch = run.fit.get("steps_per_epoch")
    if not per_epoch:
        ends = [rows["step"] for rows in run.phases.of("epoch").values()]
        inside = [(steps > where.start_step) & (steps < where.end_step) for steps in ends]
        return 1 + sum(int(mask.sum()) for mask in inside)
    first, last = where.start_step // int(per_epoch), (where.end_step - 1) // int(per_epoch)
    return max(1, last - first + 1)


def _compiled(run: Run, validations: Occurrences) -> np.ndarray:
    """Return the ns that each validation spent compiling the test function; shape `(n,)`."""
    spent = np.zeros(len(validations), np.int64)
    for rows in run.phases.of("compilation").values():
        at = np.searchsorted(validations["start_ns"], rows["start_ns"], side="right") - 1
        inside = (at >= 0) & (rows["end_ns"] <= validations["end_ns"][at])
        np.add.at(spent, at[inside], rows["self_ns"][inside])
    return spent


def _heaviest_hook(run: Run, where: Range) -> tuple[str, float, int]:
    """Return the callback that dominates the batch hooks' time in a range.

    With its share of that time, and all of the time that named hooks took.
    """
    spent: dict[str, int] = {}
    for kind in ("callback", "checkpoint"):
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
