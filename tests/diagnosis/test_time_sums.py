"""Amounts spread over time: stretches in turn and stretches that overlap give the same sums."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_util_callback.diagnosis.evidence.usage import TimeSums

START = 1_700_000_000 * 10**9


def test_what_lies_before_the_run_is_left_out():
    sums = TimeSums(START)
    sums.add(np.array([START - 5 * 10**9]), np.array([START - 4 * 10**9]), spent=np.array([7]))
    assert sums.total("spent") == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 10**9), min_size=1, max_size=60),
    pauses=st.lists(st.integers(0, 10**9), min_size=60, max_size=60),
    cut=st.integers(0, 60),
    early=st.integers(0, 10**9),
)
def test_the_sums_do_not_depend_on_the_way_they_are_made(lengths, pauses, cut, early):
    count = len(lengths)
    ends = START - early + np.cumsum(np.array(lengths) + np.array(pauses[:count]))
    starts = ends - np.array(lengths)
    amounts = np.arange(count) * 7_919 % 1_000_003
    whole, pieces, overlapping = TimeSums(START), TimeSums(START), TimeSums(START)
    whole.add(starts, ends, spent=amounts)
    for part in (slice(0, cut), slice(cut, count)):
        pieces.add(starts[part], ends[part], spent=amounts[part])
    order = np.argsort(amounts % 13, kind="stable")  # neither sorted nor in turn
    overlapping.add(starts[order], ends[order], spent=amounts[order])
    assert whole.of("spent").tolist() == pieces.of("spent").tolist() == overlapping.of("spent").tolist()
    if early == 0:
        assert whole.total("spent") == amounts.sum()
