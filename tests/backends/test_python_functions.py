"""The wrapper around functions whose batches are fetched in Python, without a framework."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpu_util_callback.backends import functions
from gpu_util_callback.backends.functions import PythonBatches, TimedBatches, TimedFunction
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.rows import ENDED_MEANWHILE, DeviceProbe, shape_signature
from gpu_util_callback.steps.timeline import CALL, Phase, Timeline


def test_a_call_that_raises_after_its_batch_came_leaves_the_rows_of_the_others():
    """Ctrl+C or an error of the step's own: what was measured before is still there."""

    def step(state, iterator):
        if next(iterator)[0].shape == (3,):
            raise KeyboardInterrupt
        return {}, state

    model = SimpleNamespace(train_function=step)
    timeline, raised = Timeline(), []
    timer = TimedFunction(
        model, "train_function", timeline, PythonBatches(CompileClock(), inside=True), on_exit=lambda: raised.append(1)
    )
    timer.wrap()
    batches = iter([(np.zeros(size),) for size in (1, 2, 3)])

    begin = timeline.around_begin(lambda batch: None, lambda now: timer.arm(), pytest.fail)
    end = timeline.around_end(lambda batch, logs: None, logs_are_ready=True)

    def run() -> None:
        begin(0)
        model.train_function(None, batches)
        end(0)

    run()
    run()
    with pytest.raises(KeyboardInterrupt):
        run()
    timeline.finish()
    function, *calls = [item for item in timeline.queue if not isinstance(item, Phase)]
    assert function.batches == 1 and function.rows is None
    stamps = [call[len(CALL) :] for call in calls]
    assert [len(own) for own in stamps] == [4, 4] and raised
    assert len({signature for _, _, signature, _ in stamps}) == 2


@pytest.mark.parametrize(
    "fetch_ns, busy, asked",
    [
        (40_000, "until it came", 1),  # short
        (2_000_000, "it ended meanwhile", 2),
    ],
)
def test_a_busy_device_is_asked_again_where_the_fetch_took_a_while(fetch_ns, busy, asked, monkeypatch):
    class Busy(DeviceProbe):
        queries = 0

        def idle(self):
            self.queries += 1
            return self.queries > 1

    times = iter([0, 1000, 1000 + fetch_ns, 9_000_000])
    monkeypatch.setattr(functions, "_clock", lambda: next(times))
    found, probe = [], Busy()
    batches = iter([np.zeros((2, 3))])
    next(TimedBatches(batches, lambda stamp, data: found.append(stamp), probe=probe))
    [(_, delivered, _, until)] = found
    assert until == {"until it came": delivered, "it ended meanwhile": ENDED_MEANWHILE}[busy]
    assert probe.queries == asked


def test_after_short_fetches_few_ask_and_a_long_one_makes_some_ask_again(monkeypatch):
    class Busy(DeviceProbe):
        queries = 0

        def idle(self):
            self.queries += 1
            return False

    now = [0]
    fetches_ns = [2_000] * 100 + [2_000_000] + [2_000] * 10
    monkeypatch.setattr(functions, "_clock", lambda: now[0])

    def data():
        for took in fetches_ns:
            now[0] += took
            yield np.zeros((2, 3))

    found, probe, queries = [], Busy(), []
    batches = TimedBatches(data(), lambda stamp, data: found.append(stamp), probe=probe)
    for _ in batches:
        queries.append(probe.queries)
    asked = np.diff(queries, prepend=0).tolist()
    assert asked[:16] == [1] * 16
    assert [at for at, queries in enumerate(asked[16:100], 16) if queries] == [16, 48, 80]
    assert asked[100] == 1  # after it: it was long
    assert asked[101:106] == [1] * 5 and not any(asked[106:])
    assert all(until == delivered for _, delivered, _, until in found)  # busy, asked or not


def test_a_long_fetch_that_nobody_asked_before_goes_by_the_last_answer(monkeypatch):
    class Device(DeviceProbe):
        busy = True

        def idle(self):
            return not self.busy

    now, device, found = [0], Device(), []
    monkeypatch.setattr(functions, "_clock", lambda: now[0])

    def data():
        for _ in range(20):
            now[0] += 2_000
            yield np.zeros(2)
        now[0] += 5_000_000  # while it takes that long, the device ends
        device.busy = False
        yield np.zeros(2)

    for _ in TimedBatches(data(), lambda stamp, data: found.append(stamp), probe=device):
        pass
    assert found[-1][3] == ENDED_MEANWHILE


class Shaped:
    """An array whose shape may be anything; it is not for us to iterate over."""

    def __init__(self, shape):
        self.shape = shape

    def __iter__(self):
        pytest.fail("iterated over")


class Uncomparable(tuple):
    def __eq__(self, other):
        raise TypeError("no")

    __ne__, __hash__ = __eq__, tuple.__hash__


A, B = np.zeros((2, 3)), np.zeros((4, 3))


@pytest.mark.parametrize(
    "batches",
    [
        [(A, A), (A, A), (B, A), (B, A), (A, B), (A, A)],
        [(A,), (A, A), (), (A,)],
        [(), (), (A,), ()],
        [A, B, A, (A,), A, (A,)],
        [Shaped((2, 3)), Shaped((4, 3)), (Shaped((2, 3)),), Shaped((2, 3))],
        [(A, A), [A, A], [B, A], (A, A)],
        [({"x": A}, A), ({"x": B}, A), (A, A), ({"x": A}, A)],
        [(A, None), (B, None), (A, A)],
        [{"x": A}, {"x": B}, {"x": A}],
        [1, "text", None, (), (1, 2)],
        [(Shaped(Uncomparable((2, 3))),), (Shaped(Uncomparable((2, 3))),), (A,)],
        [(Shaped([2, 3]),), (Shaped([4, 3]),), (Shaped(None),), (A,)],
    ],
)
def test_each_batch_is_stamped_with_its_own_shapes(batches):
    found = []
    delivered = list(TimedBatches(iter(batches), lambda stamp, data: found.append(stamp[2])))
    assert all(ours is theirs for ours, theirs in zip(delivered, batches, strict=True))
    assert found == [shape_signature(batch) for batch in batches]
