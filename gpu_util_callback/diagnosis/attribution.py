"""Attribution of lost time: no second is counted for two findings."""

from collections.abc import Callable, Sequence

import numpy as np

from gpu_util_callback.diagnosis.finding import MEASURED, Finding
from gpu_util_callback.diagnosis.thresholds import MOSTLY, Constant

__all__ = ["attribute_overlap", "share_idle", "suppress_duplicates"]

# Causes that lose time only while the GPU idles.
IDLING = frozenset({"input_bound", "host_stall", "recompilation"})
# Causes that slow down one GPU, so that others wait for it.
SLOWING = frozenset({"throttled", "contention"})
KEEP = Constant(0.1, "a finding left with less of its loss has another explanation")


def attribute_overlap(findings: Sequence[Finding], wall: tuple[int, int]) -> list[Finding]:
    """Cut `lost_ns` so that findings on the same time never lose more than that time.

    A finding's loss is spread evenly over its pieces (by default its whole range). Where findings
    overlap, the more certain one is served first: those with known pieces, measured before
    estimated, spans before whole-run findings, then the larger share; later ones get the rest.
    Findings left with less than a tenth of their loss are dropped.
    """
    pieces = [_pieces(finding, wall) for finding in findings]
    edges = np.unique(np.concatenate([piece.ravel() for piece in pieces] or [np.zeros(0)]))
    room = np.diff(edges).astype(np.float64)

    def rank(index: int) -> tuple:
        finding = findings[index]
        length = int((pieces[index][:, 1] - pieces[index][:, 0]).sum())
        share = (finding.lost_ns or 0) / max(1, length)
        return (
            not finding.pieces,
            finding.confidence != MEASURED,
            finding.where is None,
            -share,
            index,
        )

    kept: dict[int, Finding] = {}
    for index in sorted(range(len(findings)), key=rank):
        finding = findings[index]
        if finding.lost_ns is not None:
            granted = _serve(finding.lost_ns, pieces[index], edges, room)
            if finding.lost_ns and granted < KEEP * finding.lost_ns:
                continue
            _cut(finding, round(granted))
        kept[index] = finding
    return [kept[index] for index in sorted(kept)]


def suppress_duplicates(findings: Sequence[Finding]) -> None:
    """Remove the loss of an imbalance whose slow GPU is explained by throttling or contention.

    The others' waiting is the same time again: none of it is lost twice, and the cost of the
    imbalance itself is not known. The slow GPU is the first one of an imbalance.
    """

    def explained(finding: Finding, by: Finding) -> bool:
        if (
            finding.cause != "imbalance"
            or by.cause not in SLOWING
            or finding.gpus[0] not in by.gpus
        ):
            return False
        assert finding.where is not None and by.where is not None
        both = min(finding.where.end_ns, by.where.end_ns) - max(
            finding.where.start_ns, by.where.start_ns
        )
        return both >= MOSTLY * (finding.where.end_ns - finding.where.start_ns)

    for finding in findings:
        if any(explained(finding, by) for by in findings):
            finding.lost_ns = None


def share_idle(findings: Sequence[Finding], idle_ns: Callable[[int, int], int | None]) -> None:
    """Cut `lost_ns` so that findings on one idle GPU never lose more than it idled.

    Each of them alone is within that limit already. Which of several causes a busy GPU hid cannot
    be determined, so each is cut by the same share, except those with known pieces, which were
    measured against the GPU just there.

    Args:
        findings: with overlaps attributed.
        idle_ns: how long the GPUs idled between two times; None = not sampled.
    """
    spans = [
        finding
        for finding in findings
        if finding.cause in IDLING and finding.where is not None and finding.lost_ns
    ]
    kept: list[tuple[Finding, float]] = []
    for finding in spans:
        assert finding.where is not None and finding.lost_ns is not None
        if finding.pieces:
            continue
        inside = [(other, _inside(other, finding)) for other in spans if other is not finding]
        others = sum(part for other, part in inside if not other.pieces)
        sure = sum(part for other, part in inside if other.pieces)
        idle = idle_ns(finding.where.start_ns, finding.where.end_ns)
        asked = finding.lost_ns + others
        if others + sure > 0 and idle is not None and asked + sure > idle:
            kept.append((finding, max(0.0, idle - sure) / asked))
    for finding, share in kept:
        _cut(finding, max(1, round((finding.lost_ns or 0) * share)))


def _cut(finding: Finding, lost_ns: int) -> None:
    """Limit a finding's loss, and its saving accordingly."""
    if finding.lost_ns is None or lost_ns >= finding.lost_ns:
        return
    noticed = lost_ns < 0.99 * finding.lost_ns
    finding.lost_ns = lost_ns
    if noticed and finding.where is not None and "faster_up_to" in finding.evidence:
        span = finding.where.end_ns - finding.where.start_ns
        faster = span / max(1, span - (finding.saves_ns or 0))
        finding.evidence["faster_up_to"] = round(faster, 2)
        finding.evidence["promise_rests_on"] = "what the other causes here leave of the time"


def _inside(finding: Finding, other: Finding) -> float:
    """Return how much of a finding's loss lies in the range of another one."""
    a, b = finding.where, other.where
    assert a is not None and b is not None
    pieces = _pieces(finding, (a.start_ns, a.end_ns))
    length = int((pieces[:, 1] - pieces[:, 0]).sum())
    both = np.minimum(pieces[:, 1], b.end_ns) - np.maximum(pieces[:, 0], b.start_ns)
    return (finding.lost_ns or 0) * float(np.maximum(both, 0).sum()) / max(1, length)


def _pieces(finding: Finding, wall: tuple[int, int]) -> np.ndarray:
    whole = [(finding.where.start_ns, finding.where.end_ns) if finding.where else wall]
    return np.array(finding.pieces or whole, np.int64).reshape(-1, 2)


def _serve(asked: int, pieces: np.ndarray, edges: np.ndarray, room: np.ndarray) -> float:
    """Take up to `asked` out of `room`: evenly first, then wherever room is left."""
    inside = np.zeros(len(room), bool)
    for first, end in np.searchsorted(edges, pieces):
        inside[first:end] = True
    length = np.diff(edges)[inside].astype(np.float64)
    free = room[inside]
    got = np.minimum(asked * length / max(1.0, length.sum()), free)
    missing = asked - got.sum()
    left = free - got
    if missing > 0 and left.sum() > 0:
        got += left * min(1.0, missing / left.sum())
    room[inside] = free - got
    return float(got.sum())
