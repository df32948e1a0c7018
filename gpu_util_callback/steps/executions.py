"""Calls of the train function that do several steps: whose rows are whose, and who waited when."""

from __future__ import annotations

import numpy as np

from gpu_util_callback.steps.rows import InputRows

__all__ = ["delays", "seen_delays", "share_ends", "share_rows"]


def delays(
    requested: np.ndarray, delivered: np.ndarray, done: int, tail_ns: int
) -> tuple[np.ndarray, np.ndarray]:
    """(how far each batch delayed its step, when each step was over), of one call.

    Args:
        requested: int64 (n,), when each batch was asked for.
        delivered: int64 (n,), when it came.
        done: when the call was over, the device included.
        tail_ns: how long before that its last step was.
    """
    n = len(delivered)
    over = max(done - tail_ns, int(delivered[-1]))
    own = float(np.min((over - delivered) / np.arange(n, 0, -1)))
    wait, ends = np.empty(n, np.int64), np.empty(n, np.int64)
    free = int(requested[0])
    for k in range(n):
        came = int(delivered[k])
        # A wait is never longer than the time spent fetching.
        wait[k] = min(max(came - free, 0), came - int(requested[k]))
        free = int(max(came, free) + own)
        ends[k] = free
    ends[-1] = done
    return wait, np.minimum(np.maximum.accumulate(ends), done)


def seen_delays(
    requested: np.ndarray, delivered: np.ndarray, ended: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same where the steps' ends are known: int64 (n,)."""
    free = np.append(requested[:1], ended[:-1])
    wait = np.minimum(np.maximum(delivered - free, 0), delivered - requested)
    return wait, np.maximum.accumulate(ended)


def share_ends(rows: InputRows, per_call: list[slice]) -> list[np.ndarray] | None:
    """The ends of each call's steps: one for each batch that came; None if they do not fit."""
    if rows.ended_ns is None:
        return None
    counts = [int((rows.delivered_ns[part] >= 0).sum()) for part in per_call]
    if sum(counts) > len(rows.ended_ns):
        return None
    return np.split(rows.ended_ns, np.cumsum(counts))[: len(counts)]


def share_rows(rows: InputRows, calls: int, most: int) -> list[slice] | None:
    """Which rows each call wrote, in order; None if they do not fit together.

    A call fetches until it has `most` batches or the input ends. Fetches without a batch follow the
    last batch of their call (an unrolled loop asks several times). Rows that are left over are the
    newest: of a call that did not return.
    """
    n = len(rows.delivered_ns)
    if most == 1:
        return [slice(i, i + 1) for i in range(calls)] if n >= calls else None
    came = rows.delivered_ns >= 0
    slices = []
    first = 0
    for _ in range(calls):
        while first < n and not came[first]:  # a call that found the input ended is no step
            first += 1
        last = first
        while last < n and last - first < most and came[last]:
            last += 1
        while last < n and not came[last]:
            last += 1
        if last == first:
            return None
        slices.append(slice(first, last))
        first = last
    return slices
