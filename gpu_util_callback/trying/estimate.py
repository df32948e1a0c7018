"""Estimator of a speedup: the mean of paired log ratios, with one interval that allows for looking again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

# Two-sided levels of one of K looks at growing data, 95 % over all of them (Pocock; Jennison and Turnbull 2000,
# table 2.1). Looks that share more data than evenly spread ones are surer than that.
_LEVEL_OF_LOOKS = (0.05, 0.0294, 0.0221, 0.0182, 0.0158, 0.0142, 0.0130, 0.0120, 0.0112, 0.0106)
FEWEST_PAIRS, MOST_PAIRS = 4, 10
PAIRS_PER_LOOK = 2  # pairs more: both orders as often, so that a steady drift cancels


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio of times, first side over second: above 1 the second is faster.

    Attributes:
        ratio: the geometric mean of the pairs' ratios.
        low, high: its interval, 95 % over all looks.
        pairs: how many there were.
        scatter: standard deviation of the pairs' log ratios.
        level: of this look alone, two-sided.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    scatter: float
    level: float

    @property
    def resolved(self) -> bool:
        """True if the interval excludes no change."""
        return not self.low <= 1.0 <= self.high

    def pairs_for(self, share: float) -> int:
        """Return how many more pairs would tell a change of this share (0.03 = 3 %); 0 if these do.

        Their scatter is taken to stay; counted up in steps of a twentieth, to 10,000 pairs in all.
        """
        needed = self.pairs
        while needed < 10_000:
            half = quantile(1 - self.level / 2, needed - 1) * self.scatter / math.sqrt(needed)
            if half <= math.log1p(share):
                break
            needed += max(PAIRS_PER_LOOK, needed // 20)
        return needed - self.pairs


def looks(fewest: int, most: int) -> list[int]:
    """Return the numbers of pairs, ascending, after which the interval is looked at: at most ten, `most` the last."""
    step = max(PAIRS_PER_LOOK, math.ceil((most - fewest) / (len(_LEVEL_OF_LOOKS) - 1)))
    return [*range(fewest, most, step), most]


def estimate(first_s: Sequence[float], second_s: Sequence[float], look_count: int = 1) -> Estimate:
    """Estimate a ratio of times from at least two pairs.

    A pair that straddles a slowdown of the machine moves the mean and widens the interval alike: Student's t
    of one outlier among equal pairs is below 1, however large it is.

    Args:
        first_s, second_s: seconds a step; those at one place were measured one after the other.
        look_count: how often the growing data are looked at in all.
    """
    # In logs a ratio and its inverse are as far from 0, and the mean is that of factors.
    logs = [math.log(first / second) for first, second in zip(first_s, second_s, strict=True)]
    level = _LEVEL_OF_LOOKS[min(look_count, len(_LEVEL_OF_LOOKS)) - 1]
    scatter = stdev(logs)
    half = quantile(1 - level / 2, len(logs) - 1) * scatter / math.sqrt(len(logs))
    middle = fmean(logs)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs), scatter, level)


def quantile(probability: float, degrees: int) -> float:
    """Return a quantile, above the median, of Student's t for whole degrees of freedom, to four digits.

    Of `t = sqrt(degrees) * tan(angle)` the angle's density is proportional to `cos(angle) ** (degrees - 1)`.
    """
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (degrees - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(np.interp(2 * probability - 1, below / below[-1], angles))
