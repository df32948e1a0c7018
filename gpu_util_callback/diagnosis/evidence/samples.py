"""A GPU's samples: spans from several columns combined, its memory, and what a sample of a batch takes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import StepBlocks
from gpu_util_callback.diagnosis.evidence.gauges import SampleBins, cached
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import SMALLEST_WINDOW, Range, Series, find_spans
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_TENTH, AGAIN, FULL_PCT, NOTICEABLY, Constant, Count
from gpu_util_callback.recording.schema import PCIE_LANE_BYTES_PER_S
from gpu_util_callback.recording.work import batch_size

SCATTERS = Constant(4.0, "times the scatter: so large a change of pace on both sides of a time is not chance")


def at_pace_changes(steps: StepBlocks, start_ns: int, end_ns: int, late: int, room: tuple[int, int]) -> tuple[int, int]:
    """Return a time range found in samples, its ends moved to where nearby steps change their pace.

    A slower GPU makes its steps longer; an end stays where it is if they are not.

    Args:
        start_ns, end_ns: of the range, ns since the epoch.
        late: ns after a change until which samples may show it.
        room: earliest start and latest end, ns since the epoch.
    """
    middle = (start_ns + end_ns) // 2
    start = _pace_change(steps, max(room[0], start_ns - late), min(middle, start_ns + late), 1)
    end = _pace_change(steps, max(middle, end_ns - late), min(room[1], end_ns + late), -1)
    return start or start_ns, end or end_ns


def _pace_change(steps: StepBlocks, first_ns: int, last_ns: int, sign: int) -> int | None:
    """Return when steps between two times get slower (`sign` 1) or faster (-1), ns since the epoch.

    None if not clearly.

    The split with the least scatter of the pace (own ns of a step) on both sides, if the two means differ enough.
    """
    a, b = (int(np.searchsorted(steps["start_ns"], edge)) for edge in (first_ns, last_ns))
    if b - a < 2 * AGAIN:  # too few blocks
        return None
    rows, start, end = (steps[name][a:b] for name in ("rows", "start_ns", "end_ns"))
    pace = steps.own_ns[a:b] / rows
    count, at = len(pace), np.arange(AGAIN, len(pace) - AGAIN + 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (pace, pace**2))
    left, right = sums[at] / at, (sums[-1] - sums[at]) / (count - at)
    # Sum of squared deviations from the means on both sides, for each split.
    scatter = squares[-1] - at * left**2 - (count - at) * right**2
    best = int(np.argmin(scatter))
    split, before, after = int(at[best]), float(left[best]), float(right[best])
    slow, fast = (after, before) if sign > 0 else (before, after)
    deviation = float(np.sqrt(max(0.0, scatter[best]) / max(1, count - 2)))
    if slow < NOTICEABLY * fast or slow - fast < SCATTERS * deviation:  # alike, or not more than chance
        return None
    # The blocks on both sides of the split contain some steps of the other side.
    slow_rows = rows * np.clip((pace - fast) / (slow - fast), 0, 1)
    if sign > 0:
        return int(end[split] - slow * slow_rows[split - 1 : split + 1].sum())
    return int(start[split - 1] + slow * slow_rows[split - 1 : split + 1].sum())


HOLD_NS = Count(5_000_000_000, "what is sampled less often holds its value for this long")
RARE_NS = Count(15_000_000_000, "limits and links are read every ten seconds, and rarely change")
# Window in which a change of the samples is searched, in samples, at least.
WINDOW_NS, FEWEST = 4_000_000_000, 4


@dataclass(frozen=True, slots=True)
class Sampled:
    """A GPU's samples of one column, with others read at the same times.

    Attributes:
        bins: the column's.
        start_ns, length_ns: when each sample begins to hold and for how long, shape `(n,)`.
    """

    run: Run
    gpu: int
    bins: SampleBins
    start_ns: np.ndarray
    length_ns: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, column: str, hold_ns: int = HOLD_NS) -> np.ndarray:
        """Return another column of the GPU at these samples' times; float64 (n,), NaN without a recent sample.

        Args:
            hold_ns: how long a sample of that column holds.
        """
        bins = self.run.column(self.gpu, column)
        if bins is None:
            return np.full(len(self), np.nan)
        places, values = bins.means(column)
        stamps = bins.starts(places)
        if np.array_equal(stamps, self.start_ns):
            return values
        # The bin that contains the time, or the newest one before it; the first one also covers a
        # little time before it (groups of one GPU are read one after the other).
        at = stamps.searchsorted(self.start_ns, side="right") - 1
        at = np.where((at < 0) & (stamps[0] - self.start_ns <= hold_ns), 0, at)
        bins_at = np.maximum(at, 0)
        is_fresh = (at >= 0) & (self.start_ns - stamps[bins_at] <= hold_ns + bins.bin_ns)
        return np.where(is_fresh, values[bins_at], np.nan)

    def spans(self, lost_ns: np.ndarray, *, enter: float, min_s: float) -> list[tuple[Range, np.ndarray]]:
        """Return spans of at least `min_s` seconds in which the share `enter` (0-1) of the time was lost.

        A span's ends are then moved to where steps change their pace, at most half-way to its neighbours.

        Args:
            lost_ns: float64 (n,), lost in each sample; NaN = unknown, counted as nothing lost.

        Returns:
            Of each span its range, and the mask of the samples inside, bool (n,).
        """
        lost = np.nan_to_num(lost_ns).astype(np.int64)
        one_row = np.ones(len(self), np.int64)
        events = ((lost > 0) & (lost >= A_TENTH * self.length_ns)).astype(np.int64)
        series = Series(one_row, self.length_ns, lost, lost, events, 1)
        # Neighbouring samples share the driver's mean: a change takes fewer samples than steps.
        period_ns = float(np.median(self.length_ns))
        rows = round(WINDOW_NS / max(1.0, period_ns))  # samples in the window in which a change is searched
        smallest = min(SMALLEST_WINDOW, max(FEWEST, rows))
        stretches = []  # start and end in ns, and the slice of samples
        for first, end in find_spans(series, enter=enter, min_rows=3, smallest=smallest):
            a, b = int(first), max(int(first) + 1, int(end))
            start, span_end = int(self.start_ns[a]), int(self.start_ns[b - 1] + self.length_ns[b - 1])
            if span_end - start >= min_s * 1e9:
                stretches.append((start, min(span_end, self.run.end_ns), slice(a, b)))
        spans = []
        for number, (start, span_end, inside) in enumerate(stretches):
            bounds = (  # half-way to the neighbours
                (stretches[number - 1][1] + start) // 2 if number else self.run.start_ns,
                (span_end + stretches[number + 1][0]) // 2 if number + 1 < len(stretches) else self.run.end_ns,
            )
            mask = np.zeros(len(self), bool)
            mask[inside] = True
            late = max(self.run.lag_ns(), round(2 * period_ns))  # after a change; a sample may hold for two periods
            edges = at_pace_changes(self.run.steps, start, span_end, late, bounds)
            spans.append((self.run.range_of(*edges), mask))
        return spans


def sampled(run: Run, gpu: int, column: str, bins: SampleBins | None = None) -> Sampled | None:
    """Return when a GPU's column was sampled and how long each sample counts; None with fewer than three samples.

    A sample counts until the next one, at most for three usual periods.
    """
    bins = run.column(gpu, column) if bins is None else bins
    if bins is None:
        return None
    at, _ = bins.means(column)
    if len(at) < A_FEW:
        return None
    starts = bins.starts(at)
    period_ns = starts[1:] - starts[:-1]
    every_bin = int(at[-1] - at[0]) == len(at) - 1
    usual = bins.bin_ns if every_bin else int(np.median(period_ns))  # each bin has a sample, or the median distance
    length = np.minimum(np.append(period_ns, usual), 3 * usual)  # a longer gap was not measured
    return Sampled(run, gpu, bins, starts, length)


def mean_of(values: np.ndarray, digits: int = 1) -> float | None:
    """Return the rounded mean of the sampled values, as evidence; None if none was sampled."""
    return round(float(np.nanmean(values)), digits) if np.isfinite(values).any() else None


class SharedSpan(NamedTuple):
    """Stretch in which GPUs of one training lost time.

    Attributes:
        lost_ns: the training's loss: a step waits for its slowest GPU, so that simultaneous losses
            of several are one loss, that of the slowest.
        gpus: those that lost enough by themselves, the one that lost most in front.
        inside: mask of that one's samples in the stretch; shape `(n,)`.
    """

    where: Range
    lost_ns: int
    gpus: list[int]
    inside: np.ndarray


def shared_spans(
    losses_by_gpu: Mapping[int, tuple[Sampled, np.ndarray]], *, enter: float, min_s: float
) -> list[SharedSpan]:
    """Return the stretches of at least `min_s` seconds in which the slowest GPU lost a share `enter` of the time.

    Args:
        losses_by_gpu: GPU -> its n samples, and float64 (n,): ns that it lost in each of them (NaN = not known).
        enter: 0-1.
    """
    if not losses_by_gpu:
        return []
    # The GPU sampled most often: its samples are the time base.
    finest = max((samples for samples, _ in losses_by_gpu.values()), key=len)
    # (GPUs, samples of the base).
    lost_shares = np.stack([_lost_share(finest.start_ns, samples, lost) for samples, lost in losses_by_gpu.values()])
    lost = finest.length_ns * lost_shares.max(axis=0)
    stretches = []
    for where, mask in finest.spans(lost, enter=enter, min_s=min_s):
        first, last = int(finest.start_ns[mask][0]), int(finest.start_ns[mask][-1])
        inside = {
            gpu: (samples.start_ns + samples.length_ns > first) & (samples.start_ns <= last)
            for gpu, (samples, _) in losses_by_gpu.items()
        }
        share_of_gpu = {
            gpu: float(np.nansum(lost[inside[gpu]])) / max(1, int(samples.length_ns[inside[gpu]].sum()))
            for gpu, (samples, lost) in losses_by_gpu.items()
        }
        order = sorted(share_of_gpu, key=lambda gpu: -share_of_gpu[gpu])
        # Those that lost enough by themselves, or the one that lost most.
        gpus = [gpu for gpu in order if share_of_gpu[gpu] >= enter] or order[:1]
        stretches.append(SharedSpan(where, int(lost[mask].sum()), gpus, inside[gpus[0]]))
    return stretches


def _lost_share(times: np.ndarray, samples: Sampled, lost: np.ndarray) -> np.ndarray:
    """Return the share (0-1) of each of these times that was lost; 0 where the GPU was not sampled."""
    at = np.searchsorted(samples.start_ns, times, side="right") - 1
    last_sample = np.maximum(at, 0)
    fresh = (at >= 0) & (times < samples.start_ns[last_sample] + samples.length_ns[last_sample])
    return np.where(fresh, np.nan_to_num(lost[last_sample]) / samples.length_ns[last_sample], 0.0)


def link_bytes_per_s(generation: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Return the bandwidth of PCIe links per direction; NaN if generation or width is unknown."""
    lane = np.full(len(generation), np.nan)
    for of_rate, rate in PCIE_LANE_BYTES_PER_S.items():
        lane[generation == of_rate] = rate
    return lane * width


class Allocator(NamedTuple):
    """Bytes of one GPU's allocator.

    Attributes:
        peak: the most in use at a time.
        limit: its upper bound (the device's memory if no limit is known).
        total: the device's memory, None = not known.
        retries, out_of_memory: how often it had to free its cache, and failed; None = not known.
    """

    peak: float
    limit: float
    total: float | None
    retries: int | None
    out_of_memory: int | None

    @property
    def used_pct(self) -> float:
        return 100 * self.peak / self.limit


@cached
def allocator(run: Run, gpu: int) -> Allocator | None:
    """Return the bytes of a GPU's allocator; None if it reported none: the device's own "used" is no substitute."""
    peaks = [run.highest(gpu, name) for name in ("allocator_peak_bytes", "allocator_used_bytes")]
    measured = [peak for peak in peaks if peak is not None]
    total = run.gpu(gpu).get("memory_total_bytes")
    limit = run.highest(gpu, "allocator_limit_bytes") or total
    if not measured or not limit:
        return None
    counts = (run.highest(gpu, name) for name in ("allocator_retries", "allocator_ooms"))
    retries, ooms = (None if count is None else int(count) for count in counts)
    return Allocator(max(measured), float(limit), float(total) if total else None, retries, ooms)


ENOUGH = Count(10, "readings of the allocator, some of them between steps, show what stays")
WHOLE = Constant(1.02, "of what stays: a peak this close to it shows nothing of the batches")


class BatchMemory(NamedTuple):
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
    """Return the GPU memory that batches take, by a line through the peaks of batch sizes; None if it was not measured.

    The line starts at what the model keeps without a batch. With several sizes that start is fitted, too.
    """
    memory = allocator(run, gpu)
    used = run.memory.get(f"gpu{gpu}/allocator:allocator_used_bytes")
    if memory is None or used is None or not len(run.steps):
        return None
    in_training = used.time_ns >= int(run.steps["start_ns"][0])
    if in_training.sum() < ENOUGH:  # too few readings since the first step
        return None
    kept_bytes = float(used.low[in_training].min())
    peak_of_size = _peak_of_sizes(run, gpu, memory.peak)
    # No batch size is known, or the peak is hardly above what is kept.
    if not peak_of_size or memory.peak < WHOLE * kept_bytes:
        return None
    sizes = np.array([0, *peak_of_size], float)
    peaks = np.array([kept_bytes, *peak_of_size.values()])
    if len(peak_of_size) > 1:  # what stays is a lower bound: with two sizes the line itself says
        sizes, peaks = sizes[1:], peaks[1:]
    slope, kept_fit = np.polyfit(sizes, peaks, 1)
    if slope <= 0 or kept_fit < 0:  # no line of memory that grows with the batch
        return None
    other_bytes = run.highest(gpu, "memory_other_bytes") or 0.0
    # Without what other processes hold.
    limit = memory.limit if memory.total is None else min(memory.limit, memory.total - other_bytes)
    room = int((FULL_PCT.default / 100 * limit - kept_fit) / slope)
    return BatchMemory(float(slope), room) if room > 0 else None


def _peak_of_sizes(run: Run, gpu: int, highest: float) -> dict[int, float]:
    """Return the allocator's peak in bytes while each batch size was the largest so far, by batch size.

    {} where no size is known.

    Args:
        highest: the run's peak in bytes.
    """
    size_of_shape = {int(shape): size for shape, size in run.memory_facts.get("batch_sizes", {}).items()}
    peaks = run.memory.get(f"gpu{gpu}/allocator:allocator_peak_bytes")
    sizes_in_order = sorted(
        (first, size_of_shape[shape]) for shape, first in run.steps.first_ns.items() if shape in size_of_shape
    )
    batch = batch_of(run)
    if len(sizes_in_order) < 2 or peaks is None:  # one size: the run's peak is its
        size = max((size for _, size in sizes_in_order), default=batch)
        return {size: highest} if size else {}
    records: list[tuple[int, int]] = []
    for first, size in sizes_in_order:  # when each new largest size first ran
        if not records or size > records[-1][1]:
            records.append((first, size))
    peak_of_size: dict[int, float] = {}
    for number, (_, size) in enumerate(records):
        end = records[number + 1][0] if number + 1 < len(records) else None  # until the next larger size ran
        before = peaks.high if end is None else peaks.high[peaks.end_ns < end]
        if len(before):
            peak_of_size[size] = float(before.max())
    return peak_of_size
