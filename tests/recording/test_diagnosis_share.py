"""How often a recorder diagnoses: a long training with many spans pays no larger share for it."""

from __future__ import annotations

import time

from gpu_util_callback.recorder.outputs import DIAGNOSIS_SHARE, Outputs
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recording.clock import Clock

FLUSH_NS = 1_500_000_000


class Slow:
    """A diagnosis of a tenth of a second."""

    def __init__(self):
        self.added, self.done = 0, []

    def add(self, tables, samples):
        self.added += 1

    def result(self, facts, start_ns, now_ns, ended):
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        self.done.append(now_ns)
        return {}


def test_a_diagnosis_that_takes_long_is_made_less_often(tmp_path):
    outputs = Outputs(Settings(log_dir=str(tmp_path), report=False), Clock(), fail)
    slow = outputs._diagnosis = Slow()
    flushes = 60
    for number in range(flushes):
        outputs.diagnose({}, [], {}, 0, number * FLUSH_NS, last=False)
    assert slow.added == flushes  # whatever is due
    assert slow.done[:2] == [0, FLUSH_NS]  # the first one may only have imported
    apart = [b - a for a, b in zip(slow.done[1:], slow.done[2:], strict=False)]
    assert len(apart) > 1 and min(apart) >= 0.1e9 / DIAGNOSIS_SHARE
    outputs.diagnose({}, [], {}, 0, flushes * FLUSH_NS, last=True)
    assert slow.done[-1] == flushes * FLUSH_NS  # the last one is made in any case


def fail(*problem):
    raise AssertionError(problem)
