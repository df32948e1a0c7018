"""Host stall: training stands still while the host validates, saves or runs a callback."""

import math
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gpu_util_callback.diagnosis._phases import Occurrences
from gpu_util_callback.diagnosis._rule import ESTIMATED, MEASURED, Advice, Loss, Range, Rule
from gpu_util_callback.diagnosis._run import MIN_SAMPLES, Run
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold

__all__ = ["HostStall"]


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
        "callback_pct": Threshold(
            5, "XProf calls 3 % of a step outside the model moderate and 15 % high; 5 % is felt"
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
        "always_s": Threshold(60, "a lost minute is worth a line however long the run is"),
    }
    unknown = "neither phases nor callback times were recorded"

    def missing(self, run: Run) -> bool:
        return not len(run.steps)

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        enough = min(limits["min_run_pct"] / 100 * run.wall_ns, limits["always_s"] * 1e9)
        claims = [*self._validation(run, limits), *self._at_ends(run, limits),
                  *self._in_steps(run, limits)]  # fmt: skip
        return [claim for claim in claims if claim.lost_ns is not None and claim.lost_ns >= enough]

    # -- validation ----------------------------------------------------------------------------

    def _validation(self, run: Run, limits: Limits) -> Iterable[Loss]:
        groups = run.phases.of("validation", account="validation")
        for occurrences in groups.values():
            if occurrences.count < 2 and not run.ended:
                continue  # the first one traces and fills; wait for another
            where = _owned(run, occurrences)
            took = occurrences.self_ns
            span_ns = max(1, where.end_ns - where.start_ns)
            if 100 * occurrences.usual_ns() < limits["validation_pct"] * span_ns:
                continue
            pct = 100 * took / span_ns
            lost, active = _lost(run, occurrences)
            if 100 * lost < limits["lost_pct"] * (where.end_ns - where.start_ns):
                continue  # the GPU was at work most of the time
            evidence = _times(occurrences, "validation_pct", pct) | {
                "gpu_active_meanwhile_pct": active
            }
            wait = run.validation.total("wait_ns")
            waits = len(run.validation) > 0 and wait > 0.2 * took
            if len(run.validation):
                evidence["validation_wait_pct"] = round(100 * wait / max(1, took), 1)
            if waits:
                advice = Advice(
                    "Validation waits for its data most of all: its input pipeline needs the same "
                    "care as the training one.",
                    "val_ds = val_ds.cache().prefetch(tf.data.AUTOTUNE)",
                )
            else:
                advice = _less_validation(run, occurrences, where, pct)
            yield self._loss("Validation stalls training", where, lost, active, run,
                             evidence, {"validation_pct": limits["validation_pct"]}, advice,
                             "validation", occurrences)  # fmt: skip

    # -- callbacks at the ends of epochs ---------------------------------------------------------

    def _at_ends(self, run: Run, limits: Limits) -> Iterable[Loss]:
        for kind in ("callback", "checkpoint"):
            for name, occurrences in run.phases.of(kind, account="callbacks").items():
                if occurrences.count < limits["min_occurrences"]:
                    continue
                where = _owned(run, occurrences)
                span_ns = max(1, where.end_ns - where.start_ns)
                if 100 * occurrences.usual_ns() < limits["callback_pct"] * span_ns:
                    continue
                lost, active = _lost(run, occurrences)
                if 100 * lost < limits["lost_pct"] * (where.end_ns - where.start_ns):
                    continue
                pct = 100 * occurrences.self_ns / max(1, where.end_ns - where.start_ns)
                evidence = {"callback": name} | _times(occurrences, "callback_pct", pct) | {
                    "gpu_active_meanwhile_pct": active
                }  # fmt: skip
                yield self._loss(_title(name, kind), where, lost, active, run, evidence,
                                 {"callback_pct": limits["callback_pct"],
                                  "times": limits["min_occurrences"]},
                                 _callback_advice(name, kind), name, occurrences)  # fmt: skip

    # -- callbacks inside steps --------------------------------------------------------------------

    def _in_steps(self, run: Run, limits: Limits) -> Iterable[Loss]:
        spans = run.spans_of(
            "callbacks", enter=limits["callback_pct"] / 100, min_rows=int(limits["min_steps"])
        )
        for where, blocks in spans:
            took = int(run.steps["callbacks_ns"][blocks].sum())
            span_ns = where.end_ns - where.start_ns
            rows = max(1, where.end_step - where.start_step)
            if took < limits["ms_per_step"] * 1e6 * rows:
                continue
            name, of_it = _heaviest_hook(run, where)
            idle = run.idle(where.start_ns, where.end_ns)
            lost = min(took, idle.idle_ns) if idle else took
            pct = 100 * took / max(1, span_ns)
            if 100 * lost / max(1, span_ns) < limits["callback_pct"]:
                continue
            evidence: dict[str, object] = {
                "callback": name or "not known which",
                "callback_pct": round(pct, 1),
                "ms_per_step": round(took / rows / 1e6, 3),
                "steps": rows,
                "gpu_active_pct": round(idle.active_pct, 1) if idle else None,
            }
            if name and of_it < 0.95:
                evidence["share_of_callback_time_pct"] = round(100 * of_it, 1)
            kind = "checkpoint" if "Checkpoint" in name or "Backup" in name else "callback"
            yield self._loss(_title(name, kind), where, lost,
                             evidence["gpu_active_pct"], run, evidence,
                             {"callback_pct": limits["callback_pct"],
                              "ms_per_step": limits["ms_per_step"]},
                             _callback_advice(name, kind), name or "callbacks")  # fmt: skip

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
    ) -> Loss:
        if active is None:
            evidence["counted"] = "the time training stood still: GPU utilization was not measured"
        return Loss(
            cause=self.cause, title=title, where=where, lost_ns=int(lost),
            confidence=ESTIMATED if active is None and run.used_gpus else MEASURED,
            evidence=evidence, threshold=threshold, advice=advice, gpus=run.used_gpus,
            detail=detail, pieces=_intervals(occurrences),
        )  # fmt: skip


def _less_validation(run: Run, occurrences: Occurrences, where: Range, pct: float) -> Advice:
    """So seldom, or on so few batches, that validation takes a tenth of the time."""
    count = max(1, occurrences.count)
    each = occurrences.self_ns / count
    between = max(1.0, (where.end_ns - where.start_ns - occurrences.self_ns) / count)
    factor = max(2, math.ceil(9 * each / between))
    batches = run.validation.total_rows / count
    text = f"Validation takes {pct:.0f} % of the time of these steps. "
    if factor > int(run.fact("fit", "epochs", default=factor)) / 2 and batches >= 2 * factor:
        steps = max(1, round(batches / factor))
        return Advice(
            f"{text}Validate on a part of the data while training, and on all of it at the end: "
            f"with {steps} batches it takes a tenth of the time.",
            f"model.fit(..., validation_steps={steps})",
        )
    return Advice(
        f"{text}Validate less often, or on a part of the data while training and on all of it at "
        f"the end: once in {factor} epochs it takes a tenth of the time.",
        f"model.fit(..., validation_freq={factor})  # or validation_steps=...",
    )


def _intervals(occurrences: Occurrences | None) -> list[tuple[int, int]]:
    if occurrences is None:
        return []
    return list(zip(occurrences["start_ns"].tolist(), occurrences["end_ns"].tolist(), strict=True))


def _owned(run: Run, occurrences: Occurrences) -> Range:
    """From the beginning of the work the first stall followed, to the end of the last stall.

    A validation belongs to the epoch before it, so that stalls at the end of every epoch cover the
    run, not its seams only.
    """
    starts, ends = occurrences["start_ns"], occurrences["end_ns"]
    first, end_ns = int(starts[0]), int(ends.max())
    start_ns = run.start_ns
    if len(occurrences) > 1:
        # The work before the first stall is as long as that between two, and begins with an epoch.
        earliest = first - 1.05 * max(0.0, float(np.median(starts[1:] - ends[:-1])))
        start_ns = max(start_ns, int(earliest))
        for epochs in run.phases.of("epoch").values():
            before = epochs["start_ns"][epochs["start_ns"] < first]
            inside = before[before >= earliest]
            if len(before):
                start_ns = max(run.start_ns, int(inside[0] if len(inside) else before[-1]))
    step = run.step_at(start_ns)
    last = max(int(occurrences["step"].max()), step)
    return Range(step, last, start_ns, max(end_ns, start_ns + 1))


def _lost(run: Run, occurrences: Occurrences) -> tuple[int, float | None]:
    """How much of the stalls the GPU idled, and how active it was meanwhile (None: not sampled)."""
    lost, seen_ns, active_ns, samples = 0, 0, 0.0, 0
    rows = zip(*(occurrences[name] for name in ("start_ns", "end_ns", "self_ns")), strict=True)
    for start, end, self_ns in rows:
        idle = run.idle(int(start), int(end), at_least=1)  # pooled below
        if idle is None:
            lost += int(self_ns)
            continue
        lost += round(int(self_ns) * (1 - idle.active_pct / 100))
        seen_ns += int(self_ns)
        active_ns += int(self_ns) * idle.active_pct / 100
        samples += idle.samples
    if samples < MIN_SAMPLES or 2 * seen_ns < occurrences.self_ns:
        return occurrences.self_ns, None
    return lost, round(100 * active_ns / max(1, seen_ns), 1)


def _times(occurrences: Occurrences, share: str, pct: float) -> dict[str, object]:
    return {
        share: round(pct, 1),
        "times": occurrences.count,
        "seconds_each": round(occurrences.self_ns / max(1, occurrences.count) / 1e9, 3),
        "longest_s": round(int(occurrences["self_ns"].max()) / 1e9, 3),
    }


def _heaviest_hook(run: Run, where: Range) -> tuple[str, float]:
    """The callback that took most of the batch hooks' time in a range, and its share of it."""
    spent: dict[str, int] = {}
    for kind in ("callback", "checkpoint"):
        for name, rows in run.phases.of(kind, account="").items():
            inside = (rows["end_ns"] > where.start_ns) & (rows["start_ns"] < where.end_ns)
            spent[name] = spent.get(name, 0) + int(rows["self_ns"][inside].sum())
    total = sum(spent.values())
    if not total:
        return "", 0.0
    name = max(spent, key=lambda key: spent[key])
    return name, spent[name] / total


def _title(name: str, kind: str) -> str:
    who = name.split(".")[0] or "A callback"
    return f"{who} stalls training" if kind == "callback" else f"{who}: saving stalls training"


def _callback_advice(name: str, kind: str) -> Advice:
    who = name.split(".")[0] or "The callback"
    hook = name.split(".")[-1] if "." in name else ""
    if kind == "checkpoint" or "Checkpoint" in who or "Backup" in who:
        return Advice(
            f"{who} writes while training waits. Save less often, or only what is needed: weights "
            "without the optimizer are a third of the size with Adam.",
            'keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq="epoch")',
        )
    if who == "TensorBoard":
        return Advice(
            "The TensorBoard callback writes after every batch. Let it write once an epoch.",
            'keras.callbacks.TensorBoard(log_dir, update_freq="epoch", histogram_freq=0)',
        )
    if who == "ProgbarLogger":
        return Advice(
            "Keras' progress bar is drawn after every batch, and these steps are short. Print one "
            "line an epoch instead.",
            "model.fit(..., verbose=2)",
        )
    if "batch" in hook or not hook:
        return Advice(
            f"{who} works after every batch while the GPU waits for the next one. Do it every "
            "hundredth batch, or hand it to a thread.",
            f"if batch % 100 == 0: ...  # in {name or 'the callback'}",
        )
    return Advice(
        f"{who} works while training waits. Do it less often, or hand it to a thread.",
        f"if epoch % 5 == 0: ...  # in {name}",
    )
