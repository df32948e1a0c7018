"""The figures of PyTorch's deleted TensorBoard plugin, for comparison with old screenshots.

Its definitions, not ours: a kernel may leave most of the GPU idle and still count as 100 %
"utilization"; kernels of all GPUs of a file are one; tensor cores are a list of name parts of 2021.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gpu_util_callback.traces.breakdown import UNLINKED, launches
from gpu_util_callback.traces.intervals import EMPTY, union
from gpu_util_callback.traces.model import (
    PS_PER_US,
    DeviceKind,
    HostKind,
    Names,
    Process,
)

__all__ = ["compat"]

_COMMUNICATION = re.compile(r"^(nccl|gloo):")
_LOADER = re.compile(r"^enumerate\(DataLoader\)#.*\.__next__$|^enumerate\(DataPipe\)#")
_TENSOR_CORE = re.compile(
    r"h884|s884|h1688|s1688|hmma|i8816|16816|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1"
    r"|conv2d_c1_k1|direct_group|xmma_implicit_gemm|xmma_sparse_conv"
    r"|xmma_warp_specialized_implicit_gemm|xmma_gemm|xmma_sparse_gemm|c1688"
)
# Trailing steps with less than this share of the device work of the step before are dropped.
_TAIL_SHARE = 0.8
_KERNELS = (DeviceKind.KERNEL, DeviceKind.COLLECTIVE)
_COPIES = (
    DeviceKind.COPY_H2D,
    DeviceKind.COPY_D2H,
    DeviceKind.COPY_D2D,
    DeviceKind.COPY_OTHER,
)


def compat(process: Process, names: Names) -> dict[str, Any]:
    """Return the plugin's step breakdown (by its priorities) and GPU figures for one rank.

    Returns: `{"steps": [{"step", "total_us", "kernel_us", …}], "mean": {…},
        "gpu_utilization_pct", "sm_efficiency_pct", "occupancy_pct", "tensor_core_pct", "gpus"}`;
        the figures are means over the GPUs, None without a GPU. Occupancy is in the unit the trace
        has it in (percent, from PyTorch).
    """
    label, start, end = _steps(process)
    if not len(label):
        return {}
    roles = _roles(process, names)
    taken = EMPTY
    columns: dict[str, np.ndarray] = {}
    for role, spans in roles.items():
        columns[role] = (spans - taken).measure(start, end)
        taken = taken | spans
    total = end - start
    columns["other"] = total - taken.measure(start, end)
    steps = [
        {
            "step": int(label[i]),
            "total_us": float(total[i]) / PS_PER_US,
            **{f"{role}_us": float(column[i]) / PS_PER_US for role, column in columns.items()},
        }
        for i in range(len(label))
    ]
    gpus = _gpus(process, names, int(start[0]), int(end[-1]))
    figures = ("gpu_utilization_pct", "sm_efficiency_pct", "occupancy_pct", "tensor_core_pct")
    return {
        "steps": steps,
        "mean": {key: sum(s[key] for s in steps) / len(steps) for key in steps[0] if key != "step"},
        **{key: _mean([g[key] for g in gpus]) for key in figures},
        "gpus": gpus,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _roles(process: Process, names: Names) -> dict[str, Any]:
    """Return the active times of each role, in order of priority."""
    calls = process.events
    communicates = names.matching(_COMMUNICATION.search)
    loads = names.matching(_LOADER.search)

    def host(mask: np.ndarray):
        return union(calls.start_ps[mask], calls.end_ps[mask])

    kernel = communication = memcpy = memset = EMPTY
    for device in process.devices:
        events = device.events
        linked = np.where(events.op >= 0, communicates[events.op], False)
        is_kernel = np.isin(events.kind, _KERNELS)
        for mask, role in (
            (is_kernel & ~linked, "kernel"),
            (is_kernel & linked, "communication"),
            (np.isin(events.kind, _COPIES), "memcpy"),
            (events.kind == DeviceKind.MEMSET, "memset"),
        ):
            spans = union(events.start_ps[mask], events.end_ps[mask])
            if role == "kernel":
                kernel = kernel | spans
            elif role == "communication":
                communication = communication | spans
            elif role == "memcpy":
                memcpy = memcpy | spans
            else:
                memset = memset | spans
    communicating = communicates[calls.name] if len(calls) else np.empty(0, bool)
    loading = loads[calls.name] if len(calls) else np.empty(0, bool)
    runtime = np.isin(calls.kind, (HostKind.LAUNCH, HostKind.CALL, HostKind.SYNC))
    on_host = np.isin(
        calls.kind, (HostKind.OP, HostKind.RANGE, HostKind.COLLECTIVE, HostKind.INPUT_WAIT)
    )
    return {
        "kernel": kernel,
        "memcpy": memcpy,
        "memset": memset,
        "communication": communication | host(on_host & communicating),
        "runtime": host(runtime),
        "dataloader": host(on_host & loading),
        "cpu": host(on_host & ~loading & ~communicating),
    }


def _steps(process: Process) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the plugin's step windows: host steps, extended to the end of launched work."""
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.STEP)
    label, start, end = events.value[rows], events.start_ps[rows], events.end_ps[rows]
    if not len(rows):
        host = np.isin(
            events.kind, (HostKind.OP, HostKind.RANGE, HostKind.COLLECTIVE, HostKind.INPUT_WAIT)
        )
        if not host.any():
            return label, start, end
        label = np.zeros(1, np.int64)
        start = np.array([events.start_ps[host].min()])
        end = np.array([events.end_ps[host].max()])
    start, end = start.copy(), end.copy()

    # Every launch inside each host step, in order, until the first that outlasts the step.
    call_start, call_end, work_start, work_end = _launched(process)
    # Steps do not overlap: the plugin did not handle overlapping ones.
    if ((np.diff(start) < 0) | (start[1:] < end[:-1])).any():
        return label[:0], start[:0], end[:0]
    order = np.lexsort((call_end, call_start))
    call_start, call_end = call_start[order], call_end[order]
    work_start, work_end = work_start[order], work_end[order]
    count = np.zeros(len(label), np.int64)
    reach = np.full(len(label), np.iinfo(np.int64).min)
    first_work: int | None = None
    for i in range(len(label)):
        low = int(np.searchsorted(call_start, start[i], side="left"))
        high = int(np.searchsorted(call_start, end[i], side="right"))
        beyond = np.flatnonzero(call_end[low:high] > end[i])
        if len(beyond):
            high = low + int(beyond[0])
        count[i] = high - low
        if high > low:
            reach[i] = work_end[low:high].max()
            if i == 0:
                first_work = int(work_start[low:high].min())
    if not count.any():
        return label, start, end
    previous = int(start[0])
    if first_work is not None:
        before = work_end[work_end < first_work]
        if len(before):
            previous = max(previous, int(before.max()))
    for i in range(len(label)):
        start[i] = max(previous, int(start[i]))
        end[i] = max(int(end[i]), int(reach[i]), int(start[i]))
        previous = int(end[i])
    keep = len(label)
    if keep > 1:
        last = int(np.flatnonzero(count)[-1])
        keep = last + 1
        if last > 0 and count[last - 1] * _TAIL_SHARE > count[last]:
            keep = last
    return label[:keep], start[:keep], end[:keep]


def _launched(process: Process) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return all device work with a known launch: times of the call and of the work."""
    parts = []
    for device in process.devices:
        called, returned = launches(process, device)
        known = called > UNLINKED
        events = device.events
        parts.append((called[known], returned[known], events.start_ps[known], events.end_ps[known]))
    if not parts:
        empty = np.empty(0, np.int64)
        return empty, empty, empty, empty
    a, b, c, d = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return a, b, c, d


def _gpus(process: Process, names: Names, low: int, high: int) -> list[dict[str, Any]]:
    """Return the plugin's figures per GPU, over the window of all steps."""
    tensor = names.matching(_TENSOR_CORE.search)
    blocks_of = np.nan_to_num(process.figures("blocks_per_sm"))
    occupancy_of = process.figures("occupancy_pct")
    result = []
    for device in process.devices:
        events = device.events
        rows = np.isin(events.kind, _KERNELS)
        if not rows.any() or high <= low:
            continue
        start = np.clip(events.start_ps[rows], low, high)
        end = np.clip(events.end_ps[rows], low, high)
        duration = (end - start).astype(np.float64)
        occupancy = occupancy_of[events.shape[rows]]
        known = np.isfinite(occupancy)
        weight = duration[known].sum()
        linked = events.op[rows] >= 0
        full = (events.end_ps - events.start_ps)[rows].astype(np.float64)
        of_ops = full[linked].sum()
        on_tensor_cores = full[linked & tensor[events.name[rows]]].sum()
        result.append(
            {
                "index": device.index,
                "gpu_utilization_pct": 100 * union(start, end).total / (high - low),
                "sm_efficiency_pct": 100
                * _sm_efficiency(start, end, blocks_of[events.shape[rows]])
                / (high - low),
                "occupancy_pct": float((occupancy[known] * duration[known]).sum() / weight)
                if weight > 0
                else None,
                "tensor_core_pct": float(100 * on_tensor_cores / of_ops) if of_ops else None,
            }
        )
    return result


def _sm_efficiency(start: np.ndarray, end: np.ndarray, blocks: np.ndarray) -> float:
    """Return Σ over segments of min(Σ blocks per SM of the kernels running, 1) × length."""
    times = np.concatenate((start, end))
    change = np.concatenate((blocks, -blocks))
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    return float((np.clip(level[:-1], 0.0, 1.0) * np.diff(times)).sum())
