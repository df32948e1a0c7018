"""Input-bound: the GPU idles because the next batch is not there yet."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from gpu_util_callback.diagnosis.advice.circumstances import behind_first_epoch
from gpu_util_callback.diagnosis.advice.input import InputWait, advise_kind
from gpu_util_callback.diagnosis.advice.setup import input_setup
from gpu_util_callback.diagnosis.advice.stage import advise_stage
from gpu_util_callback.diagnosis.evidence.long_fetches import (
    advise_fills,
    advise_rare,
    fills,
    long_fetches,
)
from gpu_util_callback.diagnosis.evidence.pipeline import Stage
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.evidence.significance import (
    LEAST_S,
    in_many_steps,
    too_little,
    worth_telling,
)
from gpu_util_callback.diagnosis.finding import ESTIMATED, MEASURED, Loss, Range, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.words import duration as said

__all__ = ["InputBound"]

NOISE = 1.1
# A wait that no stage explains is still told when it costs this share of the run.
BEYOND_DOUBT = 0.1
# Buffers are known to have filled when the run goes on for this share of the steps they took: the
# end of a span may be off by a step.
AFTER = 0.25
# Several spans may reach what is enough together; one of them must have this part of it.
PART = 0.25
# Steps behind the first epoch, from which on a full cache is what the span is about.
MOSTLY = 0.5


class InputBound(Rule):
    """Steps wait for their batch, and the GPU has nothing to do meanwhile.

    A wait counts as lost only as far as it exceeds the floor, as far as the GPU was idle (where its
    utilization was sampled), and as far as the step was longer than a step of this run that did not
    wait (where there are some).
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
        "once_pct": Threshold(
            5, "one change of epochs that takes a twentieth of the run is felt, as XProf's 5 % are"
        ),
        "once_s": Threshold(
            1, "less than a second is a hiccup: closing a pipeline of threads takes 0.1-0.5 s"
        ),
        "least_s": LEAST_S,
        "always_s": Threshold(60, "a lost minute is worth a line however long the run is"),
    }
    unknown = "input wait was not measured in this run"

    def missing(self, run: Run) -> bool:
        return not len(run.steps) or run.steps.total("wait_known") == 0

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        enough = min(limits["min_run_pct"] / 100 * run.present_ns, limits["always_s"] * 1e9)
        found = run.spans_of(
            "wait", enter=limits["wait_pct"] / 100, min_rows=int(limits["min_steps"])
        )
        claims = []
        for where, blocks in found:
            after = run.end_step - where.end_step
            if where.end_step <= limits["warmup_steps"] and after > AFTER * where.end_step:
                continue
            loss = self._claim(run, limits, where, blocks)
            if loss is not None and loss.lost_ns and loss.lost_ns >= PART * enough:
                claims.append(loss)
        few = too_little(claims, limits)
        told = claims if not few and sum(loss.lost_ns or 0 for loss in claims) >= enough else []
        return [*told, *worth_telling(input_setup(run, limits, self.cause), run.present_ns, limits)]

    def _claim(self, run: Run, limits: Limits, where: Range, blocks: slice) -> Loss | None:
        steps = run.steps
        rows = max(1, where.end_step - where.start_step)
        raw, wait, duration, in_blocks = (
            int(steps[name][blocks].sum())
            for name in ("input_wait_ns", "wait_ns", "duration_ns", "rows")
        )
        # The outermost blocks may hold steps from outside; those did not wait (that is why the
        # span ends there), so the waits stay whole and their durations leave.
        outside = max(0, in_blocks - rows)
        clean = run.clean_step_ns()
        if outside:
            usual = clean[0] if clean else (duration - wait) / max(1, in_blocks)
            duration = max(wait, duration - round(outside * usual))
        # A short run compiles for most of its time; what a step takes is said without.
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
        if clean is not None:
            # Small differences are noise; a large one means that steps which do not wait take
            # longer, so that the wait hid work which will show when it is gone. Where the GPU was
            # seen idle there was none: steps elsewhere are longer for another reason.
            without = round(rows * clean[0])
            longer = without > NOISE * (duration - lost)
            if longer and (idle is None or guessed):
                lost = max(0, duration - without)
                longer = False
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
        innocent = bool(stages) and work_ms < limits["explained_pct"] / 100 * wait / rows / 1e6
        if innocent and lost < BEYOND_DOUBT * run.present_ns:
            return None
        if innocent:
            slowest = None
            evidence["all_stages_ms_per_batch"] = round(work_ms, 3)
        elif slowest is not None and slowest.work_ms_per_batch > 0:
            evidence["slowest_stage"] = slowest.name
            work_ms = round(slowest.work_ms_per_batch, 3)
            if _overlaps(slowest, duration / rows):
                evidence["stage_summed_over_threads_ms_per_batch"] = work_ms
            else:
                evidence["stage_ms_per_batch"] = work_ms
                evidence["stage_parallelism"] = round(slowest.parallelism, 1)
            if slowest.flags:
                evidence["stage_flags"] = ", ".join(sorted(slowest.flags))
        else:
            slowest = None
        wait_here = InputWait(
            run, where, lost / rows / 1e6, needed_ms, slowest,
            overlaps=slowest is not None and _overlaps(slowest, duration / rows),
            innocent=innocent, opener=next((s for s in stages if s.opens_files), None),
            stages=stages,
        )  # fmt: skip
        advice = advise_kind(wait_here) or advise_stage(wait_here)
        if filling is not None and (refilled := advise_fills(wait_here, filling)) is not None:
            advice = refilled
        elif long is not None:
            advice = advise_rare(wait_here, long, advice)
        saved = lost * advice.saves
        evidence["faster_up_to"] = round(duration / max(1, duration - saved), 2)
        return Loss(
            cause=self.cause,
            title=self.title,
            where=where,
            lost_ns=lost,
            confidence=ESTIMATED if guessed or (idle is None and run.used_gpus) else MEASURED,
            evidence=evidence,
            threshold={"wait_pct": limits["wait_pct"]},
            advice=advice,
            gpus=list(idle.gpus) if idle else run.used_gpus,
            state=in_many_steps(wait, steps["top_wait_ns"][blocks]),
        )


def _to_blame(stages: Sequence[Stage], later: float) -> Stage | None:
    """The slowest stage, of those that still work where a cache is full; None = none is known.

    Args:
        later: share of the steps behind the first epoch.
    """
    making = [stage for stage in stages if not stage.passing]
    at_work = [stage for stage in making if not stage.cached and stage.work_ms_per_batch > 0]
    return next(iter(at_work if at_work and later > MOSTLY else making), None)


def _overlaps(stage: Stage, step_ns: float) -> bool:
    """Whether the stage worked longer for a batch than the step that took it: its calls ran at the
    same time, or waited for one another, so that their sum is no time that passed."""
    return stage.work_ms_per_batch * 1e6 > step_ns
