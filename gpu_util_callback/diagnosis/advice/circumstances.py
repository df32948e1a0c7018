"""Conditions that decide whether advice helps: cores, epochs to come, and CPU load."""

import numpy as np

from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.finding import Range

__all__ = ["behind_first_epoch", "cpu_pct", "cpus", "process_cpu", "steps_an_epoch"]

# One second apart: a short span needs at least two readings.
_HOST_SAMPLES = 2


def cpus(run: Run) -> int | None:
    """Return the whole cores this process may use, at least 1; None if unknown."""
    known = run.machine.get("cpus_allowed") or run.machine.get("cpus")
    quota = run.machine.get("cpu_quota")
    if not known:
        return None
    return max(1, round(min(known, quota) if quota else known))


def process_cpu(run: Run, where: Range) -> float | None:
    """Return the training process's CPU time in a range, in cores; None = not sampled."""
    seen = _host(run, "process_cpu_pct", where)
    return None if seen is None else seen / 100


def cpu_pct(run: Run, where: Range) -> float | None:
    """Return how busy all cores of the machine were in a range, %; None = not sampled."""
    return _host(run, "cpu_pct", where)


def _host(run: Run, column: str, where: Range) -> float | None:
    host = run.samples.get("host")
    seen = host.over(column, where.start_ns, where.end_ns) if host is not None else None
    return seen[0] if seen is not None and seen[1] >= _HOST_SAMPLES else None


def behind_first_epoch(run: Run, where: Range) -> float:
    """Return the share of a range's steps after the first epoch, 0-1.

    Caching the data can save this much: the first epoch still makes it. 0 for a training of one
    epoch.
    """
    epochs = run.fit.get("epochs")
    if epochs is not None and int(epochs) < 2:
        return 0.0
    ends = [int(rows["end_ns"][0]) for rows in run.phases.of("epoch").values() if len(rows)]
    first_end = run.step_at(min(ends)) if ends else int(steps_an_epoch(run) or 0)
    rows = where.end_step - where.start_step
    if rows <= 0:
        return 1.0
    if where.end_step <= first_end and not run.ended and epochs is not None:
        return 1 - 1 / int(epochs)  # the others are still to come
    return max(0.0, min(1.0, (where.end_step - max(first_end, where.start_step)) / rows))


def steps_an_epoch(run: Run) -> int | None:
    """Return the steps of an epoch: as given to `fit`, or as observed if all epochs were alike."""
    told = run.fit.get("steps_per_epoch")
    epochs = run.phases.of("epoch").get("")
    if told or epochs is None or epochs.joined or len(epochs) < 2:
        return int(told) if told else None
    seen = np.unique(np.diff(epochs["step"], prepend=run.first_step))
    return int(seen[0]) if len(seen) == 1 and seen[0] > 0 else None
