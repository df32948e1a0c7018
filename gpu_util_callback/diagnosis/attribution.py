"""No second is lost twice: what several claims on the same time may add up to."""

from collections.abc import Callable, Sequence

import numpy as np

from gpu_util_callback.diagnosis.finding import MEASURED, Loss

__all__ = ["settle", "share_idle", "silence_echoes"]

# Causes that lose time only as far as the GPU idles.
IDLING = frozenset({"input_bound", "host_stall", "recompilation"})
# What makes one GPU slow, for which others then wait; and how much of the time it must hold.
SLOWING, MOSTLY = frozenset({"throttled", "contention"}), 0.5
# A claim that was left less than this share of what it asked for has another explanation.
KEEP = 0.1


def settle(claims: Sequence[Loss], wall: tuple[int, int]) -> list[Loss]:
    """Cut `lost_ns` so that claims on the same time never lose more than that time.

    A claim's loss lies evenly in its pieces (by default its whole range). Where claims overlap, the
    more certain is served first: those that know their pieces, measured before estimated, spans
    before whole-run findings, then the larger share; a later one gets what is left. Claims left
    with less than a tenth of what they asked for are dropped.
    """
    pieces = [_pieces(claim, wall) for claim in claims]
    edges = np.unique(np.concatenate([piece.ravel() for piece in pieces] or [np.zeros(0)]))
    room = np.diff(edges).astype(np.float64)

    def rank(index: int) -> tuple:
        claim = claims[index]
        length = int((pieces[index][:, 1] - pieces[index][:, 0]).sum())
        share = (claim.lost_ns or 0) / max(1, length)
        return not claim.pieces, claim.confidence != MEASURED, claim.where is None, -share, index

    kept: dict[int, Loss] = {}
    for index in sorted(range(len(claims)), key=rank):
        claim = claims[index]
        if claim.lost_ns is not None:
            granted = _serve(claim.lost_ns, pieces[index], edges, room)
            if claim.lost_ns and granted < KEEP * claim.lost_ns:
                continue
            _cut(claim, round(granted))
        kept[index] = claim
    return [kept[index] for index in sorted(kept)]


def silence_echoes(claims: Sequence[Loss]) -> None:
    """Take from imbalance what is lost because the GPU that is waited for is hot, or shared.

    That the others wait is the same time once more: none of it is lost a second time, and what
    imbalance costs by itself is not known. The GPU waited for is the first of an imbalance's.
    """

    def explained(claim: Loss, by: Loss) -> bool:
        if claim.cause != "imbalance" or by.cause not in SLOWING or claim.gpus[0] not in by.gpus:
            return False
        assert claim.where is not None and by.where is not None
        both = min(claim.where.end_ns, by.where.end_ns) - max(
            claim.where.start_ns, by.where.start_ns
        )
        return both >= MOSTLY * (claim.where.end_ns - claim.where.start_ns)

    for claim in claims:
        if any(explained(claim, by) for by in claims):
            claim.lost_ns = None


def share_idle(claims: Sequence[Loss], idle_ns: Callable[[int, int], int | None]) -> None:
    """Cut `lost_ns` so that claims on one idle GPU never lose more than it idled.

    Each of them alone is no longer than that already. Which of several causes a busy GPU hid cannot
    be told, so each gives way by the same share; those that know their pieces looked at the GPU
    just there, and keep what they claim.

    Args:
        claims: settled.
        idle_ns: how long the GPUs idled between two times; None = not sampled.
    """
    spans = [claim for claim in claims
             if claim.cause in IDLING and claim.where is not None and claim.lost_ns]  # fmt: skip
    kept: list[tuple[Loss, float]] = []
    for claim in spans:
        assert claim.where is not None and claim.lost_ns is not None
        if claim.pieces:
            continue
        inside = [(other, _inside(other, claim)) for other in spans if other is not claim]
        others = sum(part for other, part in inside if not other.pieces)
        sure = sum(part for other, part in inside if other.pieces)
        idle = idle_ns(claim.where.start_ns, claim.where.end_ns)
        asked = claim.lost_ns + others
        if others + sure > 0 and idle is not None and asked + sure > idle:
            kept.append((claim, max(0.0, idle - sure) / asked))
    for claim, share in kept:
        _cut(claim, max(1, round((claim.lost_ns or 0) * share)))


def _cut(claim: Loss, lost_ns: int) -> None:
    """Leave a claim at most this loss, and promise no more than it saves."""
    if claim.lost_ns is None or lost_ns >= claim.lost_ns:
        return
    noticed = lost_ns < 0.99 * claim.lost_ns
    claim.lost_ns = lost_ns
    if noticed and claim.where is not None and "faster_up_to" in claim.evidence:
        span = claim.where.end_ns - claim.where.start_ns
        faster = span / max(1, span - (claim.saves_ns or 0))
        claim.evidence["faster_up_to"] = round(faster, 2)
        claim.evidence["promise_rests_on"] = "what the other causes here leave of the time"


def _inside(claim: Loss, other: Loss) -> float:
    """How much of a claim's loss lies in the range of another one."""
    a, b = claim.where, other.where
    assert a is not None and b is not None
    pieces = _pieces(claim, (a.start_ns, a.end_ns))
    length = int((pieces[:, 1] - pieces[:, 0]).sum())
    both = np.minimum(pieces[:, 1], b.end_ns) - np.maximum(pieces[:, 0], b.start_ns)
    return (claim.lost_ns or 0) * float(np.maximum(both, 0).sum()) / max(1, length)


def _pieces(claim: Loss, wall: tuple[int, int]) -> np.ndarray:
    whole = [(claim.where.start_ns, claim.where.end_ns) if claim.where else wall]
    return np.array(claim.pieces or whole, np.int64).reshape(-1, 2)


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
