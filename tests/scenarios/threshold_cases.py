"""A loss that stays near its threshold and crosses it by noise: one state, or none."""

from collections.abc import Callable, Iterator

import numpy as np
from generated_runs import Generated
from scenario_cases import H200, Case

# cause -> what of a step it takes, and the share (%) from which it is told by default
CAUSES = {"host_stall": ("callback_ms", 5.0), "input_bound": ("wait_ms", 7.5)}
STEP_MS = 10
STEPS = 4000

Noise = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def even(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    return mean * rng.normal(1, 0.3, len(mean))


def waves(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Slowly up and down by 15 %, as on a machine that others use, too."""
    turns = rng.uniform(3, 9) * 2 * np.pi * np.arange(len(mean)) / len(mean)
    return mean * (1 + 0.15 * np.sin(turns + rng.uniform(0, 6))) * rng.normal(1, 0.2, len(mean))


def skewed(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    return mean * rng.lognormal(-0.125, 0.5, len(mean))


def every_fifth(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(mean)) % 5 == 0, 5 * mean * rng.normal(1, 0.2, len(mean)), 0)


def run_of(cause: str, pattern: list[float], noise: Noise, seed: int) -> Generated:
    """Equal parts in which the cause takes these multiples of its threshold."""
    part, threshold = CAUSES[cause]
    run = Generated(seed=seed, gpus=[H200], noise=0.2)
    share = np.repeat(np.array(pattern) * threshold / 100, STEPS // len(pattern))
    lost = noise(run.rng, STEP_MS * share / (1 - share))
    run.steps(len(lost), step_ms=STEP_MS, **{part: np.maximum(lost, 0)})
    return run


def near_threshold() -> Iterator[Case]:
    """Labelled: a little above all along, above in one half, a little below, and two stretches."""
    patterns = {
        "a little above, all along": ([1.12], [(0, STEPS)]),
        "a little above, first half": ([1.15, 0.0], [(0, STEPS // 2)]),
        "twice as much, in two stretches": (
            [0.4, 2, 0.4, 2, 0.4],
            [(STEPS // 5, 2 * STEPS // 5), (3 * STEPS // 5, 4 * STEPS // 5)],
        ),
        "a little below": ([0.9], []),
    }
    for cause in CAUSES:
        for noise in (even, waves, skewed, every_fifth):
            for name, (pattern, spans) in patterns.items():

                def build(cause=cause, pattern=pattern, noise=noise, spans=spans):
                    return run_of(cause, pattern, noise, 21), {cause: spans} if spans else {}

                yield Case(
                    f"{cause}, {noise.__name__.replace('_', ' ')}, {name}", build, "one cause" if spans else "healthy"
                )
