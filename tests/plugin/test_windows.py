"""Profiler windows as the tab is told of them: true to the recording, and bounded."""

import json
from pathlib import Path

import numpy as np
import pytest
from make_recording import SyntheticRun, make_recording
from plugin_app import PluginApp

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.manifest import plain
from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces.imported import import_trace
from tensorboard_plugin.lanes import STACK, lanes_of
from tensorboard_plugin.replies import MAX_KERNELS, recording_reply, window_reply, windows_of

REPOSITORY = Path(__file__).resolve().parents[2]
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\0" + "k" * 3_000


def one(path):
    (recording,) = read_recordings(path)
    return recording


def test_a_window_is_served_as_recorded(tmp_path):
    make_recording(tmp_path / "a", "healthy", steps=120, gpus=2, windows=((10, 14), (90, 93)))
    app = PluginApp(tmp_path)
    (listed,) = app.json("/runs")["recordings"]
    id = listed["id"]
    first, second = app.json("/recording", id=id)["windows"]
    assert (first["first_step"], first["stop_step"]) == (10, 14)
    assert second["profile_run"] == f"a/{second['profile']}"
    truth = one(tmp_path / "a")
    steps = truth.steps["start_ns"]
    assert first["start_ns"] < steps[10] < steps[13] < first["end_ns"]

    window = app.json("/window", id=id, window=1)
    assert [(row["step"], row["gpu"]) for row in window["steps"]] == [
        (step, gpu) for step in (90, 91, 92) for gpu in (0, 1)
    ]
    for row in window["steps"]:
        assert sum(row[f"{name}_ns"] for name in CATEGORIES) == row["duration_ns"]
    spent = [kernel["total_ns"] for kernel in window["kernels"]]
    assert spent == sorted(spent, reverse=True)
    mine = (truth.kernels["window"] == 1) & (truth.kernels["gpu"] == 0)
    assert window["kernel_total_ns"]["0"] == truth.kernels["total_ns"][mine].sum()
    assert any(kernel["occupancy_pct"] is None for kernel in window["kernels"])
    for query, expected in (
        ({"id": id, "window": 7}, 404),
        ({"id": id, "window": -1}, 404),
        ({"id": id, "window": "x"}, 400),
        ({"id": id}, 400),
        ({"id": "nothing", "window": 0}, 404),
        ({"id": id, "window": "9" * 19}, 404),
    ):
        status, body = app.get("/window", **query)
        assert (status, list(json.loads(body))) == (expected, ["error"]), query


def test_a_window_of_many_hostile_kernels_stays_small(tmp_path):
    run = SyntheticRun(tmp_path, "healthy", steps=60, gpus=1, windows=((10, 14),))
    run.advance(60, flush=False)
    many = MAX_KERNELS + 200
    names = [HOSTILE + str(number) for number in range(many)]
    run.writer.append(
        "kernels",
        {
            "window": np.zeros(many),
            "gpu": np.zeros(many),
            "name": names,
            "op": [HOSTILE] * many,
            "count": np.ones(many),
            "total_ns": np.arange(many) + 10**12,
        },
    )
    run.writer.update(
        windows=[
            {"window": 0, "first_step": 10, "stop_step": 14, "profile": "../../etc", "cost_s": "x"},
            {"window": "1", "first_step": 10},
            None,
            {"window": 1e400, "first_step": 1, "stop_step": 2},
        ]
    )
    run.close()
    (window,) = windows_of(one(tmp_path))
    assert window["profile"] is window["profile_run"] is window["cost_s"] is None
    reply = window_reply(one(tmp_path), 0)
    assert len(reply["kernels"]) == MAX_KERNELS
    assert reply["kernels_left_out"] == 206
    assert reply["kernels"][0]["total_ns"] == 10**12 + many - 1
    text = json.dumps(plain(reply), allow_nan=False)
    assert len(text) < 4 * 10**6


def test_of_two_utilization_lanes_the_finer_one_alone_is_shown_in_the_place_of_the_other(tmp_path):
    run = SyntheticRun(tmp_path, "healthy", steps=60, gpus=1)
    run.advance(60, flush=False)
    times = run.start + np.arange(100) * 20_000_000
    run.writer.append_samples("gpu0/utilization", ("utilization_pct",), times, np.full((100, 1), 80.0))
    run.close()
    lanes = [(lane["id"], lane["title"]) for lane in lanes_of(one(tmp_path)) if lane["group"] == "gpu0"]
    assert lanes[0] == ("gpu0/utilization:utilization_pct", "GPU active")
    assert [id_ for id_, _ in lanes if ":utilization_pct" in id_] == [lanes[0][0]]


def test_what_never_happened_has_no_series_and_stands_among_the_lesser_lanes(tmp_path):
    run = SyntheticRun(tmp_path, "healthy", steps=60, gpus=1)
    run.advance(60, flush=False)
    names = ("throttle_thermal_pct", "throttle_power_pct", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
    rows = np.tile([0.0, 0.0, 0.0, 5.0], (20, 1))
    run.writer.append_samples("gpu0/counters", names, run.start + np.arange(20) * 100_000_000, rows)
    run.close()
    lanes = {lane["title"]: lane for lane in lanes_of(one(tmp_path))}
    assert lanes["Throttled"]["minor"] and not lanes["PCIe"]["minor"] and not lanes["GPU active"]["minor"]
    recorded = one(REPOSITORY / "demo/recorded/h200-jax/slow-input")
    assert recorded.summary["steps"]["compile_ns"]["max"] == 0
    [steps] = (lane for lane in lanes_of(recorded) if lane["id"] == "steps")
    assert {series["name"] for series in steps["series"]} == {name for name, *_ in STACK} - {"compile"}


def test_an_imported_trace_is_a_window(tmp_path):
    trace = next((REPOSITORY.parent / "shared" / "data" / "xplane").glob("v100x8_tf24_bert*.pb"), None)
    if trace is None:
        pytest.skip("no public traces beside the checkout (../shared/data)")
    import_trace(trace, tmp_path)
    (window,) = windows_of(one(tmp_path))
    reply = window_reply(one(tmp_path), window["window"])
    assert {row["gpu"] for row in reply["steps"]} == {1, 4, 6}
    assert sum(row["count"] for row in reply["kernels"] if row["gpu"] == 4) == 665
    assert window["profile_run"] is None


def test_damaged_step_data_leave_axis_verdict_and_lane_as_they_are(tmp_path):
    path = make_recording(tmp_path / "run", "thirds", steps=600, gpus=1)
    before = recording_reply(one(tmp_path), "1", run_report(one(tmp_path)))
    segment = next(path.glob("segment-*.npz"))
    segment.write_bytes(segment.read_bytes()[:-22])
    damaged = one(tmp_path)
    assert len(damaged.steps["step"]) == 0
    after = recording_reply(damaged, "1", run_report(damaged))
    [problem] = after["problems"]
    assert "damaged: " in problem["message"] and "600 steps not readable" in problem["message"]
    assert after["report"]["verdict"] == before["report"]["verdict"]
    assert (after["extent"], after["budgets"]) == (before["extent"], before["budgets"])
