import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_util_callback.traces.intervals import Intervals, union, union_with_first

SIZE = 60
pairs = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda p: (p[0], p[0] + p[1] % 9)), max_size=25
)


def build(intervals) -> Intervals:
    return union(np.array([a for a, _ in intervals]), np.array([b for _, b in intervals]))


def points(intervals: Intervals) -> set[int]:
    return {t for a, b in zip(intervals.start.tolist(), intervals.end.tolist(), strict=True) for t in range(a, b)}


def members(intervals) -> set[int]:
    return {t for a, b in intervals for t in range(a, b)}


def well_formed(intervals: Intervals) -> bool:
    inside = bool((intervals.start < intervals.end).all())
    return inside and bool((intervals.end[:-1] < intervals.start[1:]).all())


@given(pairs)
def test_union_is_the_set_of_points(given_pairs):
    result = build(given_pairs)
    assert points(result) == members(given_pairs)
    assert well_formed(result)
    assert result.total == len(members(given_pairs))


@given(pairs, pairs)
def test_operators_are_those_of_sets(a, b):
    x, y = build(a), build(b)
    assert points(x | y) == points(x) | points(y)
    assert points(x & y) == points(x) & points(y)
    assert points(x - y) == points(x) - points(y)
    assert all(well_formed(z) for z in (x | y, x - y))
    assert ((x & y) | (x - y)).total == x.total


@given(pairs, st.integers(-5, SIZE + 20), st.integers(-5, SIZE + 20))
def test_clip_and_complement_split_a_window(a, low, high):
    x = build(a)
    window = set(range(low, high))
    assert points(x.clip(low, high)) == points(x) & window
    assert points(x.complement(low, high)) == window - points(x)


@given(pairs, st.lists(st.tuples(st.integers(-3, 80), st.integers(0, 30)), max_size=8))
def test_measure_counts_the_points_of_each_window(a, windows):
    x = build(a)
    start = np.array([s for s, _ in windows], np.int64)
    end = np.array([s + n for s, n in windows], np.int64)
    expected = [len(points(x) & set(range(s, s + n))) for s, n in windows]
    assert x.measure(start, end).tolist() == expected
    assert x.contains(start).tolist() == [s in points(x) for s, _ in windows]


@given(pairs)
def test_union_with_first_names_an_interval_that_begins_each_stretch(given_pairs):
    start = np.array([a for a, _ in given_pairs], np.int64)
    end = np.array([b for _, b in given_pairs], np.int64)
    result, first = union_with_first(start, end)
    assert start[first].tolist() == result.start.tolist()
    assert (end[first] > start[first]).all()


def test_times_of_a_long_trace_do_not_overflow():
    day = 86_400 * 10**12
    x = union(np.array([0, 90 * day]), np.array([day, 100 * day]))
    assert x.total == 11 * day
    assert (x & union(np.array([95 * day]), np.array([99 * day]))).total == 4 * day
