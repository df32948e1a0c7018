"""The recorder's look at the training thread's stack: it must neither mislead nor damage it."""

import gc
import sys
import threading

import pytest

from gpu_util_callback.steps import frames
from gpu_util_callback.steps.frames import FitWatch, stack_of


@pytest.fixture
def parked():
    """A thread 30 calls deep that waits: (its identifier, the code of its outermost function)."""
    arrived, go_on = threading.Event(), threading.Event()

    def deeper(depth):
        if depth:
            return deeper(depth - 1)
        arrived.set()
        return go_on.wait(60)

    def outermost():
        deeper(29)

    thread = threading.Thread(target=outermost, daemon=True)
    thread.start()
    assert arrived.wait(60)
    yield thread.ident, outermost.__code__, deeper.__code__
    go_on.set()
    thread.join(60)


@pytest.fixture
def eager_collector():
    """A collector that runs at every allocation; which threads it ran in."""
    ran = []

    def note(phase, info):
        if phase == "start":
            ran.append(sys._getframe(1).f_code.co_name)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    yield ran
    gc.set_threshold(*before)
    gc.callbacks.remove(note)


def test_whole_stack(parked):
    thread, outermost, deeper = parked
    codes = [code for _, code, _ in stack_of(thread)]
    assert codes.count(deeper) == 30
    assert codes.index(outermost) > max(i for i, code in enumerate(codes) if code is deeper)


def test_until_and_deepest(parked):
    thread, outermost, _ = parked
    assert stack_of(thread, outermost)[-1][1] is outermost
    assert len(stack_of(thread, deepest=5)) == 5


def test_no_such_thread():
    assert stack_of(-1) == []


def test_nothing_is_collected_during_a_look(parked, eager_collector):
    """Finalizers would run, the thread might go on, and CPython would follow freed frames."""
    stack_of(parked[0])
    assert "stack_of" not in eager_collector
    [[] for _ in range(100)]
    assert eager_collector, "the collector of this test never ran"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(parked, enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        stack_of(parked[0])
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_one_stack_cut_short_does_not_end_a_fit(monkeypatch):
    """As a generator that pauses in the middle of a look does it."""
    watch = FitWatch(sys._getframe())
    looks = []

    def cut_once(thread):
        looks.append(thread)
        return stack_of(thread)[:1] if len(looks) == 1 else stack_of(thread)

    monkeypatch.setattr(frames, "stack_of", cut_once)
    assert not watch.over()
    assert len(looks) == 2


def test_a_fit_that_was_left_is_over():
    def fit():
        return FitWatch(sys._getframe())

    assert fit().over()
