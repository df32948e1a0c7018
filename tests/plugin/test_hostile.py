"""Requests and recordings as an attacker, an accident or a colleague's `rm -rf` would make them."""

import json
import os
import random
import shutil
import threading
import time
from urllib.parse import quote

import numpy as np
import pytest
from make_recording import SyntheticRun, make_recording
from plugin_app import PluginApp
from tile_reply import decode_tile

from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.container import Container, Damaged, pack
from gpu_util_callback.recording.top import Top
from tensorboard_plugin.runs import RunIndex

pytestmark = pytest.mark.usefixtures("looked_at_each_time")
RTL, NUL = "\u202egnp.exe\u202c", "a\0b"
IDS = [
    "",
    ".",
    "..",
    "../..",
    "/etc/passwd",
    "a/../../outside",
    "..%2f..%2foutside",
    "~7E",
    "a~2F..",
    "file:///etc/passwd",
    "gs://bucket/x",
    "C:\\windows\\win.ini",
    "\\\\host\\share",
    NUL,
    RTL,
    "x" * 10_000,
    "run/" + "y" * 10_000,
    "<script>alert(1)</script>",
    "a\r\nSet-Cookie: x=1",
    "'; DROP TABLE runs; --",
    "\U0001f600",
    "%00",
    "%",
    "~",
    "None",
    "__proto__",
    "0",
]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    make_recording(root / "logs" / "a", "thirds", steps=300, gpus=1)
    make_recording(root / "outside", "healthy", steps=60)
    return root


def refused(status, body, asked):
    assert 400 <= status < 500, (asked, status, body[:200])
    reply = json.loads(body)
    assert reply["error"], asked
    assert "\n" not in reply["error"]
    assert len(reply["error"]) < 600, asked
    assert "Traceback" not in reply["error"]


@pytest.mark.parametrize("route", ["/recording", "/tiles", "/window", "/job", "/export.csv", "/export.html"])
def test_ids_lead_nowhere_but_to_known_recordings(logs, route):
    app = PluginApp(logs / "logs")
    (outside,) = read_recordings(logs / "outside")
    others = [
        outside.id,
        outside.path,
        f"../outside/{outside.folder}",
        f"a/{outside.folder}",
        f"outside/{outside.folder}",
        f"./{outside.folder}",
    ]
    for id in IDS + others:
        query = {"axis": "step", "level": 0, "first": 0, "count": 4, "last": 3, "window": 0}
        refused(*app.get(route, id=id, **query), (route, id[:80]))


def test_numbers_and_names_are_checked(logs):
    app = PluginApp(logs / "logs")
    (one,) = app.json("/runs")["recordings"]
    id = one["id"]
    for change in (
        {"level": -1},
        {"level": 63},
        {"level": "1e3"},
        {"level": "9" * 30},
        {"level": "NaN"},
        {"first": -1},
        {"first": 2**63},
        {"first": "0x10"},
        {"count": 0},
        {"count": 4097},
        {"count": "1" * 10_000},
        {"axis": "y" * 10_000},
        {"axis": NUL},
        {"axis": RTL},
        {"lanes": ",".join(["steps"] * 513)},
        {"level": 62, "first": 2, "count": 4096},
        {"lanes": "gpu0:" + "+".join(["utilization_pct"] * 5_000)},
    ):
        refused(*app.tile(id, **change), change)
    for lanes in (NUL, RTL, "x" * 10_000, ":::", "gpu0:", ":x", "steps:__class__", "../x:y", "+:+"):
        status, body = app.tile(id, lanes=lanes)
        assert status == 200, lanes[:50]
        assert decode_tile(body).header["series"] == [], lanes[:50]
    for window in (-1, 99, "x", "9" * 30, 2**62):
        refused(*app.get("/window", id=id, window=window), window)
    for table in ("../steps", "steps;", "x" * 10_000, NUL, "__class__"):
        refused(*app.get("/export.csv", id=id, table=table), table[:50])
    assert app.ask(f"/tiles?id={quote(id)}&&&=&level=%ff%fe&lanes=%00").status_code == 400


def test_names_of_runs_and_facts_may_be_anything(tmp_path):
    names = ["<img src=x>", RTL, "ünïcode \U0001f600", "a b%2Fc", "n" * 200, "quote'\"", "~7E~"]
    for name in names:
        make_recording(tmp_path / name, "healthy", steps=60, gpus=1)
    manifests = sorted(tmp_path.rglob("manifest.json"))
    odd = {
        "trial": {"a": 1},
        "trial_config": 7,
        "fit_index": "x",
        "rank": [],
        "world_size": "many",
        "host": None,
        "framework": 3,
        "gpus": {"x": 1},
        "windows": "no",
        "job": ["j"],
        "overhead": None,
        "flushes": {"a": []},
        "label": RTL,
    }
    manifests[0].write_text(json.dumps({**json.loads(manifests[0].read_text()), **odd}))
    app = PluginApp(tmp_path)
    listing = app.json("/runs")
    assert sorted(one["run"] for one in listing["recordings"]) == sorted(names)
    broken = manifests[0].parent.name
    for one in listing["recordings"]:
        assert one["id"].isascii()
        assert not set(one["id"]) & set(" <>\"'%&?#")
        if broken not in one["id"]:
            assert app.get("/recording", id=one["id"])[0] == 200
            assert app.tile(one["id"])[0] == 200
        else:
            assert app.get("/recording", id=one["id"])[0] < 500


def test_what_else_lies_in_a_log_directory_hides_no_recording(tmp_path):
    """A pipe that nobody writes, a link to itself, a name that is no text, times beyond all."""
    good = make_recording(tmp_path / "a" / "good", "healthy", steps=60, gpus=1, scalars=False)
    folder = good.parent
    pipe = folder / "pipe"
    pipe.mkdir()
    os.mkfifo(pipe / "manifest.json")
    (folder / "loop").symlink_to("loop")
    shutil.copytree(os.fsencode(good), os.fsencode(folder) + b"/caf\xe9")
    far = folder / "far"
    shutil.copytree(good, far)
    facts = json.loads((far / "manifest.json").read_text())
    big = {"started_ns": 10**30, "ended_ns": 10**40, "sealed": 10**25}
    (far / "manifest.json").write_text(json.dumps({**facts, **big}))
    index = RunIndex(lambda: {"good": str(tmp_path / "a" / "good")})
    found = {one.folder: one for one in index.recordings()}
    assert index.complete
    assert {good.name, "pipe", "far"} < set(found)
    assert len(found) == 4
    assert all(one.id.isascii() for one in found.values())
    assert "not a regular file" in found["pipe"].problems[0].message
    assert [len(one.steps["step"]) for one in found.values() if one.folder != "pipe"] == [60] * 3
    assert abs(found["far"].start_ns - found[good.name].start_ns) < 1_000_000_000
    assert {one.folder for one in read_recordings(tmp_path)} == set(found)


def test_times_that_nothing_can_be_added_to_are_damage(tmp_path):
    path = make_recording(tmp_path / "a", "thirds", steps=600, gpus=1)
    stored = (path / "top.npz").read_bytes()
    top = Container(stored)
    arrays = {name[:-4]: top.array(name[:-4]) for name in top._members if ".npy" in name}
    versions, about = json.loads(arrays["state/state"].tobytes())
    for origin in (2**62, -1, 10**30, 1e300):
        state = np.frombuffer(json.dumps([versions, {**about, "origin_ns": origin}]).encode(), np.uint8)
        with pytest.raises(Damaged, match=r"a time of|64 bits|no int"):
            Top.unpack(Container(pack({}, {**arrays, "state/state": state})), print)
    far = arrays["segments"].copy()
    far[:, 6:8] = 2**62, 2**63 - 1  # when its rows begin and end
    (path / "top.npz").write_bytes(pack(top.index, {**arrays, "segments": far}))
    app = PluginApp(tmp_path)
    (one,) = app.json("/runs")["recordings"]
    assert app.tile(one["id"])[0] == 200
    status, body = app.tile(one["id"])
    assert status == 200
    _, _, mean = decode_tile(body).series["steps", "step"]
    assert np.isfinite(mean).all()


def test_a_recording_deleted_while_it_is_open(tmp_path):
    make_recording(tmp_path / "logs" / "a", "thirds", steps=600, gpus=1)
    make_recording(tmp_path / "logs" / "b", "thirds", steps=600, gpus=1)
    app = PluginApp(tmp_path / "logs")
    ids = {one["run"]: one["id"] for one in app.json("/runs")["recordings"]}
    assert app.tile(ids["a"])[0] == 200
    shutil.rmtree(tmp_path / "logs" / "a")
    for route, query in (("/recording", {}), ("/export.csv", {}), ("/job", {})):
        status, body = app.get(route, id=ids["a"], **query)
        assert status in (200, 404), (route, status, body[:300])
        if status == 200 and route == "/recording":
            assert "deleted" in body.decode()
    assert app.tile(ids["a"], first=100)[0] in (200, 404)
    assert [one["run"] for one in app.json("/runs")["recordings"]] == ["b"]
    assert app.get("/recording", id=ids["a"])[0] == 404
    assert app.tile(ids["b"])[0] == 200


def test_damage_in_the_middle_of_browsing(tmp_path):
    make_recording(tmp_path / "a", "thirds", steps=9_000, gpus=1, step_ms=5.0)
    app = PluginApp(tmp_path)
    (one,) = app.json("/runs")["recordings"]
    id = one["id"]
    assert app.get("/recording", id=id)[0] == 200
    files = sorted(path for path in tmp_path.rglob("*.npz"))
    random_ = random.Random(3)
    for round_ in range(12):
        file = random_.choice(files)
        content = bytearray(file.read_bytes()) if file.exists() else bytearray(b"x" * 100)
        for _ in range(8):
            content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        file.write_bytes(bytes(content[: random_.randrange(1, len(content) + 1)]))
        if round_ % 5 == 4:
            file.unlink()
        for axis, level in (("step", 0), ("step", 6), ("time", 24)):
            status, body = app.tile(id, axis=axis, level=level, lanes="steps,gpu0:power_mw")
            assert status == 200, body[:300]
            decode_tile(body)
        fresh = PluginApp(tmp_path)
        for route, query in (("/recording", {}), ("/export.csv", {}), ("/export.html", {})):
            status, body = fresh.get(route, id=id, **query)
            assert status == 200, (route, body[:300])
    reply = PluginApp(tmp_path).json("/recording", id=id)
    assert reply["problems"]
    assert all("\n" not in problem["message"] for problem in reply["problems"])


def test_a_growing_run_under_many_requests_at_once(tmp_path):
    run = SyntheticRun(tmp_path / "live", "thirds", 6_000, 2, step_ms=5.0, diagnose=False)
    run.advance(200)
    app = PluginApp(tmp_path)
    (one,) = app.json("/runs")["recordings"]
    id, failures, stop = one["id"], [], threading.Event()

    def look(seed):
        random_ = random.Random(seed)
        most = 0
        while not stop.is_set():
            level = random_.choice([0, 2, 5, 8])
            try:
                status, body = app.tile(id, level=level, count=4096, lanes="steps,gpu1:utilization_pct")
                assert status == 200, body[:200]
                reply = decode_tile(body)
                for values in reply.series.values():
                    assert len(values[0]) == 4096
                known = reply.first_step[~(reply.start_ns != reply.start_ns)]
                if level == 0 and len(known):
                    assert known[-1] >= most, "a run never shrinks"
                    most = known[-1]
                status, body = app.get(random_.choice(["/runs", "/recording", "/job"]), id=id)
                assert status == 200, body[:200]
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    while run.done < 3_000 and not failures:
        run.advance(100)
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(30)
    run.close()
    assert not failures, failures[0]
    end = time.monotonic() + 20
    while time.monotonic() < end:
        reply = decode_tile(app.tile(id, count=4096)[1])
        if not reply.header["refining"] and (reply.start_ns == reply.start_ns).sum() == run.done:
            break
        time.sleep(0.05)
    assert (reply.start_ns == reply.start_ns).sum() == run.done
    assert reply.header["refining"] == []
