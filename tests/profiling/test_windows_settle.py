"""The host runs ahead of a GPU: what is in flight is waited for where a window begins and ends."""

import time

import pytest
from fake_profiler import Door, FakeProfiler, fit, train

from gpu_util_callback.profiling.schedule import Planner, TraceSchedule
from gpu_util_callback.recorder.fit_windows import KerasWindows
from gpu_util_callback.steps.timeline import Timeline


def test_the_device_is_waited_for_before_the_profiler_and_within_the_last_step(make):
    windows, profiler = make(trace=[(3, 5)])
    fit(windows, 10)
    assert profiler.doings == ["settle", "start", "mark", "unmark", "mark", "settle", "unmark", "stop"]


def test_an_epoch_that_ends_within_a_window_is_waited_for_too(make):
    windows, profiler = make(trace=[(3, 9)])
    windows.begin()
    train(windows, 5)
    windows.steps_pause(5)
    windows.close(5)
    assert profiler.doings[-3:] == ["settle", "unmark", "stop"]
    (result,) = windows.drain()
    assert (result.facts["first_step"], result.facts["stop_step"]) == (3, 5)


def test_a_fit_that_was_left_waits_for_no_device(make):
    """It may have ended because the device failed: then nothing would ever answer."""
    windows, profiler = make(trace=[(3, 9)])
    windows.begin()
    train(windows, 5)
    profiler.settle_s = 60.0
    began = time.perf_counter()
    windows.abandon()
    windows.close(5)
    assert time.perf_counter() - began < 10
    assert profiler.doings.count("settle") == 1


def test_a_device_that_cannot_be_waited_for_costs_no_window(make):
    windows, _ = make(trace=[(3, 5)], profiler=FakeProfiler(Door(), fails="settle"))
    assert len(fit(windows, 10)) == 1


def test_waiting_for_earlier_steps_is_not_charged(make):
    """Seconds of queued steps before the window are the GPU's work, not the window's cost."""
    windows, profiler = make(trace=[(3, 5)])
    profiler.settle_s = 0.5
    (result,) = fit(windows, 4)  # the fit ends within the window: its last wait is not in it
    assert 0.2 <= result.facts["cost_s"] < 0.5


def test_opening_a_window_is_no_callbacks_time():
    """Where another callback has a begin hook, too, it would be blamed for ours."""
    now = [0]
    timeline = Timeline(perf=lambda: now[0])
    keras_windows = KerasWindows(SlowWindows(0.05), timeline, (), None, 1)
    rows = []

    def begun(_):
        began = time.perf_counter_ns()
        keras_windows.batch_begin(began)
        now[0] += time.perf_counter_ns() - began

    def hook(batch):
        now[0] += 1_000_000  # another callback's

    begin = timeline.around_begin(hook, begun, pytest.fail)
    for batch in range(2):
        begin(batch)
        rows.append((timeline._hooks, timeline._hooks_end))
        now[0] += 5_000_000
    for hooks, hooks_end in rows:
        assert 0.5e6 < hooks_end - hooks < 5e6


def test_a_step_that_a_window_begins_with_is_no_sample_of_our_own_time():
    """On PyTorch, stopping a profile took 400 ms of a fetch: it counted as the price of a step."""
    timeline = Timeline(perf=time.perf_counter_ns)
    windows = KerasWindows(SlowWindows(0.0), timeline, (), None, 1)
    for worked in (True, False):
        windows._windows.worked = worked
        windows.batch_requested()
        timeline.sampled = True  # as a step begins, behind the request of its batch
        windows.batch_begin(time.perf_counter_ns())
        assert timeline.sampled is not worked
        timeline.calls += 1


class SlowWindows:
    """Windows whose every step takes time to begin."""

    planner = None

    def __init__(self, seconds):
        self.seconds = seconds
        self.worked = True

    def begin(self, *args):
        pass

    def step_begins(self, step):
        time.sleep(self.seconds)
        return self.worked


@pytest.fixture
def jax_on_device(monkeypatch):
    """JAX' session as on an accelerator; (session, launch), which starts work of some 100 ms."""
    jax = pytest.importorskip("jax")
    from gpu_util_callback.backends.jax.profiler import JaxProfiler

    monkeypatch.setattr(JaxProfiler, "traces_device", property(lambda self: True))
    a = jax.numpy.ones((1200, 1200))

    @jax.jit
    def work(a):
        for _ in range(4):
            a = a @ a * 1e-4
        return a

    work(a).block_until_ready()
    return JaxProfiler(), lambda: work(a)


def test_jax_is_one_step_ahead_while_steps_are_marked(jax_on_device):
    session, launch = jax_on_device
    session.settle()
    launched = []
    for step in range(5):
        marker = session.mark(step)
        # All but the one that was launched last are done by now.
        assert all(one.is_ready() for one in launched[:-1])
        launched.append(launch())
        marker.close()
    session.settle()
    assert launched[-1].is_ready()


class CountedWindows:
    """A planner's boundaries as a fit reports them; its windows cost nothing."""

    def __init__(self, schedule, share=0.01):
        self.planner = Planner(TraceSchedule.of(schedule), share, 0.5)
        self.seen = []  # steps that were looked at
        self.marked = []
        self.now = 0

    def begin(self, callbacks, steps_per_epoch, per_call, planned_steps):
        self.planner.begin(self.now, steps_per_epoch, per_call, (), planned_steps)

    def step_begins(self, step):
        self.seen.append(step)
        action = self.planner.boundary(step, self.now).name
        marks = self.planner.opened(self.now, 0.01) if action == "OPEN" else action == "MARK"
        if marks:
            self.marked.append(step)
        elif action == "CLOSE":
            self.planner.finished(self.planner.closed().index, 0.01, 0.01)
        return False

    def steps_pause(self, steps):
        window = self.planner.epoch_ended(steps)
        if window is not None:
            self.planner.finished(window.index, 0.01, 0.01)


def a_fit(schedule, epochs, of_ms=5, per_call=1, share=0.01, is_planned=False):
    windows = CountedWindows(schedule, share)
    timeline = Timeline(perf=lambda: windows.now)
    timeline.steps_per_execution = per_call
    keras_windows = KerasWindows(
        windows, timeline, (), *(epochs[0], per_call, len(epochs)) if is_planned else (None, per_call)
    )
    begin = timeline.around_begin(None, keras_windows.batch_begin, pytest.fail)
    for steps in epochs:
        for batch in range(steps):
            windows.now += of_ms * 1_000_000
            begin(batch)
            timeline.open = True
        timeline.leave_steps()
        keras_windows.epoch_end()
    return windows


def test_each_epoch_and_each_call_of_several_batches_counts_before_a_window():
    assert a_fit([(500, 503)], [150] * 10).marked == [500, 501, 502]
    assert a_fit([(500, 508)], [150], per_call=4).marked == [500, 504]


@pytest.mark.parametrize("is_planned, first", [(False, 10_000), (True, 2_000)])
def test_automatic_windows_open_as_soon_as_the_budget_has_room(is_planned, first):
    """0.5 s is the first one's assumed cost: at 1 % it opens after 50 s; where 150 s are planned, after 10 s."""
    windows = a_fit("auto", [30_000], of_ms=5, is_planned=is_planned)
    assert first - 1 <= windows.marked[0] <= first + 1
    assert len(windows.marked) > 10
    assert len(windows.seen) < 12_000
    assert max(windows.planner._durations) == 5_000_000, "measured again after a while without a look"
