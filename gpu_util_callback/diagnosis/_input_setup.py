"""Input that is set up anew, again and again: training waits before each epoch."""

import numpy as np

from gpu_util_callback.diagnosis._fixes import batches_an_epoch
from gpu_util_callback.diagnosis._phases import Occurrences
from gpu_util_callback.diagnosis._rule import ESTIMATED, MEASURED, Advice, Loss
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._stalls import intervals, lost_in, times, usual_ns
from gpu_util_callback.diagnosis._thresholds import Limits
from gpu_util_callback.diagnosis._words import duration

__all__ = ["input_setup"]

# The first one had to be; after another two, the next will come as well.
LEAST_TIMES = 3
APART = 0.2


def input_setup(run: Run, limits: Limits, cause: str) -> list[Loss]:
    """What it costs that the input begins anew with each epoch: workers start, buffers fill."""
    claims = []
    for occurrences in run.phases.of("input_setup", account="input_wait").values():
        epochs = _epochs_ns(occurrences)
        if len(epochs) + 1 < LEAST_TIMES:
            continue
        first, last = int(occurrences["start_ns"][0]), int(occurrences["end_ns"][-1])
        where = run.range_of(first, min(run.end_ns, round(last + 1.05 * float(np.median(epochs)))))
        span_ns = max(1, where.end_ns - where.start_ns)
        if 100 * usual_ns(occurrences["self_ns"]) < limits["wait_pct"] * span_ns:
            continue
        lost, active = lost_in(run, occurrences, where)
        if 100 * lost < limits["wait_pct"] * span_ns:
            continue
        pct = 100 * occurrences.self_ns / span_ns
        spent_s = _each_s(occurrences)
        often, each_s = len(spent_s), float(spent_s.mean())
        claims.append(Loss(
            cause=cause,
            title="Input-bound: each epoch sets its input up",
            where=where,
            lost_ns=lost,
            confidence=ESTIMATED if active is None and run.used_gpus else MEASURED,
            evidence=times(occurrences, "wait_pct", pct) | {
                "times": often, "seconds_each": round(each_s, 3),
                "longest_s": round(float(spent_s.max()), 3), "gpu_active_meanwhile_pct": active,
            },
            threshold={"wait_pct": limits["wait_pct"]},
            advice=_advice(run, each_s, often),
            gpus=run.used_gpus,
            detail="setup",
            pieces=intervals(occurrences),
        ))  # fmt: skip
    return claims


def _epochs_ns(occurrences: Occurrences) -> np.ndarray:
    """What lay between set-ups; an epoch may have several, which follow one another at once."""
    apart = occurrences["start_ns"][1:] - occurrences["end_ns"][:-1]
    return apart[apart > APART * apart.mean()] if len(apart) else apart


def _each_s(occurrences: Occurrences) -> np.ndarray:
    """Seconds the set-ups of each epoch took together; those kept joined, each on average."""
    if occurrences.joined:
        return np.full(occurrences.count, occurrences.self_ns / max(1, occurrences.count) / 1e9)
    apart = occurrences["start_ns"][1:] - occurrences["end_ns"][:-1]
    begins = (np.flatnonzero(apart > APART * apart.mean()) + 1).tolist() if len(apart) else []
    return np.add.reduceat(occurrences["self_ns"], [0, *begins]) / 1e9


def _advice(run: Run, seconds: float, times: int) -> Advice:
    each = f"Setting the input up anew takes {duration(seconds)} each time, and training waits. "
    kind = str(run.fact("fit", "input_kind", default="")).lower()
    saves = 1 - 1 / max(2, times)  # the first one is needed
    if "dataloader" in kind or (run.framework == "torch" and not kind):
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
        size = run.fact("fit", "batch_size") or 32
        return Advice(
            f"{each}TensorFlow takes down what fed the epoch before, and waits until its threads "
            "wake up. A dataset that goes on over all epochs is set up once.",
            f"ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch({size})\n"
            f"model.fit(ds.repeat(), ..., steps_per_epoch={batches_an_epoch(run)})",
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
