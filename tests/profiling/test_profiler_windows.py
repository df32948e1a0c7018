"""Windows of a fit with a made-up profiler: what they leave, and when they open and close."""

import threading
import time

import pytest
from fake_profiler import Door, FakeProfiler, Reader, fit, kernel_times_ms, rows, tables_of, train


def test_a_window_becomes_rows_scalars_and_a_profile(make, tmp_path):
    reader = Reader()
    windows, profiler = make(reader=reader)
    before = time.time_ns()
    (result,) = fit(windows, 10)
    assert windows.drain() == []
    assert windows.unavailable == []
    assert tuple(result.facts[name] for name in ("window", "first_step", "stop_step")) == (0, 3, 6)
    assert profiler.marks == [(step, what) for step in (3, 4, 5) for what in ("open", "close")]
    assert profiler.stopped_on[0] is not threading.main_thread()
    tables = tables_of(result)
    assert list(tables["traced_steps"]["step"]) == [3, 4, 5]  # rows of other steps are not ours
    assert list(tables["traced_steps"]["batches"]) == [1, 1, 1]
    assert list(tables["kernels"]["window"]) == [0]
    phase = tables["phases"]
    assert list(phase["kind"]) == ["profiler_window"]
    assert list(phase["account"]) == [""]
    assert before <= result.facts["start_ns"] < result.facts["end_ns"] <= time.time_ns() + 10_000_000
    assert kernel_times_ms(result) == [(3, "gpu0", 2.0), (4, "gpu0", 2.0), (5, "gpu0", 2.0)]
    assert result.facts["cost_s"] >= 0.2
    assert windows.cost_s == pytest.approx(result.facts["cost_s"], abs=1e-4)
    (file,) = (tmp_path / "logs" / "plugins" / "profile").glob("*/*")
    assert file.name == "host.xplane.pb"
    assert file.parent.name == result.facts["profile"]


@pytest.mark.parametrize("device", [False, True])
def test_the_training_thread_ends_the_recording_and_with_a_gpu_the_profile_too(make, tmp_path, device):
    windows, profiler = make(trace=[(1, 3), (4, 6)], profiler=FakeProfiler(Door(), device=device, stop_s=0.05))
    results = sorted(fit(windows, 8), key=lambda result: result.facts["window"])
    assert [(result.facts["first_step"], result.facts["stop_step"]) for result in results] == [(1, 3), (4, 6)]
    assert profiler.halted == [(threading.main_thread(), True)] * 2
    assert [thread is threading.main_thread() for thread in profiler.stopped_on] == [device] * 2
    assert len(list((tmp_path / "logs" / "plugins" / "profile").iterdir())) == 2, "each in its own folder"


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


def test_several_batches_in_a_call_share_their_kernel_time(make):
    windows, _ = make(trace=[(4, 8)], reader=Reader(rows([4])))
    windows.begin(steps_per_call=4)
    for step in range(0, 16, 4):
        windows.step_begins(step)
    windows.close(5)
    (result,) = windows.drain()
    assert (result.facts["first_step"], result.facts["stop_step"]) == (4, 8)
    assert kernel_times_ms(result) == [(4, "gpu0", 0.5)]


def test_the_input_may_end_without_notice(make):
    windows, _ = make(trace=[(3, 6)])
    windows.begin()
    train(windows, 5)  # the call of step 4 delivers no batch
    windows.steps_pause(4)
    train(windows, 6, begin=4)
    windows.close(5)
    first, second = sorted(windows.drain(), key=lambda r: r.facts["window"])
    assert list(first.tables["traced_steps"]["step"]) == [3]
    assert list(second.tables["traced_steps"]["step"]) == [4, 5]


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
