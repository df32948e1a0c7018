"""Data in vain: samples that are made and dropped, epochs that are cut short, a set that is read several times."""

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import drops_of
from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.stalls import intervals, lost_in
from gpu_util_callback.diagnosis.rule import ESTIMATED, MEASURED, Advice, Findings, Rule, significant
from gpu_util_callback.diagnosis.thresholds import AGAIN, DOUBLE, MATTERS_PCT, MOSTLY, SIGNIFICANT, Limits, Threshold
from gpu_util_callback.recording.manifest_facts import InputDrop
from gpu_util_callback.words import counted, listed


class DataWaste(Rule):
    """Samples are made and then dropped, an epoch ends before its steps, or reads its set several times.

    `skip` counts elements of what it follows: behind `batch` and `map`, whole batches are made and dropped
    before the first step. `steps_per_epoch` counts batches: given in samples, an epoch reads the set as often
    as a batch has samples; where it does not divide the batches of a pass, each pass ends within an epoch.
    """

    cause = "data_waste"
    title = "Data are read in vain"
    look = "⊘", "amber"
    part = "input_wait"
    forecast = True
    sources = ("stages of the tf.data pipeline as written", "steps and first batch of each epoch")
    thresholds = {
        "set_read_times": Threshold(
            DOUBLE, "an epoch may be a little longer than a pass; not by accident twice as long"
        ),
        "dropped_pct": MATTERS_PCT,
        **SIGNIFICANT,
    }
    unknown = "neither the pipeline's stages nor the steps of an epoch are known"

    def missing(self, run: Run) -> bool:
        if run.source is None and run.fit.get("input_sharing"):
            return False
        return run.source is not None or run.custom_loop or not (run.fit.get("input_drops") or len(run.epoch_steps))

    def find(self, run: Run, limits: Limits) -> Findings:
        yield from significant(self._skipped(run, limits), run.present_ns, limits)
        yield from self._read_by_each_worker(run)
        yield from self._read_again(run, limits)
        if not run.custom_loop:
            yield from self._short_epochs(run)

    def _skipped(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding about samples that `skip` drops after they were made.

        Its loss is the time of the first fetch of each epoch, without that of its own batch.
        """
        first_batches = _first_batches(run.phases.of("input_setup", account="").get(""))
        drops = [drop for drop in drops_of(run, "train") if drop["stage"] == "skip"]
        if not drops or not first_batches.count:
            return
        drop = max(drops, key=lambda each: each["count"] * each["samples"])
        samples = drop["count"] * drop["samples"]
        batches = samples / max(1, run.fit.get("batch_size") or drop["samples"])
        lost_ns, active_pct = lost_in(run, first_batches, run.whole)
        lost_ns = round(lost_ns * batches / (batches + 1))
        pct = 100 * lost_ns / max(1, run.present_ns)
        if pct < limits["dropped_pct"]:
            return
        each = " in each epoch" if first_batches.count >= AGAIN else ""
        yield self.finding(
            title=f"skip({drop['count']}) drops {counted(samples, 'sample')} that {drop['behind']} made{each}",
            lost_ns=lost_ns,
            confidence=ESTIMATED if active_pct is None and run.used_gpus else MEASURED,
            evidence={
                "dropped_pct": round(pct, 1),
                "dropped_samples": samples,
                "set_samples": run.fit.get("input_set_samples"),
                "times": first_batches.count,
                "seconds_each": round(first_batches.self_ns / first_batches.count / 1e9, 3),
                "gpu_active_meanwhile_pct": active_pct,
            },
            advice=_skip_advice(run, drop, samples),
            detail="skip",
            pieces=intervals(first_batches),
        )

    def _read_by_each_worker(self, run: Run) -> Findings:
        """Yield the finding that each worker of a DataLoader reads the whole set: all but one read it in vain."""
        workers, epochs = int(run.fit.get("input_workers") or 0), run.phases.of("epoch").get("")
        if run.fit.get("input_sharing") != "none" or workers < AGAIN or epochs is None or epochs.count < AGAIN:
            return
        name = run.fit.get("input_class") or "the dataset"
        yield self.finding(
            title=f"Each of the {workers} workers yields all items of {name}",
            lost_ns=round((1 - 1 / workers) * run.steps.total("duration_ns")),
            confidence=ESTIMATED,
            evidence={"set_read_times": workers},
            advice=Advice(
                f"Nothing in {name} asks in which worker it runs, so that an epoch has all its items {workers} times. "
                "Is an epoch meant to be one pass? If so, let each worker yield its own part, by torch.utils.data's "
                "get_worker_info() in __iter__.",
                saves=1.0,
                question=True,
            ),
            detail="workers",
        )

    def _read_again(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding that an epoch reads its set several times, as if `steps_per_epoch` counted samples."""
        steps = int(run.fit.get("steps_per_epoch") or 0)
        batches = int(run.fit.get("input_set_batches") or 0)
        samples = int(run.fit.get("input_set_samples") or 0)
        if not batches or samples < limits["set_read_times"] * batches or steps < samples:
            return
        yield self.finding(
            title=f"An epoch of {steps:,} steps reads the {batches:,} batches of its set {steps / batches:.0f} "
            "times: steps_per_epoch counts batches, not samples",
            evidence={"set_samples": samples, "set_batches": batches, "set_read_times": round(steps / batches, 1)},
            advice=Advice(
                "Is an epoch meant to be one pass?", f"model.fit(..., steps_per_epoch={batches})", question=True
            ),
            detail="again",
        )

    def _short_epochs(self, run: Run) -> Findings:
        """Yield the finding about epochs that had fewer steps than were asked for, as the data ended within them."""
        steps, batches = run.fit.get("steps_per_epoch"), run.fit.get("input_batches")
        epochs = run.epoch_steps
        # What is left of a generator is repeated: see `data_ended`.
        if not steps or run.input_kind == "generator" or int(run.manifest.get("fits", 1)) > 1:
            return
        short = np.flatnonzero(epochs < steps)
        ended = np.cumsum(epochs) % batches == 0 if batches else np.zeros(len(epochs), bool)
        # The last epoch may have been stopped.
        short = short[(short < len(epochs) - 1) | ended[short]]
        if not len(short):
            return
        numbers = listed([f"{number:,}" for number in (short[:3] + 1 + int(run.fit.get("first_epoch") or 0)).tolist()])
        more = ", …" if len(short) > 3 else ""
        why = f"a pass has {batches:,} batches" if batches else "the data ended"
        yield self.finding(
            title=f"Epoch{'s' if len(short) > 1 else ''} {numbers}{more} had {int(epochs[short].min()):,} of {steps:,} "
            f"steps: {why}",
            evidence={"short_epochs": len(short), "steps_per_epoch": steps, "set_batches": batches},
            advice=_whole_epochs_advice(run),
            detail="cut",
        )


def _first_batches(first_batches: Occurrences | None) -> Occurrences:
    """Return the first batches of new iterators: those that take about as long as the longest."""
    if first_batches is None or first_batches.joined:
        return first_batches or Occurrences()
    spent = first_batches["self_ns"]
    rows = np.flatnonzero(spent >= MOSTLY * spent.max(initial=0))
    columns = [first_batches[name][rows].tolist() for name in Occurrences.COLUMNS]
    return Occurrences(list(zip(*columns, strict=True)))


def _skip_advice(run: Run, drop: InputDrop, samples: int) -> Advice:
    """Return the advice to skip samples before they are made.

    Args:
        drop: the stage that drops them.
        samples: how many are dropped.
    """
    behind, whole = drop["behind"], run.fit.get("input_set_samples")
    counts = " Behind batch, skip counts batches." if drop["samples"] > 1 else ""
    of_set = f" The whole set has {counted(whole, 'sample')}: were {drop['count']:,} samples meant?" if whole else ""
    too_many = of_set if drop["samples"] > 1 and whole is not None and samples >= whole else ""
    code = f"ds = ds.skip({samples})  # before {behind}, in place of skip({drop['count']})"
    says = f"All of these samples are made before the first step, and dropped.{counts}{too_many}"
    if drop["exact"]:
        says += " Skip them before they are made: the same samples follow."
        return Advice(says, code, saves=1.0, leaves_out=True, proof="skip_first")
    asks = f"May other samples be left out? (Stages between {behind} and skip reorder, drop or join them.)"
    says += f" {asks} If so, skip them before they are made."
    return Advice(says, code, 1.0, question=True, leaves_out=True, proof="skip_others")


def _whole_epochs_advice(run: Run) -> Advice:
    """Return the advice to let an epoch be one pass over the data."""
    says = "Without steps_per_epoch an epoch is one pass, whatever its length."
    if run.input_kind != "tf.data":
        return Advice(says)
    return Advice(f"{says} Repeated data go on in the next pass.", "ds = ds.repeat()  # as its last step")
