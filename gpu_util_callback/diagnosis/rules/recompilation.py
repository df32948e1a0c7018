"""Recompilation: the step is traced or compiled again and again, mostly for new input shapes."""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis.advice.shape import advise_shapes
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.evidence.significance import LEAST_S, MANY_TIMES, worth_telling
from gpu_util_callback.diagnosis.evidence.spans import Series
from gpu_util_callback.diagnosis.finding import ESTIMATED, MEASURED, Loss, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold

__all__ = ["Recompilation"]

# A step on a new shape compiled if it took three times as long as one on a known shape, and 50 ms
# more: longer inputs take longer by themselves, and XLA needs 100 ms for the smallest model.
SLOW, LEAST_NS, KNOWN_STEPS = 3, 50_000_000, 10


class Recompilation(Rule):
    """Steps spend time compiling after the first ones, more than a few times.

    Everybody compiles once for training, often once more for the last, smaller batch, and once for
    validation: those are left out by number.
    """

    cause = "recompilation"
    title = "Compiling again and again"
    sources = ("compilation time of each step", "or: input shape of each step")
    thresholds: ClassVar = {
        "compile_pct": Threshold(5, "as for waiting: 5 % of the time is felt"),
        "compilations": Threshold(
            5, "training, the smaller last batch, and one of each again are normal"
        ),
        "min_run_pct": Threshold(2, "a compilation each hour is not worth a change"),
        "least_s": LEAST_S,
    }
    unknown = "neither compilation nor the shapes of inputs were recorded"

    def missing(self, run: Run) -> bool:
        seen = ("compile_known", "known_rows", "new_rows")
        return not any(run.steps.total(name) for name in seen)

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        return worth_telling(self._spans(run, limits), run.present_ns, limits)

    def _spans(self, run: Run, limits: Limits) -> Iterable[Loss]:
        steps = run.steps
        usual = _known_shape_ns(run)
        new = _beyond(run, usual) if usual is not None else np.zeros(len(steps), np.int64)
        # What was measured as compilation, and what steps on new shapes took beyond the others.
        spent = np.maximum(steps["compile_ns"], new)
        top = np.maximum(steps["top_compile_ns"], np.where(new > 0, steps["top_new_ns"], 0))
        times = np.maximum(steps["compile_events"], np.where(new > 0, steps["new_rows"], 0))
        series = Series(
            steps["rows"], steps["duration_ns"], spent, top, times, steps.rows_per_block
        )
        for where, blocks in run.spans_in(series, enter=limits["compile_pct"] / 100, min_rows=4):
            count, took = int(times[blocks].sum()), int(spent[blocks].sum())
            duration = int(steps["duration_ns"][blocks].sum())
            if count < limits["compilations"]:
                continue
            lost = took - _paid_anyhow(top[blocks], took, count)
            idle = run.idle(where.start_ns, where.end_ns)
            if idle is not None:
                lost = min(lost, idle.idle_ns)
            pct = 100 * took / max(1, duration)
            if pct < limits["compile_pct"]:
                continue
            by_shape = int(steps["compile_ns"][blocks].sum()) < took
            evidence: dict[str, object] = {
                "compile_pct": round(pct, 1),
                "compilations": count,
                "seconds_each": round(took / count / 1e9, 3),
                "steps": where.end_step - where.start_step,
            }
            if by_shape:
                evidence["seen_by"] = "steps on a new input shape, against those on a known one"
            guessed = 2 * int(steps["estimated"][blocks].sum()) > int(steps["rows"][blocks].sum())
            yield Loss(
                cause=self.cause,
                title=self.title,
                where=where,
                lost_ns=lost,
                confidence=ESTIMATED if guessed or by_shape else MEASURED,
                evidence=evidence,
                threshold={
                    "compile_pct": limits["compile_pct"],
                    "compilations": limits["compilations"],
                },
                advice=advise_shapes(run, count),
                gpus=run.used_gpus,
                state=count >= MANY_TIMES,
            )


def _paid_anyhow(top: np.ndarray, took: int, count: int) -> int:
    """What the first compilation took; or the largest, if it is of another kind than the others."""
    largest = int(top.max())
    others = (took - largest) / max(1, count - 1)
    return largest if largest > SLOW * others else int(top[top > 0][0])


def _known_shape_ns(run: Run) -> float | None:
    """What a step takes on a shape that came before; None with too few of them."""
    rows, spent = run.steps["known_rows"], run.steps["known_ns"]
    some = rows > 0
    if int(rows.sum()) < KNOWN_STEPS:
        return None
    return float(np.median(spent[some] / rows[some]))


def _beyond(run: Run, usual: float) -> np.ndarray:
    """Per block, what its steps on new shapes took beyond the usual, where that is a lot."""
    rows, spent = run.steps["new_rows"], run.steps["new_ns"]
    beyond = spent - rows * usual
    slow = (rows > 0) & (spent >= SLOW * rows * usual) & (beyond >= rows * LEAST_NS)
    return np.where(slow, beyond, 0).astype(np.int64)
