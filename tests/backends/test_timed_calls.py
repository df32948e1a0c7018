"""Which calls of an input's function are timed: their mean holds whatever the order of slow and quick ones."""

import random
from types import SimpleNamespace

import pytest

from gpu_util_callback.backends import input_calls
from gpu_util_callback.backends.input_calls import CallTimer


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only in the timed function; its nanoseconds so far."""
    clock = SimpleNamespace(ns=0)
    times = SimpleNamespace(perf_counter_ns=lambda: clock.ns, thread_time_ns=lambda: clock.ns)
    monkeypatch.setattr(input_calls, "time", times)
    monkeypatch.setattr(input_calls, "queued_ns", lambda: 0)
    return clock


def facts_of(clock, calls: int, each: int, first: int) -> dict:
    """Facts of a function that takes 10 ms in every `each`th call and 1 µs in the others."""
    timer, number = CallTimer("read"), 0

    def read():
        clock.ns += 10_000_000 if number % each == first % each else 1_000

    timed = timer.around(read)
    for _ in range(calls):
        number += 1
        timed()
    return timer.facts()


@pytest.mark.parametrize("each", range(2, 20))
def test_slow_calls_at_even_distances_are_among_those_that_are_timed(clock, each):
    """A generator that opened a file for every tenth batch: 27 ms were estimated of 630 ms."""
    for first in range(1, each + 1):
        estimated = facts_of(clock, 4000, each, first)["wall_ms"]
        assert 0.5 <= estimated / (10 / each) <= 2, first


def test_one_call_in_sixteen_is_timed_and_the_users_random_numbers_stay(clock):
    before = random.getstate()
    facts = facts_of(clock, 16 * 600, 1, 1)
    assert (facts["calls"], facts["timed"]) == (9600, 16 + 599)
    assert facts["wall_ms"] == 10 == facts["cpu_ms"]
    assert random.getstate() == before
