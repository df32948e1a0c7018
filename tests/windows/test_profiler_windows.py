"""Windows of a fit with a made-up profiler: what they leave, and when they open and close."""

import threading
import time

import pytest
from fake_profiler import Door, FakeProfiler, Reader, fit, kernel_times_ms, reasons, rows, tables_of, train
from waiting import wait_until

from gpu_util_callback.profiling.schedule import TraceSchedule


def test_a_window_becomes_rows_scalars_and_a_profile(make, tmp_path):
    reader = Reader()
    windows, profiler = make(reader=reader)
    before = time.time_ns()
    (result,) = fit(windows, 10)
    assert windows.drain() == []
    assert windows.unavailable == []
    assert (result.window, result.first_step, result.stop_step) == (0, 3, 6)
    assert profiler.marks == [(step, what) for step in (3, 4, 5) for what in ("open", "close")]
    assert profiler.stopped_on[0] is not threading.main_thread()
    tables = tables_of(result)
    assert list(tables["traced_steps"]["step"]) == [3, 4, 5]  # rows of other steps are not ours
    assert list(tables["traced_steps"]["batches"]) == [1, 1, 1]
    assert list(tables["kernels"]["window"]) == [0]
    phase = tables["phases"]
    assert list(phase["kind"]) == ["profiler_window"]
    assert list(phase["account"]) == [""]
    assert before <= result.start_ns < result.end_ns <= time.time_ns() + 10_000_000
    assert kernel_times_ms(result) == [(3, "gpu0", 2.0), (4, "gpu0", 2.0), (5, "gpu0", 2.0)]
    assert result.cost_s >= 0.2
    assert windows.cost_s == result.cost_s
    assert [curve.gpu for curve in result.allocators] == [0]
    (file,) = (tmp_path / "logs" / "plugins" / "profile").glob("*/*")
    assert file.name == "host.xplane.pb"
    assert file.parent.name == result.profile


def test_the_training_thread_ends_the_recording_and_another_one_the_rest(make):
    windows, profiler = make(trace=[(1, 2), (3, 4)])
    fit(windows, 6)
    assert profiler.halted == [(threading.main_thread(), True)] * 2
    assert len(profiler.stopped_on) == 2


def test_with_a_gpu_the_training_thread_stops_the_profiler(make):
    profiler = FakeProfiler(Door(), device=True)
    windows, _ = make(trace=[(1, 3), (4, 6)], profiler=profiler)
    results = fit(windows, 8)
    assert profiler.stopped_on == [threading.main_thread()] * 2
    assert [result.profile is not None for result in results] == [True, True]


@pytest.mark.parametrize(
    ("fails", "reason"), [("stop", "it wrote nothing"), ("full", "OSError: [Errno 28] No space left on device")]
)
def test_with_a_gpu_a_profiler_that_cannot_be_stopped_is_reported(make, fails, reason):
    profiler = FakeProfiler(Door(), device=True, fails=fails)
    windows, _ = make(trace=[(1, 3)], profiler=profiler)
    assert fit(windows, 8) == []
    assert profiler.stopped_on == [threading.main_thread()]
    assert reasons(windows) == [reason]


def test_with_a_gpu_other_code_gets_the_profiler_once_the_gpu_has_been_waited_for(make):
    profiler = FakeProfiler(Door(), device=True)
    windows, _ = make(trace=[(1, 9)], profiler=profiler)
    windows.begin()
    train(windows, 3)
    profiler.doings.clear()
    profiler.door.start("theirs")
    assert profiler.door.running == "theirs"
    assert profiler.doings[0] == "settle"
    windows.close(5)


def test_windows_that_hold_up_the_training_have_a_limit_of_events_of_their_own(make):
    def limit(device=True, **kwargs):
        profiler = FakeProfiler(Door(), device=device)
        windows, _ = make(trace=TraceSchedule(first=3, **kwargs), profiler=profiler)
        windows.begin()
        return windows.planner.schedule.max_events

    assert limit() == 10_000
    assert limit(max_events=70_000) == 70_000
    assert limit(device=False) == TraceSchedule.max_events


def test_several_batches_in_a_call_share_their_kernel_time(make):
    windows, _ = make(trace=[(4, 8)], reader=Reader(rows([4])))
    windows.begin(steps_per_call=4)
    for step in range(0, 16, 4):
        windows.step_begins(step)
    windows.close(5)
    (result,) = windows.drain()
    assert (result.first_step, result.stop_step) == (4, 8)
    assert kernel_times_ms(result) == [(4, "gpu0", 0.5)]


def test_windows_one_after_the_other_are_waited_for_and_keep_their_own_folders(make, tmp_path):
    windows, profiler = make(trace=[(1, 2), (3, 4), (5, 6)], profiler=FakeProfiler(Door(), stop_s=0.05))
    results = sorted(fit(windows, 8), key=lambda r: r.window)
    assert [(r.first_step, r.stop_step) for r in results] == [(1, 2), (3, 4), (5, 6)]
    folders = sorted(p.name for p in (tmp_path / "logs" / "plugins" / "profile").iterdir())
    assert len(folders) == 3
    assert profiler.door.starts == 3


def test_the_input_may_end_without_notice(make):
    windows, _ = make(trace=[(3, 6)])
    windows.begin()
    train(windows, 5)  # the call of step 4 delivers no batch
    windows.steps_pause(4)
    train(windows, 6, begin=4)
    windows.close(5)
    first, second = sorted(windows.drain(), key=lambda r: r.window)
    assert list(first.tables["traced_steps"]["step"]) == [3]
    assert list(second.tables["traced_steps"]["step"]) == [4, 5]


def test_a_validation_closes_the_window(make):
    windows, profiler = make(trace=[(3, 9)])
    windows.begin()
    train(windows, 5)
    windows.steps_pause()
    wait_until(lambda: not profiler.door.running, 5)
    assert profiler.door.running is None
    assert profiler.marks[-1] == (4, "close")


def test_a_run_too_short_for_a_window_says_so(make):
    windows, profiler = make(trace="auto")
    fit(windows, 20, steps_per_epoch=20)
    assert profiler.door.starts == 0
    (entry,) = windows.unavailable
    assert "before the first window" in entry["reason"]
    assert "trace=[(10, 15)]" in entry["cure"]


def test_automatic_windows_open_once_their_guess_fits(make):
    windows, profiler = make(trace="auto", share=1.0)
    windows.begin(steps_per_epoch=2000)
    train(windows, 700)  # 1.4 s and more; 1 s is the first guess
    windows.close(5)
    results = windows.drain()
    assert results
    assert results[0].first_step * 0.002 <= 1.4
    assert profiler.door.starts >= 1
    assert windows.unavailable == []


def test_host_names_are_redacted(make, tmp_path):
    windows, _ = make(redact=lambda name: "somebody")
    fit(windows, 10)
    (file,) = (tmp_path / "logs" / "plugins" / "profile").glob("*/*")
    assert file.name == "somebody.xplane.pb"


@pytest.mark.real_clock("microseconds a step")
def test_a_step_costs_next_to_nothing_while_nothing_is_due(make):
    windows, _ = make(trace="auto")
    windows.begin(steps_per_epoch=100_000)
    best = 1e9
    for repeat in range(5):
        before = time.perf_counter()
        for step in range(repeat * 2000, repeat * 2000 + 2000):
            windows.step_begins(step)
        best = min(best, (time.perf_counter() - before) / 2000)
    assert best < 5e-6
