"""Scales and names of sampled lanes."""

from types import SimpleNamespace

import pytest

from tensorboard_plugin.lanes import _sampled


@pytest.mark.parametrize(
    ("column", "highest", "top"),
    [
        ("cpu_pct", 63.0, 100),
        ("cpu_pct", 100.4, 100),  # noise of the division by time
        ("process_cpu_pct", 123.0, 200),
        ("process_cpu_pct", 800.0, 800),
        ("process_cpu_pct", float("inf"), 1e9),
    ],
)
def test_shares_are_drawn_on_a_scale_of_whole_hundreds(column, highest, top):
    summary = {"host": {column: {"max": highest}}}
    assert _sampled(SimpleNamespace(facts={}), "host", column, summary)["max"] == top


def test_a_lane_without_a_title_of_its_own_begins_with_a_capital():
    summary = {"host": {"a_new_column": {"max": 25.0}}}
    lane = _sampled(SimpleNamespace(facts={}), "host", "a_new_column", summary)
    assert lane["title"] == "A new column"
