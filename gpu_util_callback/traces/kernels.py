"""Kernels by name, in all and in each step, copies by direction, and the statistics of launches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from gpu_util_callback.traces import limits
from gpu_util_callback.traces.breakdown import UNLINKED, launches
from gpu_util_callback.traces.model import (
    KERNELS,
    PS_PER_US,
    Device,
    DeviceKind,
    KernelShape,
    MemoryKind,
    Names,
    Process,
    groups,
)
from gpu_util_callback.traces.naming import TensorCore, tensor_core

# Below this a kernel costs about as much to launch as it runs.
SHORT_KERNEL_PS = 10 * PS_PER_US


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """All launches of one kernel on one GPU; times in picoseconds."""

    name: str
    op: str  # the op or layer that most of its time came from, "" = unknown
    collective: bool
    tensor_core: TensorCore
    count: int
    total_ps: int
    min_ps: int
    max_ps: int
    shape: KernelShape = field(default_factory=KernelShape)  # of the launches that took most of its time
    occupancy_pct: float | None = None  # mean over launches that have it, weighted by time


def kernel_groups(process: Process, device: Device, names: Names) -> list[KernelGroup]:
    """Return a GPU's kernels by name, longest total time first.

    Those beyond `limits.MAX_KERNEL_NAMES` are one last row.
    """
    events = device.events
    took = events.duration_ps
    rows = np.flatnonzero(events.of(*KERNELS))
    by_name = [(name, rows[mine]) for name, mine in groups(events.name[rows])]
    by_name.sort(key=lambda kernel: -int(took[kernel[1]].sum()))
    # Of every launch shape, NaN = absent; the last one is for those without, -1.
    occupancy_of = np.array([*(shape.occupancy_pct for shape in process.shapes), None], np.float64)
    gpus = max(1, len(process.devices))
    # Characters of names that are searched for Tensor Cores; number of rows.
    judged, listed = limits.MAX_JUDGED // gpus, max(1, limits.MAX_KERNEL_NAMES // gpus)
    kernels = []
    for name, mine in by_name[:listed]:
        weight = took[mine].astype(np.float64)
        shape = _heaviest(events.shape[mine], weight)
        text = names[name]
        judged -= len(text)
        kernels.append(
            KernelGroup(
                text,
                names[_heaviest(events.op[mine], weight)],
                bool(events.kind[mine[0]] == DeviceKind.COLLECTIVE),
                tensor_core(text) if judged >= 0 else "unknown",
                *_times(took[mine]),
                shape=process.shapes[shape] if shape >= 0 else KernelShape(),
                occupancy_pct=_mean(occupancy_of[events.shape[mine]], weight),
            )
        )
    if others := [mine for _, mine in by_name[listed:]]:
        times = _times(took[np.concatenate(others)])
        kernels.append(KernelGroup(f"{len(others):,} other kernels", "", False, "unknown", *times))
    return kernels


def _times(took: np.ndarray) -> tuple[int, int, int, int]:
    """Return how many durations in ps there are, their sum, the least and the most."""
    return len(took), int(took.sum()), int(took.min()), int(took.max())


def _mean(values: np.ndarray, weight: np.ndarray) -> float | None:
    """Return the weighted mean of the finite values; None without any."""
    is_measured = np.isfinite(values)
    weight = weight[is_measured]
    return float(np.average(values[is_measured], weights=weight)) if weight.sum() > 0 else None


def _heaviest(values: np.ndarray, weight: np.ndarray) -> int:
    """Return the value with the largest sum of weights; -1 = none, which only wins if no value is known.

    Args:
        values: int[n], n ≥ 1, indices; -1 = not known.
        weight: float64[n], ≥ 0.
    """
    if (values == values[0]).all():
        return int(values[0])
    unique, inverse = np.unique(values, return_inverse=True)
    sums = np.bincount(inverse, weights=weight)
    sums[unique < 0] = -1
    return int(unique[np.argmax(sums)])


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """All copies of one direction and kind of host memory on one GPU."""

    direction: str  # "h2d", "d2h", "d2d", "other", "memset"
    memory: str  # "pageable", "pinned", "managed", "device", "unknown"
    count: int
    bytes: int | None  # None where unknown
    total_ps: int

    @property
    def gb_per_s(self) -> float | None:
        """10^9 bytes per second while it copied; None = unknown."""
        return self.bytes / self.total_ps * 1000 if self.bytes and self.total_ps else None


def copy_groups(device: Device) -> list[CopyGroup]:
    """Return the copies and memsets of a GPU, the group with most time first."""
    events = device.events
    copies = []
    for kind in (kind for kind in DeviceKind if kind not in KERNELS):
        for memory in MemoryKind:
            rows = (events.kind == kind) & (events.memory == memory)
            if not rows.any():
                continue
            size = events.bytes[rows]
            copies.append(
                CopyGroup(
                    direction=kind.name.removeprefix("COPY_").lower(),
                    memory=memory.name.lower(),
                    count=int(rows.sum()),
                    # Exact: of many copies the sum may not fit in 64 bits.
                    bytes=sum(size.tolist()) if (size >= 0).all() else None,
                    total_ps=int(events.duration_ps[rows].sum()),
                )
            )
    return sorted(copies, key=lambda copy: -copy.total_ps)


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """Statistics of the launches for one GPU."""

    kernels: int
    linked: int  # kernels whose launch call was found
    short_kernels_pct: float | None  # of kernels that ran less than 10 µs
    graph_kernels: int  # launched by a call for a whole graph


_GRAPH_LAUNCH = re.compile(r"^(cu|cuda|hip)GraphLaunch")


def replayed(process: Process, device: Device, names: Names) -> np.ndarray:
    """Return a mask of a device's events that a call for a whole graph launched."""
    of_graph = names.matching(_GRAPH_LAUNCH.match)[process.events.name]
    replays = process.events.correlation[of_graph & (process.events.correlation >= 0)]
    return (device.events.graph != 0) | np.isin(device.events.correlation, replays)


def launch_stats(process: Process, device: Device, names: Names) -> LaunchStats:
    """Return how the launches of a device's kernels went, from call to begin."""
    events = device.events
    kernel = events.of(*KERNELS)
    count = int(kernel.sum())
    return LaunchStats(
        kernels=count,
        linked=int((launches(process, device)[0] > UNLINKED)[kernel].sum()),
        short_kernels_pct=100 * float((events.duration_ps[kernel] < SHORT_KERNEL_PS).mean()) if count else None,
        graph_kernels=int(replayed(process, device, names)[kernel].sum()),
    )


def op_name(text: str) -> tuple[str, str]:
    """Return `model/dense/MatMul:MatMul` as name and kind; the kind is "" where missing."""
    name, colon, kind = text.rpartition(":")
    return (text, "") if not colon or "::" in text else (name, kind)
