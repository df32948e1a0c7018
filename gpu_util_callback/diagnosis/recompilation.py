"""Recompilation: the step is traced or compiled again and again, mostly for new input shapes."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis._rule import ESTIMATED, MEASURED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold

__all__ = ["Recompilation"]


class Recompilation(Rule):
    """Steps spend time compiling after the first ones, more than a few times.

    Everybody compiles once for training, often once more for the last, smaller batch, and once for
    validation: those are left out by number.
    """

    cause = "recompilation"
    title = "Compiling again and again"
    sources = ("compilation time of each step",)
    thresholds: ClassVar = {
        "compile_pct": Threshold(5, "as for waiting: 5 % of the time is felt"),
        "compilations": Threshold(
            4, "training, the smaller last batch, and one of each again are normal"
        ),
        "min_run_pct": Threshold(2, "a compilation each hour is not worth a change"),
    }
    unknown = "compilation was not timed on this backend"

    def missing(self, run: Run) -> bool:
        return not len(run.steps)

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        spans = run.spans_of("compile", enter=limits["compile_pct"] / 100, min_rows=4)
        for where, blocks in spans:
            times = int(run.steps["compile_events"][blocks].sum())
            took = int(run.steps["compile_ns"][blocks].sum())
            # The largest is the first one, or an outlier; it had to be paid anyhow.
            lost = took - int(run.steps["top_compile_ns"][blocks].max())
            duration = int(run.steps["duration_ns"][blocks].sum())
            if times < limits["compilations"]:
                continue
            if lost < limits["min_run_pct"] / 100 * run.wall_ns:
                continue
            idle = run.idle(where.start_ns, where.end_ns)
            if idle is not None:
                lost = min(lost, idle.idle_ns)
            pct = 100 * took / max(1, duration)
            if pct < limits["compile_pct"]:
                continue
            guessed = 2 * int(run.steps["estimated"][blocks].sum()) > int(
                run.steps["rows"][blocks].sum()
            )
            yield Loss(
                cause=self.cause,
                title=self.title,
                where=where,
                lost_ns=lost,
                confidence=ESTIMATED if guessed else MEASURED,
                evidence={
                    "compile_pct": round(pct, 1),
                    "compilations": times,
                    "seconds_each": round(took / times / 1e9, 3),
                    "steps": where.end_step - where.start_step,
                },
                threshold={
                    "compile_pct": limits["compile_pct"],
                    "compilations": limits["compilations"],
                },
                advice=_advice(run, times),
                gpus=run.used_gpus,
            )


def _advice(run: Run, times: int) -> Advice:
    text = (
        f"{times} steps compiled before they ran, because the shape of their input (or a Python "
        "value in it) was new. Give the model few shapes: pad to a handful of lengths, and drop "
        "the last smaller batch."
    )
    if run.framework == "torch":
        return Advice(text, "model = torch.compile(model, dynamic=True)")
    if run.framework == "jax":
        return Advice(text, "x = np.pad(x, [(0, 0), (0, -x.shape[1] % 128)])  # few lengths")
    return Advice(
        text,
        "ds = ds.padded_batch(32, padded_shapes=([512], []), drop_remainder=True)"
        "  # or bucket_by_sequence_length",
    )
