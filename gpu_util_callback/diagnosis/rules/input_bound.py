"""Input-bound: the GPU idles because the next batch is not ready yet."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis.advice.input import (
    InputWait,
    advise_kind,
    advise_stage,
    advise_traced_stage,
    ahead_code,
    loader_workers,
)
from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch, behind_first_epoch
from gpu_util_callback.diagnosis.evidence.blocks import StepBlocks
from gpu_util_callback.diagnosis.evidence.phases import Occurrences
from gpu_util_callback.diagnosis.evidence.pipeline import Stage
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.evidence.significance import (
    LEAST_S,
    MANY_TIMES,
    PART,
    in_many_steps,
    too_little,
    worth_telling,
)
from gpu_util_callback.diagnosis.evidence.source import Source
from gpu_util_callback.diagnosis.evidence.stalls import intervals, lost_in, times, usual_ns
from gpu_util_callback.diagnosis.finding import ESTIMATED, MEASURED, Advice, Finding, Range, Rule
from gpu_util_callback.diagnosis.thresholds import MOSTLY, Constant, Count, Limits, Threshold
from gpu_util_callback.recording.work import another_batch_size
from gpu_util_callback.words import duration, percent
from gpu_util_callback.words import duration as said

__all__ = ["InputBound"]

# -- rare long fetches -------------------------------------------------------------------------
RARE = Constant(0.05, "long fetches are rare up to this share of the steps")
MOST = Constant(0.8, "they cause the wait if they hold this share of it")
ALIKE = Constant(0.5, "waits of half the median of those are of their kind")
LONG = Count(10, "steps; a queue ahead of the loop evens out what is shorter")
LEAST = Count(3, "two long fetches may have come by chance")
# More batches than this rarely fit into memory.
MOST_READY = 256
FILLS_HOLD = Constant(
    0.6, "buffers that fill as each epoch begins cause the wait from this share of it on"
)
LEAST_FILLS = Count(2, "epochs that began with a long fetch")


@dataclass(frozen=True, slots=True)
class LongFetches:
    """Long fetches: their number, their share (0-1) of the wait, and the duration of each."""

    count: int
    each_ms: float
    share: float


def long_fetches(steps: StepBlocks, blocks: slice, rows: int) -> LongFetches | None:
    """Return the few fetches that hold most of the wait of these blocks; None if it is steady."""
    wait = int(steps["wait_ns"][blocks].sum())
    if wait <= 0:
        return None
    tops = np.sort(steps["top_wait_ns"][blocks])[::-1]
    reached = int(np.searchsorted(np.cumsum(tops), MOST * wait)) + 1
    if reached <= len(tops):
        count = int((tops >= ALIKE * np.median(tops[:reached])).sum())
        held = int(tops[:count].sum())
    else:  # several of them per block
        count = int(steps["wait_events"][blocks].sum())
        held = int(steps["event_wait_ns"][blocks].sum())
    if not LEAST <= count <= RARE * rows or held < MOST * wait:
        return None
    work = int(steps["duration_ns"][blocks].sum() - steps["compile_ns"][blocks].sum()) - wait
    if held / count < LONG * max(0, work) / max(1, rows):
        return None
    return LongFetches(count, held / count / 1e6, held / wait)


def fills(run: Run, where: Range, wait_ns: int, step_ns: float) -> LongFetches | None:
    """Return the first fetches of epochs, if they take long and hold most of the wait.

    Args:
        step_ns: a step's time without its wait.
    """
    first = run.phases.of("input_setup", account="").get("")
    if first is None or first.joined:
        return None
    inside = (first["start_ns"] >= where.start_ns) & (first["end_ns"] <= where.end_ns)
    spent = first["self_ns"][inside]
    count, held = len(spent), int(spent.sum())
    if count < LEAST_FILLS or held < FILLS_HOLD * wait_ns or held / count < LONG * step_ns:
        return None
    return LongFetches(count, held / count / 1e6, min(1.0, held / wait_ns))


def advise_fills(wait: InputWait, filling: LongFetches) -> Advice | None:
    """Return advice on a shuffle that fills its buffer as each epoch begins.

    None if there is none, or another stage is too slow all the time.
    """
    run, stage = wait.run, wait.stage
    shuffles = any(one.op.startswith("Shuffle") for one in wait.stages)
    in_time = stage is None or stage.ms_per_batch < wait.needed_ms
    if not (shuffles and in_time) or run.fit.get("loop") == "custom":
        return None
    return Advice(
        f"The first batch of an epoch takes {duration(filling.each_ms / 1e3)}, and these hold "
        f"{percent(100 * filling.share)} of the wait: shuffle fills its buffer before it. Repeat "
        "before you shuffle, and the buffer stays full from one epoch into the next.",
        "ds = ds.repeat().shuffle(buffer_size)  # where it is shuffled now\n"
        f"model.fit(ds, ..., steps_per_epoch={batches_an_epoch(run)})",
        filling.share * (1 - 1 / filling.count),
    )


def advise_rare(wait: InputWait, long: LongFetches, usual: Advice) -> Advice:
    """Return advice on rare long fetches, `usual` being the advice for a steady wait.

    More workers alone do not make a rare long fetch shorter, but batches kept ready hide it.
    """
    run = wait.run
    says = (
        f"{long.count} fetches took {duration(long.each_ms / 1e3)} each and hold "
        f"{percent(100 * long.share)} of the wait; the others came at once. "
    )
    kind = str(run.fit.get("input_kind", "")).lower()
    if wait.stage is not None or kind in ("", "numpy", "grain"):
        return replace(usual, text=says + usual.text)
    wanted = math.ceil(long.each_ms / max(0.1, wait.needed_ms))
    ready = max(2, min(MOST_READY, wanted))
    says += (
        "See what happens only then: a shard is opened, a shuffle buffer is filled again, a "
        f"network is asked. It takes as long as {wanted} steps: with {ready} batches ready (if "
        f"they fit into memory) {'it' if ready == wanted else 'part of it'} passes unnoticed."
    )
    # If batches are made in turn, together they must take less time than the steps.
    saves = wait.saves(wait.lost_ms) * min(1.0, ready / wanted)
    workers = int(run.fit.get("input_workers") or 0)
    if "dataloader" in kind:
        workers = max(2, workers)
        # Simultaneous fetches are waited for once.
        shared = max(1, workers // max(1, int(run.fit.get("input_workers") or 0)))
        return loader_workers(
            says,
            f"loader = DataLoader(dataset, ..., num_workers={workers}, persistent_workers=True, "
            f"prefetch_factor={math.ceil(ready / workers)})",
            wait.saves(wait.lost_ms) * (1 - (1 - min(1.0, ready / wanted)) / shared),
        ).safe_on(run.framework, run.device)
    if "pydataset" in kind and run.fit.get("loop") != "custom":
        code = (
            f"dataset.workers = {max(2, workers)}  # your PyDataset, before model.fit(dataset)\n"
            f"dataset.max_queue_size = {ready}"
        )
    elif kind == "tf.data":
        code = f"ds = ds.prefetch({ready})  # as its last step"
    else:
        code = ahead_code(
            kind == "generator", str(run.fit.get("input_class") or "generate"), ready,
            fit=run.fit.get("loop") != "custom",
        )  # fmt: skip
    return Advice(says, code, saves)


# -- set-up of the input for each epoch --------------------------------------------------------
LEAST_TIMES = Count(
    3, "the first set-up is unavoidable; after another two, the next will come as well"
)
UNEVEN = 2  # the longest is mentioned if it takes this many times the average


TRAIN_ON_BATCH = """with GpuUtilMonitor("logs") as monitor:
    for x, y in batches:
        with monitor.step():
            model.train_on_batch(x, y)"""


def _each_fit(run: Run) -> bool:
    """Return whether most epochs are a fit of their own, of a series."""
    epochs = run.phases.of("epoch").get("")
    return epochs is not None and 2 * int(run.manifest.get("fits", 1)) > epochs.count


def input_setup(run: Run, limits: Limits, cause: str) -> list[Finding]:
    """Return the cost of setting up the input for each epoch: workers start, buffers fill."""
    findings = []
    for occurrences in run.phases.of("input_setup", account="input_wait").values():
        finding = _each_time(run, limits, cause, occurrences)
        finding = finding or _once(run, limits, cause, occurrences)
        if finding is not None:
            findings.append(finding)
    return findings


def _each_time(run: Run, limits: Limits, cause: str, occurrences: Occurrences) -> Finding | None:
    epochs = _epochs_ns(run, occurrences)
    if len(epochs) + 1 < LEAST_TIMES:
        return None
    first, last = int(occurrences["start_ns"][0]), int(occurrences["end_ns"][-1])
    where = run.range_of(first, min(run.end_ns, round(last + 1.05 * float(np.median(epochs)))))
    span_ns = max(1, run.present_in(where))
    if 100 * usual_ns(occurrences["self_ns"]) < limits["wait_pct"] * span_ns:
        return None
    lost, active = lost_in(run, occurrences, where)
    if 100 * lost < limits["wait_pct"] * span_ns:
        return None
    spent_s = _each_s(run, occurrences)
    often, each_s, most_s = len(spent_s), float(spent_s.mean()), float(spent_s.max())
    each = f"takes {duration(each_s)} each time"
    if most_s > UNEVEN * each_s:
        each = f"takes {duration(each_s)} on average, {duration(most_s)} at most"
    return Finding(
        cause=cause,
        title=f"Input-bound: each {'fit' if _each_fit(run) else 'epoch'} sets up its input again",
        where=where,
        lost_ns=lost,
        confidence=ESTIMATED if active is None and run.used_gpus else MEASURED,
        evidence=times(occurrences, "wait_pct", 100 * occurrences.self_ns / span_ns) | {
            "times": often, "seconds_each": round(each_s, 3),
            "longest_s": round(most_s, 3), "gpu_active_meanwhile_pct": active,
        },
        threshold={"wait_pct": limits["wait_pct"]},
        state=often >= MANY_TIMES,
        advice=_advice(
            run,
            f"Setting the input up again {each}, and training waits. ",
            1 - 1 / max(2, often),  # the first one is needed
        ),
        gpus=run.used_gpus,
        detail="setup",
        pieces=intervals(occurrences),
    )  # fmt: skip


def _once(run: Run, limits: Limits, cause: str, occurrences: Occurrences) -> Finding | None:
    """Return a single change of epochs that took long, in a run that is over.

    It may have been a hiccup, and the finding says so. The set-up of the first epoch is
    unavoidable.
    """
    epochs = run.phases.of("epoch").get("")
    if not run.ended or occurrences.joined or epochs is None or epochs.count < 2:
        return None
    steps = occurrences["step"]
    least = max(limits["once_s"] * 1e9, limits["once_pct"] / 100 * run.present_ns)
    found, often = Occurrences(), 0
    for step in sorted({int(one) for one in steps if one > run.first_step}):
        rows = np.flatnonzero(steps == step)
        if int(occurrences["self_ns"][rows].sum()) < least:
            continue
        often += 1
        for row in rows:
            found.add(*(int(occurrences[name][row]) for name in Occurrences.COLUMNS))
    if not often:
        return None
    beside = round(run.steps.total("duration_ns") / max(1, run.steps.total_rows))
    first, last = int(found["start_ns"][0]), int(found["end_ns"][-1])
    where = run.range_of(max(run.start_ns, first - beside), min(run.end_ns, last + beside))
    lost, active = lost_in(run, found, where)
    if lost < least:
        return None
    each_s = found.self_ns / often / 1e9
    seen = "once" if often == 1 else "twice" if often == 2 else f"{often} times"
    return Finding(
        cause=cause,
        title="Input-bound: the change of epochs waits for input",
        where=where,
        lost_ns=lost,
        confidence=ESTIMATED,  # whether it comes again
        evidence={
            "once_pct": round(100 * found.self_ns / run.present_ns, 1), "times": often,
            "seconds_each": round(each_s, 3), "gpu_active_meanwhile_pct": active,
        },
        threshold={"once_pct": limits["once_pct"], "seconds_each": limits["once_s"]},
        advice=_advice(
            run,
            f"Seen {seen} in {epochs.count} epochs, so it may not come again: training waited "
            f"{duration(each_s)} until the input of one epoch was taken down and that of the next "
            "set up. ",
            0.0,  # nobody knows whether it comes again
        ),
        gpus=run.used_gpus,
        detail="setup",
        pieces=intervals(found),
    )  # fmt: skip


def _epochs_ns(run: Run, occurrences: Occurrences) -> np.ndarray:
    """Return the time between the set-ups of one epoch and those of the next."""
    apart = occurrences["start_ns"][1:] - occurrences["end_ns"][:-1]
    if occurrences.joined:
        return apart
    return apart[np.diff(_epoch_of(run, occurrences)) > 0]


def _each_s(run: Run, occurrences: Occurrences) -> np.ndarray:
    """Return the seconds that each epoch's set-ups took together; joined ones, each on average."""
    if occurrences.joined:
        return np.full(occurrences.count, occurrences.self_ns / max(1, occurrences.count) / 1e9)
    return np.bincount(_epoch_of(run, occurrences), weights=occurrences["self_ns"]) / 1e9


def _epoch_of(run: Run, occurrences: Occurrences) -> np.ndarray:
    """Return the epoch numbers of set-ups, from 0: those at one step belong together.

    A validation may lie between them. Where they begin epochs, any after the last step close the
    input of the last one.
    """
    steps = occurrences["step"].copy()
    earlier = steps[steps < run.end_step]
    if len(earlier) and earlier.min() <= run.first_step:
        steps[steps >= run.end_step] = earlier.max()
    return np.unique(steps, return_inverse=True)[1]


def _advice(run: Run, each: str, saves: float) -> Advice:
    """Return the advice; `each`: the observation, as a sentence and a space."""
    if _each_fit(run):
        return Advice(
            f"{each}Every call of fit begins with that: give it more batches at a time, or train "
            "them one by one in a loop of your own.",
            TRAIN_ON_BATCH,
            saves,
        )
    kind = str(run.fit.get("input_kind", "")).lower()
    kept = run.fit.get("input_persistent_workers") or run.fit.get("input_workers") == 0
    if ("dataloader" in kind and not kept) or (run.framework == "torch" and not kind):
        return Advice(
            each + "The DataLoader starts its workers for every epoch: keep them.",
            "loader = DataLoader(dataset, ..., persistent_workers=True)",
            saves,
        )
    if kind in ("", "tf.data"):
        return Advice(
            each + "Let the dataset go on into the next epoch instead of starting over: what its "
            "buffers hold is kept.",
            f"model.fit(ds.repeat(), ..., steps_per_epoch={batches_an_epoch(run)})",
            saves,
        )
    if "pydataset" in kind and run.fit.get("input_processes"):
        return Advice(
            each + "Keras starts the worker processes for every epoch; threads start at once.",
            "dataset.use_multiprocessing = False  # your PyDataset, before model.fit(dataset)",
            saves,
        )
    if "pydataset" in kind:
        return Advice(
            f"{each}Keras restarts a PyDataset every epoch: its on_epoch_end runs and its "
            "first batches are made while training waits. Make both cheaper, or the epochs longer.",
            "",
            saves,
        )
    if kind == "numpy" and run.framework == "tensorflow":
        return Advice(
            f"{each}TensorFlow shuts down the input of each epoch and waits for its threads. A "
            "dataset for all epochs is set up once and holds "
            f"{_listed([*_arrays(run), 'batch_size'])}: drop those from fit.",
            _arrays_once(run),
            saves,
            before=f"model.fit({_given(run)})",
        )
    if kind == "numpy":
        return Advice(
            f"{each}Arrays need milliseconds for that where a CPU core is free: see what else "
            "keeps this machine's cores busy.",
            "",
            saves,
        )
    return Advice(f"{each}Set it up once, and let it go on over all epochs.", "", saves)


def _arrays(run: Run) -> list[str]:
    """Return the names of the arrays given to `fit` besides x, by its arguments."""
    return list(run.fit.get("input_beside", ["y"]))


def _given(run: Run) -> str:
    """Return the arguments of `fit` that a dataset replaces, beside the others."""
    first = ["x", *(name for name in _arrays(run) if name == "y")]
    named = [f"{name}={name}" for name in _arrays(run) if name != "y"]
    split = run.fit.get("validation_split")
    more = [f"validation_split={split}"] if split else []
    size = f"batch_size={run.fit.get('batch_size') or 32}"
    return ", ".join([*first, "...", *named, size, *more])


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _arrays_once(run: Run) -> str:
    """Return lines that make a dataset of the arrays given to `fit`, which spans all epochs."""
    size = run.fit.get("batch_size") or 32
    split = run.fit.get("validation_split")
    arrays = ["x", *_arrays(run)]
    if not split:
        first, count, validation = "", "len(x)", ""
        given = _tuple(arrays)
    else:
        first = f"n = int(len(x) * (1 - {split}))  # instead of validation_split\n"
        count, given = "n", _tuple([f"{name}[:n]" for name in arrays])
        validation = f", validation_data={_tuple([f'{name}[n:]' for name in arrays])}"
    return (
        f"{first}ds = tf.data.Dataset.from_tensor_slices({given}).shuffle({count}).batch({size})\n"
        f"model.fit(ds.repeat(), ..., steps_per_epoch={batches_an_epoch(run)}{validation})"
    )


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)})" if names[1:] else names[0]


# -- the rule ----------------------------------------------------------------------------------
NOISE = Constant(1.1, "steps that differ by less are equally long")
BEYOND_DOUBT = Constant(
    0.1, "of the run: a wait that costs this much is reported even if no stage explains it"
)
AFTER = Constant(
    0.25,
    "buffers are full when the run goes on for this share of the steps they took: the end of "
    "a span may be off by a step",
)


class InputBound(Rule):
    """Steps wait for their batch, and the GPU is idle meanwhile.

    A wait counts as lost only as far as it exceeds the floor, as far as the GPU was idle (if its
    utilization was sampled), and as far as the step was longer than a step of this run that did not
    wait (if there are some).
    """

    cause = "input_bound"
    title = "Input-bound"
    sources = (
        "input wait of each step",
        "GPU utilization (optional)",
        "pipeline stages (optional)",
    )
    thresholds: ClassVar = {
        "wait_pct": Threshold(
            7.5,
            "XProf and torch-tb-profiler speak of 5 %; a healthy 3 % with slowly drifting noise "
            "reaches that in one run of a hundred, 7.5 % in one of a thousand, and below it "
            "mending gains less than 1.08 times",
        ),
        "floor_ms": Threshold(
            0.2, "an instant dataset reads 0.07-0.15 ms: get_next's own thread hop, not a wait"
        ),
        "min_steps": Threshold(16, "fewer steps are an event, not a state of the run"),
        "warmup_steps": Threshold(
            20, "a span that ends within the first 20 steps is buffers filling for the first time"
        ),
        "min_run_pct": Threshold(
            2, "below 2 % of the run mending it does not show; hiccups of a shared machine reach 1"
        ),
        "explained_pct": Threshold(
            5,
            "stages that work less than a twentieth of the wait do not cause it: the machine was "
            "busy otherwise",
        ),
        "throughout_pct": Threshold(
            90, "in a trace: waits in nine of ten steps are a state of all of it, not of a part"
        ),
        "once_pct": Threshold(
            5, "one change of epochs that takes a twentieth of the run matters, as XProf's 5 % are"
        ),
        "once_s": Threshold(
            1, "less than a second is a hiccup: closing a pipeline of threads takes 0.1-0.5 s"
        ),
        "least_s": LEAST_S,
        "always_s": Threshold(60, "a lost minute is worth reporting however long the run is"),
    }
    unknown = "input wait was not measured in this run"
    unknown_in_trace = "the trace shows no fetching of batches, or too little work"

    def missing(self, run: Run) -> bool:
        if run.source is not None:
            return not (len(run.steps) and run.source.fetches and _judged(run.source))
        return not len(run.steps) or run.steps.total("wait_known") == 0

    def find(self, run: Run, limits: Limits) -> Iterable[Finding]:
        if run.source is not None:
            return self._in_trace(run, limits, run.source)
        return [
            *self._spans(run, limits),
            *worth_telling(input_setup(run, limits, self.cause), run.present_ns, limits),
        ]

    def _in_trace(self, run: Run, limits: Limits, source: Source) -> Iterable[Finding]:
        """Return the wait of all steps of a trace, or the spans that it is limited to."""
        steps, lost = run.steps.total_rows, run.steps.total("input_wait_ns")
        total = max(1, run.steps.total("duration_ns"))
        spans = self._spans(run, limits)
        inside = sum(span.where.end_step - span.where.start_step for span in spans if span.where)
        pct = 100 * lost / total
        if pct < limits["wait_pct"] or (spans and 100 * inside < limits["throughout_pct"] * steps):
            return spans
        stage = source.slowest_stage
        who = "The GPU" if source.gpus else "Training"
        return [
            Finding(
                cause=self.cause,
                title=f"{who} waits for input {pct:.0f} % of the time",
                where=None,
                lost_ns=lost,
                confidence=MEASURED,
                evidence={
                    "wait_pct": pct,
                    "host_input_pct": 100 * run.steps.total("input_get_ns") / total,
                    "slowest_stage": stage.path if stage else None,
                    "slowest_stage_self_ms": stage.self_ms if stage else None,
                },
                threshold={"wait_pct": limits["wait_pct"]},
                advice=_in_trace_advice(
                    run, source, lost / steps / 1e6, (total - lost) / steps / 1e6
                ),
                gpus=list(source.gpus),
                severity=lost / total,
            )
        ]

    def _spans(self, run: Run, limits: Limits) -> list[Finding]:
        enough = min(limits["min_run_pct"] / 100 * run.present_ns, limits["always_s"] * 1e9)
        found = run.spans_of(
            "wait", enter=limits["wait_pct"] / 100, min_rows=int(limits["min_steps"])
        )
        findings = []
        for where, blocks in found:
            after = run.end_step - where.end_step
            if where.end_step <= limits["warmup_steps"] and after > AFTER * where.end_step:
                continue
            loss = self._finding(run, limits, where, blocks)
            if loss is not None and loss.lost_ns and loss.lost_ns >= PART * enough:
                findings.append(loss)
        few = too_little(findings, limits)
        return findings if not few and sum(loss.lost_ns or 0 for loss in findings) >= enough else []

    def _finding(self, run: Run, limits: Limits, where: Range, blocks: slice) -> Finding | None:
        steps = run.steps
        rows = max(1, where.end_step - where.start_step)
        raw, wait, duration, in_blocks = (
            int(steps[name][blocks].sum())
            for name in ("input_wait_ns", "wait_ns", "duration_ns", "rows")
        )
        # The outermost blocks may contain steps from outside; those did not wait (that is why the
        # span ends there), so all waits are kept and their durations are subtracted.
        outside = max(0, in_blocks - rows)
        clean = run.clean_step_ns()
        if outside:
            usual = clean[0] if clean else (duration - wait) / max(1, in_blocks)
            duration = max(wait, duration - round(outside * usual))
        # A short run compiles for most of its time: the wait is compared with the time without it.
        running = max(raw, duration - int(steps["compile_ns"][blocks].sum()))
        evidence: dict[str, object] = {
            "wait_pct": round(100 * raw / max(1, running), 1),
            "wait_ms_per_step": round(raw / rows / 1e6, 3),
            "step_ms": round(running / rows / 1e6, 3),
            "steps": rows,
        }
        filling = fills(run, where, wait, max(0, running - raw) / rows)
        long = long_fetches(steps, blocks, rows)
        if long is not None:
            evidence["long_fetches"] = f"{long.count} of {rows}, {said(long.each_ms / 1e3)} each"
            evidence["long_fetches_hold_pct"] = round(100 * long.share, 1)
        lost = wait
        idle = run.idle(where.start_ns, where.end_ns)
        if idle is not None:
            lost = min(lost, idle.idle_ns)
            evidence["gpu_active_pct"] = round(idle.active_pct, 1)
        else:
            evidence["gpu_active_pct"] = None
        guessed = 2 * int(steps["estimated"][blocks].sum()) > in_blocks
        # The waits of a trace are those in which its GPUs idled.
        seen_idle = run.source is not None or (idle is not None and not guessed)
        alone_ns = _model_alone_ns(run)
        if alone_ns is not None:
            lost = min(wait, max(0, duration - round(rows * alone_ns)))
            evidence["model_alone_ms"] = round(alone_ns / 1e6, 3)
            evidence["promise_rests_on"] = "a measurement of the model alone, before training"
        elif clean is not None:
            # Small differences are noise; a large one means that steps which do not wait take
            # longer, so that the wait hid work which will show without it. If the GPU was seen idle
            # there was no such work:
            # steps elsewhere are longer for another reason.
            without = round(rows * clean[0])
            longer = without > NOISE * (duration - lost)
            if longer and not seen_idle:
                lost = max(0, duration - without)
                longer = False
            if clean[0] * rows < running:  # slower ones have another bottleneck: no comparison
                evidence["unstarved_steps_elsewhere_ms"] = round(clean[0] / 1e6, 3)
            evidence["promise_rests_on"] = (
                "how idle the GPU was here: steps that did not wait took longer"
                if longer
                else f"{clean[1]} steps of this run that did not wait"
                if without * NOISE > duration - lost
                else "the wait alone: the rest of these steps is slow, too"
            )
        else:
            evidence["promise_rests_on"] = "what is left of a step without its wait"
        if lost < limits["wait_pct"] / 100 * duration:
            return None
        needed_ms = max(0, running - lost) / rows / 1e6
        evidence["step_here_without_its_wait_ms"] = round(needed_ms, 3)
        evidence["faster_up_to"] = round(duration / max(1, duration - lost), 2)
        stages = run.pipeline.stages(where.start_ns, where.end_ns)
        slowest = _to_blame(stages, behind_first_epoch(run, where))
        work_ms = sum(stage.ms_per_batch for stage in stages if not stage.passing)
        not_the_bottleneck = (
            bool(stages) and work_ms < limits["explained_pct"] / 100 * wait / rows / 1e6
        )
        if not_the_bottleneck and lost < BEYOND_DOUBT * run.present_ns:
            return None
        elsewhere = run.pipeline.reads_elsewhere(rows, where.start_ns, where.end_ns)
        wait_here = InputWait(
            run, where, lost / rows / 1e6, needed_ms, stages=stages, read_elsewhere=elsewhere
        )
        if not_the_bottleneck or wait_here.keeps_up:
            slowest, not_the_bottleneck = None, True
            evidence["all_stages_ms_per_batch"] = round(work_ms, 3)
        elif slowest is not None and slowest.work_ms_per_batch > 0:
            evidence["slowest_stage"] = slowest.name
            work_ms = round(slowest.work_ms_per_batch, 3)
            if elsewhere and work_ms < needed_ms:
                pass  # a mean over faster batches, too
            elif _overlaps(slowest, duration / rows):
                evidence["stage_summed_over_threads_ms_per_batch"] = work_ms
            else:
                evidence["stage_ms_per_batch"] = work_ms
                evidence["stage_parallelism"] = round(slowest.parallelism, 1)
            if slowest.flags:
                evidence["stage_flags"] = ", ".join(sorted(slowest.flags))
        else:
            slowest = None
        wait_here = replace(
            wait_here, stage=slowest,
            overlaps=slowest is not None and _overlaps(slowest, duration / rows),
            not_the_bottleneck=not_the_bottleneck,
            opener=next((s for s in stages if s.opens_files), None),
        )  # fmt: skip
        if run.source is not None:
            advice = _in_trace_advice(run, run.source, wait_here.lost_ms, needed_ms)
        else:
            advice = advise_kind(wait_here) or advise_stage(wait_here)
        if filling is not None and (refilled := advise_fills(wait_here, filling)) is not None:
            advice = refilled
        elif long is not None:
            advice = advise_rare(wait_here, long, advice)
        saved = lost * advice.saves
        evidence["faster_up_to"] = round(duration / max(1, duration - saved), 2)
        return Finding(
            cause=self.cause,
            title=self.title,
            where=where,
            lost_ns=lost,
            confidence=MEASURED if seen_idle or not (guessed or run.used_gpus) else ESTIMATED,
            evidence=evidence,
            threshold={"wait_pct": limits["wait_pct"]},
            advice=advice,
            gpus=list(idle.gpus) if idle else run.used_gpus,
            state=in_many_steps(wait, steps["top_wait_ns"][blocks]),
        )


def _model_alone_ns(run: Run) -> float | None:
    """Return a step's time with its batch at hand, where it was measured before the training.

    What was measured with batches of another size says nothing about these steps.
    """
    measured = run.manifest.get("ceilings")
    if not measured or not measured["model_per_s"] > 0:
        return None
    if another_batch_size(measured.get("batch_size"), run.fit) is not None:
        return None
    return 1e9 / measured["model_per_s"]


def _judged(source: Source) -> bool:
    """Return whether waits of a trace mean something: a GPU worked enough, or steps wait."""
    return source.idle_judged or source.steps_judged


def _in_trace_advice(run: Run, source: Source, lost_ms: float, needed_ms: float) -> Advice:
    """Return advice by the slowest stage that a trace shows, else by the kind of the input."""
    if source.slowest_stage is not None:
        return advise_traced_stage(source.slowest_stage.name)
    if run.framework == "torch" and run.fit.get("input_workers") is None:
        return loader_workers(
            "Batches come too late. Let worker processes of a DataLoader make them ahead of time; "
            "where some do so already, let more of them, or make each sample cheaper.",
            "loader = DataLoader(dataset, ..., num_workers=8, persistent_workers=True)",
            1.0,
        )
    known = advise_kind(InputWait(run, run.whole, lost_ms, needed_ms)) if run.framework else None
    return known or Advice("Make the input pipeline faster, or let it work ahead of the training.")


def _to_blame(stages: Sequence[Stage], later: float) -> Stage | None:
    """Return the slowest stage, of those that still work once a cache is full; None if unknown.

    Args:
        later: share of the steps after the first epoch.
    """
    making = [stage for stage in stages if not stage.passing]
    at_work = [stage for stage in making if not stage.cached and stage.work_ms_per_batch > 0]
    return next(iter(at_work if at_work and later > MOSTLY else making), None)


def _overlaps(stage: Stage, step_ns: float) -> bool:
    """Return whether the stage worked longer for a batch than the step that took it.

    Its calls then ran in parallel, or waited for one another: their sum is not elapsed time.
    """
    return stage.work_ms_per_batch * 1e6 > step_ns
