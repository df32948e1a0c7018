"""The trace JSON: the public form of an analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np

from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces.analysis import Analysis, DeviceAnalysis, ProcessAnalysis
from gpu_util_callback.traces.model import PS_PER_MS, PS_PER_US, DeviceKind
from gpu_util_callback.traces.trace_types import (
    CopyBusy,
    Row,
    TraceDevice,
    TraceKernel,
    TraceProcess,
    TraceReport,
    TraceStep,
    Version,
)

VERSION: Version = 1
_AnyRow = TypeVar("_AnyRow", bound=Mapping[str, object])


def _ms(ps: float) -> float:
    return float(ps) / PS_PER_MS


def trace_json(analysis: Analysis) -> TraceReport:
    """Return an analysis as plain JSON, as `gpu-util trace --json` prints it.

    `start_ns` is the first process's time 0, ns since the epoch; None = the file does not state it.
    """
    trace, processes = analysis.trace, analysis.processes

    def of_processes(rows: Callable[[ProcessAnalysis], Iterable[_AnyRow]]) -> list[_AnyRow]:
        """Return the rows of all processes, with the number of theirs where there are several."""
        numbered = [(row, number) for number, p in enumerate(processes) for row in rows(p)]
        return [cast(_AnyRow, {**row, "process": number} if len(processes) > 1 else row) for row, number in numbered]

    def of_devices(rows: Callable[[DeviceAnalysis], Iterable[_AnyRow]]) -> list[_AnyRow]:
        return [row for d in analysis.devices for row in rows(d)]

    return {
        "version": VERSION,
        "format": trace.format,
        "paths": trace.paths,
        "start_ns": next((p.process.epoch_ns for p in processes), None),
        "processes": list(map(_process, processes)),
        "devices": of_processes(lambda p: map(_device, p.devices)),
        "steps": of_processes(_steps),
        "kernels": of_devices(_kernels),
        "copies": of_devices(lambda d: [_row(c, gpu=d.index, gb_per_s=c.gb_per_s) for c in d.copies]),
        "launches": [_row(d.launches, gpu=d.index) for d in analysis.devices],
        "host_ops": of_processes(lambda p: map(_row, p.host_ops)),
        "pipeline": of_processes(lambda p: map(_row, p.stages)),
        "verdict": analysis.verdict,
        "findings": analysis.findings,
        "thresholds": analysis.thresholds,
        "silent": analysis.silent,
        "problems": analysis.problems,
    }


def _row(item: Any, **more: object) -> Row:
    """Return the fields of a dataclass as a row; times in picoseconds become milliseconds."""
    row = dict(more)
    for field in fields(item):
        value = getattr(item, field.name)
        if field.name.endswith("_ps"):
            row[f"{field.name.removesuffix('_ps')}_ms"] = _ms(value)
        else:
            row[field.name] = value
    return row


def _process(p: ProcessAnalysis) -> TraceProcess:
    """Return a process as JSON."""
    return {
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


def _device(d: DeviceAnalysis) -> TraceDevice:
    """Return a GPU as JSON: times in ms, of the picoseconds of its events.

    The span is from its first activity to its last; busy is what at least one activity (kernel, copy, …) covers.
    """
    start, end = d.span
    directions = {"h2d": DeviceKind.COPY_H2D, "d2h": DeviceKind.COPY_D2H, "d2d": DeviceKind.COPY_D2D}
    copies = d.device.events.of(*directions.values(), DeviceKind.COPY_OTHER)
    return {
        "index": d.index,
        "name": d.device.name,
        "span_ms": _ms(end - start),
        "start_ms": _ms(start),
        "any_busy_ms": _ms(d.any_busy.total),
        "kernel_busy_ms": _ms(d.kernel_busy.total),
        "collective_busy_ms": _ms(d.device.busy(DeviceKind.COLLECTIVE).total),
        "memset_busy_ms": _ms(d.device.busy(DeviceKind.MEMSET).total),
        "copy_busy_ms": cast(CopyBusy, {name: _ms(d.device.busy(kind).total) for name, kind in directions.items()}),
        "kernels": d.launches.kernels,
        "copies": int(copies.sum()),
        **d.device.facts,
    }


def _steps(p: ProcessAnalysis) -> list[TraceStep]:
    """Return a process's steps, each with its account on each GPU; columns of times in ps become rows of ms."""
    # Columns of the host's times, and below of each GPU's: a value a step, ps.
    times = {
        "start_ms": p.steps.start_ps,
        "duration_ms": p.steps.duration_ps,
        "host_input_ms": p.host_input_ps(),
        "input_wait_ms": p.input_wait_ps(),
        "host_op_ms": p.steps.measure(p.ops),
    }
    of_gpus = [
        {
            **{f"{category}_ms": d.account.steps[category] for category in CATEGORIES},
            "kernel_busy_ms": p.steps.measure(d.kernel_busy),
            "any_busy_ms": p.steps.measure(d.any_busy),
        }
        for d in p.devices
    ]

    def row(columns: dict[str, np.ndarray], step: int) -> dict[str, object]:
        return {name: _ms(column[step]) for name, column in columns.items()}

    rows = []
    for step, label in enumerate(p.steps.label.tolist()):
        gpus = [{"index": d.index, **row(columns, step)} for d, columns in zip(p.devices, of_gpus, strict=True)]
        rows.append({"step": label, **row(times, step), "gpus": gpus})
    return cast(list[TraceStep], rows)


def _kernels(d: DeviceAnalysis) -> list[TraceKernel]:
    """Return a GPU's kernels as JSON: a call's times in µs, all of them in ms; None = not in the trace."""
    total = sum(k.total_ps for k in d.kernels) or 1  # 0 would be no divisor
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
            "grid": list(k.shape.grid) if k.shape.grid else None,
            "block": list(k.shape.block) if k.shape.block else None,
        }
        for k in d.kernels
    ]
