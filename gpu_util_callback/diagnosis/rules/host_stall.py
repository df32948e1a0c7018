"""Host stall: training stands still while the host validates, saves or runs a callback."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis.advice import stall as _stall_advice
from gpu_util_callback.diagnosis.advice.snippets import has_keras_fit
from gpu_util_callback.diagnosis.evidence.phases import Occurrences
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.evidence.significance import (
    LEAST_S,
    MANY_TIMES,
    in_many_steps,
    worth_telling,
)
from gpu_util_callback.diagnosis.evidence.stalls import intervals, lost_in, owned, times, usual_ns
from gpu_util_callback.diagnosis.evidence.unattributed import unmarked
from gpu_util_callback.diagnosis.finding import ESTIMATED, MEASURED, Loss, Range, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold

__all__ = ["HostStall"]


# Backends on which Keras hands end hooks to other threads: what that costs is no callback's time.
_DISPATCHED = frozenset({"jax", "torch"})


class HostStall(Rule):
    """Validation, a checkpoint or a callback takes a good part of the time, again and again.

    What the GPU did meanwhile is not lost: where its utilization was sampled, only its idle time
    counts. Without a GPU the time training stood still counts, and the evidence says so.
    """

    cause = "host_stall"
    title = "Training stands still"
    sources = ("phases", "callback time of each step", "GPU utilization (optional)")
    thresholds: ClassVar = {
        "validation_pct": Threshold(
            20,
            "a validation set of a fifth of the data, forward pass only (a third of a training "
            "step), takes 6 %; 20 % needs one nearly as large as the training set, or a slow path",
        ),
        "validation_idle_pct": Threshold(
            10,
            "a shorter validation is told only where the GPU was seen to idle for a tenth of the "
            "time meanwhile: one that keeps it half busy would have to take those 20 %",
        ),
        "callback_pct": Threshold(
            5, "XProf calls 3 % of a step outside the model moderate and 15 % high; 5 % is felt"
        ),
        "unmarked_pct": Threshold(
            20,
            "a loop of one's own keeps its books in a few percent; a fifth without a name hides "
            "what costs most",
        ),
        "ms_per_step": Threshold(
            0.2, "a progress bar takes 0.05-0.1 ms a step; on very short steps that is no finding"
        ),
        "lost_pct": Threshold(
            5, "what the GPU did meanwhile is not lost: 5 % of the time, as for waiting"
        ),
        "min_occurrences": Threshold(
            2, "one checkpoint or one slow callback is an event, not a state of the run"
        ),
        "min_steps": Threshold(16, "as for input_bound"),
        "min_run_pct": Threshold(2, "below 2 % of the run, mending it does not show"),
        "least_s": LEAST_S,
        "always_s": Threshold(60, "a lost minute is worth a line however long the run is"),
    }
    unknown = "neither phases nor callback times were recorded"

    def missing(self, run: Run) -> bool:
        if not len(run.steps):
            return True
        own_loop = run.fact("fit", "loop") == "custom"  # what it does outside steps is seen
        phases = any(run.phases.of(kind) for kind in ("validation", "callback", "checkpoint"))
        return not (own_loop or phases or run.steps.total("callbacks_known"))

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        claims = [*self._validation(run, limits), *self._at_ends(run, limits),
                  *self._in_steps(run, limits), *self._unmarked(run, limits)]  # fmt: skip
        return worth_telling(claims, run.present_ns, limits)

    # -- validation ----------------------------------------------------------------------------

    def _validation(self, run: Run, limits: Limits) -> Iterable[Loss]:
        groups = run.phases.of("validation", account="validation")
        for occurrences in groups.values():
            if occurrences.count < 2 and not run.ended:
                continue  # the first one traces and fills; wait for another
            where = owned(run, occurrences)
            took = occurrences.self_ns
            span_ns = max(1, where.end_ns - where.start_ns)
            # Compiling the test function is done once, however long the run gets.
            again = usual_ns(np.maximum(occurrences["self_ns"] - _compiled(run, occurrences), 0))
            if 100 * again < limits["validation_idle_pct"] * span_ns:
                continue
            lost, active = lost_in(run, occurrences, where)
            if _holds_steps(run):
                if active is None:
                    continue  # nobody saw how much of it was validation
                again, took = round(lost * again / max(1, took)), lost
            pct = 100 * took / span_ns
            if 100 * again >= limits["validation_pct"] * span_ns:
                least: str = "lost_pct"
                fired: tuple[str, ...] = ("validation_pct", "lost_pct")
                idle = lost
            else:
                least, fired = "validation_idle_pct", ("validation_idle_pct",)
                idle = 0 if active is None else round(lost * again / max(1, took))
            if 100 * idle < limits[least] * span_ns:
                continue  # the GPU was at work most of the time, or nobody saw that it was not
            evidence = times(occurrences, "validation_pct", pct) | {
                least: round(100 * idle / span_ns, 1),
                "gpu_active_meanwhile_pct": active,
            }
            wait = run.validation.total("wait_ns")
            if len(run.validation):
                evidence["validation_wait_pct"] = round(100 * wait / max(1, took), 1)
            advice = _stall_advice.validation(
                run, count=max(1, occurrences.count), took_ns=took, wait_ns=wait,
                span_ns=where.end_ns - where.start_ns, pct=pct,
            )  # fmt: skip
            yield self._loss("Validation stalls training", where, lost, active, run,
                             evidence, {name: limits[name] for name in fired}, advice,
                             "validation", occurrences)  # fmt: skip

    # -- callbacks at the ends of epochs ---------------------------------------------------------

    def _at_ends(self, run: Run, limits: Limits) -> Iterable[Loss]:
        for kind in ("callback", "checkpoint"):
            for name, occurrences in run.phases.of(kind, account="callbacks").items():
                if occurrences.count < limits["min_occurrences"]:
                    continue
                where = owned(run, occurrences)
                span_ns = max(1, where.end_ns - where.start_ns)
                if 100 * usual_ns(occurrences["self_ns"]) < limits["callback_pct"] * span_ns:
                    continue
                lost, active = lost_in(run, occurrences, where)
                if 100 * lost < limits["lost_pct"] * span_ns:
                    continue
                pct = 100 * occurrences.self_ns / span_ns
                evidence = {"callback": name} | times(occurrences, "callback_pct", pct) | {
                    "lost_pct": round(100 * lost / span_ns, 1),
                    "gpu_active_meanwhile_pct": active,
                }  # fmt: skip
                yield self._loss(_title(name, kind), where, lost, active, run, evidence,
                                 {"callback_pct": limits["callback_pct"],
                                  "lost_pct": limits["lost_pct"],
                                  "times": limits["min_occurrences"]},
                                 _stall_advice.at_epoch_end(
                                     run, name, count=occurrences.count,
                                     took_ns=occurrences.self_ns,
                                     span_ns=where.end_ns - where.start_ns,
                                 ), name, occurrences)  # fmt: skip

    # -- callbacks inside steps --------------------------------------------------------------------

    def _in_steps(self, run: Run, limits: Limits) -> Iterable[Loss]:
        spans = run.spans_of(
            "callbacks", enter=limits["callback_pct"] / 100, min_rows=int(limits["min_steps"])
        )
        for where, blocks in spans:
            took = int(run.steps["callbacks_ns"][blocks].sum())
            # Of the steps: a span may lie across validations, which are told by themselves.
            steps_ns = max(1, int(run.steps["duration_ns"][blocks].sum()))
            rows = max(1, where.end_step - where.start_step)
            if took < limits["ms_per_step"] * 1e6 * rows:
                continue
            name, of_it, named = _heaviest_hook(run, where)
            if run.framework in _DISPATCHED and named < 0.5 * took:
                continue  # Keras' own dispatch, or threads that compete for Python's lock
            idle = run.idle(where.start_ns, where.end_ns)
            lost = min(took, idle.idle_ns) if idle else took
            if 100 * lost < limits["callback_pct"] * steps_ns:
                continue
            evidence: dict[str, object] = {
                "callback": name or "not known which",
                "callback_pct": round(100 * took / steps_ns, 1),
                "ms_per_step": round(took / rows / 1e6, 3),
                "steps": rows,
                "gpu_active_pct": round(idle.active_pct, 1) if idle else None,
            }
            if name and of_it < 0.95:
                evidence["share_of_callback_time_pct"] = round(100 * of_it, 1)
            kind = "checkpoint" if "Checkpoint" in name or "Backup" in name else "callback"
            advice = _stall_advice.in_steps(
                run, name, steps=rows, times=int(run.steps["callback_events"][blocks].sum()),
                epochs=_epochs_in(run, where), took_ns=took,
                span_ns=where.end_ns - where.start_ns,
            )  # fmt: skip
            if name:  # what the others take stays
                advice = replace(advice, saves=advice.saves * of_it * min(1.0, named / took))
            often = in_many_steps(took, run.steps["top_callbacks_ns"][blocks])
            yield self._loss(_title(name, kind), where, lost,
                             evidence["gpu_active_pct"], run, evidence,
                             {"callback_pct": limits["callback_pct"],
                              "ms_per_step": limits["ms_per_step"]},
                             advice, name or "callbacks", state=often)  # fmt: skip

    # -- what a loop of one's own does not mark ----------------------------------------------------

    def _unmarked(self, run: Run, limits: Limits) -> Iterable[Loss]:
        seen = unmarked(run)
        if seen is None:
            return
        span_ns = max(1, seen.where.end_ns - seen.where.start_ns)
        if 100 * seen.usual_ns < limits["unmarked_pct"] * span_ns:
            return
        if 100 * seen.lost_ns < limits["lost_pct"] * span_ns:
            return
        evidence: dict[str, object] = {
            "unmarked_pct": round(100 * seen.took_ns / span_ns, 1),
            "unmarked_s": round(seen.took_ns / 1e9, 3),
            "place_in_loop": seen.place,
        }
        if seen.times is not None:
            evidence["times"] = seen.times
            evidence["longest_s"] = round(seen.longest_ns / 1e9, 3)
        evidence["lost_pct"] = round(100 * seen.lost_ns / span_ns, 1)
        evidence["gpu_active_meanwhile_pct"] = seen.active_pct
        often = seen.times is None or seen.times >= MANY_TIMES
        claim = self._loss("Work outside steps and phases", seen.where, seen.lost_ns,
                           seen.active_pct, run, evidence,
                           {name: limits[name] for name in ("unmarked_pct", "lost_pct")},
                           seen.advice, "unmarked", state=often)  # fmt: skip
        claim.pieces = seen.pieces
        yield claim

    def _loss(
        self,
        title,
        where,
        lost,
        active,
        run,
        evidence,
        threshold,
        advice,
        detail,
        occurrences: Occurrences | None = None,
        state: bool = False,
    ) -> Loss:
        if active is None:
            evidence["counted"] = "the time training stood still: GPU utilization was not measured"
        return Loss(
            cause=self.cause, title=title, where=where, lost_ns=int(lost),
            confidence=ESTIMATED if active is None and run.used_gpus else MEASURED,
            evidence=evidence, threshold=threshold, advice=advice, gpus=run.used_gpus,
            detail=detail, pieces=intervals(occurrences) if occurrences else [],
            state=occurrences.count >= MANY_TIMES if occurrences else state,
        )  # fmt: skip


def _holds_steps(run: Run) -> bool:
    """Whether the time of a validation holds training steps as well.

    JAX takes steps on without waiting for them, and Keras waits at the end of the validation, which
    stands behind what the device still had to do of the epoch. What a GPU idled was neither.
    """
    return run.framework == "jax" and has_keras_fit(run)


def _epochs_in(run: Run, where: Range) -> int:
    """How many epochs a range touches, 1 where that is not known."""
    per_epoch = run.fact("fit", "steps_per_epoch")
    if not per_epoch:
        ends = [rows["step"] for rows in run.phases.of("epoch").values()]
        inside = [(steps > where.start_step) & (steps < where.end_step) for steps in ends]
        return 1 + sum(int(some.sum()) for some in inside)
    first, last = where.start_step // int(per_epoch), (where.end_step - 1) // int(per_epoch)
    return max(1, last - first + 1)


def _compiled(run: Run, validations: Occurrences) -> np.ndarray:
    """How much of each validation compiled the test function; shape `(n,)`."""
    spent = np.zeros(len(validations), np.int64)
    for rows in run.phases.of("compilation").values():
        at = np.searchsorted(validations["start_ns"], rows["start_ns"], side="right") - 1
        inside = (at >= 0) & (rows["end_ns"] <= validations["end_ns"][at])
        np.add.at(spent, at[inside], rows["self_ns"][inside])
    return spent


def _heaviest_hook(run: Run, where: Range) -> tuple[str, float, int]:
    """The callback that took most of the batch hooks' time in a range, its share of it, and all of
    the time that hooks with a name took.
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
