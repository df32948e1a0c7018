"""Calls within the steps that do not train, such as a garbage collection, on a machine without a GPU too."""

import copy
import sys
import threading
import types

import pytest
from generated_runs import GPU, Generated

from gpu_util_callback.steps.dispatch import DispatchWatch, LineCalls

PROGRAM = """\
import copy, gc, json
import torch_stand_in as torch
def step(model, x, averages):
    gc.collect()
    for e, p in zip(averages, x): e.mul_(0.9).add_(p)
    y = torch.relu(x)
    loss = model(x)
    loss.item()
    if len(x) > 3: gc.collect()
    total = float(y) + 1
    print(len(x))
    z = x @ y
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "program_of_steps.py"
    path.write_text(PROGRAM)
    torch = types.ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch_stand_in", torch)
    module = types.ModuleType("program_of_steps")
    module.__file__ = str(path)
    exec(compile(PROGRAM, str(path), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize(
    ("line", "call"),
    [(4, "gc.collect"), (5, "add_"), (6, ""), (7, ""), (8, ""), (9, "gc.collect"), (10, ""), (11, "print"), (12, "")],
)
def test_only_calls_that_are_surely_no_training_are_named(program, line, call):
    assert LineCalls().of(program.step.__code__, line) == call


def test_what_a_line_of_the_program_calls_is_named_by_its_package():
    """`copy.deepcopy` has frames of its own; a thread stands still in it while it is looked at."""
    inside, go_on = threading.Event(), threading.Event()

    class Copied:
        def __reduce_ex__(self, protocol):
            inside.set()
            while not go_on.wait(0.01):
                pass
            return "Copied"

    thread = threading.Thread(target=copy.deepcopy, args=([Copied()],))
    thread.start()
    assert inside.wait(30)
    watch = DispatchWatch("torch", thread.ident, lambda: True)
    watch.look(2.0)
    watch.look()
    go_on.set()
    thread.join()
    found = watch.aside()
    assert found["samples"] == 2 and found["aside"] == 1 and found["at_line"] == 1
    assert found["calls"] == "threading.Event.wait" and "__reduce_ex__" in found["at"]


def looped(aside: float, calls="gc.collect", gpus=(), **steps) -> Generated:
    fit = {"loop": "custom", "input_kind": "generator"}
    facts = {"samples": 100, "aside": aside, "at": "train (train.py, line 17)", "calls": calls, "at_line": 1.0}
    run = Generated(
        seed=3, gpus=list(gpus), framework={"name": "torch", "backend": "torch"}, fit={**fit, "python_in_steps": facts}
    )
    run.steps(300, step_ms=20, **steps)
    return run


@pytest.mark.parametrize("calls", ["gc.collect", "copy.deepcopy", "add_"])
def test_they_are_named_with_their_line(calls):
    run = looped(0.8, calls)
    found = run.diagnose()
    [span] = [one for one in found["spans"] if one["cause"] == "host_stall"]
    assert found["verdict"].startswith(f"{calls} in each step stalls training: 4.8 s of 6.0 s.")
    assert span["evidence"]["own_python_at"] == "train (train.py, line 17)"
    assert span["lost_s"] == pytest.approx(4.8, rel=0.02)
    assert span["advice"]["question"] == (calls != "gc.collect")
    assert (span["saves_s"] > 0) == (calls == "gc.collect"), "what else might be left out is asked"


@pytest.mark.parametrize(
    "run",
    [
        looped(0.15),
        looped(0.8, gpus=[GPU]),  # the GPU is at work meanwhile
        looped(0.0),
    ],
)
def test_they_are_none_where_they_are_rare_or_the_gpu_works(run):
    assert not run.findings("host_stall")


def test_of_a_busy_gpu_only_the_idle_time_is_lost():
    [span] = looped(0.8, gpus=[GPU], gpu_share=0.3).findings("host_stall")
    assert span["lost_s"] == pytest.approx(0.7 * 6, rel=0.15)
