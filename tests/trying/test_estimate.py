"""The estimator: the quantiles, the coverage of its interval, and what a slowdown of the machine does to it."""

import math

import numpy as np
import pytest

from gpu_util_callback.trying.estimate import estimate, looks, quantile
from gpu_util_callback.trying.outcomes import factor_text


@pytest.mark.parametrize(
    "probability, freedom, value",
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.995, 4, 4.604),
        (0.995, 9, 3.250),
        (0.975, 30, 2.042),
    ],
)
def test_quantiles_are_those_of_the_tables(probability, freedom, value):
    assert quantile(probability, freedom) == pytest.approx(value, abs=6e-4)


def test_growing_data_are_looked_at_after_both_orders_as_often():
    assert looks(4, 10) == [4, 6, 8, 10]
    assert looks(6, 6) == [6]
    assert len(looks(2, 200)) <= 10


NOISE = {
    "normal": lambda rng, n: rng.normal(0, 0.03, n),
    "heavy tails": lambda rng, n: 0.03 * rng.standard_t(2, n),
    "now and then slow": lambda rng, n: 0.05 * rng.exponential(1, n) ** 2,
}


def trials(noise: str, effect: float, slowdown: float, count: int = 500) -> tuple[float, float]:
    """Return the shares of trials that resolve a change, and whose interval holds the true ratio.

    Args:
        effect: log of the true ratio.
        slowdown: log of the ratio by which the machine gets slower, at a random place in the middle.
    """
    rng = np.random.default_rng(5)
    order = np.array([0, 1, 1, 0] * 5)
    resolved = covered = 0
    for _ in range(count):
        logs = NOISE[noise](rng, 20) + np.where(np.arange(20) >= rng.integers(2, 18), slowdown, 0)
        first, second = np.exp(logs[order == 0]), np.exp(logs[order == 1] - effect)
        for pairs in looks(4, 10):
            found = estimate(first[:pairs], second[:pairs], 4)
            if found.resolved:
                break
        resolved += found.resolved
        covered += found.low <= math.exp(effect) <= found.high
    return resolved / count, covered / count


# 5 % nominal; 500 trials of a rate of 5 % are above 7.5 % once in 200.
@pytest.mark.parametrize("slowdown", [0.0, -math.log(0.7), math.log(0.7)])
@pytest.mark.parametrize("noise", NOISE)
def test_no_change_is_seldom_resolved_also_where_the_machine_slows_down_by_30_percent(noise, slowdown):
    resolved, covered = trials(noise, 0.0, slowdown)
    assert resolved <= 0.075 and covered >= 0.925


@pytest.mark.parametrize("slowdown", [0.0, -math.log(0.7)])
@pytest.mark.parametrize("noise", NOISE)
def test_a_change_of_two_times_is_resolved_and_its_ratio_in_the_interval(noise, slowdown):
    resolved, covered = trials(noise, math.log(2), slowdown, 300)
    assert resolved >= 0.95 and covered >= 0.94


def test_what_further_pairs_would_tell():
    rng = np.random.default_rng(0)
    found = estimate(np.exp(rng.normal(0, 0.05, 10)), np.exp(rng.normal(0, 0.05, 10)), 4)
    more = found.pairs_for(0.03)
    assert not found.resolved and 20 < found.pairs + more < 80
    assert found.pairs_for(0.9) == 0


@pytest.mark.parametrize(
    "ratio, low, high, text",
    [
        (5.0, 4.5, 5.7, "×5.0 [4.5 … 5.7]"),
        (1.01, 0.97, 1.05, "×1.01 [0.97 … 1.05]"),
        (1.003, 1.002, 1.004, "×1.003 [1.002 … 1.004]"),
        (8.81, 8.80, 8.83, "×8.81 [8.80 … 8.83]"),
    ],
)
def test_the_ends_of_an_interval_are_told_apart(ratio, low, high, text):
    assert factor_text(ratio, low, high) == text
