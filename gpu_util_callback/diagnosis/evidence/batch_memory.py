"""Memory that a sample of a batch takes, by a line through the batch sizes that ran."""

from dataclasses import dataclass

import numpy as np

from gpu_util_callback.diagnosis.evidence.gauges import cached
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import allocator
from gpu_util_callback.diagnosis.thresholds import FULL_PCT, Constant, Count
from gpu_util_callback.recording.work import batch_size

ENOUGH = Count(10, "readings of the allocator, some of them between steps, show what stays")
WHOLE = Constant(1.02, "of what stays: a peak this close to it shows nothing of the batches")


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """GPU memory that batches take.

    Attributes:
        per_sample: bytes that each sample of a batch adds.
        room: the largest batch that fits.
    """

    per_sample: float
    room: int


def batch_of(run: Run) -> int | None:
    """Return the size of the batches: as given or declared, or the only one that was seen."""
    sizes = {*run.memory_facts.get("batch_sizes", {}).values()}
    return batch_size(run.fit) or (sizes.pop() if len(sizes) == 1 else None)


@cached
def batch_memory(run: Run, gpu: int) -> BatchMemory | None:
    """Return what a batch takes, None where that was not measured."""
    memory = allocator(run, gpu)
    used = run.memory.get(f"gpu{gpu}/allocator:allocator_used_bytes")
    if memory is None or used is None or not len(run.steps):
        return None
    inside = used.time_ns >= int(run.steps["start_ns"][0])
    if inside.sum() < ENOUGH:
        return None
    base = float(used.low[inside].min())
    points = _peaks(run, gpu, memory.peak)
    if not points or memory.peak < WHOLE * base:
        return None
    sizes = np.array([0, *points], float)
    peaks = np.array([base, *points.values()])
    if len(points) > 1:  # what stays is a lower bound: with two sizes the line itself says
        sizes, peaks = sizes[1:], peaks[1:]
    slope, start = np.polyfit(sizes, peaks, 1)
    if slope <= 0 or start < 0:
        return None
    other_bytes = run.highest(gpu, "memory_other_bytes") or 0.0
    limit = memory.limit if memory.total is None else min(memory.limit, memory.total - other_bytes)
    room = int((FULL_PCT.default / 100 * limit - start) / slope)
    return BatchMemory(float(slope), room) if room > 0 else None


def _peaks(run: Run, gpu: int, highest: float) -> dict[int, float]:
    """Return the peak of each size of batches that was the largest so far."""
    of_shape = {int(shape): size for shape, size in run.memory_facts.get("batch_sizes", {}).items()}
    peaks = run.memory.get(f"gpu{gpu}/allocator:allocator_peak_bytes")
    sizes_in_order = sorted(
        (first, of_shape[shape]) for shape, first in run.steps.first_ns.items() if shape in of_shape
    )
    batch = batch_of(run)
    if len(sizes_in_order) < 2 or peaks is None:
        size = max((size for _, size in sizes_in_order), default=batch)
        return {size: highest} if size else {}
    larger: list[tuple[int, int]] = []
    for first, size in sizes_in_order:
        if not larger or size > larger[-1][1]:
            larger.append((first, size))
    peak_of_size: dict[int, float] = {}
    ends, high = peaks.end_ns, peaks.high
    for number, (_, size) in enumerate(larger):
        end = larger[number + 1][0] if number + 1 < len(larger) else None
        before = high if end is None else high[ends < end]
        if len(before):
            peak_of_size[size] = float(before.max())
    return peak_of_size
