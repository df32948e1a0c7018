"""Times in which the process was suspended: stopped, or on a machine that slept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpu_util_callback.diagnosis.evidence.bins import SampleBins
from gpu_util_callback.diagnosis.evidence.blocks import StepBlocks
from gpu_util_callback.diagnosis.thresholds import Count

__all__ = ["absences"]

LEAST_NS = Count(60_000_000_000, "a shorter gap may be a hanging driver or a long step")
BEYOND = Count(10, "times the usual pace; a gap near that is none")


def absences(steps: StepBlocks, groups: Iterable[SampleBins]) -> np.ndarray:
    """Return when nothing was sampled and no step ended, within the run: (n, 2) in ns.

    Steps without samples point to a stopped sampler, samples without steps to training that stands
    still; only both together to a suspended process. Without any samples it cannot be determined.
    """
    groups = [bins for bins in groups if bins.samples]
    none = np.zeros((0, 2), np.int64)
    if not len(steps) or not groups:
        return none
    every: list[np.ndarray] = []
    first = min(bins.origin_ns or 0 for bins in groups)
    last = max(bins.last_ns or 0 for bins in groups)
    for bins in groups:
        every.append(bins.stamps())
        if np.diff(every[-1], prepend=first, append=last).max() < LEAST_NS:
            return none  # this one was read all along
    times = np.sort(np.concatenate(every))
    times = times[np.diff(times, prepend=-1) > 0]
    apart = np.diff(times)
    if not len(apart):
        return none
    ends = steps["end_ns"]
    usual = max(float(np.median(apart)), float(np.median(ends - steps["start_ns"])))
    long = np.flatnonzero(apart >= max(LEAST_NS, BEYOND * usual))
    # Samples and steps do not resume at the same moment, and a bin only records its beginning.
    slack = 2 * float(np.median(apart)) + max(bins.bin_ns for bins in groups)
    inside = np.searchsorted(ends, times[long + 1] - slack) - np.searchsorted(
        ends, times[long] + slack
    )
    gone = long[inside <= 1]
    return np.stack([times[gone], times[gone + 1]], axis=1).astype(np.int64)
