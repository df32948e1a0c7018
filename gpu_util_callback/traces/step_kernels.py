"""The kernels of each traced step by name, or the host's ops where no GPU was traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_util_callback.traces.model import PS_PER_NS, DeviceKind, HostKind

if TYPE_CHECKING:
    from gpu_util_callback.traces.analysis import ProcessAnalysis
    from gpu_util_callback.traces.model import Names

__all__ = ["LIMIT", "op_name", "step_kernels"]

# Kernels kept per step and GPU, those with most time: the rest is in the window's own sums.
LIMIT = 40

_COLUMNS = ("step", "gpu", "name", "count", "total_ns", "max_ns")


def step_kernels(p: ProcessAnalysis, names: Names, window: int) -> dict[str, np.ndarray]:
    """Return rows of the recording's table `step_kernels`; {} without steps.

    An event belongs to the step in which it began.
    """
    parts = []
    for d in p.devices:
        events = d.device.events
        rows = np.isin(events.kind, (DeviceKind.KERNEL, DeviceKind.COLLECTIVE))
        text = [names[int(i)] for i in np.unique(events.name[rows])]
        parts.append(_rows(p, events, rows, text, d.device.index))
    if not p.devices:
        rows = p.process.events.kind == HostKind.OP
        text = [op_name(names[int(i)])[0] for i in np.unique(p.process.events.name[rows])]
        parts.append(_rows(p, p.process.events, rows, text, -1))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in _COLUMNS}
    size = len(joined["step"])
    return {"window": np.full(size, window, np.int64), **joined} if size else {}


def op_name(text: str) -> tuple[str, str]:
    """Return `model/dense/MatMul:MatMul` as name and kind; the kind is "" where missing."""
    name, colon, kind = text.rpartition(":")
    return (text, "") if not colon or "::" in text else (name, kind)


def _rows(
    p: ProcessAnalysis, events: Any, chosen: np.ndarray, text: list[str], gpu: int
) -> dict[str, np.ndarray]:
    """Return the events of each step summed by name; `text`: the sorted names in use."""
    begin, end = events.start_ps[chosen], events.end_ps[chosen]
    step = np.searchsorted(p.steps.start_ps, begin, "right") - 1
    inside = (step >= 0) & (begin < p.steps.end_ps[np.maximum(step, 0)]) if len(p.steps) else []
    inside = np.asarray(inside, bool)
    name = np.unique(events.name[chosen], return_inverse=True)[1][inside]
    step, duration = step[inside], (end - begin)[inside]
    pair, at, count = np.unique(
        step * max(1, len(text)) + name, return_inverse=True, return_counts=True
    )
    total = np.zeros(len(pair), np.int64)
    np.add.at(total, at, duration)
    longest = np.zeros(len(pair), np.int64)
    np.maximum.at(longest, at, duration)
    of_step, of_name = np.divmod(pair, max(1, len(text)))
    order = np.lexsort((-total, of_step))
    # The place of each row within its step: the first LIMIT stay.
    ordered = of_step[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    order = order[rank < LIMIT]
    words = np.array(text, object)
    return {
        "step": np.asarray(p.steps.label)[of_step[order]].astype(np.int64),
        "gpu": np.full(len(order), gpu, np.int64),
        "name": words[of_name[order]] if len(text) else np.empty(0, object),
        "count": count[order].astype(np.int64),
        "total_ns": total[order] // PS_PER_NS,
        "max_ns": longest[order] // PS_PER_NS,
    }
