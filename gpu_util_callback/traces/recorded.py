"""A recording of a trace: rows of its tables, facts of its manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_util_callback.recording.schema import CATEGORIES, TABLES
from gpu_util_callback.traces.analysis import Analysis, DeviceAnalysis, ProcessAnalysis
from gpu_util_callback.traces.hostside import Wording, blocking_call, compiled, culprit, sums
from gpu_util_callback.traces.intervals import EMPTY, Intervals, union
from gpu_util_callback.traces.kernels import op_name
from gpu_util_callback.traces.model import PS_PER_MS, PS_PER_NS, DeviceEvents, DeviceKind, HostEvents, HostKind, Names

_AS_LONG = 0.8
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
    """Return a process's rows of the recording's tables, as its profiler window 0."""
    p = analysis.processes[process]
    zero = epoch_ns if epoch_ns is not None else (p.process.epoch_ns or 0)
    return {
        "traced_steps": traced_rows(p, zero),
        "kernels": kernel_rows(p),
        "step_kernels": step_kernels(p, analysis.trace.names),
    }


def step_rows(p: ProcessAnalysis, zero_ns: int) -> dict[str, np.ndarray]:
    """Return rows of the table `steps`; `zero_ns` is the trace's time 0 on the recording's clock.

    They are whole nanoseconds.
    """
    start = p.steps.start_ps // PS_PER_NS
    duration = p.steps.end_ps // PS_PER_NS - start
    waited = np.minimum((p.input_wait_ps() // PS_PER_NS).astype(np.int64), duration)
    n = len(p.steps)
    return {
        "step": p.steps.label,
        "start_ns": start + zero_ns,
        "duration_ns": duration,
        "input_get_ns": p.host_input_ps() // PS_PER_NS,
        "input_wait_ns": waited,
        "body_ns": duration - waited,
        "batches": np.ones(n, np.int64),
        "estimated": np.zeros(n, np.int64),
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
    """Return rows of the table `traced_steps`: the account of each step on each GPU.

    Args:
        index: the number of a GPU in the recording.
    """
    start = p.steps.start_ps // PS_PER_NS
    duration = p.steps.end_ps // PS_PER_NS - start
    n = len(p.steps)
    parts: list[dict[str, np.ndarray]] = []

    def rows(gpu: int, **columns: np.ndarray) -> None:
        parts.append(
            {
                "step": p.steps.label,
                "gpu": np.full(n, gpu, np.int64),
                "start_ns": start + zero_ns,
                "duration_ns": duration,
                "window": np.zeros(n, np.int64),
                **columns,
            }
        )

    for d in p.devices:
        split = _to_ns([d.account.steps[c] for c in CATEGORIES], duration)
        at = (p.steps.start_ps, p.steps.end_ps)
        kernel = np.isin(d.device.events.kind, (DeviceKind.KERNEL, DeviceKind.COLLECTIVE))
        begins = np.sort(d.device.events.start_ps[kernel])
        rows(
            index(d),
            **{f"{c}_ns": column for c, column in zip(CATEGORIES, split, strict=True)},
            kernel_busy_ns=d.kernel_busy.measure(*at) // PS_PER_NS,
            any_busy_ns=d.any_busy.measure(*at) // PS_PER_NS,
            kernels=np.searchsorted(begins, at[1]) - np.searchsorted(begins, at[0]),
        )
    if not p.devices and n:
        # The host alone: waits for input, and the rest of the step.
        waited = np.minimum(p.host_input_ps() // PS_PER_NS, duration)
        zeros = {f"{c}_ns": np.zeros(n, np.int64) for c in CATEGORIES}
        zeros["idle_input_ns"] = waited
        zeros["idle_host_ns"] = duration - waited
        none = np.zeros(n, np.int64)
        rows(-1, **zeros, kernel_busy_ns=none, any_busy_ns=none, kernels=none)
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if parts else {}


def kernel_rows(p: ProcessAnalysis, index: Index = _own_index) -> dict[str, np.ndarray]:
    """Return rows of the table `kernels`; `index` as for `traced_rows`."""
    kernels: dict[str, list[object]] = {column: [] for column in TABLES["kernels"]}

    def number(value: float | None) -> float:
        return float("nan") if value is None else float(value)

    for d in p.devices:
        for k in d.kernels:
            row: tuple[object, ...] = (
                0,  # the window
                index(d),
                k.name,
                k.op,
                k.count,
                k.total_ps // PS_PER_NS,
                k.min_ps // PS_PER_NS,
                k.max_ps // PS_PER_NS,
                number(k.occupancy_pct),
                number(k.shape.registers),
                number(k.shape.blocks),
                number(k.shape.threads_per_block),
                "" if k.collective else k.tensor_core,
            )
            for key, value in zip(kernels, row, strict=True):
                kernels[key].append(value)
    if not p.devices:
        # The host alone: its busiest ops take the place of kernels.
        nan = float("nan")
        for o in p.host_ops:
            spent = (o.total_ps // PS_PER_NS, -1, o.max_ps // PS_PER_NS)  # the least is not kept
            row = (0, -1, o.name, o.kind, o.count, *spent, nan, nan, nan, nan, "")
            for key, value in zip(kernels, row, strict=True):
                kernels[key].append(value)
    return {k: np.array(v, object if TABLES["kernels"][k] == "text" else None) for k, v in kernels.items()}


# Kernels kept per step and GPU, those with most time: the rest is in the window's own sums.
LIMIT = 40


def step_kernels(p: ProcessAnalysis, names: Names) -> dict[str, np.ndarray]:
    """Return rows of the recording's table `step_kernels`; {} without steps.

    An event belongs to the step in which it began.
    """
    parts = []
    for d in p.devices:
        events = d.device.events
        rows = np.isin(events.kind, (DeviceKind.KERNEL, DeviceKind.COLLECTIVE))
        text = [names[int(i)] for i in np.unique(events.name[rows])]
        parts.append(_by_step(p, events, rows, text, d.device.index))
    if not p.devices:
        rows = p.process.events.kind == HostKind.OP
        text = [op_name(names[int(i)])[0] for i in np.unique(p.process.events.name[rows])]
        parts.append(_by_step(p, p.process.events, rows, text, -1))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    size = len(joined["step"])
    return {"window": np.zeros(size, np.int64), **joined} if size else {}


def _by_step(
    p: ProcessAnalysis, events: DeviceEvents | HostEvents, chosen: np.ndarray, text: list[str], gpu: int
) -> dict[str, np.ndarray]:
    """Return the events of each step summed by name; `text`: the sorted names in use."""
    begin, end = events.start_ps[chosen], events.end_ps[chosen]
    step = np.searchsorted(p.steps.start_ps, begin, "right") - 1
    inside = (step >= 0) & (begin < p.steps.end_ps[np.maximum(step, 0)]) if len(p.steps) else []
    inside = np.asarray(inside, bool)
    name = np.unique(events.name[chosen], return_inverse=True)[1][inside]
    step, duration = step[inside], (end - begin)[inside]
    pair, at, count = np.unique(step * max(1, len(text)) + name, return_inverse=True, return_counts=True)
    total, longest = sums(at, duration, len(pair))
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


def facts(p: ProcessAnalysis, names: Names, wording: Wording, index: Index = lambda d: d.index) -> dict[str, Any]:
    """Return what a manifest says of a recording made of this process, as far as a trace shows it.

    Args:
        index: the number of a GPU in the recording.
    """
    fit: dict[str, object] = {"loop": "fit" if wording.keras else "custom"}
    made = compiled(p.process, names, wording.framework)
    if made.by == "xla" and 2 * made.share >= 1:
        fit["jit_compile"] = True
    if wording.framework == "tensorflow" and len(p.waits):
        fit["input_kind"] = "numpy" if wording.arrays else "tf.data"
    if wording.workers is not None:
        fit["input_kind"] = "DataLoader"
    if wording.workers is False:
        fit["input_workers"] = 0
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
            "compiled_by": made.by,
            "compiled_kernels_pct": 100 * made.share,
            "graph_kernels_pct": 100 * made.graph_share,
            "server": wording.server,
        },
    }


def _capability(d: DeviceAnalysis) -> str | None:
    """Return it for NVIDIA's GPUs, whose tensor cores and kernels' names are known."""
    nvidia = str(d.device.facts.get("vendor", "Nvidia")).lower() == "nvidia"
    version = d.device.facts.get("compute_capability")
    return ".".join(map(str, version)) if nvidia and version else None


def _slowest_stage(p: ProcessAnalysis) -> dict[str, object] | None:
    """Return the stage with most work of its own, and its work in ms."""
    stage = next((stage for stage in p.stages if stage.self_ps > 0), None)
    if stage is None:
        return None
    # `from_generator` is a FlatMap, which starts the generator, over the generator itself.
    inner = next((s for s in p.stages if s.path == f"{stage.path}::Generator"), stage)
    self_ps = stage.self_ps if inner is stage else stage.self_ps + inner.self_ps
    return {"name": inner.name, "path": inner.path, "self_ms": self_ps / PS_PER_MS}


def _source(p: ProcessAnalysis, names: Names, index: Index, wording: Wording) -> dict[str, object]:
    """Return what rules ask about a trace besides its rows: how exact it is, copies, launches."""
    calls, call_name = p.host_calls
    return {
        "steps_judged": p.has_steps,
        "idle_judged": p.idle_judged,
        "host_traced": p.process.has_host,
        "tpu": p.process.facts.get("tpu", False),
        "fetches": len(p.waits),
        "host_activity": _host_activity(p, names),
        "trains": wording.trains,
        "collectives": _collectives(p),
        "late_rank": p.late_rank,
        "once": _once(p),
        "blocking_call": _blocking_call(p, names),
        "host_calls": {
            "name": call_name,
            "total_ns": int(calls.measure(p.steps.start_ps, p.steps.end_ps).sum()) // PS_PER_NS,
            "idle_ns": _mean_idle(p, calls, *_IDLE) // PS_PER_NS,
            "idle_host_ns": _mean_idle(p, calls, "idle_host") // PS_PER_NS,
        }
        if call_name
        else None,
        "uploaded_ns": _uploaded_ps(p) // PS_PER_NS,
        "slowest_stage": None if wording.arrays else _slowest_stage(p),
        "gpus": [index(d) for d in p.devices if d in p.active],
        "linked_kernels": sum(d.launches.linked for d in p.active),
        "short_kernels_pct": 100 * max((d.launches.short_share or 0.0 for d in p.active), default=0.0),
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
    """Return how long the GPUs at work idled within some time of the steps, mean over them."""
    if not p.active or not len(within):
        return 0
    of_steps = within & union(p.steps.start_ps, p.steps.end_ps)
    busy = [d.any_busy for d in p.active]
    if "other" in categories:
        idle = [(of_steps - work).total for work in busy]
    else:
        idle = [(of_steps & d.account.sets[name]).total for d in p.active for name in categories]
    return sum(idle) // len(p.active)


def _once(p: ProcessAnalysis) -> dict[str, object] | None:
    """Return the longest one-time cost, and the GPUs' idle time in all of them."""
    if not p.once:
        return None
    longest = max(p.once, key=lambda cost: cost.length_ps)
    # Ops nest: the last to begin within it that takes nearly as long names it best.
    least = _AS_LONG * longest.length_ps
    within = (longest.start_ps, longest.end_ps)
    inner = [cost for cost in p.once if within[0] <= cost.start_ps <= within[1] and cost.length_ps >= least]
    first = max(inner, key=lambda cost: cost.start_ps)
    return {
        "name": first.name,
        "longest_ns": first.length_ps // PS_PER_NS,
        "idle_ns": _mean_idle(p, p.once_times, "idle_host") // PS_PER_NS,
    }


def _blocking_call(p: ProcessAnalysis, names: Names) -> dict[str, object] | None:
    """Return the driver's call that holds the host longest while the GPUs idle, apart from one-time costs."""
    once = p.once_times if p.once else EMPTY
    idle = [d.account.sets["idle_host"] - once for d in p.active]
    call = blocking_call(p.process, names, p.steps, idle)
    if call is None:
        return None
    each_ns, idle_ns = call.each_ps // PS_PER_NS, call.idle_ps // PS_PER_NS
    return {"name": call.name, "op": call.op, "count": call.count, "each_ns": each_ns, "idle_ns": idle_ns}


# Of all kernel time: kernels that only fill memory may precede the upload.
_HARDLY_BEGUN = 0.01


def _uploaded_ps(p: ProcessAnalysis) -> int:
    """Return the time of copies to the GPUs before their kernels begin, where no step is known.

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
        spent.append(d.account.sets["copy_h2d"].clip(int(p.steps.start_ps[0]), first).total)
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
    within = int(p.steps.start_ps[0]), int(p.steps.end_ps[-1])
    return culprit(p.process, names, worst.account.sets["idle_host"].clip(*within))
