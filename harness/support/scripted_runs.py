"""A clock that follows a script, and rows like those of a real run, for tests of recordings."""

from collections.abc import Callable

import numpy as np
from made_up_rows import step_table

from gpu_util_callback.recording import Clock, RecordingWriter

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
    parts = {"input_wait_ns": wait, "gpu_wait_ns": gpu_wait, "callbacks_ns": callbacks, "body_ns": body}
    return step_table(start_ns, first, rest_ns=slack, input_get_ns=wait + noise(500), **parts)


class Killed(BaseException):
    """The end of a process, as `kill -9` brings it: nothing after it is done."""


def killed_at(writer: RecordingWriter, call: int) -> list[tuple]:
    """End a writer's process at its next write or removal of this number; return those before it, as they come."""
    storage, calls = writer._storage, []

    def until(real: Callable) -> Callable:
        def change(*arguments: object) -> object:
            if len(calls) + 1 == call:
                raise Killed
            calls.append(arguments)
            return real(*arguments)

        return change

    storage.write, storage.remove = until(storage.write), until(storage.remove)
    return calls
