"""How a made-up job is told: a job, what happens in it, and the causes that are there."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

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
class JobCase:
    """A case: `play(job, vary)` lets the job happen and returns the truth ({} or None: healthy)."""

    name: str
    play: Callable[[Job, Vary], Truth | None]
    job: dict = field(default_factory=dict)
    status: str = "ended"

    def build(self, offset: int = 0) -> tuple[Job, Truth]:
        """The job as it happened, and the truth; another `offset` gives other numbers."""
        seed = zlib.crc32(self.name.encode()) + offset
        job = Job(**{"board": H100, **self.job, "seed": seed})
        return job, self.play(job, Vary(job)) or {}


def collect() -> tuple[list[JobCase], Callable]:
    """A list and the decorator that fills it: `@case("name", board=T4)`."""
    cases: list[JobCase] = []

    def case(name: str, *, status: str = "ended", **job):
        def keep(play):
            cases.append(JobCase(name, play, job, status))
            return play

        return keep

    return cases, case


def around(job, count, step_ms, *, idle=0.0, windows=2, kernels=300, **shares):
    """Training with windows in it; `idle`: the share of a step in which no kernel runs."""
    for _ in range(windows):
        job.train(count, gpu=step_ms * (1 - idle), host=step_ms * idle)
        job.window(6, step_ms, kernels=kernels, **shares)
    job.train(count, gpu=step_ms * (1 - idle), host=step_ms * idle)
