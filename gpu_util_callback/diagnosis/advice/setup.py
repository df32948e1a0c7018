"""Input that is set up anew, again and again: training waits before each epoch."""

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch
from gpu_util_callback.diagnosis.evidence.phases import Occurrences
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.evidence.significance import MANY_TIMES
from gpu_util_callback.diagnosis.evidence.stalls import intervals, lost_in, times, usual_ns
from gpu_util_callback.diagnosis.finding import ESTIMATED, MEASURED, Advice, Loss
from gpu_util_callback.diagnosis.thresholds import Limits
from gpu_util_callback.words import duration

__all__ = ["input_setup"]

# The first one had to be; after another two, the next will come as well.
LEAST_TIMES = 3
# The longest takes so much longer than they do on average: that is said.
UNEVEN = 2


TRAIN_ON_BATCH = """with GpuUtilMonitor("logs") as monitor:
    for x, y in batches:
        with monitor.step():
            model.train_on_batch(x, y)"""


def _each_fit(run: Run) -> bool:
    """Whether most epochs are a fit of their own, of a series."""
    epochs = run.phases.of("epoch").get("")
    return epochs is not None and 2 * int(run.fact("fits", default=1)) > epochs.count


def input_setup(run: Run, limits: Limits, cause: str) -> list[Loss]:
    """What it costs that the input begins anew with each epoch: workers start, buffers fill."""
    claims = []
    for occurrences in run.phases.of("input_setup", account="input_wait").values():
        claim = _each_time(run, limits, cause, occurrences)
        claim = claim or _once(run, limits, cause, occurrences)
        if claim is not None:
            claims.append(claim)
    return claims


def _each_time(run: Run, limits: Limits, cause: str, occurrences: Occurrences) -> Loss | None:
    epochs = _epochs_ns(run, occurrences)
    if len(epochs) + 1 < LEAST_TIMES:
        return None
    first, last = int(occurrences["start_ns"][0]), int(occurrences["end_ns"][-1])
    where = run.range_of(first, min(run.end_ns, round(last + 1.05 * float(np.median(epochs)))))
    span_ns = max(1, where.end_ns - where.start_ns)
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
    return Loss(
        cause=cause,
        title=f"Input-bound: each {'fit' if _each_fit(run) else 'epoch'} sets its input up",
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
            f"Setting the input up anew {each}, and training waits. ",
            1 - 1 / max(2, often),  # the first one is needed
        ),
        gpus=run.used_gpus,
        detail="setup",
        pieces=intervals(occurrences),
    )  # fmt: skip


def _once(run: Run, limits: Limits, cause: str, occurrences: Occurrences) -> Loss | None:
    """A change of epochs that took long, if only once, in a run that is over: it may have been a
    hiccup, and says so. What the first epoch begins with had to be.
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
    return Loss(
        cause=cause,
        title="Input-bound: a change of epochs waits for the input",
        where=where,
        lost_ns=lost,
        confidence=ESTIMATED,  # that it comes again
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
            1.0,
        ),
        gpus=run.used_gpus,
        detail="setup",
        pieces=intervals(found),
    )  # fmt: skip


def _epochs_ns(run: Run, occurrences: Occurrences) -> np.ndarray:
    """What lay between the set-ups of one epoch and those of the next."""
    apart = occurrences["start_ns"][1:] - occurrences["end_ns"][:-1]
    if occurrences.joined:
        return apart
    return apart[np.diff(_epoch_of(run, occurrences)) > 0]


def _each_s(run: Run, occurrences: Occurrences) -> np.ndarray:
    """Seconds the set-ups of each epoch took together; those kept joined, each on average."""
    if occurrences.joined:
        return np.full(occurrences.count, occurrences.self_ns / max(1, occurrences.count) / 1e9)
    return np.bincount(_epoch_of(run, occurrences), weights=occurrences["self_ns"]) / 1e9


def _epoch_of(run: Run, occurrences: Occurrences) -> np.ndarray:
    """Numbers the epochs that set-ups belong to, from 0: those at one step, between which there
    may be a validation. Where they begin epochs, what follows the last step takes the input of the
    last one down.
    """
    steps = occurrences["step"].copy()
    earlier = steps[steps < run.end_step]
    if len(earlier) and earlier.min() <= run.first_step:
        steps[steps >= run.end_step] = earlier.max()
    return np.unique(steps, return_inverse=True)[1]


def _advice(run: Run, each: str, saves: float) -> Advice:
    """What to do; `each`: what was seen, as a sentence and a space."""
    if _each_fit(run):
        return Advice(
            f"{each}Every call of fit begins with that: give it more batches at a time, or train "
            "them one by one in a loop of your own.",
            TRAIN_ON_BATCH,
            saves,
        )
    kind = str(run.fact("fit", "input_kind", default="")).lower()
    kept = run.fact("fit", "input_persistent_workers") or run.fact("fit", "input_workers") == 0
    if ("dataloader" in kind and not kept) or (run.framework == "torch" and not kind):
        return Advice(
            each + "The DataLoader starts its workers for every epoch: keep them.",
            "loader = DataLoader(dataset, ..., persistent_workers=True)",
            saves,
        )
    if kind in ("", "tf.data"):
        return Advice(
            each + "Let the dataset go on into the next epoch instead of beginning anew: what its "
            "buffers hold is kept.",
            f"model.fit(ds.repeat(), ..., steps_per_epoch={batches_an_epoch(run)})",
            saves,
        )
    if "pydataset" in kind and run.fact("fit", "input_processes"):
        return Advice(
            each + "Keras starts the worker processes for every epoch; threads start at once.",
            "dataset.use_multiprocessing = False  # your PyDataset, before model.fit(dataset)",
            saves,
        )
    if "pydataset" in kind:
        return Advice(
            f"{each}Keras begins a PyDataset anew with every epoch: its on_epoch_end runs and its "
            "first batches are made while training waits. Make both cheaper, or the epochs longer.",
            "",
            saves,
        )
    if kind == "numpy" and run.framework == "tensorflow":
        return Advice(
            f"{each}TensorFlow takes down what fed the epoch before, and waits until its threads "
            "wake up. A dataset that goes on over all epochs is set up once.",
            _arrays_once(run),
            saves,
        )
    if kind == "numpy":
        return Advice(
            f"{each}Arrays need milliseconds for that where a CPU core is free: see what else "
            "keeps this machine's cores busy.",
            "",
            saves,
        )
    return Advice(f"{each}Set it up once, and let it go on over all epochs.", "", saves)


def _arrays_once(run: Run) -> str:
    """Lines that make a dataset of the arrays that `fit` got, which goes on over all epochs."""
    size = run.fact("fit", "batch_size") or 32
    split = run.fact("fit", "validation_split")
    arrays = ["x", *run.fact("fit", "input_beside", default=["y"])]
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
