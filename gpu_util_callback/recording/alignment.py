"""The clock offsets between a job's workers, estimated from steps that end together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_util_callback.recording.reader import Recording

MIN_STEPS = 100  # with fewer, steps may end together by chance
MAX_STEPS = 20_000  # a longer run is sampled in blocks
BLOCKS, BLOCK = 20, 1_000  # how many, and steps in each
MAX_LAG = 32  # steps by which two workers' are shifted, to see that those of one number belong together
# Crystals differ by some tens of ppm, and NTP slews by 500 at most: a larger drift is no clock's.
MAX_DRIFT = 500e-6
# A step's end scatters by less than this share of a step where the workers wait for each other.
MAX_SCATTER = 0.25
# Independent processes drift apart like a random walk: the variance of their distance over q steps
# is q times that over one (1.0 below); that of workers that wait for each other stays (1 / q).
MAX_WALK = 0.3
MIN_CORRELATION = 0.3  # of the lengths of common steps; where these hardly vary, noise hides that they wait
NOTABLE_NS = 1_000_000  # clocks that NTP keeps on a local network usually agree within this


@dataclass(frozen=True)
class ClockOffset:
    """One worker's clock against the reference worker's.

    Attributes:
        id, rank: the worker's recording.
        offset_ns: its clock minus the reference's, at `at_ns`; positive = it is ahead.
        drift: change of the offset per nanosecond, 0.0 where it does not exceed the scatter.
        at_ns: the time on its own clock that `offset_ns` refers to.
        scatter_ns: scatter of single steps about the estimate (standard deviation, robust).
        steps: number of common steps it rests on.
    """

    id: str
    rank: int
    offset_ns: int
    drift: float
    at_ns: int
    scatter_ns: int
    steps: int

    def on_reference(self, time_ns: int) -> int:
        """Convert a time of this worker to the reference's clock."""
        return time_ns - self.offset_ns - round(self.drift * (time_ns - self.at_ns))


@dataclass(frozen=True)
class Clocks:
    """The clocks of one session.

    Attributes:
        reference: rank of the worker whose clock is the reference.
        offsets: of every worker with a known clock, including the reference (0); may be empty.
        unknown: (rank, why its clock is not known) of the others.
    """

    reference: int | None
    offsets: tuple[ClockOffset, ...]
    unknown: tuple[tuple[int, str], ...]

    def of(self, id: str) -> ClockOffset | None:
        """Return the offset of a recording, None where it is not known."""
        return next((offset for offset in self.offsets if offset.id == id), None)

    def sentence(self, clock: ClockOffset) -> str:
        """Return a sentence about a worker's clock; "" where there is nothing to report."""
        # Larger than the usual difference between two computers, and than the scatter?
        if abs(clock.offset_ns) < max(NOTABLE_NS, clock.scatter_ns) and not clock.drift:
            return ""
        way = "ahead of" if clock.offset_ns > 0 else "behind"
        drift = f", drifting by {1e6 * clock.drift:+.3g} ppm" if clock.drift else ""
        return (
            f"Clock of worker {clock.rank}: {_ms(abs(clock.offset_ns))} {way} worker "
            f"{self.reference}'s{drift}; shown shifted by {_ms(-clock.offset_ns, '+')} (estimated "
            f"from {clock.steps:,} common steps, each ±{_ms(clock.scatter_ns)})"
        )


def _ms(ns: int, sign: str = "") -> str:
    return f"{ns / 1e6:{sign},.{0 if abs(ns) >= 100_000_000 else 1}f} ms"


def session_clocks(recordings: Sequence[Recording]) -> Clocks:
    """Estimate the clock offsets of workers that train one model together.

    Where every step ends with an exchange between all workers, it ends at the same moment
    everywhere: the median difference of the ends of common steps is the difference of the clocks.
    That is so only for workers that wait for each other, which is checked: their steps must
    lengthen together, and their distance must not wander. Nothing that was recorded is changed.

    A host that runs ahead of its device by part of a step shifts the estimate by the same amount.

    Args:
        recordings: of one session (`Recording.session`), one per rank.

    Returns:
        The offsets against the worker with the median clock (of two, the lower rank).
    """
    ranked: dict[int, Recording] = {}
    for recording in recordings:
        if recording.rank is not None and recording.step_count:
            ranked.setdefault(recording.rank, recording)
    if len(ranked) < 2:
        return Clocks(None, (), ())
    ranks = sorted(ranked)
    ranges = _ranges(min(recording.step_count for recording in ranked.values()))
    steps = {rank: _Steps.read(ranked[rank], ranges) for rank in ranks}
    lowest = ranks[0]
    # all are compared with the lowest rank first
    clocks = {lowest: ClockOffset(ranked[lowest].id, lowest, 0, 0.0, ranked[lowest].start_ns, 0, 0)}
    unknown = []
    for rank in ranks[1:]:
        offset = _compare(steps[lowest], steps[rank], ranked[rank].id, rank)
        if isinstance(offset, str):  # the reason why it is not known
            unknown.append((rank, offset))
        else:
            clocks[rank] = offset
    if len(clocks) < 2:
        return Clocks(None, (), tuple(unknown))
    middle = sorted(clocks.values(), key=lambda clock: clock.offset_ns)[(len(clocks) - 1) // 2]
    reference = clocks[lowest] if len(clocks) == 2 else middle
    return Clocks(reference.rank, tuple(_against(clock, reference) for clock in clocks.values()), tuple(unknown))


@dataclass(frozen=True)
class _Steps:
    """Some steps of one worker, ascending: number, end of the work, and length; int64[steps], ns."""

    number: np.ndarray
    end_ns: np.ndarray
    length_ns: np.ndarray

    @classmethod
    def read(cls, recording: Recording, ranges: list[tuple[int, int]]) -> "_Steps":
        """Return the steps in these ranges [first, end) of numbers, each once, with end and length in ns.

        The work of a step ends before its callbacks.
        """
        parts: list[tuple[np.ndarray, ...]] = []
        for first, end in ranges:
            for rows in recording.rows_of("steps", first, end - 1):
                ends = rows["start_ns"] + rows["duration_ns"] - np.maximum(rows["callbacks_ns"], 0)
                parts.append((rows["step"], ends, rows["duration_ns"]))
        if not parts:
            return cls(*(np.zeros(0, np.int64) for _ in range(3)))
        number, ends, length = (np.concatenate(column) for column in zip(*parts, strict=True))
        number, once = np.unique(number, return_index=True)
        return cls(number, ends[once], length[once])


def _ranges(steps: int) -> list[tuple[int, int]]:
    """Return half-open ranges of step numbers to use: all, or blocks spread over a long run."""
    if steps <= MAX_STEPS:
        return [(0, steps)]
    starts = np.linspace(0, steps - BLOCK, BLOCKS).astype(np.int64)
    return [(int(start), int(start) + BLOCK) for start in starts]


def _compare(base: _Steps, other: _Steps, id: str, rank: int) -> ClockOffset | str:
    """Return the other worker's clock against the base's, or in words why it cannot be known.

    Args:
        id, rank: of the other worker's recording.
    """
    number, base_rows, other_rows = np.intersect1d(base.number, other.number, return_indices=True)
    if len(number) < MIN_STEPS:
        return f"only {len(number)} common steps, {MIN_STEPS} are needed"
    mine, theirs = base.length_ns[base_rows].astype(float), other.length_ns[other_rows].astype(float)
    difference_ns = (other.end_ns[other_rows] - base.end_ns[base_rows]).astype(float)
    when = other.end_ns[other_rows]
    middle = int(np.median(when))
    offset, drift, slope = _line((when - middle).astype(float), difference_ns)
    residual_ns = difference_ns - offset - drift * (when - middle)
    scatter = _spread(residual_ns)
    span_ns = float(when[-1] - when[0])
    step_ns = float(np.median(np.concatenate([mine, theirs])))
    reason = "its steps do not end together with the others'"
    # drifts more than clocks do, or scatters by much of a step
    if abs(slope) * span_ns > MAX_DRIFT * span_ns + 3 * scatter or scatter > MAX_SCATTER * step_ns:
        return reason
    # wanders, or does not lengthen with the others'
    if _walk(number, residual_ns) > MAX_WALK or not _together(number, mine, theirs):
        return reason
    return ClockOffset(id, rank, round(offset), drift, middle, round(scatter), len(number))


def _line(when: np.ndarray, apart: np.ndarray) -> tuple[float, float, float]:
    """Fit a robust line through clock differences.

    Args:
        when: float64[steps] ns, from the middle of the run.
        apart: float64[steps] ns, the other clock minus the base's.

    Returns: (offset at 0 in ns, drift, slope): slope and drift in ns per ns; drift is 0 where the slope does not
        exceed the scatter.
    """
    # medians of up to 20 parts of the run; the slope is the median of all pairs'
    parts = np.array_split(np.arange(len(when)), min(20, len(when) // 8))
    times = np.array([np.median(when[part]) for part in parts])
    middles = np.array([np.median(apart[part]) for part in parts])
    first, second = np.triu_indices(len(parts), 1)
    slope = float(np.median((middles[second] - middles[first]) / (times[second] - times[first])))
    flat = float(np.median(apart))
    tilted = float(np.median(apart - slope * when))
    noise = max(
        _spread(middles - slope * times), 1.25 * _spread(apart - slope * when) / np.sqrt(len(when) / len(parts))
    )
    if abs(slope) * (times[-1] - times[0]) <= max(4 * noise, NOTABLE_NS):
        return flat, 0.0, slope
    return tilted, slope, slope


def _spread(values: np.ndarray) -> float:
    """Return the standard deviation, from the median of deviations: single stalls do not count."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _walk(number: np.ndarray, residual_ns: np.ndarray) -> float:
    """Return how much the residuals wander: 1 for a random walk, 1 / q for a stationary series.

    q is the root of the number of steps.
    """
    q = max(4, int(np.sqrt(len(number))))

    def variance(lag: int) -> float:
        is_adjacent = number[lag:] - number[:-lag] == lag
        return _spread((residual_ns[lag:] - residual_ns[:-lag])[is_adjacent]) ** 2 if is_adjacent.sum() >= 8 else np.inf

    single = variance(1)
    return variance(q) / (q * single) if single > 0 else 0.0


def _together(number: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> bool:
    """Return whether steps of the same number lengthen together, more than those of other numbers.

    For a host that runs ahead of its device by whole steps, a later step lengthens instead.

    Args:
        number: int64[steps].
        mine, theirs: float64[steps], lengths of these steps at two workers, ns.
    """
    mine, theirs = _tamed(mine), _tamed(theirs)

    def correlation(lag: int) -> float:
        """Return the correlation of both workers' step times, one's steps `lag` numbers later; -1 with too few."""
        low, high = max(0, -lag), max(0, lag)
        count = len(number) - low - high
        first, second = slice(low, low + count), slice(high, high + count)
        is_pair = number[second] - number[first] == lag
        a, b = mine[first][is_pair], theirs[second][is_pair]
        if len(a) < MIN_STEPS // 2 or a.std() == 0 or b.std() == 0:
            return -1.0
        return float(np.corrcoef(a, b)[0, 1])

    same_step = correlation(0)
    if same_step < max(MIN_CORRELATION, 4 / np.sqrt(len(number))):
        return False
    most = min(MAX_LAG, len(number) // 4)
    return all(correlation(lag) < same_step for lag in range(-most, most + 1) if lag)


def _tamed(values: np.ndarray) -> np.ndarray:
    """Return the values with single stalls clipped to a still unusual value."""
    middle, spread = np.median(values), 8 * _spread(values)
    return np.clip(values, middle - spread, middle + spread)


def _against(clock: ClockOffset, reference: ClockOffset) -> ClockOffset:
    """Return a clock's offset against `reference`, where both were compared with a third worker.

    The scatters add up as independent ones do; the third worker's own clock has no steps and no scatter.
    """
    if clock is reference:
        return replace(clock, offset_ns=0, drift=0.0, scatter_ns=0, steps=max(clock.steps, reference.steps))
    reference_ns = reference.offset_ns + round(reference.drift * (clock.at_ns - reference.at_ns))
    return replace(
        clock,
        offset_ns=clock.offset_ns - reference_ns,
        drift=clock.drift - reference.drift,
        scatter_ns=round(float(np.hypot(clock.scatter_ns, reference.scatter_ns))),
        steps=clock.steps or reference.steps,
    )
