"""The table of a log directory in which some runs held a GPU and some did not."""

import shutil
from pathlib import Path

import pytest
from gallery import two_findings
from plugin_app import PluginApp

from gpu_util_callback.report.total_screen import amount
from tensorboard_plugin.replies import _training

TRIED = Path(__file__).resolve().parents[2] / "docs" / "try" / "recordings"


@pytest.fixture(scope="module")
def total(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixed") / "logs"
    shutil.copytree(TRIED, root)
    two_findings(root)
    app = PluginApp(root)
    app.json("/runs")
    reply = app.json("/total")
    while reply.get("left"):
        reply = app.json("/total")
    return reply


def test_a_run_without_a_gpu_lost_its_own_time_not_nothing(total):
    rows = {run["id"].partition("/")[0]: run for run in total["runs"]}
    assert total["unit"] == "gpu_hours"
    stalled = rows["3-long-validation"]
    assert stalled["gpus"] == 0 and stalled["hours"] * 3600 == pytest.approx(stalled["wall_s"], rel=0.01)
    assert 3 < stalled["lost"] * 3600 < 13 and stalled["saves"] > 0, "validation took four of its thirteen seconds"
    assert rows["resnet50"]["gpus"] == 1 and rows["resnet50"]["lost"] * 3600 == pytest.approx(38, abs=4)


def test_hours_of_gpus_and_of_runs_without_one_are_two_sums(total):
    alone = [run for run in total["runs"] if not run["gpus"]]
    hours, lost = (amount(sum(run[name] for run in alone)) for name in ("hours", "lost"))
    said = f"3 recordings held no GPU and are not counted: {hours} of training, {lost} of it lost."
    assert len(alone) == 3 and said in total["notes"]
    assert total["hours"] * 3600 == pytest.approx(88, abs=2), "the GPU's alone"


def test_what_is_not_known_is_not_nothing(total):
    run = {
        "id": "a", "recordings": ["a"], "restarts": [], "ranks": 1, "script": None, "user": None, "status": "ended",
        "start_ns": 1, "wall_s": 9.0, "gpus": 1, "lost": [], "unknown_cost": [], "top": None,
        "saves_gpu_hours": 0.0, "saves_hours": 0.0,
        "gpu_hours": {"total": 2.0, "productive": 2.0, "lost": 0.0, "other": 0.0, "not_judged": 0.0},
    }  # fmt: skip
    assert _training(run, "gpu_hours")["lost"] == 0
    assert _training({**run, "unknown_cost": ["no_tensor_cores"]}, "gpu_hours")["lost"] is None
    unjudged = {**run["gpu_hours"], "productive": 0.0, "not_judged": 2.0}
    assert _training({**run, "gpu_hours": unjudged}, "gpu_hours")["saves"] is None
