"""The stand-in's GPU in a profiler's file: what is read of it is what was drawn."""

import json

import pytest
from evidence.standin_trace import Played, draw
from xspace_builder import Space

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

STEPS, LONG_US = 4, 10_000


def xspace():
    space = Space()
    thread = space.host.line("python", 7)
    for step in range(STEPS):
        thread.event("train", 1.0 * LONG_US * step, LONG_US, step_num=step, _r=1)
    return "window.xplane.pb", space.bytes()


def kineto():
    marks = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "pid": 9,
            "tid": 9,
            "ts": 5e9 + LONG_US * step,
            "dur": LONG_US,
            "args": {},
        }
        for step in range(STEPS)
    ]
    trace = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": marks}
    return "window.pt.trace.json", b" " + json.dumps(trace).encode()  # as torch does


PLAYED = {
    "busy": Played(),
    "tiny": Played(kernels=150, share=0.22, queued=False),
    "copies": Played(kernels=2, copy=0.7, share=0.24),
    "starved": Played(idle=0.66, share=0.33),
}


@pytest.mark.parametrize("build", [xspace, kineto])
@pytest.mark.parametrize(
    ("played", "category", "share"),
    [
        ("busy", "kernel", 0.97),
        ("tiny", "kernel", 0.22),
        ("tiny", "idle_launch", 0.78),
        ("copies", "copy_h2d", 0.7),
        ("starved", "kernel", 0.33),
    ],
)
def test_a_drawn_gpu_does_what_it_plays(tmp_path, build, played, category, share):
    name, data = build()
    file = tmp_path / name
    file.write_bytes(draw(name, data, PLAYED[played]))
    [process] = analyse(read_trace(str(file))).processes
    [device] = process.devices
    assert len(process.steps) == STEPS
    whole = (process.steps.end_ps - process.steps.start_ps).sum()
    assert device.account.steps[category].sum() / whole == pytest.approx(share, abs=0.02)
