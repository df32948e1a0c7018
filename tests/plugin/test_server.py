"""A real TensorBoard, from an environment without TensorFlow, in every mode people use."""

import csv
import io
import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

import numpy as np
import psutil
import pytest
from make_recording import make_recording
from scripted_runs import step_rows
from tensorboard_server import python_without_tensorflow
from tile_reply import decode_tile

from gpu_util_callback.recording import Clock, RecordingWriter, read_recordings
from gpu_util_callback.recording.event_files import ScalarWriter, next_step_offset

pytestmark = pytest.mark.heavy

BASE = "data/plugin/gpu_utilization/"
FAST = pytest.mark.parametrize("load_fast", [True, False], ids=["fast", "slow"])
PREFIX = "/team/tb"


def ask(server, path):
    status, headers, body = server.get(BASE + path)
    assert headers["content-type"].startswith("application/json"), (path, body[:200])
    return status, json.loads(body)


def runs(server, count):
    """The reply of ./runs once TensorBoard knows `count` recordings."""

    def enough():
        status, reply = ask(server, "runs")
        assert status == 200
        return reply if len(reply["recordings"]) == count else None

    reply = server.wait_for(enough)
    assert reply, ask(server, "runs")
    return reply


def tab(server):
    status, _, body = server.get("data/plugins_listing")
    assert status == 200
    return json.loads(body).get("gpu_utilization")


@FAST
def test_the_tab_and_every_route(tmp_path, start_tensorboard, load_fast):
    """The slow reader's TensorBoard is below a path prefix."""
    prefix = "" if load_fast else PREFIX
    logs = tmp_path / "logs"
    make_recording(logs / "train a", "thirds")
    make_recording(logs / "stall", "host_stall", gpus=1)
    make_recording(logs / "laptop", "no_gpu")
    make_recording(tmp_path / "outside", "healthy", steps=60)
    server = start_tensorboard(logs, load_fast, path_prefix=prefix or None)
    assert server.url.endswith(prefix)
    assert server.wait_for(lambda: tab(server)["enabled"])
    assert tab(server)["tab_name"] == "GPU Utilization"
    module = tab(server)["loading_mechanism"]["module_path"]
    assert module.startswith(f"{prefix}/data/plugin/gpu_utilization/static/index.js?v=")

    listing = runs(server, 3)
    assert listing["version"] == 1
    assert listing["tensorboard_runs"] == ["laptop", "stall", "train a"]
    assert listing["looked_for"] == "<run>/plugins/gpu_utilization/*/manifest.json"
    assert listing["problems"] == []
    by_run = {one["run"]: one for one in listing["recordings"]}
    one = by_run["train a"]
    assert (one["status"], one["steps"], one["rank"]) == ("ended", 600, 0)
    assert "input" in one["verdict"]
    # A run is found by its causes, and sorted by their cost.
    assert (one["causes"], one["titles"]) == (["input_bound"], ["Input-bound"])
    stalled = by_run["stall"]
    assert stalled["causes"] == ["host_stall"] and "stalls" in " ".join(stalled["titles"])
    assert stalled["lost_s"] > 0 and by_run["laptop"]["causes"] == []
    assert by_run["laptop"]["lost_s"] == 0

    (truth,) = read_recordings(logs / "train a")
    id = quote(one["id"])
    status, reply = ask(server, f"recording?id={id}")
    assert status == 200
    assert reply["extent"] == {"start_ns": truth.start_ns, "end_ns": truth.end_ns, "first_step": 0, "last_step": 599}
    (span,) = reply["report"]["spans"]
    assert span["cause"] == "input_bound"
    assert abs(span["start_step"] - 200) <= 5
    assert abs(span["end_step"] - 400) <= 5
    timed, *reply["lanes"] = [lane for lane in reply["lanes"] if lane["id"] != "time:gpu1"]
    assert timed["id"] == "time:gpu0"
    lanes = [lane["id"] for lane in reply["lanes"]]
    assert lanes[:3] == ["steps", "input_wait", "pipeline"]
    assert lanes[3:5] == ["gpu0:utilization_pct", "gpu0:memory_used_bytes"]
    vram = reply["lanes"][4]
    assert vram["max"] == 80 * 2**30
    assert {phase["kind"] for phase in reply["phases"]} >= {"epoch", "validation", "checkpoint"}

    status, headers, body = server.get(
        f"{BASE}tiles?id={id}&axis=step&level=2&first=0&count=150&lanes={','.join(lanes)}"
    )
    assert status == 200
    assert headers["content-type"] == "application/octet-stream"
    tile = decode_tile(body)
    wait = tile.series[("input_wait", "input_wait")][2]
    assert wait[50:100].mean() > 30 > 1 > wait[:50].mean()

    status, headers, body = server.get(f"{BASE}export.csv?id={id}&table=steps&first=5&last=7")
    assert headers["content-disposition"] == 'attachment; filename="steps.csv"'
    assert [row["step"] for row in csv.DictReader(io.StringIO(body.decode()))] == ["5", "6", "7"]
    status, headers, body = server.get(f"{BASE}export.csv?id={id}")
    assert len(body.decode().splitlines()) == 601

    status, reply = ask(server, f"recording?id={quote(by_run['laptop']['id'])}")
    assert not [lane for lane in reply["lanes"] if lane["group"].startswith("gpu")]
    assert reply["report"]["unavailable"][0]["source"] == "NVML"

    # Requests that make no sense get one clear line.
    (outside,) = read_recordings(tmp_path / "outside")
    for path, expected in (
        ("recording", 400),
        ("recording?id=nothing", 404),
        (f"recording?id=a/../../outside/{outside.folder}", 404),
        (f"tiles?id={id}&axis=step&level=0&first=0&count=5000&lanes=steps", 400),
        ("static/nothing.js", 404),
        ("static/../plugin.py", 404),
        ("static/%2e%2e%2fplugin.py", 404),
        ("static/..%5cplugin.py", 404),
        ("static/.hidden", 404),
    ):
        status, reply = ask(server, path)
        assert status == expected, (path, reply)
        assert reply["error"] and "\n" not in reply["error"]
    assert "Traceback" not in server.log, server.log


def test_under_logdir_spec(tmp_path, start_tensorboard):
    make_recording(tmp_path / "x" / "deep", "healthy", steps=60)
    make_recording(tmp_path / "y", "thirds", steps=90)
    make_recording(tmp_path / "z", "thirds", steps=90)
    server = start_tensorboard(logdir_spec=f"first:{tmp_path / 'x'},second:{tmp_path / 'y'}")
    listing = runs(server, 2)
    assert sorted(one["run"] for one in listing["recordings"]) == ["first/deep", "second/."]
    assert f"second:{tmp_path / 'y'}" in listing["logdir"]
    assert server.wait_for(lambda: tab(server)["enabled"])
    for one in listing["recordings"]:
        assert ask(server, f"recording?id={quote(one['id'])}")[0] == 200


@FAST
def test_two_fits_in_one_log_directory_keep_all_their_scalars(tmp_path, start_tensorboard, load_fast):
    for fit in range(2):
        offset = next_step_offset(tmp_path / "run")
        assert offset == fit * 50
        scalars = ScalarWriter(tmp_path / "run")
        scalars.marker()
        facts = {"scalar_step_offset": offset, "fit_index": fit}
        writer = RecordingWriter(tmp_path / "run", facts, clock=Clock())
        writer.append("steps", step_rows(50))
        for step in range(50):
            values = {"gpu_util/step_time_ms": fit + step / 100, "gpu_util/none": np.nan}
            scalars.points([(offset + step, values, 1e9 + 100 * fit + step)])
        writer.close("ended")
        scalars.close()
    server = start_tensorboard(tmp_path, load_fast)
    url = "data/plugin/scalars/scalars?run=run&tag=gpu_util%2Fstep_time_ms"

    def points():
        status, _, body = server.get(url)
        found = json.loads(body) if status == 200 else []
        return found if len(found) >= 100 else None

    found = server.wait_for(points)
    assert found, server.get(url)
    assert [point[1] for point in found] == list(range(100))
    expected = [fit + step / 100 for fit in range(2) for step in range(50)]
    assert [point[2] for point in found] == pytest.approx(expected)
    tags = json.loads(server.get("data/plugin/scalars/tags")[2])["run"]
    assert list(tags) == ["gpu_util/step_time_ms"]
    listing = runs(server, 2)
    assert [one["fit_index"] for one in listing["recordings"]] == [0, 1]


def test_a_broken_plugin_cannot_stop_tensorboard(tmp_path, start_tensorboard):
    """Even when our code cannot be imported at all: the entry point imports nothing else."""
    package = tmp_path / "elsewhere" / "gpu_util_callback"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('broken installation')")
    (tmp_path / "logs").mkdir()
    path = {"PYTHONPATH": str(tmp_path / "elsewhere")}
    server = start_tensorboard(tmp_path / "logs", True, env=path, forked=False)
    status, _, body = server.get("data/plugins_listing")
    assert status == 200
    assert "scalars" in json.loads(body)
    assert "gpu_utilization" not in json.loads(body)
    assert "broken installation" in server.log


def test_sigterm_ends_the_demos_tensorboard_too(tmp_path):
    demo = Path(__file__).parents[2] / "demo"
    program = "import pathlib, serve, sys; sys.exit(serve.serve(pathlib.Path(sys.argv[1])))"
    server = subprocess.Popen(
        [python_without_tensorflow(), "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(demo)},
    )
    try:
        shown = next(line for line in server.stdout if "Open http" in line)
        [tensorboard] = psutil.Process(server.pid).children()
        server.terminate()
        assert server.wait(30) == 128 + signal.SIGTERM
        assert not tensorboard.is_running(), shown
    finally:
        server.kill()
