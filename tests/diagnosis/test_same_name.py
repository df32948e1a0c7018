"""Runs of one name: a script that was run again with its log directory, or that fits many times."""

import re

import pytest
from generated_runs import Generated, write

from gpu_util_callback.cli import main
from gpu_util_callback.report.terminal import namesake_labels


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
    assert re.fullmatch(said, ",".join(namesake_labels(runs)[one["id"]] for one in runs))


def test_other_names_stay_as_they_are():
    assert namesake_labels([run(0), run(1, run="b"), run(2, run="c")]) == {}


@pytest.fixture(scope="module")
def same_name(tmp_path_factory):
    """Two starts of one script into one log directory, both of which wait for their input, and its parent."""
    parent = tmp_path_factory.mktemp("again")
    for seed, at_s in ((1, 0), (2, 3600)):
        made = Generated(seed=seed, at_s=at_s)
        with made.epoch():
            made.steps(400, step_ms=10, wait_ms=30)
        write(made, parent / "run1")
    return parent


@pytest.mark.parametrize(
    "arguments",
    [["report", "--check"], ["report", "--max-input-wait", "5"], ["report", "--junit", "JUNIT", "--check"]],
    ids=["causes", "limits", "junit"],
)
def test_what_fails_says_which_start_it_means(same_name, capsys, tmp_path, arguments):
    file = tmp_path / "junit.xml"
    main([arguments[0], str(same_name), *[str(file) if word == "JUNIT" else word for word in arguments[1:]]])
    printed = capsys.readouterr().out + (file.read_text() if file.exists() else "")
    named = set(re.findall(r"run1(?: \d\d-\d\d \d\d:\d\d:\d\d)?", printed))
    assert len(named) == 2 and "run1" not in named, printed


def test_evidence_of_several_runs_is_shown(same_name, capsys):
    main(["report", str(same_name / "run1"), "--evidence"])
    assert capsys.readouterr().out.count("waiting for input, per step") == 2
