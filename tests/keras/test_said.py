"""What the user is told of things that are missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpu_util_callback.profiling.schedule import Planner, TraceSchedule
from gpu_util_callback.recorder.messages import off
from gpu_util_callback.recorder.recorder import Recorder


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("input wait", "input wait is off"),
        ("input wait of validation", "input wait of validation is off"),
        ("the recording", "the recording is off"),
        ("the diagnosis", "the diagnosis is off"),
        ("the scalars' first step", "the scalars' first step is off"),
        ("profiler windows", "profiler windows are off"),
        ("facts about the model", "facts about the model are off"),
        ("the cost of recording a step", "the cost of recording a step is off"),
    ],
)
def test_one_is_off_and_several_are(source, said):
    assert off(source) == said


@pytest.mark.parametrize(("loop", "name"), [("custom", "GpuUtilMonitor"), (None, "GpuUtilCallback")])
def test_a_loop_is_told_of_the_monitor_that_it_uses(loop, name):
    planner = Planner(TraceSchedule.of([(500, 505)]), 0.01, 1.0)
    planner.begin(0, 100, 1, [])
    reason, cure = planner.why_none(10**9)
    told = Recorder._in_own_words(
        SimpleNamespace(facts={"fit": {"loop": loop}}), {"source": "profiler windows", "reason": reason, "cure": cure}
    )
    assert told["cure"].startswith(f"{name}(trace=[(") and told["reason"] == reason
