"""The public forms of an analysis: the trace JSON, and rows for a recording's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_util_callback.traces.breakdown import CATEGORIES, longest_gaps
from gpu_util_callback.traces.kernels import step_kernels
from gpu_util_callback.traces.model import PS_PER_MS, PS_PER_NS, PS_PER_US, DeviceKind

if TYPE_CHECKING:
    from gpu_util_callback.traces.analysis import Analysis, DeviceAnalysis, ProcessAnalysis

VERSION = 1

_KERNEL_COLUMNS = (
    "window",
    "gpu",
    "name",
    "op",
    "count",
    "total_ns",
    "min_ns",
    "max_ns",
    "occupancy_pct",
    "registers",
    "blocks",
    "threads_per_block",
    "tensor_core",
)


def _ms(ps: float) -> float:
    return float(ps) / PS_PER_MS


def trace_json(analysis: Analysis) -> dict[str, Any]:
    """Return an analysis as plain JSON, as `gpu-util trace --json` prints it."""
    trace = analysis.trace
    several = len(analysis.processes) > 1
    result: dict[str, Any] = {
        "version": VERSION,
        "format": trace.format,
        "paths": trace.paths,
        "start_ns": next((p.process.epoch_ns for p in analysis.processes), None),
        "processes": [
            {
                "host": p.process.host,
                "pid": p.process.pid,
                "rank": p.process.rank,
                "steps_from": p.steps.basis,
                "steps": len(p.steps),
                "steps_judged": p.has_steps,
                "idle_judged": p.idle_judged,
                "devices": [d.index for d in p.devices],
                "unused_devices": p.unused_devices,
            }
            for p in analysis.processes
        ],
        "devices": [],
        "steps": [],
        "kernels": [],
        "copies": [],
        "launches": [],
        "gaps": [],
        "counters": [],
        "memory": [],
        "host_ops": [],
        "pipeline": [],
        "verdict": analysis.verdict,
        "findings": analysis.findings,
        "thresholds": analysis.thresholds,
        "silent": analysis.silent,
        "problems": analysis.problems,
    }
    for number, p in enumerate(analysis.processes):
        origin = {"process": number} if several else {}
        for d in p.devices:
            result["devices"].append({**_device(d), **origin})
            result["kernels"].extend(_kernels(d))
            result["copies"].extend(_copies(d))
            result["launches"].append(_launches(d))
            result["gaps"].extend(
                {
                    "gpu": d.index,
                    "start_ms": _ms(gap.start_ps),
                    "duration_ms": _ms(gap.end_ps - gap.start_ps),
                    "cause": gap.cause,
                }
                for gap in longest_gaps(d.account)
            )
        result["steps"].extend({**step, **origin} for step in _steps(p))
        result["counters"].extend({**c, **origin} for c in _counters(p))
        result["memory"].extend({**m, **origin} for m in _memory(p))
        result["host_ops"].extend({**o, **origin} for o in _host_ops(p))
        result["pipeline"].extend(
            {
                "stage": s.name,
                "path": s.path,
                "count": s.count,
                "total_ms": _ms(s.total_ps),
                "self_ms": _ms(s.self_ps),
                **origin,
            }
            for s in p.stages
        )
    return result


def _device(d: DeviceAnalysis) -> dict[str, Any]:
    events = d.device.events
    start, end = d.span
    busy = {
        key: _ms(d.device.busy(kind).total)
        for key, kind in (
            ("h2d", DeviceKind.COPY_H2D),
            ("d2h", DeviceKind.COPY_D2H),
            ("d2d", DeviceKind.COPY_D2D),
        )
    }
    copies = (DeviceKind.COPY_H2D, DeviceKind.COPY_D2H, DeviceKind.COPY_D2D, DeviceKind.COPY_OTHER)
    return {
        "index": d.index,
        "name": d.device.name,
        "span_ms": _ms(end - start),
        "start_ms": _ms(start),
        "any_busy_ms": _ms(d.any_busy.total),
        "kernel_busy_ms": _ms(d.kernel_busy.total),
        "collective_busy_ms": _ms(d.device.busy(DeviceKind.COLLECTIVE).total),
        "memset_busy_ms": _ms(d.device.busy(DeviceKind.MEMSET).total),
        "copy_busy_ms": busy,
        "kernels": d.launches.kernels,
        "copies": int(np.isin(events.kind, copies).sum()),
        "memsets": int((events.kind == DeviceKind.MEMSET).sum()),
        **d.device.facts,
    }


def _steps(p: ProcessAnalysis) -> list[dict[str, Any]]:
    host_input = p.host_input_ps()
    input_wait = p.input_wait_ps()
    ops = p.ops.measure(p.steps.start_ps, p.steps.end_ps)
    duration = p.steps.end_ps - p.steps.start_ps
    busy = [
        (
            d.kernel_busy.measure(p.steps.start_ps, p.steps.end_ps),
            d.any_busy.measure(p.steps.start_ps, p.steps.end_ps),
        )
        for d in p.devices
    ]
    rows = []
    for i in range(len(p.steps)):
        gpus = []
        for d, (kernel, any_busy) in zip(p.devices, busy, strict=True):
            row: dict[str, Any] = {"index": d.index}
            row.update({f"{c}_ms": _ms(d.account.steps[c][i]) for c in CATEGORIES})
            row["kernel_busy_ms"] = _ms(kernel[i])
            row["any_busy_ms"] = _ms(any_busy[i])
            gpus.append(row)
        rows.append(
            {
                "step": int(p.steps.label[i]),
                "start_ms": _ms(p.steps.start_ps[i]),
                "duration_ms": _ms(duration[i]),
                "host_input_ms": _ms(host_input[i]),
                "input_wait_ms": _ms(input_wait[i]),
                "host_op_ms": _ms(ops[i]),
                "gpus": gpus,
            }
        )
    return rows


def _kernels(d: DeviceAnalysis) -> list[dict[str, Any]]:
    total = sum(k.total_ps for k in d.kernels) or 1
    return [
        {
            "name": k.name,
            "gpu": d.index,
            "op": k.op or None,
            "collective": k.collective,
            "tensor_core": k.tensor_core,
            "count": k.count,
            "total_ms": _ms(k.total_ps),
            "share_pct": 100 * k.total_ps / total,
            "mean_us": k.total_ps / k.count / PS_PER_US,
            "min_us": k.min_ps / PS_PER_US,
            "max_us": k.max_ps / PS_PER_US,
            "occupancy_pct": k.occupancy_pct,
            "registers": k.shape.registers,
            "shared_bytes": k.shape.shared_bytes,
            "grid": list(k.shape.grid) if k.shape.grid else None,
            "block": list(k.shape.block) if k.shape.block else None,
        }
        for k in d.kernels
    ]


def _copies(d: DeviceAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "gpu": d.index,
            "direction": c.direction,
            "memory": c.memory,
            "count": c.count,
            "bytes": c.bytes,
            "total_ms": _ms(c.total_ps),
            "exposed_ms": _ms(c.exposed_ps),
            "gb_per_s": c.gb_per_s,
        }
        for c in d.copies
    ]


def _launches(d: DeviceAnalysis) -> dict[str, Any]:
    def us(values: dict[str, float] | None) -> dict[str, float] | None:
        return values and {key: value / PS_PER_US for key, value in values.items()}

    s = d.launches
    return {
        "gpu": d.index,
        "kernels": s.kernels,
        "linked": s.linked,
        "call_us": us(s.call_ps),
        "delay_us": us(s.delay_ps),
        "queued_pct": None if s.queued_share is None else 100 * s.queued_share,
        "short_kernels_pct": None if s.short_share is None else 100 * s.short_share,
        "mean_kernel_us": None if s.mean_kernel_ps is None else s.mean_kernel_ps / PS_PER_US,
        "gaps": s.gaps,
        "gap_us": us(s.gap_ps),
        "graph_kernels": s.graph_kernels,
    }


def _counters(p: ProcessAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "gpu": c.device,
            "name": c.name,
            "samples": len(c.value),
            "mean": float(c.value.mean()),
            "p95": float(np.percentile(c.value, 95)),
        }
        for c in p.process.counters
        if len(c.value)
    ]


def _memory(p: ProcessAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "allocator": a.allocator,
            "gpu": a.device if a.device >= 0 else None,
            "peak_bytes": a.peak_bytes,
            "max_allocated_bytes": a.max_allocated_bytes,
            "min_available_bytes": a.min_available_bytes,
            "fragmentation_at_peak": a.fragmentation_at_peak,
            "events": a.events,
            "curve": {
                "time_ms": [_ms(t) for t in a.time_ps.tolist()],
                "allocated_bytes": a.allocated_bytes.tolist(),
            },
        }
        for a in p.allocators
    ]


def _host_ops(p: ProcessAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "name": o.name,
            "type": o.kind or None,
            "count": o.count,
            "total_ms": _ms(o.total_ps),
            "max_us": o.max_ps / PS_PER_US,
        }
        for o in p.host_ops
    ]


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


Index = Callable[["DeviceAnalysis"], int]


def _own_index(d: DeviceAnalysis) -> int:
    return d.device.index


def recording_tables(
    analysis: Analysis, window: int, process: int, epoch_ns: int | None
) -> dict[str, dict[str, Any]]:
    """Return a process's rows of the recording's tables, of one profiler window."""
    p = analysis.processes[process]
    zero = epoch_ns if epoch_ns is not None else (p.process.epoch_ns or 0)
    return {
        "traced_steps": traced_rows(p, window, zero),
        "kernels": kernel_rows(p, window),
        "step_kernels": step_kernels(p, analysis.trace.names, window),
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


def traced_rows(
    p: ProcessAnalysis, window: int, zero_ns: int, index: Index = _own_index
) -> dict[str, np.ndarray]:
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
                "window": np.full(n, window, np.int64),
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


def kernel_rows(
    p: ProcessAnalysis, window: int, index: Index = _own_index
) -> dict[str, np.ndarray]:
    """Return rows of the table `kernels`; `index` as for `traced_rows`."""
    kernels: dict[str, list[Any]] = {column: [] for column in _KERNEL_COLUMNS}

    def number(value: float | None) -> float:
        return float("nan") if value is None else float(value)

    for d in p.devices:
        for k in d.kernels:
            row = (
                window,
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
            row = (window, -1, o.name, o.kind, o.count, *spent, nan, nan, nan, nan, "")
            for key, value in zip(kernels, row, strict=True):
                kernels[key].append(value)
    text = ("name", "op", "tensor_core")
    return {k: np.array(v, object if k in text else None) for k, v in kernels.items()}
