"""A recording of a trace: rows of its tables, facts of its manifest."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_util_callback.recording.schema import CATEGORIES, TABLES
from gpu_util_callback.traces.analysis import Analysis, DeviceAnalysis, ProcessAnalysis
from gpu_util_callback.traces.hostside import Wording, blocking_call, compiled, culprit, host_calls, sums
from gpu_util_callback.traces.intervals import Intervals, union
from gpu_util_callback.traces.kernels import op_name
from gpu_util_callback.traces.model import KERNELS, PS_PER_MS, PS_PER_NS, DeviceEvents, HostEvents, HostKind, Names

_AS_LONG = 0.8  # of the longest: an operation within it that takes as much is what it spends its time in
# Of the steps: what the host did in less is not searched, which takes long in a long trace.
_SEARCHED = 0.01
_ALL_TO_ALL = re.compile(r"all_?to_?all|deep_ep::|dpsk::ep::", re.IGNORECASE)
_GATHERS = re.compile(r"all_?gather", re.IGNORECASE)


Index = Callable[[DeviceAnalysis], int]


def _own_index(d: DeviceAnalysis) -> int:
    return d.device.index


def recording_tables(
    analysis: Analysis, process: int = 0, epoch_ns: int | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Return a process's rows of the recording's tables, as its profiler window 0.

    Args:
        process: its place in the analysis.
        epoch_ns: the trace's time 0, ns since the epoch; None = as the file states it, or 0.
    """
    p = analysis.processes[process]
    zero = epoch_ns if epoch_ns is not None else (p.process.epoch_ns or 0)
    return {
        "traced_steps": traced_rows(p, zero),
        "kernels": kernel_rows(p),
        "step_kernels": step_kernels(p, analysis.trace.names),
    }


def step_rows(p: ProcessAnalysis, zero_ns: int) -> dict[str, np.ndarray]:
    """Return rows of the table `steps`; `zero_ns` is the trace's time 0 on the recording's clock.

    They are whole nanoseconds. Waiting for input and the step's own time make up its duration.
    """
    start = p.steps.start_ps // PS_PER_NS
    duration = p.steps.end_ps // PS_PER_NS - start
    waited = np.minimum((p.input_wait_ps() // PS_PER_NS).astype(np.int64), duration)
    return {
        "step": p.steps.label,
        "start_ns": start + zero_ns,
        "duration_ns": duration,
        "input_get_ns": p.host_input_ps() // PS_PER_NS,
        "input_wait_ns": waited,
        "body_ns": duration - waited,
        "batches": np.ones_like(duration),
        "estimated": np.zeros_like(duration),
    }


def _to_ns(columns: list[np.ndarray], total: np.ndarray) -> list[np.ndarray]:
    """Return picosecond parts as nanoseconds whose sum is exactly `total` (in nanoseconds).

    Rounds the running sum, so that no part is off by a whole nanosecond and none negative.
    """
    running = np.zeros(len(total), np.int64)
    before = np.zeros(len(total), np.int64)
    result = []
    for column in columns[:-1]:
        running = running + column
        now = np.minimum(running // PS_PER_NS, total)
        result.append(now - before)
        before = now
    return [*result, total - before]


def traced_rows(p: ProcessAnalysis, zero_ns: int, index: Index = _own_index) -> dict[str, np.ndarray]:
    """Return rows of the table `traced_steps`: the account of each step on each GPU; {} without steps.

    Without a GPU they are the host's, as of GPU -1. `zero_ns` is the trace's time 0 on the recording's clock.

    Args:
        index: the number of a GPU in the recording.
    """
    start = p.steps.start_ps // PS_PER_NS
    duration = p.steps.end_ps // PS_PER_NS - start
    none = np.zeros_like(duration)
    same = {"step": p.steps.label, "start_ns": start + zero_ns, "duration_ns": duration, "window": none}
    parts = []
    for d in p.devices:
        split = _to_ns([d.account.steps[c] for c in CATEGORIES], duration)
        begins = np.sort(d.device.events.start_ps[d.device.events.of(*KERNELS)])
        parts.append(
            {
                **same,
                "gpu": np.full_like(duration, index(d)),
                **{f"{c}_ns": column for c, column in zip(CATEGORIES, split, strict=True)},
                "kernel_busy_ns": p.steps.measure(d.kernel_busy) // PS_PER_NS,
                "any_busy_ns": p.steps.measure(d.any_busy) // PS_PER_NS,
                "kernels": np.searchsorted(begins, p.steps.end_ps) - np.searchsorted(begins, p.steps.start_ps),
            }
        )
    if not p.devices and len(p.steps):
        # The host alone: waits for input, and the rest of the step.
        waited = np.minimum(p.host_input_ps() // PS_PER_NS, duration)
        zeros = dict.fromkeys((*(f"{c}_ns" for c in CATEGORIES), "kernel_busy_ns", "any_busy_ns", "kernels"), none)
        host = {"gpu": none - 1, "idle_input_ns": waited, "idle_host_ns": duration - waited}
        parts.append({**same, **zeros, **host})
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if parts else {}


def kernel_rows(p: ProcessAnalysis, index: Index = _own_index) -> dict[str, np.ndarray]:
    """Return rows of the table `kernels`; `index` as for `traced_rows`. Unknown numbers are NaN.

    Without a GPU they are the host's ops, as of GPU -1.
    """
    rows: list[tuple[object, ...]] = []  # in the order of the table's columns; the window is 0
    for d in p.devices:
        for k in d.kernels:
            spent = (k.total_ps // PS_PER_NS, k.min_ps // PS_PER_NS, k.max_ps // PS_PER_NS)
            launch = (k.occupancy_pct, k.shape.registers, k.shape.blocks, k.shape.threads_per_block)
            numbers = (math.nan if number is None else float(number) for number in launch)
            tensor_core = "" if k.collective else k.tensor_core
            rows.append((0, index(d), k.name, k.op, k.count, *spent, *numbers, tensor_core))
    if not p.devices:
        # The host alone: its busiest ops take the place of kernels.
        for o in p.host_ops:
            spent = (o.total_ps // PS_PER_NS, -1, o.max_ps // PS_PER_NS)  # the least is not kept
            rows.append((0, -1, o.name, o.type or "", o.count, *spent, *[math.nan] * 4, ""))
    columns = zip(*rows, strict=True) if rows else [()] * len(TABLES["kernels"])
    return {
        name: np.array(column, object if kind == "text" else None)
        for (name, kind), column in zip(TABLES["kernels"].items(), columns, strict=True)
    }


# Kernels kept per step and GPU, those with most time: the rest is in the window's own sums.
LIMIT = 40


def step_kernels(p: ProcessAnalysis, names: Names) -> dict[str, np.ndarray]:
    """Return rows of the recording's table `step_kernels`; {} without steps.

    An event belongs to the step in which it began.
    """
    parts = []
    for d in p.devices:
        events = d.device.events
        parts.append(_step_sums(p, events.take(events.of(*KERNELS)), names, d.device.index))
    if not p.devices:
        parts.append(_step_sums(p, p.process.events.take(p.process.events.of(HostKind.OP)), names, -1))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    size = len(joined["step"])
    return {"window": np.zeros(size, np.int64), **joined} if size else {}


def _step_sums(p: ProcessAnalysis, events: DeviceEvents | HostEvents, names: Names, gpu: int) -> dict[str, np.ndarray]:
    """Return kernels or ops of each step, summed by name: the `LIMIT` ones of a step that take most time.

    Args:
        gpu: whose they are; -1 = ops of the host.
    """
    within = union(p.steps.start_ps, p.steps.end_ps).contains(events.start_ps)
    events = events.take(within)
    step = np.searchsorted(p.steps.start_ps, events.start_ps, "right") - 1
    pair, at, count = np.unique(step * (len(names) + 1) + events.name, return_inverse=True, return_counts=True)
    total, longest = sums(at, events.duration_ps, len(pair))
    of_step, of_name = np.divmod(pair, len(names) + 1)
    order = np.lexsort((-total, of_step))
    # The place of each row within its step: the first LIMIT stay.
    ordered = of_step[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    order = order[rank < LIMIT]
    texts = (names[int(name)] for name in of_name[order])
    return {
        "step": p.steps.label[of_step[order]],
        "gpu": np.full(len(order), gpu, np.int64),
        "name": np.array([text if gpu >= 0 else op_name(text)[0] for text in texts], object),
        "count": count[order].astype(np.int64),
        "total_ns": total[order] // PS_PER_NS,
        "max_ns": longest[order] // PS_PER_NS,
    }


def facts(p: ProcessAnalysis, names: Names, wording: Wording, index: Index = lambda d: d.index) -> dict[str, Any]:
    """Return what a manifest says of a recording made of this process, as far as a trace shows it.

    Args:
        index: the number of a GPU in the recording.
    """
    fit: dict[str, object] = {"loop": "fit" if wording.keras else "custom"}  # what is not seen is absent
    compiled_by, compiled_share, graph_share = compiled(p.process, names, wording.framework)
    if compiled_by == "xla" and 2 * compiled_share >= 1:
        fit["jit_compile"] = True
    if wording.framework == "tensorflow" and len(p.waits):
        fit["input_kind"] = "numpy" if wording.arrays else "tf.data"
    if wording.workers is not None:
        fit["input_kind"] = "DataLoader"
    if wording.workers is False:
        fit["input_workers"] = 0
    # Pinned if most of the time of copies to the GPUs, as far as their memory is known, is of pinned memory.
    down = [c for d in p.active for c in d.copies if c.direction == "h2d"]
    known_ps = sum(c.total_ps for c in down if c.memory in ("pageable", "pinned"))
    if known_ps:
        pinned = sum(c.total_ps for c in down if c.memory == "pinned")
        fit["input_pin_memory"] = 2 * pinned >= known_ps
    return {
        "host": p.process.host,
        "rank": p.process.rank,
        "framework": {"name": wording.framework},
        "fit": fit,
        "gpus": [
            {
                "index": index(d),
                "used_by_framework": True,
                "memory_total_bytes": d.device.facts.get("memory_bytes"),
                "compute_capability": _capability(d),
            }
            for d in p.devices
        ],
        "source": {
            **_source(p, names, index, wording),
            "compiled_by": compiled_by,
            "compiled_kernels_pct": 100 * compiled_share,
            "graph_kernels_pct": 100 * graph_share,
        },
    }


def _capability(d: DeviceAnalysis) -> str | None:
    """Return the compute capability, "9.0", of NVIDIA's GPUs, whose kernels' names are known; None = other, unknown."""
    nvidia = str(d.device.facts.get("vendor", "Nvidia")).lower() == "nvidia"
    version = d.device.facts.get("compute_capability")
    return ".".join(map(str, version)) if nvidia and version else None


def _slowest_stage(p: ProcessAnalysis) -> dict[str, object] | None:
    """Return the stage with most work of its own, and its work in ms; None where no stage has any."""
    stage = next((stage for stage in p.stages if stage.self_ps > 0), None)
    if stage is None:
        return None
    # `from_generator` is a FlatMap, which starts the generator, over the generator itself.
    inner = next((s for s in p.stages if s.path == f"{stage.path}::Generator"), stage)
    self_ps = stage.self_ps if inner is stage else stage.self_ps + inner.self_ps
    return {"name": inner.stage, "path": inner.path, "self_ms": self_ps / PS_PER_MS}


def _source(p: ProcessAnalysis, names: Names, index: Index, wording: Wording) -> dict[str, object]:
    """Return what rules ask about a trace besides its rows: how exact it is, copies, launches (see `SourceFacts`)."""
    calls, call_name = host_calls(p.process, names)
    # Of each GPU at work: when it idled for the host, but for what is paid once.
    waiting_for_host = [d.account.sets["idle_host"] - p.once_times for d in p.active]
    return {
        "steps_judged": p.has_steps,
        "idle_judged": p.idle_judged,
        "host_traced": p.process.has_host,
        "tpu": p.process.facts.get("tpu", False),
        "fetches": len(p.waits),
        "host_activity": _host_activity(p, names),
        "trains": wording.trains,
        "collectives": _collectives(p),
        "late_rank": p.late_rank,  # None = the others wait for no one rank
        "once": _once(p, names),
        "blocking_call": blocking_call(p.process, names, p.steps, waiting_for_host),
        "host_calls": {
            "name": call_name,
            "total_ns": int(p.steps.measure(calls).sum()) // PS_PER_NS,
            "idle_ns": _mean_idle(p, calls, *_IDLE) // PS_PER_NS,
            "idle_host_ns": _mean_idle(p, calls, "idle_host") // PS_PER_NS,
        }
        if call_name
        else None,
        # Copied to the GPUs before the first kernels.
        "uploaded_ns": _uploaded_ps(p) // PS_PER_NS,
        "slowest_stage": None if wording.arrays else _slowest_stage(p),
        "gpus": [index(d) for d in p.devices if d in p.active],
        "linked_kernels": sum(d.launches.linked for d in p.active),
        "short_kernels_pct": max((d.launches.short_kernels_pct or 0.0 for d in p.active), default=0.0),
        "copies": [
            {"direction": c.direction, "memory": c.memory, "bytes": c.bytes, "total_ns": c.total_ps / PS_PER_NS}
            for d in p.devices
            if d in p.active
            for c in d.copies
            if c.direction in ("h2d", "d2h")
        ],
    }


_IDLE = "idle_launch", "idle_sync", "idle_host", "other"


def _mean_idle(p: ProcessAnalysis, within: Intervals, *categories: str) -> int:
    """Return how long the GPUs at work idled within some time of the steps, ps, mean over them.

    Args:
        categories: of the account, whose idle time counts; with "other" among them all idle time does.
    """
    if not p.active or not len(within):
        return 0
    of_steps = within & union(p.steps.start_ps, p.steps.end_ps)
    busy = [d.any_busy for d in p.active]
    if "other" in categories:  # all time without work on the GPU
        idle = [(of_steps - work).total for work in busy]
    else:
        idle = [(of_steps & d.account.sets[name]).total for d in p.active for name in categories]
    return sum(idle) // len(p.active)


def _once(p: ProcessAnalysis, names: Names) -> dict[str, object] | None:
    """Return the longest one-time cost, and the GPUs' mean idle time in all of them, ns; None without any."""
    if not len(p.once):
        return None
    costs = p.process.events.take(p.once)
    took = costs.duration_ps
    longest = np.argmax(took)
    # Ops nest: the last to begin within it that takes nearly as long names it best.
    within = (costs.start_ps >= costs.start_ps[longest]) & (costs.start_ps <= costs.end_ps[longest])
    inner = np.flatnonzero(within & (took >= _AS_LONG * took[longest]))
    last = inner[np.argmax(costs.start_ps[inner])]
    return {
        "name": names[int(costs.name[last])],
        "longest_ns": int(took[last]) // PS_PER_NS,
        "idle_ns": _mean_idle(p, p.once_times, "idle_host") // PS_PER_NS,
    }


# Of all kernel time: kernels that only fill memory may precede the upload.
_HARDLY_BEGUN = 0.01


def _uploaded_ps(p: ProcessAnalysis) -> int:
    """Return the time of copies to the GPUs before their kernels begin, ps, mean over them; 0 where steps are known.

    A model and its data are copied once; in a step it would be the batch.
    """
    if p.has_steps or not p.active:
        return 0
    spent = []
    for d in p.active:
        if not len(d.kernel_busy):
            continue
        computed_ps = np.cumsum(d.kernel_busy.end - d.kernel_busy.start)
        first = int(d.kernel_busy.start[np.searchsorted(computed_ps, _HARDLY_BEGUN * computed_ps[-1])])
        spent.append(d.account.sets["copy_h2d"].clip(p.steps.extent[0], first).total)
    return sum(spent) // max(1, len(spent))


def _collectives(p: ProcessAnalysis) -> str:
    """Return the kind of most communication of the GPUs at work: "" without any.

    That is "all_to_all", "gather" or "reduce" (any other).
    """
    spent = dict.fromkeys(("all_to_all", "gather", "reduce"), 0)
    for d in p.active:
        for kernel in d.kernels:
            if kernel.collective:
                text = f"{kernel.name} {kernel.op}"
                kind = "all_to_all" if _ALL_TO_ALL.search(text) else "reduce"
                kind = "gather" if kind == "reduce" and _GATHERS.search(text) else kind
                spent[kind] += kernel.total_ps
    return max(spent, key=lambda kind: spent[kind]) if any(spent.values()) else ""


def _host_activity(p: ProcessAnalysis, names: Names) -> str:
    """Return what the host does while it keeps the GPUs idle; "" where no name covers it."""
    if not (p.devices and p.idle_judged and p.process.has_host):
        return ""
    if p.share("idle_host") < _SEARCHED:
        return ""
    worst = max(p.active, key=lambda d: int(d.account.steps["idle_host"].sum()))
    return culprit(p.process, names, worst.account.sets["idle_host"].clip(*p.steps.extent))
