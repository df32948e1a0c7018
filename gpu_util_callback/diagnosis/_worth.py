"""Which claims of a cause cost enough to be told."""

from collections.abc import Iterable

from gpu_util_callback.diagnosis._rule import Loss
from gpu_util_callback.diagnosis._thresholds import Limits

__all__ = ["worth_telling"]

# Several spans may reach what is enough together; each must have a part of it, or of their mean.
PART = 0.25


def worth_telling(claims: Iterable[Loss], present_ns: int, limits: Limits) -> list[Loss]:
    """The claims whose kind cost at least `min_run_pct` of the run, or `always_s` seconds of it.

    Claims of one `detail` (a GPU, a callback) are added up: a cause that comes and goes costs as
    much as one that stays. Spans that are small beside the others of their kind are left out.

    Args:
        claims: of one cause, with their loss; those of unknown loss are left out.
        present_ns: how long the run has taken, but for times in which the process was stopped.
        limits: the cause's thresholds.
    """
    enough = limits["min_run_pct"] / 100 * present_ns
    if "always_s" in limits:
        enough = min(enough, limits["always_s"] * 1e9)
    by_kind: dict[str, list[Loss]] = {}
    for claim in claims:
        if claim.lost_ns:
            by_kind.setdefault(claim.detail, []).append(claim)
    told = []
    for kind in by_kind.values():
        total = sum(claim.lost_ns or 0 for claim in kind)
        if total >= enough:
            least = PART * min(enough, total / len(kind))
            told += [claim for claim in kind if (claim.lost_ns or 0) >= least]
    return told
