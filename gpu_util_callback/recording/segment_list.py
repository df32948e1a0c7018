"""The list of a recording's segments, present and missing, without opening any."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_util_callback.recording.segments import segment_name, segment_range

__all__ = ["SegmentInfo", "list_segments"]


@dataclass(frozen=True)
class SegmentInfo:
    """The known facts of a segment without opening it; step and time -1/0 where unknown."""

    first: int
    last: int
    sealed: bool
    steps: int = -1  # rows of the steps table; -1: unknown until it is opened
    first_step: int = -1
    last_step: int = -1
    start_ns: int = 0
    end_ns: int = 0

    @property
    def name(self) -> str:
        return segment_name(self.first, self.last)


# (first, last) -> [first, last, bytes, steps, first_step, last_step, start_ns, end_ns]
Index = Mapping[tuple[int, int], Sequence[int]]


def list_segments(
    names: Iterable[str], index: Index, sealed: int, closed: bool
) -> tuple[list[SegmentInfo], list[SegmentInfo]]:
    """Order the segments among a folder's files.

    Args:
        names: the folder's files.
        index: the overview's entries of the sealed segments.
        sealed: number of sealed segments according to the manifest.
        closed: True if nothing is written any more.

    Returns:
        (the segments, the missing ones). A segment that was merged into another, whose file was
        not removed yet, is in neither.
    """
    found = (span for name in names if (span := segment_range(name)))
    infos: list[SegmentInfo] = []
    gaps: list[SegmentInfo] = []
    covered = -1
    for first, last in sorted(found, key=lambda span: (span[0], -span[1])):
        if last <= covered:
            continue
        if first > covered + 1:
            gaps.append(_gap(covered + 1, first - 1, index))
        covered = last
        known = index.get((first, last))
        infos.append(SegmentInfo(first, last, closed or last < sealed, *(known or ())[3:]))
    if covered < sealed - 1:
        gaps.append(_gap(covered + 1, sealed - 1, index))
    return infos, gaps


def _gap(first: int, last: int, index: Index) -> SegmentInfo:
    """Return the known facts of the missing segments first to last."""
    entries = [one for one in index.values() if first <= one[0] and one[1] <= last and one[3] > 0]
    if not entries:
        return SegmentInfo(first, last, True)
    return SegmentInfo(
        first, last, True,
        steps=sum(one[3] for one in entries),
        first_step=min(one[4] for one in entries), last_step=max(one[5] for one in entries),
        start_ns=min(one[6] for one in entries), end_ns=max(one[7] for one in entries),
    )  # fmt: skip
