"""No second is lost twice: what several claims on the same time may add up to."""

from collections.abc import Sequence

import numpy as np

from gpu_util_callback.diagnosis._rule import MEASURED, Loss

__all__ = ["settle"]

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
            claim.lost_ns = min(claim.lost_ns, round(granted))
        kept[index] = claim
    return [kept[index] for index in sorted(kept)]


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
