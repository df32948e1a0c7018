"""The callback's argument `trace`."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import gpu_util_callback
from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.recorder import fit_windows


def test_the_package_exports_it():
    assert gpu_util_callback.TraceSchedule is TraceSchedule
    assert "TraceSchedule" in dir(gpu_util_callback)


@pytest.mark.parametrize("trace", ["auto", True, TraceSchedule()])
def test_automatic(trace):
    schedule = TraceSchedule.of(trace)
    assert schedule == TraceSchedule()
    assert not schedule.explicit


@pytest.mark.parametrize("trace", ["off", None, False, [], ()])
def test_off(trace):
    assert TraceSchedule.of(trace) is None


@pytest.mark.parametrize(
    ("trace", "ranges"),
    [
        ([(3, 6)], ((3, 6),)),
        ((3, 6), ((3, 6),)),
        (range(3, 6), ((3, 6),)),
        ([range(3, 6), (0, 1)], ((0, 1), (3, 6))),
        ([(8, 9), (3, 6)], ((3, 6), (8, 9))),
        ([(3, 6), (5, 8)], ((3, 8),)),
        ([(3, 6), (6, 8)], ((3, 8),)),
        ([(2, 9), (3, 4)], ((2, 9),)),
        ([[np.int64(3), np.int64(6)]], ((3, 6),)),
    ],
)
def test_ranges_become_sorted_and_disjoint(trace, ranges):
    schedule = TraceSchedule.of(trace)
    assert schedule.ranges == ranges
    assert schedule.explicit


@pytest.mark.parametrize(
    "trace",
    [
        "sometimes",
        7,
        1.5,
        {"first": 3},
        [(6, 3)],
        [(3, 3)],
        [(-1, 3)],
        [3],
        [(1, 2, 3)],
        [(1.5, 3)],
        [(True, 3)],
        [None],
        b"ab",
    ],
)
def test_anything_else_is_refused_with_an_example(trace):
    with pytest.raises(ValueError, match=r"trace.*(\(first, stop\)|TraceSchedule)"):
        TraceSchedule.of(trace)


@pytest.mark.parametrize(
    "arguments",
    [
        {"ranges": [(1, 2)], "first": 3},
        {"steps": 0},
        {"every": 8, "steps": 8},
        {"first": -1},
        {"count": 0},
        {"first": 1.5},
    ],
)
def test_a_schedule_that_cannot_be_is_refused(arguments):
    with pytest.raises(ValueError, match="TraceSchedule"):
        TraceSchedule(**arguments)


def test_named_steps_within_the_budget_are_not_taken_whatever_they_cost():
    assert not TraceSchedule(first=10, every=100).explicit
    assert TraceSchedule(first=10, every=100, within_budget=False).explicit


@pytest.mark.parametrize(("gpus", "trace", "taken"), [(1, "auto", True), (2, "auto", False), (2, [(100, 105)], True)])
def test_with_several_gpus_jax_is_profiled_on_request_only(monkeypatch, gpus, trace, taken):
    """Its profiler has crashed such processes; here everything behind that decision is missing."""
    jax = pytest.importorskip("jax")
    from gpu_util_callback.backends.jax.runtime import RUNTIME

    class Asked(Exception):
        pass

    def asked(backend):
        raise Asked

    devices = [SimpleNamespace(platform="gpu", device_kind="A100", id=number) for number in range(gpus)]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    monkeypatch.setattr(fit_windows, "profiler_session_for", asked)
    adapter = SimpleNamespace(runtime=RUNTIME)
    settings = SimpleNamespace(trace=TraceSchedule.of(trace))
    recorder = SimpleNamespace(settings=settings, adapter=adapter, watch=None, unavailable=[])
    with pytest.raises(Asked) if taken else nullcontext():
        assert fit_windows.open_windows(recorder, "jax", [], None) is None
    assert ["several GPUs" in entry["reason"] for entry in recorder.unavailable] == ([] if taken else [True])
