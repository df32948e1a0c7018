"""Windows of a fit give way to whoever else wants the profiler."""

import time

from fake_profiler import Door, FakeProfiler, fit, reasons, train

from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.profiling.session import profile_claims


def test_somebody_who_profiles_keeps_the_profiler(make):
    windows, profiler = make()
    profiler.door.start("theirs")
    assert fit(windows, 10) == []
    assert profiler.door.running == "theirs"
    assert "another profiler was running" in reasons(windows)[0]


def test_somebody_who_starts_to_profile_gets_the_profiler(make, tmp_path):
    windows, profiler = make()
    windows.begin()
    train(windows, 5)
    assert profiler.door.running == "ours"
    profiler.door.start("theirs")  # raises, were ours still running
    assert profiler.door.running == "theirs"
    train(windows, 5, begin=5)
    windows.close(5)
    assert profiler.door.running == "theirs"
    assert windows.drain() == []
    assert "another profiler was running" in reasons(windows)[0]
    assert not (tmp_path / "logs").exists()


def test_somebody_who_asks_while_we_stop_waits_for_it(make):
    windows, profiler = make(profiler=FakeProfiler(Door(), stop_s=0.3))
    windows.begin()
    train(windows, 7)  # the window is being stopped on its thread
    time.sleep(0.1)
    assert profiler.door.running == "ours"
    profiler.door.start("theirs")
    assert profiler.door.running == "theirs"
    profiler.door.running = None
    windows.close(5)
    assert len(windows.drain()) == 1


def test_a_session_that_somebody_else_stopped_is_left_alone(make):
    windows, profiler = make(trace=[(3, 8)])
    windows.begin()
    train(windows, 5)
    profiler.door.running = "theirs"  # stopped ours, and started their own past our wrapper
    train(windows, 5, begin=5)
    windows.close(5)
    assert profiler.door.running == "theirs"
    assert profiler.stopped_on == []


def test_a_server_in_the_process_may_be_asked_for_a_profile(make):
    windows, profiler = make(profiler=FakeProfiler(Door(), server="jax.profiler.start_server"))
    windows.begin()
    train(windows, 10)
    assert profiler.door.starts == 0
    (entry,) = windows.unavailable
    assert "jax.profiler.start_server" in entry["reason"]
    assert "beside_server=True" in entry["cure"]


def test_windows_beside_a_server_when_asked_for(make):
    windows, profiler = make(
        trace=TraceSchedule(ranges=((3, 6),), beside_server=True), profiler=FakeProfiler(Door(), server="a server")
    )
    assert len(fit(windows, 10)) == 1
    assert profiler.door.starts == 1


class TensorBoardLike:
    def __init__(self, start, stop, trace=True):
        self._should_trace = trace
        self._start_batch = start
        self._stop_batch = stop


def test_claims_of_other_callbacks():
    class Container:
        callbacks = (TensorBoardLike(20, 20),)

    callbacks = [object(), TensorBoardLike(3, 5), TensorBoardLike(0, 0, trace=False), Container()]
    assert profile_claims(callbacks) == [(2, 5), (19, 20)]


def test_a_claim_is_kept_clear_of(make):
    windows, _ = make(trace=[(3, 6)])
    (result,) = fit(windows, 12, [TensorBoardLike(3, 5)])
    assert (result.facts["first_step"], result.facts["stop_step"]) == (5, 8)
