"""A newcomer's five tasks, each in at most three actions, and each with the right answer."""

import json
import re
import urllib.request
from urllib.parse import quote

import pytest
from five_tasks import MOST_ACTIONS, TASKS, Hand
from make_recording import make_recording
from tensorboard_server import TensorBoardServer

pytestmark = pytest.mark.browser

DO = {task.name: task.do for task in TASKS}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A starved run with a profiler window around step 100, newer than a healthy one."""
    root = tmp_path_factory.mktemp("tasks")
    make_recording(root / "starved", steps=900, gpus=2, past_s=300, windows=((98, 104),))
    make_recording(root / "healthy", "healthy", steps=900, gpus=2, past_s=1500)
    with TensorBoardServer(root, load_fast=True) as server:
        yield server


@pytest.fixture
def hand(open_tab, logs):
    tab = open_tab(logs.url)
    tab.settle()
    return Hand(tab)


def span(tab) -> dict:
    return max(tab.recording()["report"]["spans"], key=lambda one: one["lost_s"])


def test_the_cause_needs_no_action(hand):
    said = DO["cause"](hand)
    assert hand.did == []
    report = hand.tab.recording()["report"]
    assert report["verdict"] in said and span(hand.tab)["advice"]["code"] in said


def test_when_it_began(hand):
    said = DO["began"](hand)
    assert len(hand.did) <= MOST_ACTIONS
    one = span(hand.tab)
    assert f"steps {one['start_step']:,}" in said
    began = (one["start_ns"] - hand.tab.recording()["extent"]["start_ns"]) / 1e9
    minutes, seconds = re.search(r"began at (\d+):(\d+)", said).groups()
    assert abs(int(minutes) * 60 + int(seconds) - began) <= 1
    start, end = hand.tab.view()
    assert start < one["start_step"] < end, "its beginning is in sight"


def test_two_runs_are_compared(hand):
    said = DO["compare"](hand)
    assert len(hand.did) <= MOST_ACTIONS
    starved, healthy = said.split(" | ")
    assert "starved" in starved and "Input-bound" in starved
    assert "healthy" in healthy and "nothing" in healthy
    base = hand.tab.recording("starved")["report"]
    other = hand.tab.recording("healthy")["report"]

    def pace(report):
        return (report["wall_s"] - report["time_s"]["compile"]) / report["steps"]

    shown = float(re.search(r"([\d.]+)×", healthy)[1])
    assert abs(shown - pace(base) / pace(other)) < 0.02
    assert f"{1e3 * pace(other):.1f} ms" in healthy, "the mean step that the speed rests on"


def test_a_colleague_sees_the_same(open_tab, logs, hand):
    """In TensorBoard, too: `test_tab_in_tensorboard.py`."""
    url = DO["share"](hand)
    assert len(hand.did) <= MOST_ACTIONS
    assert "copied" in hand.tab.text(".notice") or "address bar" in hand.tab.text(".notice")
    other = open_tab(logs.url, url.partition("#gpu_utilization")[2])
    assert other.link() == hand.tab.link() and other.view() == hand.tab.view()


def test_the_slowest_kernel_of_step_100(hand):
    said = DO["kernel"](hand)
    assert len(hand.did) <= MOST_ACTIONS
    tab = hand.tab
    assert tab.text(".traced h2") == "Step 100"
    base = f"{tab.url}/data/plugin/gpu_utilization"
    with urllib.request.urlopen(f"{base}/window?id={quote(tab.link()['id'], safe='')}&window=0") as answer:
        by_step = json.load(answer)["step_kernels"]
    rows = [row for row in by_step["rows"] if row[0] == 100]
    slowest = max(rows, key=lambda row: row[4])
    assert by_step["names"][slowest[2]] in said
    assert f"{slowest[4] / 1e6:.3g} ms" in said, "its time in that step, not in the window"
