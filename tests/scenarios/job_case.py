"""How a made-up run is told: what happens in it, and the causes that are there."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from made_up_run import MadeUpRun
from scoring import Truth
from simulated_boards import H100
from simulated_jobs import Job


class Vary:
    """Numbers that differ from seed to seed, by at most a fifth either way."""

    def __init__(self, job: Job):
        self._rng = job.rng

    def __call__(self, value: float, by: float = 0.2) -> float:
        return value * self._rng.uniform(1 - by, 1 + by)

    def count(self, value: int, by: float = 0.2) -> int:
        return round(self(value, by))


@dataclass(frozen=True)
class Case:
    """A made-up run: `build()` makes it, and says which causes are in it ({}: it is healthy, however it looks)."""

    name: str
    build: Callable[[], tuple[MadeUpRun, Truth]]
    status: str = "ended"


def collect() -> tuple[list[Case], Callable]:
    """A list of cases and the decorator that fills it with jobs: `@case("name", board=T4)`.

    What is decorated, `play(job, vary)`, lets the job happen and returns the truth (None: healthy).
    """
    cases: list[Case] = []

    def case(name: str, *, status: str = "ended", **options):
        def keep(play):
            def build() -> tuple[Job, Truth]:
                job = Job(**{"board": H100, **options, "seed": zlib.crc32(name.encode())})
                return job, play(job, Vary(job)) or {}

            cases.append(Case(name, build, status))
            return play

        return keep

    return cases, case


def around(job, count, step_ms, *, idle=0.0, windows=2, kernels=300, **shares):
    """Training with windows in it; `idle`: the share of a step in which no kernel runs."""
    for _ in range(windows):
        job.train(count, gpu=step_ms * (1 - idle), host=step_ms * idle)
        job.window(6, step_ms, kernels=kernels, **shares)
    job.train(count, gpu=step_ms * (1 - idle), host=step_ms * idle)
