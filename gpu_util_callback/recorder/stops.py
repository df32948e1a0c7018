"""Times in which the whole process was stopped: SIGSTOP, `docker pause`, a scheduler's suspend."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from gpu_util_callback.steps.timeline import CALL, Phase

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

LEAST_NS = 1_000_000_000  # a busy machine delays a thread by tenths of a second
MOST_CPU = 0.02  # of the time: a process that only waits uses a thousandth, a stopped one nothing
_CORES = os.cpu_count() or 1  # that it may have used before it was stopped
LOOKED_AT = 1000  # of the newest entries of the timeline's queue


class Reading(NamedTuple):
    """The clock, the CPU time of the process, and how often the calling thread has waited."""

    perf_ns: int
    cpu_ns: int
    waits: int


def reading() -> Reading | None:
    """Return a reading of the calling thread; None where the system counts no waits of a thread."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    if who is None:
        return None
    waits = resource.getrusage(who).ru_nvcsw
    return Reading(time.perf_counter_ns(), time.process_time_ns(), waits)


def stop_between(
    before: Reading | None, after: Reading | None, pause_s: float, queue: Sequence[object]
) -> tuple[int, int] | None:
    """Return when the process was stopped while this thread meant to wait for `pause_s`.

    A stopped process uses no CPU, and none of its threads runs. A thread that is kept from running
    by Python's lock is told apart: it wakes up at every switch interval to ask for the lock.

    Args:
        before, after: readings around the wait.
        queue: of the timeline: the training thread did what it holds, so it was not stopped yet.

    Returns: from and until when, in `time.perf_counter_ns`; None = it was not stopped.
    """
    if before is None or after is None:
        return None
    took_ns = after.perf_ns - before.perf_ns
    late_ns = took_ns - round(1e9 * pause_s)
    asks = late_ns / (1e9 * sys.getswitchinterval())
    if (
        late_ns < LEAST_NS
        or after.cpu_ns - before.cpu_ns > MOST_CPU * took_ns + 1e9 * pause_s * _CORES
        or after.waits - before.waits > 0.1 * asks
    ):
        return None
    start, latest = before.perf_ns, after.perf_ns - late_ns
    for back in range(1, min(len(queue), LOOKED_AT) + 1):
        entry = queue[-back]
        end = entry.end if isinstance(entry, Phase) else entry[CALL["end"]] if isinstance(entry, tuple) else 0
        if start < end <= latest:
            start = end
            break
    return start, after.perf_ns
