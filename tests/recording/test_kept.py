"""Recordings of earlier versions open for ever, and say what they said when they were made.

`kept/<version>-<backend>` are real fits, recorded by that version. Add some for each format; change
none.
"""

from pathlib import Path

import pytest

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import diagnose, logdir_report

KEPT = Path(__file__).parent / "kept"
# steps, wall seconds, seconds of the largest part of the account, cause -> seconds lost
SAID = {
    "0.1.0-jax": (300, 3.0769952, {"callbacks": 2.178175048}, {"host_stall": 2.177925}),
    "0.1.0-tensorflow": (180, 2.151184294, {"input_wait": 0.937121622}, {"input_bound": 0.871769}),
    "0.1.0-torch": (180, 1.903393329, {"validation": 1.300385867}, {"host_stall": 1.300386}),
}


def test_all_that_is_kept_is_tested():
    assert {folder.name for folder in KEPT.iterdir()} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_an_old_recording_says_what_it_said(name):
    steps, wall_s, largest, causes = SAID[name]
    [recording] = read_recordings(KEPT / name)
    assert [str(problem) for problem in recording.problems] == []
    assert len(recording.steps["step"]) == steps
    [run] = logdir_report([recording])["runs"]
    assert (run["steps"], run["wall_s"], run["status"]) == (steps, wall_s, "ended")
    assert {name: run["time_s"][name] for name in largest} == largest
    assert sum(run["time_s"].values()) == pytest.approx(wall_s, abs=1e-6)
    lost = dict.fromkeys(causes, 0.0)
    for one in [*run["findings"], *run["spans"]]:
        lost[one["cause"]] += one["lost_s"]
    assert lost == pytest.approx(causes)


@pytest.mark.parametrize("name", SAID)
def test_todays_rules_find_the_same_causes_in_it(name):
    [recording] = read_recordings(KEPT / name)
    found = diagnose(recording)
    assert {one["cause"] for one in [*found["findings"], *found["spans"]]} == set(SAID[name][3])
