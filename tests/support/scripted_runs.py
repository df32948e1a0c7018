"""A clock that follows a script, and rows like those of a real run, for tests of recordings."""

import numpy as np

from gpu_util_callback.recording import Clock

MS = 1_000_000


class ScriptedTime:
    """A perf counter and a wall clock that only move when told to, both in nanoseconds."""

    def __init__(self, perf=1_000_000_000, wall=1_700_000_000_000_000_000):
        self.perf, self.wall = perf, wall

    def advance(self, seconds):
        self.perf += round(seconds * 1e9)
        self.wall += round(seconds * 1e9)

    def set_back(self, seconds):
        self.wall -= round(seconds * 1e9)

    def suspend(self, seconds):
        """The laptop's lid: the wall goes on, the monotonic clock does not."""
        self.wall += round(seconds * 1e9)

    def clock(self):
        return Clock(lambda: self.perf, lambda: self.wall)


def step_rows(count, first=0, start_ns=1_700_000_000_000_000_000, seed=0, step_ns=5 * MS):
    """int64 columns of `count` contiguous steps with the noise of a real machine."""
    random = np.random.default_rng(seed)

    def noise(mean):
        return random.gamma(2, mean / 2, count).astype(np.int64)

    wait, gpu_wait, callbacks, slack = noise(6_000), noise(900_000), noise(3_000), noise(1_500)
    body = step_ns - 1_000_000 + noise(60_000)
    duration = wait + gpu_wait + callbacks + slack + body
    starts = start_ns + np.concatenate([[0], np.cumsum(duration)[:-1]])
    return {
        "step": np.arange(first, first + count),
        "start_ns": starts,
        "duration_ns": duration,
        "input_get_ns": wait + noise(500),
        "input_wait_ns": wait,
        "compile_ns": np.zeros(count, np.int64),
        "body_ns": body,
        "gpu_wait_ns": gpu_wait,
        "callbacks_ns": callbacks,
        "batches": np.ones(count, np.int64),
        "estimated": np.zeros(count, np.int64),
        "shape_id": np.full(count, -1),
    }
