"""Reduction of a series of blocks to the few spans in which a share of time was lost."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.thresholds import DOUBLE, MOSTLY, THREE_QUARTERS, Count

# Windows in rows. In the smallest a burst shows above noise and a change can be located well; each
# larger one finds bursts that are eight times rarer (a slow file every 300 batches), down to four
# occurrences in a run.
SMALLEST_WINDOW = 16
NEXT_WINDOW = 8
MAX_SPANS = 24  # of one cause, so that a report of a run of any length stays readable: those nearby are joined
MIN_EVENTS = Count(4, "rows that lose a tenth make a span; fewer are outliers")
# More spans of one window than this are joined before each is examined: there would be too many.
MANY = 4 * MAX_SPANS


@dataclass(frozen=True, slots=True)
class Range:
    """Extent of a finding: half-open in steps and in nanoseconds since the epoch.

    Attributes:
        parts: its stretches of steps that follow one another, where it has several: between two of them
            training stood still for longer than a step.
        share: of the loss in the whole range, where this is one of its parts.
    """

    start_step: int
    end_step: int
    start_ns: int
    end_ns: int
    parts: tuple["Range", ...] = ()
    share: float = 1.0

    @property
    def steps(self) -> int:
        return self.end_step - self.start_step

    @property
    def length_ns(self) -> int:
        """Duration of its parts."""
        return sum(end - start for start, end in self.intervals)

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """Start and end of each part."""
        return [part.extent_ns for part in self.parts] or [self.extent_ns]

    @property
    def extent_ns(self) -> tuple[int, int]:
        """Start and end."""
        return self.start_ns, self.end_ns

    def divided(self, most: int) -> list["Range"]:
        """Return the range as at most `most` ranges, divided at its longest pauses."""
        if len(self.parts) < 2:
            return [self]
        pauses_ns = [after.start_ns - before.end_ns for before, after in pairwise(self.parts)]
        longest = sorted(range(len(pauses_ns)), key=lambda place: -pauses_ns[place])[: most - 1]
        edges = [0, *(place + 1 for place in sorted(longest)), len(self.parts)]
        return [_join_parts(self.parts[first:end]) for first, end in pairwise(edges)]


def _join_parts(parts: tuple[Range, ...]) -> Range:
    """Return one range over consecutive parts."""
    first, last, share = parts[0], parts[-1], sum(part.share for part in parts)
    extent = first.start_step, last.end_step, first.start_ns, last.end_ns
    return Range(*extent, parts if len(parts) > 1 else (), share)


class Series(NamedTuple):
    """Blocks of consecutive rows: the time they took and the part of it that was lost.

    Attributes:
        rows: rows per block, > 0.
        total: time the block's rows took.
        lost: time of it that counts as lost.
        top: the largest loss of a single row.
        events: rows in which the loss was a good part of the row.
        step_rows: rows in a full block.
    """

    rows: np.ndarray
    total: np.ndarray
    lost: np.ndarray
    top: np.ndarray
    events: np.ndarray
    step_rows: int


def find_spans(
    series: Series, *, enter: float, min_rows: int, smallest: int = SMALLEST_WINDOW
) -> list[tuple[float, float]]:
    """Return the spans in which the loss is at least the share `enter` of the time.

    A change point is where the loss, averaged over a centred window, crosses the threshold; it is
    then moved to where the sums on both sides best separate lost from not lost. The largest single
    row of a window is left out, so that one outlier (a checkpoint, a first fill) never makes a
    span. Events rarer than a window are searched with windows eight times as wide.

    A loss near the threshold crosses it again and again: spans between which it goes on are joined
    if it reaches the threshold over all of them, and dropped if it does not and they hardly stand
    out.

    Args:
        smallest: the narrowest window, in rows.

    Returns:
        Disjoint spans in order, at most `MAX_SPANS` (then those nearest to each other are joined),
        each as (first, end) in rows from the start of the series; half-open.
    """
    blocks = len(series.rows)
    if not blocks or not series.lost.any():
        return []
    covered = np.zeros(blocks, bool)
    finest = window = max(1, smallest // series.step_rows)
    while True:  # the finest window first: what it explains is excluded from the wider ones
        last = window >= blocks
        for first, end in _spans_at(series, covered, min(window, blocks), enter, min_rows):
            covered[first:end] = True
        if last:
            break
        window *= NEXT_WINDOW
    coarse = bounded(_join_spans(series, list(_runs(covered)), enter, finest))
    return [_in_rows(series, first, end) for first, end in coarse]


def _spans_at(
    series: Series, covered: np.ndarray, window: int, enter: float, min_rows: int
) -> Iterator[tuple[int, int]]:
    """Yield the spans (first, end) of blocks that a window of this width shows, outside the covered ones.

    Args:
        covered: bool (blocks,), in spans of finer windows.
        window: its width in blocks.
        enter: share (0-1) of the time that must be lost.
        min_rows: shorter spans are left out.
    """
    is_open = ~covered  # exclude what a finer window explained
    lost, total = np.where(is_open, series.lost, 0), np.where(is_open, series.total, 0)
    window_lost, window_total = _window_sums(lost, window), _window_sums(total, window)
    if not ((window_lost >= enter * window_total) & is_open).any():
        return  # without the largest single loss the share is smaller still
    rows, top, events = (np.where(is_open, values, 0) for values in (series.rows, series.top, series.events))
    is_above = (_share_without_top(window_lost, window_total, _window_maxima(top, window)) >= enter) & is_open
    if not is_above.any():
        return
    # Loss beyond the threshold, summed up to each block.
    excess = np.concatenate([[0.0], np.cumsum(lost - enter * total, dtype=np.float64)])
    merged: list[tuple[int, int]] = []
    for first, end in _runs(is_above):
        start, before = merged[-1] if merged else (0, 0)
        # Two windows apart at most, and together still above the threshold.
        is_near = merged and first - before <= 2 * window
        if is_near and excess[end] > excess[start] and is_open[before:first].all():
            merged[-1] = start, end
        else:
            merged.append((first, end))
    if len(merged) > MANY:
        remaining = Series(rows, total, lost, top, events, series.step_rows)
        merged = _join_spans(remaining, merged, enter, window)
    for first, end in merged:
        first, end = _shrunk(lost, total, first, end, window)
        if end <= first or rows[first:end].sum() < min_rows:  # too short
            continue
        # Outliers: few rows lose a tenth, and not all rows lose a little.
        if events[first:end].sum() < MIN_EVENTS and not _is_steady(series, first, end):
            continue
        if _share_without_top(lost[first:end].sum(), total[first:end].sum(), top[first:end].max()) >= enter:
            yield first, end


class _RangeSums:
    """Sums over many ranges of blocks; half-open, none of them empty."""

    def __init__(self, series: Series):
        self._lost, self._total, self._events, self._some = (
            np.concatenate([[0], np.cumsum(values)])
            for values in (series.lost, series.total, series.events, series.lost > 0)
        )
        self._largest, self._top = np.append(series.lost, 0), np.append(series.top, 0)

    def level(self, at: np.ndarray) -> np.ndarray:
        """Return the share (0-1) lost in each range, without its largest single loss."""
        return self._share_without_top(at, self.top(at))

    def top(self, at: np.ndarray) -> np.ndarray:
        """Return the largest single loss in each range."""
        return _largest_in(self._top, at)

    def continues(self, at: np.ndarray, level: np.ndarray, top: np.ndarray) -> np.ndarray:
        """Return for each gap between spans whether the spans' loss continues in it at a lower level; bool (n,).

        A loss far larger than any of the spans' is an outlier: without it there must be many losses.

        Args:
            at: int64 (n, 2), the gaps, in blocks.
            level, top: float and int64 (n,), of the spans around each gap, as `level` and `top` return them.
        """
        first, end = at.T
        lost, lossy_blocks = self._lost[end] - self._lost[first], self._some[end] - self._some[first]
        # Losses in most blocks, none of which is half of all.
        even = (lossy_blocks >= THREE_QUARTERS * (end - first)) & (2 * _largest_in(self._largest, at) <= lost)
        recurs = (self._events[end] - self._events[first] >= MIN_EVENTS) | even  # many events, or an even loss
        alike = self.top(at) <= DOUBLE * top
        gap_level = self._share_without_top(at, np.where(alike, 0, self.top(at)))
        return (gap_level >= MOSTLY * level) & (alike | recurs)

    def _share_without_top(self, at: np.ndarray, top: np.ndarray) -> np.ndarray:
        """Return the share (0-1) lost without the largest single loss."""
        first, end = at.T
        return _share_without_top(self._lost[end] - self._lost[first], self._total[end] - self._total[first], top)


def _largest_in(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the largest value in each range; `values` has one more than there are blocks."""
    return np.maximum.reduceat(values, at.ravel())[::2]


def _join_spans(series: Series, spans: list[tuple[int, int]], enter: float, finest: int) -> list[tuple[int, int]]:
    """Join spans between which the loss continues near the threshold.

    Args:
        spans: half-open, in blocks of the series, in order.
        enter: the share of time from which on a span is one.
        finest: blocks of the smallest window: a gap of up to two of them may be chance.
    """
    sums, count = _RangeSums(series), 0
    at = np.array(spans, np.int64).reshape(-1, 2)
    while 1 < len(at) != count:
        # Of each gap between neighbours: its blocks, and the higher level and top of the two.
        count, gaps = len(at), np.stack([at[:-1, 1], at[1:, 0]], axis=1)
        higher_level, higher_top = (np.maximum(each[:-1], each[1:]) for each in (sums.level(at), sums.top(at)))
        is_short = gaps[:, 1] - gaps[:, 0] <= 2 * finest
        by_chance = is_short & (MOSTLY * higher_level < enter)
        # Chains of neighbours between which it goes on: each becomes one span, stays, or is
        # dropped.
        cuts = np.flatnonzero(~(by_chance | sums.continues(gaps, higher_level, higher_top)))
        first, last = np.append(0, cuts + 1), np.append(cuts, count - 1)  # of each chain, in `at`
        chain = np.stack([at[first, 0], at[last, 1]], axis=1)
        becomes_one = (first == last) | (sums.level(chain) >= enter)
        low_gaps = np.append(0, np.cumsum(sums.level(gaps) < THREE_QUARTERS * higher_level))  # before each span
        stays = ~becomes_one & (low_gaps[last] > low_gaps[first])
        pieces = [at[a : b + 1] for a, b in zip(first[stays], last[stays], strict=True)]
        at = np.concatenate([chain[becomes_one], *pieces])
        at = at[np.argsort(at[:, 0])]
    # The same for the stretches before the first span and after the last one.
    # Row: the first or the last span; edge: the series' beginning or end.
    for row, edge in ((0, 0), (-1, len(series.rows))) if len(at) else ():
        span = at[[row]]
        outside = np.array([[0, span[0, 0]] if row == 0 else [span[0, 1], edge]])
        with_edge = np.array([[min(edge, span[0, 0]), max(edge, span[0, 1])]])
        goes_on = outside[0, 0] < outside[0, 1] and sums.continues(outside, sums.level(span), sums.top(span))
        if goes_on and sums.level(with_edge) >= enter:
            at[row] = with_edge
    return [(begin, end) for begin, end in at.tolist()]


def _is_steady(series: Series, first: int, end: int) -> bool:
    """Return True if the loss is small in each step, but in all of them."""
    lost = series.lost[first:end]
    return bool(np.count_nonzero(lost) >= THREE_QUARTERS * len(lost) and lost.max() * 2 <= lost.sum())


def _shrunk(lost: np.ndarray, total: np.ndarray, first: int, end: int, window: int) -> tuple[int, int]:
    """Return the (first, end) blocks of a span with both ends moved until they no longer change.

    A window that is wide compared with its loss shrinks with each pass.
    """
    while end > first:
        trimmed = _best_ends(lost, total, first, end, window)
        if trimmed == (first, end) or trimmed[1] - trimmed[0] >= end - first:
            return trimmed
        first, end = trimmed
    return first, end


def _best_ends(lost: np.ndarray, total: np.ndarray, first: int, end: int, window: int) -> tuple[int, int]:
    """Return the (start, end) blocks that best separate lost from not lost time around a span.

    Between a level m (share 0-1) and nothing the best threshold is m/2: before the start the running sum of (lost - m/2
    of the time) falls, after it the sum rises: its minimum is the start, its maximum the end.

    Args:
        lost, total: (blocks,), ns lost, and ns in all.
        window: how far the ends may move outwards, in blocks; inwards twice as far.
    """
    middle = (first + end) // 2
    low, high = max(0, first - window), min(len(lost), end + window)
    level = lost[first:end].sum() / max(1, total[first:end].sum())
    score = np.concatenate([[0.0], np.cumsum(lost[low:high] - level / 2 * total[low:high])])
    left = min(first + 2 * window, middle) - low
    right = max(end - 2 * window, middle) - low
    start = low + int(np.argmin(score[: left + 1]))
    # The last of equal maxima: blocks without rows of their own do not matter.
    tail = score[right:]
    stop = low + right + int(len(tail) - 1 - np.argmax(tail[::-1]))
    return start, stop


def _in_rows(series: Series, first: int, end: int) -> tuple[float, float]:
    """Return a span of blocks as (start, end) in rows; its outermost blocks count in proportion to their loss."""
    rows, lost = series.rows, series.lost
    before = np.concatenate([[0], np.cumsum(rows)])
    inner = slice(first + 1, end - 1) if end - first > 2 else slice(first, end)
    lost_per_row = lost[inner].sum() / max(1, rows[inner].sum())
    if lost_per_row <= 0:  # no loss inside: whole blocks
        return float(before[first]), float(before[end])

    def slow(block: int) -> int:  # rows of a block that lost time at the span's level
        if not 0 <= block < len(rows):
            return 0
        return int(min(rows[block], round(float(lost[block] / lost_per_row))))

    start = before[first] + (rows[first] - slow(first)) * (end - first > 2)
    stop = before[end] - (rows[end - 1] - slow(end - 1)) * (end - first > 2)
    if slow(first) == rows[first]:  # the loss fills the first block: it may begin in the one before
        start -= slow(first - 1)
    if slow(end - 1) == rows[end - 1]:
        stop += slow(end)
    return float(start), float(max(stop, start + 1))


def bounded(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Limit the spans to `MAX_SPANS`, in order, by joining those nearest to each other."""
    while len(spans) > MAX_SPANS:
        gaps = [b[0] - a[1] for a, b in pairwise(spans)]
        limit = sorted(gaps)[len(spans) - MAX_SPANS - 1]  # the widest gap to close
        joined = [spans[0]]
        for gap, span in zip(gaps, spans[1:], strict=True):
            if gap <= limit:
                joined[-1] = (joined[-1][0], span[1])
            else:
                joined.append(span)
        spans = joined
    return spans


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield each run of True of a mask as (first, end), half-open."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    yield from zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True)


def _share_without_top(lost: np.ndarray, total: np.ndarray, top: np.ndarray) -> np.ndarray:
    """Return the share lost without the largest single loss."""
    return np.maximum(lost - top, 0) / np.maximum(total - top, 1)


def _centred(ahead: np.ndarray, window: int) -> np.ndarray:
    """Convert values of windows that begin at each place into values of windows around each place.

    At the ends the window keeps its width and shifts inwards.

    Args:
        ahead: (n - window + 1,), the value of the window from each place on.

    Returns:
        (n,).
    """
    before = (window - 1) // 2
    whole = np.empty(len(ahead) + window - 1, ahead.dtype)
    whole[:before], whole[before : before + len(ahead)] = ahead[0], ahead
    whole[before + len(ahead) :] = ahead[-1]
    return whole


def _window_sums(values: np.ndarray, window: int) -> np.ndarray:
    """Return sums over a centred window, at most as wide as there are values."""
    sums = np.zeros(len(values) + 1, values.dtype)
    np.cumsum(values, out=sums[1:])
    return _centred(sums[window:] - sums[:-window], window)


def _window_maxima(values: np.ndarray, window: int) -> np.ndarray:
    """Return maxima over a window centred on each value; (n,). At the ends the window shifts inwards.

    The width doubles with each pass; the last one joins two that overlap.
    """
    reach, level = 1, values
    while reach * 2 <= window:
        level = np.maximum(level[: len(level) - reach], level[reach:])
        reach *= 2
    last = window - reach
    return _centred(np.maximum(level[: len(level) - last], level[last:]), window)
