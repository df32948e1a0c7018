"""Foreign wall-clock stamps land where they belong, whatever happened to the wall clock."""

import time

import numpy as np
import pytest

from gpu_util_callback.recording import Clock

SECOND = 1_000_000_000


def test_time_is_epoch_nanoseconds_and_never_goes_back():
    clock = Clock()
    assert abs(clock.now() - time.time_ns()) < SECOND // 10
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)
    assert abs(clock.from_perf(time.perf_counter_ns()) - clock.now()) < SECOND // 10


def test_stamps_pass_through_while_the_wall_clock_is_left_alone(scripted_time):
    clock = scripted_time.clock()
    for _ in range(10):
        scripted_time.advance(2)
        clock.pair()
    stamps = scripted_time.wall - np.array([0, 5, 19, -1]) * SECOND
    assert (clock.from_wall(stamps) == clock.now() - np.array([0, 5, 19, -1]) * SECOND).all()
    assert clock.from_wall(int(stamps[1])) == clock.now() - 5 * SECOND
    assert clock.from_wall(stamps.reshape(2, 2)).shape == (2, 2)


def test_slewing_follows_the_nearest_pair(scripted_time):
    clock = scripted_time.clock()
    for _ in range(100):  # 500 ppm, the most NTP slews
        scripted_time.perf += 2 * SECOND
        scripted_time.wall += 2 * SECOND + 1_000_000
        clock.pair()
    drifted = scripted_time.wall - clock.now()
    assert drifted == 100_000_000
    assert abs(clock.from_wall(scripted_time.wall) - clock.now()) < 1_000
    half = scripted_time.wall - 100 * SECOND  # about 50 pairs ago
    assert abs(clock.from_wall(half) - (clock.now() - 100 * SECOND + 50_000_000)) < 1_000_000


@pytest.mark.parametrize(("what", "s"), [("set_back", 3600), ("suspend", 8 * 3600)])
def test_a_clock_set_back_or_a_suspended_laptop_makes_no_stamp_jump(scripted_time, what, s):
    clock = scripted_time.clock()
    truth = []
    for second in range(60):
        if second == 30:
            getattr(scripted_time, what)(s)
        scripted_time.advance(1)
        truth.append((scripted_time.wall, clock.now()))
        if second % 2:
            clock.pair()
    wall, ours = np.array(truth).T
    assert abs(clock.from_wall(wall) - ours).max() <= 1
    # A stamp made a moment ago, before the next pair.
    scripted_time.advance(0.5)
    assert clock.from_wall(scripted_time.wall) == clock.now()


def test_a_small_step_back_is_told_by_nearness(scripted_time):
    clock = scripted_time.clock()
    for second in range(40):
        if second == 20:
            scripted_time.set_back(5)
        scripted_time.advance(1)
        clock.pair()
        if second == 17:
            before = (scripted_time.wall, clock.now())
    # The same wall time happened at second 17 and again five seconds later.
    wall, ours = before
    assert clock.from_wall(wall, near_ns=ours) == ours
    assert clock.from_wall(wall) == ours + 5 * SECOND  # the latest, when nothing is said


def test_many_pairs_are_thinned_and_jumps_survive_it(scripted_time):
    clock = scripted_time.clock()
    clock.MAX_PAIRS = 64
    for step in range(1000):
        if step == 500:
            scripted_time.set_back(100)
            after_jump = None
        scripted_time.advance(2)
        clock.pair()
        if step == 500:
            after_jump = (scripted_time.wall, clock.now())
    assert len(clock._ours) <= 64
    assert clock.from_wall(scripted_time.wall) == clock.now()
    assert clock.from_wall(after_jump[0], near_ns=after_jump[1]) == after_jump[1]


def test_nothing_but_jumps_stays_bounded(scripted_time):
    clock = scripted_time.clock()
    clock.MAX_PAIRS = 32
    for _ in range(200):
        scripted_time.set_back(10)
        scripted_time.advance(1)
        clock.pair()
    assert len(clock._ours) <= 32
    assert clock.from_wall(scripted_time.wall) == clock.now()


def test_a_reading_torn_apart_by_a_preemption_is_not_used():
    # The first of three attempts is interrupted for 50 ms between its two readings.
    perf = iter([0, 50_000_000, 60_000_000, 60_000_100, 70_000_000, 70_000_200])
    clock = Clock(lambda: next(perf), lambda: 5_000_000_000)
    assert clock.offset_ns == 5_000_000_000 - 60_000_050
