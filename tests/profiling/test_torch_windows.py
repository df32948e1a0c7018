"""Windows of real fits on PyTorch, in a process of their own (a process has one Keras backend)."""

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fork_server import python
from packages import need
from programs import ran

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

pytestmark = pytest.mark.real_clock("steps are told apart by the 30 ms that every second batch takes")

PROGRAM = Path(__file__).with_name("torch_program.py")
SLOW_NS = 30_000_000  # what every second batch takes at least, the even ones
CLOSE_NS = SLOW_NS / 2  # nearer to its own step than to the next


@cache
def trained(folder):
    """The folder with what the program recorded, and what it printed."""
    folder.mkdir()
    done = ran(*python("keras"), PROGRAM, folder, env={**os.environ, "KERAS_BACKEND": "torch"}, timeout=400)
    assert "USDT" not in done.stderr  # Kineto is kept quiet
    return folder, json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def result(request, tmp_path_factory):
    """One run for all tests; a new one for a test that is run again."""
    need("torch", "keras")
    attempt = getattr(request.node, "execution_count", 1)
    return trained(tmp_path_factory.getbasetemp() / f"torch-windows-{attempt}")


@pytest.fixture
def found(result):
    return result[1]


def test_windows_on_torch(found):
    plain = found["plain"]
    assert (plain["steps"], plain["window"]) == ([3, 4, 5, 8], [0, 0, 0, 1])
    assert plain["reasons"] == []
    assert (plain["status"], plain["trained"], plain["left"]) == ("ended", 12, False)
    assert [w.get("profile") for w in plain["windows"]] == [None, None]  # the Profile tab reads XPlane
    assert plain["windows_s"] == pytest.approx(sum(w["cost_s"] for w in plain["windows"]), abs=1e-2)


def test_none_that_nobody_asked_for(found):
    unasked = found["unasked"]
    assert unasked["windows"] == [] and unasked["status"] == "ended"
    assert any("only on request" in reason for reason in unasked["reasons"])


@pytest.mark.parametrize("name", ["plain", "epochs", "again", "loop"])
def test_a_traced_step_is_the_recorded_step(found, name):
    """From the request for its batch, and with the wait for it as idle for input."""
    run = found[name]
    assert run["steps"]
    assert np.median(np.abs(run["late_ns"])) < CLOSE_NS
    for step, idle_ns, traced_ns in zip(run["steps"], run["idle_input_ns"], run["traced_ns"], strict=True):
        assert idle_ns <= traced_ns
        if step % 2 == 0:
            assert idle_ns >= 0.99 * SLOW_NS, (step, run)
    apart = np.abs(np.array(run["idle_input_ns"]) - np.array(run["input_wait_ns"]))
    assert np.median(apart) < CLOSE_NS


def test_the_file_is_kept_for_other_tools(result):
    folder, found = result
    files = [folder / "plain" / name for name in found["plain"]["files"]]
    steps = []
    for file in files:
        (process,) = analyse(read_trace(file)).processes
        assert process.steps.basis == "marker"
        steps += process.steps.label.tolist()
    assert sorted(steps) == [3, 4, 5, 8]


def test_redacted_runs_keep_no_file_that_names_processes(found):
    assert found["again"]["steps"] == [3, 4, 5]
    assert found["again"]["files"] == []


def test_windows_over_epochs_and_validation(found):
    epochs = found["epochs"]
    assert epochs["trained"] == 36
    assert epochs["steps"] == [*range(10, 14), *range(22, 30)]  # 12 steps each


@pytest.mark.parametrize("name", ["beside", "beside_thread", "warm_up", "held"])
def test_somebody_elses_profile_is_left_alone(found, name):
    run = found[name]
    assert (run["status"], run["trained"]) == ("ended", 12)
    assert run["theirs"] >= 10
    assert run["steps"] == []
    assert "another profiler was running" in run["reasons"][0]
    assert run["left"] == (name == "held")  # which ends after the fit


@pytest.mark.parametrize("name", ["interrupted", "broken_input", "left_loop"])
def test_a_window_that_was_left_open_is_closed(found, name):
    run = found[name]
    assert run["status"] == "interrupted"
    assert not run["left"]
    assert run["steps"][:2] == [3, 4]
    assert max(run["steps"]) <= 5


def test_a_profile_on_a_thread_that_the_training_waits_for(found):
    """Nobody can end ours in time: theirs works, training continues, and no window opens again."""
    assert found["joined"]["theirs"] >= 10
    assert (found["joined"]["status"], found["joined"]["trained"]) == ("ended", 12)
    after = found["after_joined"]
    assert (after["status"], after["trained"], after["steps"]) == ("ended", 12, [])
    assert "another thread" in after["reasons"][0]


def test_a_window_does_not_end_within_a_backward_pass(found):
    """Which would put it back afterwards, to record for ever."""
    run = found["in_backward"]
    assert (run["yielded"], run["left"]) == ([True], False)
    assert run["theirs"] >= 1


def test_other_threads_than_the_main_one_get_no_windows_and_are_told_why(found):
    run = found["thread"]
    assert (run["status"], run["trained"], run["steps"]) == ("ended", 12, [])
    (reason,) = run["reasons"]
    assert "main thread" in reason
