"""What the user is told of things that are missing."""

from __future__ import annotations

import pytest

from gpu_util_callback.profiling.schedule import Planner, TraceSchedule
from gpu_util_callback.recorder.messages import off


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


def test_a_cure_is_an_argument_of_callback_and_monitor_alike():
    planner = Planner(TraceSchedule.of([(500, 505)]), 0.01, 1.0)
    planner.begin(0, 100, 1, [])
    _, cure = planner.why_none(10**9)
    assert cure.startswith("trace=[(")
