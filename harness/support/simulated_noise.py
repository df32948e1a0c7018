"""How long made-up steps and waits take: the noise of real machines, seeded by who uses it."""

from collections.abc import Callable

import numpy as np

Series = Callable[[np.random.Generator, int], np.ndarray]  # milliseconds of n steps


def normal(mean: float, relative: float = 0.04) -> Series:
    return lambda rng, n: np.maximum(0.2 * mean, rng.normal(mean, relative * mean, n))


def lognormal(mean: float, sigma: float = 0.6) -> Series:
    """Long-tailed: storage, the network, a shared machine."""
    return lambda rng, n: rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, n)


def bimodal(low: float, high: float, share: float, relative: float = 0.05) -> Series:
    """Two kinds of steps, mixed at random: bucketed lengths, gradient accumulation."""

    def make(rng, n):
        return np.where(rng.random(n) < share, high, low) * rng.normal(1, relative, n)

    return make


def bursts(period: int, ms: float, relative: float = 0.15) -> Series:
    """Nothing but for every `period`th step: workers that deliver at once, a hook each n steps."""

    def make(rng, n):
        values = np.zeros(n)
        values[period - 1 :: period] = ms
        return values * np.maximum(0.2, rng.normal(1, relative, n))

    return make


def wandering(mean: float, relative: float = 0.2, memory: float = 0.97) -> Series:
    """Autocorrelated noise: neighbours on the machine come and go."""

    def make(rng, n):
        steps = rng.normal(0, relative * np.sqrt(1 - memory**2), n)
        level = rng.normal(0, relative)
        values = np.empty(n)
        for i in range(n):
            level = memory * level + steps[i]
            values[i] = level
        return mean * np.maximum(0.3, 1 + values)

    return make


def drifting(first: float, last: float, relative: float = 0.05) -> Series:
    return lambda rng, n: np.linspace(first, last, n) * np.maximum(0.2, rng.normal(1, relative, n))
