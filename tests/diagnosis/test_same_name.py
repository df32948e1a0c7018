"""Runs of one name: a script that was run again with its log directory, or that fits many times."""

import re

import pytest

from gpu_util_callback.report.terminal import told_apart


def run(number, **facts):
    return {
        "run": ".",
        "id": f"20261121T211206.{number}Z-vm-0-{3387 + number}",
        "start_ns": 10**18,
        "fit_index": 0,
        "rank": None,
        **facts,
    }


@pytest.mark.parametrize(
    "facts, said",
    [
        ([{"fit_index": 0}, {"fit_index": 1}], r"fit 1,fit 2"),
        ([{"rank": 0}, {"rank": 1}], r"rank 0,rank 1"),
        ([{}, {"start_ns": 10**18 + 60 * 10**9}], r"\d\d-\d\d \d\d:\d\d:40,\d\d-\d\d \d\d:\d\d:40"),
        ([{}, {}], r"\d\d-\d\d \d\d:\d\d 3387,\d\d-\d\d \d\d:\d\d 3388"),  # side by side
    ],
    ids=["fits", "ranks", "again", "at once"],
)
def test_runs_of_one_name_are_told_apart(facts, said):
    runs = [run(number, **more) for number, more in enumerate(facts)]
    assert re.fullmatch(said, ",".join(told_apart(runs)[one["id"]] for one in runs))


def test_other_names_stay_as_they_are():
    assert told_apart([run(0), run(1, run="b"), run(2, run="c")]) == {}
