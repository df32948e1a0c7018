"""Input-bound: the GPU idles because the next batch is not ready yet."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.advice import callbacks, tf_data
from gpu_util_callback.diagnosis.advice import input as input_advice
from gpu_util_callback.diagnosis.advice import long_fetches as long_fetch_advice
from gpu_util_callback.diagnosis.advice import table as advice_table
from gpu_util_callback.diagnosis.advice.input_wait import NO_MS, NO_STAGE, InputWait, measure_input, slowest_of
from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch, steps_an_epoch
from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.cores import measure_cores
from gpu_util_callback.diagnosis.evidence.pipeline import fill_ms
from gpu_util_callback.diagnosis.evidence.run_evidence import CleanSteps, Idle, Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.evidence.stalls import intervals, lost_in
from gpu_util_callback.diagnosis.read_ahead import LongFetches, long_fetches
from gpu_util_callback.diagnosis.rule import (
    ESTIMATED,
    LEAST_GAIN,
    MEASURED,
    Advice,
    Confidence,
    Evidence,
    Finding,
    Findings,
    Rule,
    in_many_steps,
    negligible,
    significant,
)
from gpu_util_callback.diagnosis.thresholds import (
    A_FEW,
    A_FIFTH,
    A_QUARTER,
    A_TENTH,
    A_TWENTIETH,
    AGAIN,
    ALWAYS_S,
    FOUR_FIFTHS,
    MANY_TIMES,
    MIN_STEPS,
    MOSTLY,
    NOTICEABLY,
    SIGNIFICANT,
    WARM_UP,
    Constant,
    Limits,
    Threshold,
)
from gpu_util_callback.recording.manifest_facts import SourceFacts
from gpu_util_callback.words import duration, listed, percent

# -- the first fetches of epochs -----------------------------------------------------------------
FILLS_HOLD = Constant(0.6, "buffers that fill as each epoch begins cause the wait from this share of it on")


@dataclass(frozen=True, slots=True)
class Filling:
    """The first fetches of epochs: their number, the duration of each, their share (0-1) of the wait."""

    count: int
    each_ms: float
    share: float


def fills(run: Run, where: Range, wait_ns: int, step_ns: float) -> Filling | None:
    """Return the first fetches of epochs, if they take long and hold most of the wait; None if not.

    Args:
        wait_ns: the span's wait.
        step_ns: a step's time without its wait.
    """
    first = run.phases.of("input_setup", account="").get("")
    if first is None or first.joined:
        return None
    inside = (first["start_ns"] >= where.start_ns) & (first["end_ns"] <= where.end_ns)
    spent = first["self_ns"][inside]
    count, held_ns = len(spent), int(spent.sum())
    if count < AGAIN or held_ns < FILLS_HOLD * wait_ns or A_TENTH * held_ns / count < step_ns:
        return None
    return Filling(count, held_ns / count / 1e6, min(1.0, held_ns / wait_ns))


def advise_fills(wait: InputWait, filling: Filling) -> Advice | None:
    """Return advice on a shuffle that fills its buffer as each epoch begins.

    None if there is none, or another stage is too slow all the time.
    """
    run, stage = wait.run, wait.stage
    shuffles = any(stage.shuffles for stage in wait.stages) or run.fit.get("input_shuffles") is True
    # The elements that fill a buffer may be all of a shuffle's own work.
    in_time = stage.shuffles or stage.ms_per_batch < wait.needed_ms or stage is NO_STAGE
    part = filling.count * filling.each_ms * 1e6 / max(1, run.present_in(wait.where))
    # Repeating gained 1.5 times from a fifth of the time on, nothing below.
    if not (shuffles and in_time) or part < A_FIFTH:
        return None
    observation = f"{_first_batches(run, filling)}: shuffle fills its buffer before it."
    quicker = tf_data.advise_source(wait, lambda calls: filling.share * (1 - 1 / calls))
    if quicker is not None:  # the shuffle's elements can be made in parallel
        return replace(quicker, text=f"{observation} {quicker.text}", name="refill")
    kept = advice_table.choose(tf_data.KEPT, replace(wait, stage=slowest_of(wait.stages, wait.passes)))
    if kept is not None:  # a cache can keep them
        return replace(kept, text=f"{observation} {kept.text}", name="refill, kept")
    remade = _remade_functions(wait)
    if remade:  # so it may where nothing of the pipeline was read at work
        return Advice(
            f"{observation} {listed(remade)} made what it takes in, again in every pass. Is that the same in every "
            "epoch, without random numbers, and does all of it fit into memory? If so, keep it: the first pass stays "
            "slow, the others do not wait.",
            f"ds = ds.cache()  # behind {remade[-1]}, before shuffle and repeat",
            wait.passes.later * filling.share,
            question=True,
            name="refill, kept",
            frees_cores=True,
            proof="blind/second/shuffle_refill",
        )
    saves = min(filling.share * (1 - 1 / filling.count), wait.saves(wait.cores_ms()))
    if wait.gain(saves) >= LEAST_GAIN and not run.custom_loop:  # fill the buffer once for all epochs
        return Advice(
            f"{observation} Repeat right behind it: the two fill the buffer once for all epochs, and mix none of "
            "them. This changes a smaller last batch, which the next epoch's samples fill up.",
            "ds = ds.shuffle(buffer_size).repeat()  # where it is shuffled now\n"
            f"model.fit(ds, ..., steps_per_epoch={batches_an_epoch(run)})",
            saves,
            changes="a smaller last batch, which the next epoch's samples fill up",
            name="refill",
            proof="tabular_columns",
        )
    return Advice(f"{observation} {input_advice.CHEAPER}", name="refill")


def _first_batches(run: Run, filling: Filling) -> str:
    """Return how much of the wait the first batches hold, as a sentence without its full stop."""
    each = "a pass" if run.custom_loop else "an epoch"
    return (
        f"The first batch of {each} takes {duration(filling.each_ms / 1e3)}, and these hold "
        f"{percent(100 * filling.share)} of the wait"
    )


def _remade_functions(wait: InputWait) -> list[str]:
    """Return the functions that make what a shuffle takes in, where none was read at work and none is random."""
    maps = wait.run.fit.get("input_maps") or []
    functions = [function for function in maps if function.get("shuffled") and function["which"] == "train"]
    names = list(dict.fromkeys(function["name"] for function in functions))
    was_read = any(stage.name in names and stage.work_ms_per_batch > 0 for stage in wait.stages)
    return [] if was_read or wait.passes.later <= 0 or any(function["random"] for function in functions) else names


# -- set-up of the input for each epoch --------------------------------------------------------
USUAL_S = Constant(0.3, "TensorFlow's iterators took up to this long to end and begin; of use is only that it is rarer")
UNEVEN = 2  # the longest is mentioned if it takes this many times the average


def input_setup(run: Run, limits: Limits, spans: list[Finding]) -> list[Finding]:
    """Return findings on the cost of setting up the input for each epoch: workers start, buffers fill.

    Args:
        spans: findings about waits. Where they ask to keep a tf.data stage's result, that spares the first batch of
            each epoch, too.
    """
    keeps = (one.advice for one in spans if one.advice.name in {entry.name for entry in tf_data.KEPT})
    kept = next((advice for advice in keeps if advice.saves), None)
    if (ends := ends_of_short_epochs(run)) is not None:
        steps = steps_an_epoch(run) or 0
        kinds = [(ends, f" of {steps} step{'s' * (steps > 1)}")]
    else:
        kinds = [(each, "") for each in run.phases.of("input_setup", account="input_wait").values()]
    return [finding for each, epoch in kinds if (finding := _of_set_up(run, limits, each, epoch, kept))]


def ends_of_short_epochs(run: Run) -> Occurrences | None:
    """Return the set-ups and validations of epochs of one or two steps; None where longer epochs are no remedy."""
    kinds = (("input_setup", "input_wait"), ("validation", "validation"))
    set_ups, validations = ([*run.phases.of(kind, account=account).values()] for kind, account in kinds)
    if not set_ups or not validations or (steps_an_epoch(run) or A_FEW) > AGAIN:
        return None
    columns = ([each[name].tolist() for name in Occurrences.COLUMNS] for each in (*set_ups, *validations))
    ends = Occurrences(sorted(row for each in columns for row in zip(*each, strict=True)))
    set_up = input_advice.SetUp(run, "", ends.self_ns / max(1, run.present_ns), 1.0)
    advice = advice_table.first_holding(input_advice.SET_UP, set_up)
    return ends if advice.name == input_advice.SEVERAL_PASSES else None


def _of_set_up(run: Run, limits: Limits, occurrences: Occurrences, short: str, kept: Advice | None) -> Finding | None:
    """Return the finding about what begins each epoch; None if it costs little.

    Args:
        short: "" or, where validations belong to it because epochs are that short, how long these are, in words.
        kept: the advice on other waits, if it spares the first batch of an epoch, too.
    """
    apart_ns, spent_s = _epoch_set_ups(run, occurrences)
    if len(apart_ns) + 1 < A_FEW:
        return None
    first, last = int(occurrences["start_ns"][0]), int(occurrences["end_ns"][-1])
    where = run.range_of(first, min(run.end_ns, round(last + (1 + A_TWENTIETH) * float(np.median(apart_ns)))))
    span_ns = max(1, run.present_in(where))
    lost, active = lost_in(run, occurrences, where)
    times, each_s, most_s = len(spent_s), float(spent_s.mean()), float(spent_s.max())
    # An iterator of TensorFlow takes over a second to end at times.
    usual_total_ns = times * 1e9 * float(np.median(spent_s))
    if 100 * min(usual_total_ns, lost) < limits["wait_pct"] * span_ns:
        return None
    each = f"takes {duration(each_s)} each time"
    if most_s > UNEVEN * each_s:
        each = f"takes {duration(each_s)} on average, {duration(most_s)} at most"
    does = f"Setting up the input and validating for each epoch{short}" if short else "Setting the input up again"
    observation = f"{does} {each}, and training waits."
    share = occurrences.self_ns / span_ns
    fills = MOSTLY * each_s <= fill_ms(run.pipeline.stages(*where.extent_ns)) / 1e3
    steps, planned = np.diff(occurrences["step"]), run.fit.get("input_batches") or run.fit.get("steps_per_epoch") or 0
    is_cut = len(steps) > 0 and float(np.median(steps)) < planned
    set_up = input_advice.SetUp(run, observation, share, 1 - 1 / max(2, times), fills, is_cut)  # the first is needed
    advice = advice_table.first_holding(input_advice.SET_UP, set_up)
    if kept is not None and not (advice.saves or fills or set_up.busy_function):
        advice = replace(kept, text=f"{observation} {kept.text}", saves=kept.saves / 2)  # iterators still begin and end
    if not (advice.saves or fills or set_up.busy_function) and share < MOSTLY and each_s < USUAL_S:
        return None
    return InputBound.finding(
        title=f"Each epoch{short} sets up its input and validates"
        if short
        else f"Input-bound: each {'fit' if set_up.each_fit else 'epoch'} sets up its input again",
        where=where,
        lost_ns=lost,
        confidence=ESTIMATED if active is None and run.used_gpus else MEASURED,
        evidence={
            "wait_pct": round(100 * share, 1),
            "times": times,
            "seconds_each": round(each_s, 3),
            "longest_s": round(most_s, 3),
            "gpu_active_meanwhile_pct": active,
        },
        state=times >= MANY_TIMES,
        advice=advice,
        detail="setup",
        pieces=intervals(occurrences),
    )


def _epoch_set_ups(run: Run, occurrences: Occurrences) -> tuple[np.ndarray, np.ndarray]:
    """Return the ns between an epoch's set-up and the next one's, and the seconds of each epoch's set-ups.

    Set-ups at one step belong together: a validation may lie between them. Where they begin epochs, any after the last
    step close the input of the last one. Where occurrences are kept joined, the seconds are the mean.
    """
    apart_ns = occurrences["start_ns"][1:] - occurrences["end_ns"][:-1]
    if occurrences.joined:
        return apart_ns, np.full(occurrences.count, occurrences.self_ns / max(1, occurrences.count) / 1e9)
    steps = occurrences["step"].copy()
    earlier = steps[steps < run.end_step]
    if len(earlier) and earlier.min() <= run.first_step:
        steps[steps >= run.end_step] = earlier.max()
    epoch = np.unique(steps, return_inverse=True)[1]  # numbered from 0
    return apart_ns[np.diff(epoch) > 0], np.bincount(epoch, weights=occurrences["self_ns"]) / 1e9


CORES, LOCK = "cores", "lock"  # details of its findings about steps that wait for a core, or for Python's lock


# -- the rule ----------------------------------------------------------------------------------


class InputBound(Rule):
    """Steps wait for their batch, and the GPU is idle meanwhile.

    A wait counts as lost only as far as it exceeds the floor, as far as the GPU was idle (if its
    utilization was sampled), and as far as the step was longer than a step of this run that did not
    wait (if there are some).
    """

    cause = "input_bound"
    title = "Input-bound"
    look = "▮", "amber"
    opening = "The GPU waits for its input"
    opening_without_gpu = "Training waits for its input"
    opening_if_large = "The input pipeline starves the GPU"
    part = "input_wait"
    idling = True
    sources = ("input wait of each step", "GPU utilization (optional)", "pipeline stages (optional)")
    thresholds = {
        "wait_pct": Threshold(7.5, "a healthy 3 % that drifts reaches 5 % in one run of 100, this in one of 1,000"),
        "min_steps": MIN_STEPS,
        "warmup_steps": WARM_UP,
        "explained_pct": Threshold(5, "stages that work less than this of the wait do not cause it: others' work does"),
        "throughout_pct": Threshold(90, "in a trace: waits in nine of ten steps are a state of all of it"),
        "core_wait_pct": Threshold(
            10, "with a core free a thread waits for it 0-3 % of the time, two on one core, 50 %"
        ),
        "own_python_pct": Threshold(75, "of a step: no step is shorter than the Python that makes its batch"),
        "once_pct": Threshold(25, "it may not come again: iterators that ended late held 12-15 % of healthy fits"),
        "once_s": Threshold(1, "less than a second is a hiccup: closing a pipeline of threads takes 0.1-0.5 s"),
        **SIGNIFICANT,
        "always_s": ALWAYS_S,
    }
    unknown = "input wait was not measured in this run"
    unknown_in_trace = "the trace shows no fetching of batches, or too little work"

    def missing(self, run: Run) -> bool:
        if run.source is not None:
            judged = run.source["idle_judged"] or run.source["steps_judged"]
            return not (len(run.steps) and run.source["fetches"] and judged)
        return not len(run.steps) or run.steps.total("wait_known") == 0

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings about waits for input.

        Spans, set-ups, steps slowed by the input, and a few long fetches.
        """
        if run.source is not None:
            return self._in_trace(run, limits, run.source)
        spans = self._spans(run, limits)
        set_ups = significant(input_setup(run, limits, spans), run.present_ns, limits)
        beside = significant(self._beside(run, limits), run.present_ns, limits)
        if any(finding.detail == LOCK for finding in beside):  # the steps' waits for batches are counted there
            return [*set_ups, *beside]
        return [*spans, *set_ups, *beside, *(() if spans else self._few_long_fetches(run, limits))]

    def part_of(self, detail: str) -> str:
        return "step" if detail in (CORES, LOCK) else self.part

    def _beside(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding that steps wait for Python's lock, or for a core, which the input takes at the same time.

        Of the cores that others take, the input takes its share; it costs no more than its own computation.
        """
        where = Range(run.first_step, run.end_step, *run.steps.extent_ns)
        cores = measure_cores(run, where)
        queued = (cores.queued or 0.0) if cores.full else 0.0
        lacks_core = 100 * queued >= limits["core_wait_pct"]
        if run.steps.total_rows < limits["min_steps"] or not (lacks_core or run.fit.get("input_calls")):
            return
        wait = measure_input(run, where, NO_MS, run.steps.total("duration_ns") / where.steps / 1e6)
        input_cpus = wait.input_cpus or 0.0
        if lock_share := _lock_kept(wait, limits):  # the input's Python keeps the lock
            share = wait.python_ms / wait.arrives_ms  # of a core, which a process in its place leaves
            lost_ns, priced = _priced(replace(wait, cores=cores._replace(spare=cores.spare + share)), lock_share)
            evidence: Evidence = {"own_python_pct": round(100 * share, 1), "held_up_by": priced.limit}
        elif not lacks_core or not input_cpus or input_cpus < max(cores.of_others, MOSTLY * cores.allowed):
            return  # a model's own threads fill the cores, too
        else:  # threads of the steps wait for a core
            lost_ns, priced = _priced(wait, min(queued * wait.share_of_input, input_cpus / cores.allowed))
            evidence = {"core_wait_pct": round(100 * queued, 1), "input_cpus": round(input_cpus, 2)}
            evidence |= {"other_cpus": round(cores.of_others, 2), "held_up_by": cores.busy}
        yield self.finding(
            title=("The input keeps Python's lock" if lock_share else "The input takes the cores") + " from the steps",
            where=where,
            lost_ns=lost_ns,
            confidence=ESTIMATED,
            evidence=evidence,
            advice=input_advice.advise(priced) if lock_share else input_advice.advise_cores(priced),
            state=True,
            detail=LOCK if lock_share else CORES,
        )

    def _few_long_fetches(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding about long fetches of a run that is over, too few for a span: they may not come again."""
        long = long_fetches(run.steps, run.whole, slice(None))
        long = long and long.largest
        if not run.ended or long is None or long.steps[-1] < limits["warmup_steps"] or long.share < MOSTLY:
            return
        longest_ms, total_ns = float(long.waits_ms.max()), round(1e6 * float(long.waits_ms.sum()))
        share = "once_pct" if long.count < AGAIN else "wait_pct"
        least_ns = max(limits["once_s"] * 1e9, limits[share] / 100 * run.present_ns)
        pieces = [
            (start, start + round(1e6 * ms)) for start, ms in zip(long.starts_ns.tolist(), long.waits_ms, strict=True)
        ]
        where = run.range_of(pieces[0][0], pieces[-1][1])
        lost = run.lost_of(total_ns, where)
        wait = _input_wait(run, limits, _waiting(run, run.whole, slice(None)), long)
        # Where it sleeps, or waits for a file, none of its threads waits for the cores that others keep busy.
        cores = measure_cores(run, run.range_of(*pieces[int(long.waits_ms.argmax())]))
        lacks_core = cores.queued is None or cores.queued >= MOSTLY
        may_lack_core = lacks_core and cores.full and 2 * cores.of_others >= cores.allowed
        if (long.count < AGAIN and may_lack_core) or min(1e6 * longest_ms, lost) < least_ns:
            return
        advice = long_fetch_advice.advise_long(wait, wait.rare or long)
        if long.count < AGAIN:
            advice = Advice(f"{advice.text} It may not come again.")
        batches = "one batch" if long.count == 1 else f"{long.count} batches"
        yield self.finding(
            title=f"Input-bound: {batches} took {duration(long.each_ms / 1e3)}{' each' if long.count > 1 else ''}",
            where=where,
            lost_ns=lost,
            confidence=ESTIMATED,  # whether it comes again
            evidence={
                share: round(100 * total_ns / run.present_ns, 1),
                "seconds_each": round(longest_ms / 1e3, 3),
                "long_fetches_at": long_fetch_advice.places(wait, long),
                "held_up_by": long_fetch_advice.which(wait, long),
            },
            threshold={share: limits[share], "seconds_each": limits["once_s"]},
            advice=advice,
            detail="fetch",
            pieces=pieces,
        )

    def _in_trace(self, run: Run, limits: Limits, source: SourceFacts) -> Findings:
        """Return the finding about waits in all steps of a trace, or those about the spans that they are limited to."""
        steps, lost_ns = run.steps.total_rows, run.steps.total("input_wait_ns")
        total_ns = max(1, run.steps.total("duration_ns"))
        spans = self._spans(run, limits)
        steps_in_spans = sum(span.where.steps for span in spans if span.where)
        pct = 100 * lost_ns / total_ns
        if pct < limits["wait_pct"] or (spans and 100 * steps_in_spans < limits["throughout_pct"] * steps):
            return spans
        stage = source["slowest_stage"]
        who = "The GPU" if source["gpus"] else "Training"
        return [
            self.finding(
                title=f"{who} waits for input {pct:.0f} % of the time",
                lost_ns=lost_ns,
                evidence={
                    "wait_pct": pct,
                    "host_input_pct": 100 * run.steps.total("input_get_ns") / total_ns,
                    "slowest_stage": stage["path"] if stage else None,
                    "slowest_stage_self_ms": stage.get("self_ms") if stage else None,
                },
                advice=_in_trace_advice(run, source, lost_ns / steps / 1e6, (total_ns - lost_ns) / steps / 1e6),
                gpus=source["gpus"],
                severity=lost_ns / total_ns,
            )
        ]

    def _spans(self, run: Run, limits: Limits) -> list[Finding]:
        """Return the findings about spans of steps that wait for input; [] if together they cost too little."""
        enough = min(limits["min_run_pct"] / 100 * run.present_ns, limits["always_s"] * 1e9)
        spans = run.spans_of("wait", enter=limits["wait_pct"] / 100, min_rows=int(limits["min_steps"]))
        findings = []
        for where, blocks in spans:
            after = run.end_step - where.end_step
            # It ended with the warm-up, once buffers were full; not if the run ends at about the same step.
            if where.end_step <= limits["warmup_steps"] and after > A_QUARTER * where.end_step:
                continue
            waiting = _waiting(run, where, blocks)
            if waiting.lost_ns < max(limits["wait_pct"] / 100 * waiting.duration_ns, A_QUARTER * enough, 1):
                continue
            finding = self._finding(run, limits, waiting)
            if finding is not None:
                findings.append(finding)
        if not findings or negligible(findings, limits) or sum(f.lost_ns or 0 for f in findings) < enough:
            return []
        _share_one_remedy(findings)
        return findings

    def _finding(self, run: Run, limits: Limits, waiting: "_Waiting") -> Finding | None:
        """Return the finding about a span; None if its wait is not caused by the input."""
        wait = _input_wait(run, limits, waiting, None if waiting.filling else waiting.long)
        refill = advise_fills(wait, waiting.filling) if waiting.filling and run.source is None else None
        # First fetches of epochs are not the cause: judge the long ones.
        if refill is None and wait.rare is not waiting.long:
            wait = _input_wait(run, limits, waiting, waiting.long)
        if _is_not_the_inputs(wait, waiting):
            return None
        calls = run.fit.get("python_in_steps") or {}
        # Batches wait for what keeps Python's lock as well.
        advice = callbacks.call_seldom(calls) if calls.get("beside") else refill or _advise(run, waiting, wait)
        saved = 0.0 if advice.question else waiting.lost_ns * advice.saves
        evidence = _evidence(waiting, wait)
        evidence["faster_up_to"] = round(waiting.duration_ns / max(1, waiting.duration_ns - saved), 2)
        if not saved:
            locked = calls.get("beside") and f"Python's lock is kept by {calls['at']}"
            # Without a promise the headline names what the advice is about.
            rare, least = wait.rare, FOUR_FIFTHS if advice.saves else MOSTLY
            limit = wait.limit if rare is None or rare.share < least else long_fetch_advice.which(wait, rare)
            evidence["held_up_by"] = locked or limit
        return self.finding(
            where=waiting.where,
            lost_ns=waiting.lost_ns,
            confidence=waiting.confidence,
            evidence=evidence,
            advice=advice,
            gpus=list(waiting.idle.gpus) if waiting.idle else run.used_gpus,
            state=in_many_steps(waiting.wait_ns, run.steps["top_wait_ns"][waiting.blocks]),
            slack_ns=round(wait.share_of_input * run.steps.slack_ns(waiting.blocks)),
        )


def _lock_kept(wait: InputWait, limits: Limits) -> float:
    """Return the share (0-1) of the steps' time in which Python of the input runs, and nothing of the steps can.

    0.0 unless that Python sets the steps' pace, on other threads of this process, and steps take much longer than they
    compute: what else the process computes is theirs. An accelerator that is not sampled may compute in that time.
    """
    own_cores, each_ms = wait.cores.own, wait.arrives_ms
    is_beside = wait.input_cpus is not None and not (wait.run.fit.get("input_processes") or "dataloader" in wait.kind)
    is_seen = wait.run.framework_facts.get("device") == "cpu" or wait.run.idle_in(wait.where) is not None
    if own_cores is None or not (is_beside and is_seen) or 100 * wait.python_ms < limits["own_python_pct"] * each_ms:
        return 0.0
    computed_ms = max(A_TWENTIETH * each_ms, own_cores * each_ms - wait.python_ms)
    fetched_ms = wait.run.steps.total("input_wait_ns") / wait.where.steps / 1e6
    return 1 - computed_ms / each_ms if computed_ms <= MOSTLY * (each_ms - fetched_ms) else 0.0


def _priced(wait: InputWait, share: float) -> tuple[int, InputWait]:
    """Return the ns that steps lose to an input that computes at the same time, and the wait with that loss.

    Args:
        share: of the steps' time that it costs, 0-1.
    """
    run, where = wait.run, wait.where
    explained_ns = int(run.steps.explained_ns.sum())  # in which the GPU idles for another reason
    lost = max(0, run.lost_of(round(share * run.steps.total("duration_ns")) + explained_ns, where) - explained_ns)
    lost_ms = max(NO_MS, lost / where.steps / 1e6)
    stage = slowest_of(wait.stages, wait.passes)
    return lost, replace(wait, lost_ms=lost_ms, needed_ms=wait.arrives_ms - lost_ms, stage=stage)


# -- a span of steps that wait ---------------------------------------------------------------------


class _Waiting(NamedTuple):
    """Steps that wait for input. Times are ns, summed over the span.

    Attributes:
        rows: steps of the span.
        input_ns, wait_ns: time in fetching, and of it beyond the floor.
        duration_ns: of the steps; running_ns: the same without compiling.
        lost_ns: the avoidable part of the wait; rests_on: what that was concluded from.
        idle: what the GPUs did meanwhile; None = not sampled.
        confidence: measured if the GPU was seen idle, or steps without one were timed.
        long: the few long fetches that hold the wait; filling: the first fetches of epochs.
    """

    where: Range
    blocks: slice
    rows: int
    input_ns: int
    wait_ns: int
    duration_ns: int
    running_ns: int
    lost_ns: int
    rests_on: str
    idle: Idle | None
    confidence: Confidence
    long: LongFetches | None
    filling: Filling | None

    @property
    def needed_ms(self) -> float:
        """Duration of a step without its avoidable wait."""
        return max(0, self.running_ns - self.lost_ns) / self.rows / 1e6


def _waiting(run: Run, where: Range, blocks: slice) -> _Waiting:
    """Measure a span: its steps' wait, and the part of the wait that could be avoided."""
    steps = run.steps
    rows = max(1, where.steps)
    columns = "input_wait_ns", "wait_ns", "duration_ns", "rows"
    input_ns, wait_ns, duration_ns, in_blocks = (steps.total(name, blocks) for name in columns)
    # The outermost blocks may contain steps from outside; those did not wait (that is why the
    # span ends there), so all waits are kept and their durations are subtracted.
    outside = max(0, in_blocks - rows)
    clean_steps = run.clean_steps()
    if outside:
        usual = clean_steps.each_ns if clean_steps else (duration_ns - wait_ns) / max(1, in_blocks)
        duration_ns = max(wait_ns, duration_ns - round(outside * usual))
    # A short run compiles for most of its time: the wait is compared with the time without it.
    running_ns = max(input_ns, duration_ns - steps.total("compile_ns", blocks))
    idle = run.idle_in(where)
    waits_are_estimates = steps.mostly_estimated(blocks)
    # The waits of a trace are those in which its GPUs idled.
    idle_seen = run.source is not None or (idle is not None and not waits_are_estimates)
    lost_ns, rests_on = _avoidable(run.lost_of(wait_ns, where), duration_ns, rows, clean_steps, idle_seen)
    return _Waiting(
        where,
        blocks,
        rows,
        input_ns,
        wait_ns,
        duration_ns,
        running_ns,
        lost_ns,
        rests_on,
        idle,
        MEASURED if idle_seen or not (waits_are_estimates or run.used_gpus) else ESTIMATED,
        long=None if run.source is not None else long_fetches(steps, where, blocks),
        filling=fills(run, where, wait_ns, max(0, running_ns - input_ns) / rows),
    )


def _avoidable(lost_ns: int, duration_ns: int, rows: int, clean: CleanSteps | None, idle_seen: bool) -> tuple[int, str]:
    """Return the avoidable part of a wait in ns, and what that rests on, in words.

    Args:
        lost_ns: the wait, as far as the GPU idled.
        duration_ns, rows: of the steps that waited.
        clean: the steps of this run that did not wait; None = too few.
        idle_seen: the GPU was seen idle, so that the wait hid no work.
    """
    if clean is None:
        return lost_ns, "what is left of a step without its wait"
    # Small differences are noise; a large one means that steps which do not wait take longer, so
    # that the wait hid work which will show without it. If the GPU was seen idle there was no such
    # work: steps elsewhere are longer for another reason.
    without_ns = round(rows * clean.each_ns)
    # Steps that do not wait take longer than these without their wait.
    if without_ns > NOTICEABLY * (duration_ns - lost_ns):
        if idle_seen:
            return lost_ns, "GPU idle time"
        lost_ns = max(0, duration_ns - without_ns)
    if without_ns * NOTICEABLY > duration_ns - lost_ns:
        return lost_ns, f"{clean.number:,} steps of this run that did not wait"
    return lost_ns, "the wait only; the rest of the step is slow as well"


def _input_wait(run: Run, limits: Limits, waiting: _Waiting, rare: LongFetches | None) -> InputWait:
    """Return the measured wait that the advice reads, with the slowest stage of the pipeline.

    Args:
        rare: the few long fetches, to be judged apart from the others; None = the wait is steady.
    """
    rows = waiting.rows
    explained_ms = limits["explained_pct"] / 100 * waiting.wait_ns / rows / 1e6
    wait = measure_input(run, waiting.where, waiting.lost_ns / rows / 1e6, waiting.needed_ms, rare, explained_ms)
    if wait.not_the_bottleneck or wait.keeps_up:  # no stage works long enough to explain the wait
        return replace(wait, not_the_bottleneck=True)
    slowest = slowest_of(wait.stages, wait.passes)
    if slowest.work_ms_per_batch <= 0:
        return wait
    # Its calls ran in parallel, or waited for one another, if it worked longer for a batch than the step that took it.
    overlaps = slowest.work_ms_per_batch * 1e6 > waiting.duration_ns / rows
    return replace(wait, stage=slowest, overlaps=overlaps)


def _is_not_the_inputs(wait: InputWait, waiting: _Waiting) -> bool:
    """Return True if a span's wait is not caused by its input; times are ns of the span.

    No stage of the pipeline works long enough to explain it, and the loop's thread may lack a core instead.
    """
    if not wait.not_the_bottleneck:  # a stage is slow, or stages are not known
        return False
    if wait.rare is None and wait.cores.full and wait.cores.others_compute:  # other programs keep the cores busy
        return True
    if not wait.keeps_up:  # stages fall behind the steps: the input's, unless little of the run is lost
        return waiting.lost_ns < A_TENTH * wait.run.present_ns
    # A thread that hands a batch over waits for a core as long as any other: no input is slow then.
    queued_ns = (wait.cores.queued or 0) * waiting.running_ns
    # Stages keep up: the thread waited for a core longer than is lost.
    return wait.rare is None and not wait.run.used_gpus and queued_ns > waiting.lost_ns


def _evidence(waiting: _Waiting, wait: InputWait) -> Evidence:
    """Return the evidence of a span's wait: its times in ms a step, the slowest stage, and what limits the input."""
    rows, running = waiting.rows, max(1, waiting.running_ns)
    evidence: Evidence = {
        "wait_pct": round(100 * waiting.input_ns / running, 1),
        "wait_ms_per_step": round(waiting.input_ns / rows / 1e6, 3),
        "step_ms": round(waiting.running_ns / rows / 1e6, 3),
        "steps": rows,
    }
    rare = wait.rare
    if rare is not None:
        evidence["long_fetches"] = f"{rare.count} of {rows}, {duration(rare.each_ms / 1e3)}{' each' * (rare.count > 1)}"
        evidence["long_fetches_at"] = long_fetch_advice.places(wait, rare.largest)
        evidence["long_fetches_hold_pct"] = round(100 * rare.share, 1)
    evidence["gpu_active_pct"] = None if waiting.idle is None else round(waiting.idle.active_pct, 1)
    evidence["promise_rests_on"] = waiting.rests_on
    evidence["step_here_without_its_wait_ms"] = round(waiting.needed_ms, 3)
    stage = wait.stage
    if wait.not_the_bottleneck:
        evidence["all_stages_ms_per_batch"] = round(wait.work_ms, 3)
    if stage is NO_STAGE:
        return evidence
    evidence["slowest_stage"], work_ms = stage.name, round(stage.work_ms_per_batch, 3)
    if wait.overlaps:
        evidence["stage_summed_over_threads_ms_per_batch"] = work_ms
    elif not wait.read_elsewhere or work_ms >= wait.needed_ms:  # else a mean over faster batches
        evidence["stage_ms_per_batch"] = work_ms
    return evidence


def _advise(run: Run, waiting: _Waiting, wait: InputWait) -> Advice:
    """Return the advice on a span's wait, by what the trace or the recording shows of the input."""
    if run.source is not None:
        return _in_trace_advice(run, run.source, wait.lost_ms, wait.needed_ms)
    # The first batches of passes are slow.
    if waiting.filling and (wait.mostly_in or not (wait.workers or wait.kind == "tf.data")):
        threads = " (of Grain: ReadOptions(num_threads=0) for data in memory)" * (wait.kind == "grain")
        begins = f"Check what happens only as a pass begins: an order, a list of files, threads{threads}"
        does = wait.mostly_in or begins
        return Advice(f"{_first_batches(run, waiting.filling)}. {does}.", name="first batches")
    return input_advice.advise(wait) if wait.rare is None else long_fetch_advice.advise_long(wait, wait.rare)


def _share_one_remedy(findings: list[Finding]) -> None:
    """Give all spans of a pipeline the remedy of the costliest one: it is one program to change.

    A span for which another remedy was chosen is promised nothing.
    """
    lead = max(findings, key=lambda finding: finding.lost_ns or 0).advice
    for finding in findings:
        advice = finding.advice
        saves = advice.saves if advice.name == lead.name and advice.question == lead.question else 0.0
        finding.advice = replace(lead, saves=saves, text=advice.text if saves else lead.text)


def _in_trace_advice(run: Run, source: SourceFacts, lost_ms: float, needed_ms: float) -> Advice:
    """Return advice by the slowest stage that a trace shows, else by the kind of the input.

    Args:
        lost_ms, needed_ms: avoidable wait of a step, and its duration without that.
    """
    if source["slowest_stage"] is not None:
        return tf_data.advise_traced_stage(source["slowest_stage"]["name"])
    if run.framework == "torch" and run.fit.get("input_workers") is None:
        return Advice(
            "Batches come too late. Are they made in the training process, or by few workers? If "
            "so, let more worker processes of a DataLoader make them ahead of time.",
            "loader = DataLoader(dataset, ..., num_workers=8, persistent_workers=True)",
            question=True,
        )
    of_kind = input_advice.advise_kind(measure_input(run, run.whole, lost_ms, needed_ms)) if run.framework else None
    return of_kind or Advice("Make the input pipeline faster, or let it work ahead of the training.")
