"""Whatever a trace holds, the ten categories sum to the step and none is negative."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces.breakdown import account
from gpu_util_callback.traces.model import Device, DeviceEvents, DeviceKind, HostEvents, HostKind, Names, Process
from gpu_util_callback.traces.recorded import _to_ns
from gpu_util_callback.traces.steps import find_steps

KINDS = [int(k) for k in DeviceKind]
HOST = [int(k) for k in HostKind]


def random_process(seed: int, scale: int) -> Process:
    rng = np.random.default_rng(seed)
    names = Names()
    names.id("name")

    def times(n):
        start = np.sort(rng.integers(-scale, 20 * scale, n))
        return start, start + rng.integers(0, scale, n)

    n = int(rng.integers(0, 60))
    start, end = times(n)
    correlation = rng.integers(-1, 40, n)
    device = DeviceEvents.build(
        start_ps=start,
        end_ps=end,
        kind=rng.choice(KINDS, n),
        stream=rng.integers(0, 3, n),
        correlation=correlation,
        name=np.zeros(n),
    )
    m = int(rng.integers(0, 80))
    start, end = times(m)
    host = HostEvents.build(
        start_ps=start,
        end_ps=end,
        thread=rng.integers(0, 2, m),
        kind=rng.choice(HOST, m),
        name=np.zeros(m),
        correlation=rng.integers(-1, 40, m),
        value=rng.integers(0, 9, m),
        root=rng.integers(0, 2, m),
    )
    return Process(
        host="h", devices=[Device(0, "GPU", device)], threads=["python", "tf_data_x"], events=host, shapes=[]
    )


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([5, 10**6, 3 * 10**9]))
def test_categories_are_disjoint_and_sum_to_the_step(seed, scale):
    process = random_process(seed, scale)
    names = Names()
    names.id("work")  # the name of all events
    steps = find_steps(process, names)
    if process.extent[0] < process.extent[1]:
        assert len(steps), "something was recorded: there are steps"
    assert (steps.end_ps > steps.start_ps).all()
    assert (steps.start_ps[1:] >= steps.end_ps[:-1]).all()
    result = account(process, process.devices[0], steps)
    total = sum(result.steps[c] for c in CATEGORIES)
    assert total.tolist() == (steps.end_ps - steps.start_ps).tolist()
    for category in CATEGORIES:
        assert (result.steps[category] >= 0).all(), category
    sets = list(result.sets.items())
    for i, (name, x) in enumerate(sets):
        for other, y in sets[i + 1 :]:
            assert (x & y).total == 0, (name, other)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 10**7), min_size=4, max_size=4), min_size=1, max_size=5))
def test_nanoseconds_keep_the_sum(rows):
    columns = list(np.array(rows, np.int64).T)
    exact = sum(columns)
    total = exact // 1000
    parts = _to_ns(columns, total)
    assert sum(parts).tolist() == total.tolist()
    for part, column in zip(parts, columns, strict=True):
        assert (part >= 0).all()
        assert (np.abs(part - column / 1000) <= 1).all()
