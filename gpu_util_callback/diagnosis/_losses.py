"""No second is lost twice: what several claims on the same time may add up to."""

from collections.abc import Sequence
from itertools import pairwise

from gpu_util_callback.diagnosis._rule import Loss

__all__ = ["settle"]


def settle(claims: Sequence[Loss], wall: tuple[int, int]) -> list[Loss]:
    """Cut `lost_ns` so that claims on the same time never lose more than that time.

    A claim's loss is taken as spread evenly over its range. Where claims overlap, the more certain
    is served first (measured before estimated, spans before whole-run findings, then the larger
    share); a later one gets what is left. Claims that were left less than a tenth of what they
    asked for are dropped: the time they saw has another explanation.
    """
    bounds = [
        (claim.where.start_ns, claim.where.end_ns) if claim.where else wall for claim in claims
    ]

    def rank(index: int) -> tuple:
        claim, (start, end) = claims[index], bounds[index]
        share = (claim.lost_ns or 0) / max(1, end - start)
        return claim.confidence != "measured", claim.where is None, -share, index

    edges = sorted({edge for bound in bounds for edge in bound})
    room = {edge: float(after - edge) for edge, after in pairwise(edges)}
    kept: dict[int, Loss] = {}
    for index in sorted(range(len(claims)), key=rank):
        claim, (start, end) = claims[index], bounds[index]
        asked = claim.lost_ns
        if asked is None:
            kept[index] = claim
            continue
        pieces = [(edge, min(after, end) - edge)
                  for edge, after in pairwise(edges)
                  if start <= edge < end]  # fmt: skip
        granted = 0.0
        # Two rounds: evenly first, then what is still missing from pieces with room left.
        for edge, length in pieces:
            got = min(asked * length / max(1, end - start), room[edge])
            room[edge] -= got
            granted += got
        for edge, _ in pieces:
            got = min(asked - granted, room[edge])
            if got > 0:
                room[edge] -= got
                granted += got
        if asked and granted < asked / 10:
            continue
        claim.lost_ns = min(asked, round(granted))
        kept[index] = claim
    return [kept[index] for index in sorted(kept)]
