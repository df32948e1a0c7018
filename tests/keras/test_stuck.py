"""A training without a step: named while it waits, told when it goes on, kept as a finding; nothing else is."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fit_truth import BATCH, WIDTH, traced
from waiting import flush_often, wait_until

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recorder import stuck_watch
from gpu_util_callback.recorder.process_time import Reading
from gpu_util_callback.recorder.stuck_watch import StuckWatch, first_to_stop
from gpu_util_callback.recording.segments import SampleBlock
from gpu_util_callback.steps.timeline import Timeline

LIMIT_S = 0.8
STUCK = {"stuck": {"no_step_s": LIMIT_S, "times_p99": 1}}
pytestmark = [
    pytest.mark.real_clock("a training waits for a second"),
    pytest.mark.skipif(sys.platform != "linux", reason="what threads wait for is Linux's to say"),
]


class Told(list):
    """What a training's `on_stuck` was called with."""

    def __init__(self) -> None:
        self.came = threading.Event()

    def append(self, event: dict) -> None:
        super().append(event)
        self.came.set()

    @property
    def begun(self) -> int:
        return sum(not event["over"] for event in self)


def wait_for_help(told: Told) -> None:
    """Wait for something until somebody has noticed."""
    began, until = told.begun, time.monotonic() + 60
    while told.begun == began:
        assert time.monotonic() < until
        time.sleep(0.02)


def batches(told: Told | None = None, count: int = 60, at: int = 40):
    for number in range(count):
        if number == at and told is not None:
            assert told.came.wait(60)
        time.sleep(0.01)
        yield np.zeros((BATCH, WIDTH), "float32"), np.zeros((BATCH, 1), "float32")


def trained_loop(log_dir, told, *pauses):
    """Train 60 steps, with a pause at step 40, and at each fifth one after it."""
    with GpuUtilMonitor(log_dir, thresholds=STUCK, on_stuck=told.append, report=False) as monitor:
        for number, _ in enumerate(monitor.batches(batches())):
            at = (number - 40) // 5
            if number == 40 + 5 * at and 0 <= at < len(pauses):
                pauses[at](monitor, told)


def test_a_fit_whose_input_hangs_is_named_and_goes_on(tmp_path, monkeypatch, capsys):
    flush_often(monkeypatch)
    told = Told()
    callback = GpuUtilCallback(str(tmp_path), thresholds=STUCK, on_stuck=told.append)
    traced().fit(batches(told), verbose=0, callbacks=[callback])
    begins, ends = wait_until(lambda: len(told) > 1 and told)
    assert not begins["over"] and ends["over"]
    assert begins["text"].startswith("no step for ") and "(a step takes " in begins["text"]
    assert "`batches` at test_stuck.py:" in begins["text"]
    assert ends["text"].startswith("steps go on, after ")
    assert f"gpu-util: {begins['text']}" in capsys.readouterr().err
    (run,) = logdir_report(read_recordings(tmp_path))["runs"]
    (span,) = [span for span in run["spans"] if span["cause"] == "stuck"]
    assert span["start_step"] == 40 and span["lost_s"] == pytest.approx(run["stuck_s"]) and run["stuck_s"] >= LIMIT_S
    assert (span["end_ns"] - span["start_ns"]) / 1e9 == pytest.approx(run["stuck_s"], abs=0.5)
    assert sum(one["lost_s"] or 0 for one in run["spans"] if one["cause"] == "input_bound") < span["lost_s"]
    (recording,) = read_recordings(tmp_path)
    stacks = next(tmp_path.rglob("stuck-1.txt")).read_text()
    assert "training thread (MainThread), the innermost call first:" in stacks and "in batches" in stacks
    assert recording.facts["step_watch"]["standstills"][0]["stacks"] == "stuck-1.txt"


def in_callback(monitor, told):
    with monitor.phase("upload"):
        wait_for_help(told)


def in_thread(monitor, told):
    thread = threading.Thread(target=wait_for_help, args=(told,))
    thread.start()
    thread.join()


def test_a_loop_that_hangs_says_at_which_line(tmp_path):
    told = Told()
    trained_loop(tmp_path, told, in_callback, in_thread)
    places = [event["place"] for event in told if not event["over"]]
    assert ["`wait_for_help`" in places[0], "`in_thread`" in places[1]] == [True, True]
    assert all("at test_stuck.py:" in place for place in places)


def saves(monitor, told):
    with monitor.phase("checkpoint"):
        time.sleep(2 * LIMIT_S)


def validates(monitor, told):
    with monitor.phase("validation"):
        time.sleep(2 * LIMIT_S)


def computes(monitor, told):
    until, numbers = time.monotonic() + 2 * LIMIT_S, [1.0]
    while time.monotonic() < until:
        numbers = [number / 2 + sum(numbers) for number in range(100)]
        numbers = sorted(number % 7 for number in numbers)


def test_what_takes_its_time_is_not_stuck(tmp_path):
    told = Told()
    trained_loop(tmp_path, told, saves, validates, computes)
    assert told == []
    (run,) = logdir_report(read_recordings(tmp_path))["runs"]
    assert run["stuck_s"] == 0


def test_a_training_that_ends_without_another_step(tmp_path, capsys):
    told = Told()
    with pytest.raises(KeyboardInterrupt), GpuUtilMonitor(tmp_path, thresholds=STUCK, on_stuck=told.append) as monitor:
        for number, _ in enumerate(monitor.batches(batches())):
            if number == 40:
                wait_for_help(told)
                raise KeyboardInterrupt
    (run,) = logdir_report(read_recordings(tmp_path))["runs"]
    assert run["verdict"].startswith("No step for ") and "stuck-1.txt" in run["spans"][0]["advice"]["text"]
    assert run["headline"]["cause"] == "stuck" and run["headline"]["saves_s"] == 0
    assert main(["report", str(tmp_path), "--check", "--max-stuck", "10m"]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--max-stuck", "0.5s"]) == 1
    assert "no step for" in capsys.readouterr().out


def test_an_error_in_the_programs_own_function_is_logged_once(tmp_path, heard, caplog):
    def fails(event):
        calls.append(event)
        raise ValueError("no such channel")

    calls = Told()
    with GpuUtilMonitor(tmp_path, thresholds=STUCK, on_stuck=fails, report=False) as monitor:
        for number, _ in enumerate(monitor.batches(batches())):
            if number == 40:
                wait_for_help(calls)
    wait_until(lambda: len(calls) > 1)
    wait_until(lambda: "no such channel" in caplog.text)
    assert caplog.text.count("on_stuck: raised ValueError: no such channel") == 1


# ---- the watch alone, by a clock of the test -----------------------------------------------------


@pytest.fixture
def watch(monkeypatch):
    """A watch of this thread after 100 steps of 10 ms, and the time that passes for it."""
    now = [10**12]
    monkeypatch.setattr(stuck_watch, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    files: dict[str, bytes] = {}
    timeline = Timeline(lambda: now[0])
    limits = {"no_step_s": 30, "times_p99": 20}
    made = StuckWatch(timeline, threading.current_thread, lambda: None, 0, limits, files.__setitem__, lambda: 100)
    made.add({"steps": {"duration_ns": np.full(100, 10_000_000)}}, [])

    def passes(seconds, stopped=False, pause_s=0.25, waits=None, cpu_s=0.0):
        """Let a time pass for one look; `waits`: how often this thread asked for Python's lock."""
        before = Reading(now[0], 0, 0)
        now[0] += round(1e9 * seconds)
        after = Reading(now[0], round(1e9 * cpu_s), 0 if waits is None else waits)
        return made.look(before, after, pause_s, stopped)

    made.passes, made.files = passes, files
    return made


def until_named(watch, most_s):
    for quarter in range(round(4 * most_s)):
        found = watch.passes(0.25)
        if found is not None:
            return quarter / 4, found
    return None, None


def test_the_limit_is_half_a_minute_or_twenty_steps(watch):
    seconds, found = until_named(watch, 60)
    assert 29 < seconds < 31 and found["step_ms"] == 10 and found["step"] == 100
    assert watch.files["stuck-1.txt"]
    assert watch.passes(100) is None, "it is said once"
    assert watch.facts()["seconds"] == pytest.approx(35, abs=2), "a thread that slept knows of a few seconds"
    watch.timeline.cursor += 200 * 10**9
    assert watch.passes(0.25)["end_ns"] == watch.timeline.cursor
    assert not watch.facts()["still"]
    watch.add({"steps": {"duration_ns": np.full(4096, 4 * 10**9)}}, [])
    assert watch.limit_ns == 80e9


def test_time_in_which_the_process_was_stopped_does_not_count(watch):
    for _ in range(4):
        assert watch.passes(3600, stopped=True) is None
    assert until_named(watch, 25)[0] is None


def test_a_pause_that_ended_by_itself_is_allowed_twice(watch):
    for _ in range(100):
        watch.passes(0.25)
    watch.timeline.cursor += 1
    watch.passes(0.25)
    assert 48 < until_named(watch, 60)[0] < 52


def test_before_the_first_step_more_patience_is_due(watch):
    watch._durations["steps"] = np.zeros(0, np.int64)
    assert 295 < until_named(watch, 310)[0] < 305


def test_a_gpu_that_works_is_waited_for(watch):
    watch.gpus = lambda: [0]
    busy = SampleBlock("gpu0", ("utilization_pct",), np.array([10**13]), np.array([[99.0]]))
    watch.add({}, [busy])
    assert until_named(watch, 250)[0] is None
    assert 40 < until_named(watch, 100)[0] < 60
    assert watch.facts()["standstills"][0]["gpu_active_pct"] == 99


def test_python_s_lock_in_c_code(watch):
    asks = 40 / sys.getswitchinterval()
    assert watch.passes(40, waits=0) is None, "a machine without a free core"
    assert watch.passes(40, waits=asks, cpu_s=30) is None, "it computed"
    found = watch.passes(40, waits=asks)
    assert found["thread"] == "lock" and found["seconds"] == pytest.approx(39.75)
    assert watch.facts()["seconds"] == pytest.approx(39.75) and not watch.facts()["still"]


def test_a_job_waits_for_a_rank_that_validates_and_names_the_one_that_stopped(watch):
    others = [{"rank": 1, "step_watch": {"doing": "validation", "still": False, "steps": 99}}]
    watch.ranks, watch.others = lambda: 2, lambda: others
    assert until_named(watch, 100)[0] is None
    others[0]["step_watch"]["doing"] = ""
    _, found = until_named(watch, 100)
    assert found["first_rank"] == 1
    assert first_to_stop(99, others) is None
