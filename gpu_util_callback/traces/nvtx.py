"""NVTX ranges: what their names say, and which of them a piece of GPU work came from."""

from __future__ import annotations

import re

import numpy as np

from gpu_util_callback.traces.model import DeviceEvents, HostEvents, HostKind, groups
from gpu_util_callback.traces.xplane_events import host_kind

__all__ = ["project", "range_kind"]

# Steps by their names: numbered ("step 12", "iteration_3", "ProfilerStep#4"), or always the same.
_NUMBERED = re.compile(
    r"^((?:train(?:ing)?|global|profiler|fit)?[ _-]?(?:step|iteration|iter|batch))"
    r"[ _#:=-]*(\d{1,17})$",
    re.IGNORECASE,
)
_REPEATED = re.compile(r"^(train(ing)?[ _-]?(step|batch|iteration)|train|step|iteration)$", re.I)
_TRACE_ME = re.compile(r"^(?:TSL:)?([^#]*)#(.*)#$", re.DOTALL)
_STEP_NUM = re.compile(r"(?:^|,)step_num=(\d{1,17})(?:,|$)")
_TORCH_OP = re.compile(r"^(.*?),\s*(?:seq = \d+,\s*)?op_id = \d+")
_LOADER = re.compile(
    r"^enumerate\(|dataloader.{0,80}next|^next batch$|^(load|fetch)[ _]batch", re.I
)


def range_kind(text: str) -> tuple[int, int, str]:
    """Of an NVTX range: kind (-1 = noise), training step or -1, and the name to keep."""
    found = _TRACE_ME.match(text)  # TensorFlow and JAX: "train#step_num=12,_r=1#"
    if found:
        number = _STEP_NUM.search(found[2])
        if number:
            return HostKind.STEP, int(number[1]), found[1]
        text = found[1]
    text = text.removeprefix("TSL:")
    op = _TORCH_OP.match(text)
    if op:
        name = op[1]
        loader = name.startswith("enumerate(")
        return (HostKind.INPUT_WAIT if loader else HostKind.OP), -1, name
    numbered = _NUMBERED.match(text)
    if numbered:
        return HostKind.STEP, int(numbered[2]), numbered[1]
    if _REPEATED.match(text):
        return HostKind.STEP, -1, text
    if _LOADER.search(text):
        return HostKind.INPUT_WAIT, -1, text
    if re.match(r"^nccl[A-Z]", text):
        return HostKind.COLLECTIVE, -1, text
    kind = host_kind(text)
    return (HostKind.RANGE if kind == HostKind.FRAMEWORK else kind), -1, text


def project(events: DeviceEvents, host: HostEvents, rounds: int = 64) -> np.ndarray:
    """For each GPU event the op whose range was the innermost around its launch, -1 = none."""
    result = np.full(len(events), -1, np.int32)
    calls = np.flatnonzero((host.kind == HostKind.LAUNCH) & (host.correlation >= 0))
    ops = np.flatnonzero(host.kind == HostKind.OP)
    if not len(calls) or not len(ops) or not len(events):
        return result
    order = calls[np.argsort(host.correlation[calls], kind="stable")]
    at = np.minimum(np.searchsorted(host.correlation[order], events.correlation), len(order) - 1)
    linked = np.flatnonzero(
        (host.correlation[order[at]] == events.correlation) & (events.correlation >= 0)
    )
    call = order[at[linked]]
    by_thread = dict(groups(host.thread[ops]))
    for thread, mine in groups(host.thread[call]):
        if thread not in by_thread:
            continue
        ranges = ops[by_thread[thread]]  # sorted by start
        when = host.start_ps[call[mine]]
        candidate = np.searchsorted(host.start_ps[ranges], when, side="right") - 1
        # Step back over ranges that were already closed; siblings are few, so rounds are.
        for _ in range(rounds):
            closed = (candidate >= 0) & (host.end_ps[ranges[np.maximum(candidate, 0)]] <= when)
            if not closed.any():
                break
            candidate = candidate - closed
        inside = (candidate >= 0) & (host.end_ps[ranges[np.maximum(candidate, 0)]] > when)
        result[linked[mine[inside]]] = host.name[ranges[candidate[inside]]]
    return result
