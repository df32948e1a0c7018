"""Eleven sets of programs of strangers' kinds, written by somebody who had not read the rules.

Each is a program of its own: `python -m gauntlet.blind.first.NAME [plain|without|remedy [LOGS]]`; `without` leaves the
cause out (of a healthy one the noise that may mislead), `remedy` applies what a user could, where that is another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from gauntlet.child import Run


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the children it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Stranger(Run):
    """A training as its program sees it; the clock starts when it asks for a callback, or calls `start`."""

    began_cpu_s = 0.0

    def start(self) -> None:
        """Start the clock, unless it runs."""
        if self.began_s is None:
            self.began_cpu_s, self.began_s = cpu_s(), time.perf_counter()

    def traced(self, steps: int) -> list:
        self.start()
        return super().traced(steps)

    def monitor(self, steps: int = 0) -> Any:
        self.start()
        return super().monitor(steps)


def main(train: Callable[[Stranger], object]) -> None:
    """Train as the command line asks, and print the wall-clock and CPU seconds as JSON."""
    run = Stranger(*(sys.argv[1:2] or ["plain"]), log_dir=sys.argv[2] if len(sys.argv) > 2 else None)
    train(run)
    assert run.began_s is not None, "the program never started the clock"
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"wall_s": time.perf_counter() - run.began_s, "cpu_s": cpu_s() - run.began_cpu_s}))
