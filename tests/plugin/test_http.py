"""What the plugin answers to whom: methods, headers, links that lead elsewhere."""

import gzip
import json
import shutil

import pytest
from make_recording import make_recording
from plugin_app import PluginApp
from werkzeug.test import Client

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis.survey import survey
from gpu_util_callback.diagnosis.total_time import total
from gpu_util_callback.report.total_screen import headline
from tensorboard_plugin.runs import log_directory

pytestmark = pytest.mark.usefixtures("looked_at_each_time")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    root = tmp_path_factory.mktemp("http") / "logs"
    make_recording(root / "a", "thirds", steps=60, gpus=1)
    return root


def test_a_relative_log_directory_is_named_in_full(tmp_path, monkeypatch):
    """A mistyped or relative path is what a newcomer's empty tab is mostly about."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for name, exists in (("logs", True), ("no-logs", False)):
        listing = PluginApp(name, names=()).json("/runs")
        assert (listing["logdir"], listing["logdir_exists"]) == (str(tmp_path / name), exists)


def addresses(app):
    (one,) = app.json("/runs")["recordings"]
    id = one["id"]
    return [
        "/runs",
        f"/recording?id={id}",
        f"/job?id={id}",
        f"/tiles?id={id}&axis=step&level=0&first=0&count=64&lanes=steps",
        f"/window?id={id}&window=0",
        f"/export.csv?id={id}",
        f"/export.html?id={id}",
        "/static/index.js",
        "/static/index.js?v=1",
        "/static/style.css",
        "/static/nothing.js",
        "/recording?id=unknown",
        "/recording",
    ]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_than_get_and_head_are_refused(logs, method):
    app = PluginApp(logs)
    for address in addresses(app):
        reply = app.ask(address, method)
        assert reply.status_code == 405, address
        assert reply.headers["Allow"] == "GET, HEAD"
        assert "only GET and HEAD" in json.loads(reply.get_data())["error"]


def test_head_says_what_get_would(logs):
    app = PluginApp(logs)
    for address in addresses(app):
        whole, head = app.ask(address), app.ask(address, "HEAD")
        assert head.status_code == whole.status_code, address
        assert head.get_data() == b""
        assert head.headers["Content-Type"] == whole.headers["Content-Type"]


def test_whatever_is_served_has_a_policy_and_no_cache_keeps_data(logs):
    app = PluginApp(logs)
    for address in addresses(app):
        headers = app.ask(address).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'"), address
        assert "unsafe" not in policy
        assert "frame-ancestors 'self'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff", address
        kept = address == "/static/index.js?v=1"  # its address changes with its content
        assert (headers["Cache-Control"] == "no-store") != kept, address


def test_the_offline_report_has_a_policy_that_fetches_nothing(logs):
    app = PluginApp(logs)
    (one,) = app.json("/runs")["recordings"]
    page = app.ask(f"/export.html?id={one['id']}").get_data().decode()
    head = page[: page.index("<style>")]
    assert "default-src 'none'" in head and "connect-src" not in head and "base-uri 'none'" in head


# --- links ----------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """A log directory with one recording, and another recording outside of it."""
    make_recording(tmp_path / "logs" / "own", "healthy", steps=30)
    outside = make_recording(tmp_path / "outside" / "b", "healthy", steps=60)
    return tmp_path / "logs", outside


@pytest.mark.parametrize("link", ["run", "recording", "manifest"])
def test_what_is_a_link_out_of_the_log_directory_is_refused(elsewhere, link):
    logdir, outside = elsewhere
    place = logdir / "c" / "plugins" / "gpu_utilization"
    if link == "run":
        (logdir / "c").symlink_to(outside.parents[2])
    elif link == "recording":
        place.mkdir(parents=True)
        (place / outside.name).symlink_to(outside)
    else:
        shutil.copytree(outside, place / outside.name)
        manifest = place / outside.name / "manifest.json"
        manifest.unlink()
        manifest.symlink_to(outside / "manifest.json")
    listing, found = PluginApp(logdir).json("/runs"), read_recordings(logdir)
    assert [one["run"] for one in listing["recordings"]] == [one.run for one in found] == ["own"]
    for said in ([one["message"] for one in listing["problems"]], [one.message for one in found.problems]):
        assert len(said) == 1 and "leads out of the log directory" in said[0], said
        assert "as a log directory of its own" in said[0]


@pytest.mark.parametrize("kind", ["segment", "top"])
def test_rows_behind_a_link_out_of_the_log_directory_are_not_shown(elsewhere, kind):
    logdir, outside = elsewhere
    place = logdir / "c" / "plugins" / "gpu_utilization" / outside.name
    shutil.copytree(outside, place)
    (name,) = (file.name for file in outside.glob(f"{kind}*"))
    (place / name).unlink()
    (place / name).symlink_to(outside / name)
    one = next(one for one in read_recordings(logdir) if one.run == "c")
    shown = len(one.steps["step"])
    assert shown == (0 if kind == "segment" else 60)
    assert one.top.step_range[1] in (59, -1)
    assert any("leads out of the log directory" in str(problem) for problem in one.problems)
    app = PluginApp(logdir)
    id = next(one["id"] for one in app.json("/runs")["recordings"] if one["run"] == "c")
    body = app.ask(f"/export.csv?id={id}").get_data()
    assert body.count(b"\n") == 1 + shown
    assert b"leads out of the log directory" in gzip.decompress(
        Client(app.routes["/recording"]).get(f"/recording?id={id}", headers={"Accept-Encoding": "gzip"}).get_data()
    )


def test_links_within_the_log_directory_and_the_directory_itself_are_followed(elsewhere, tmp_path):
    logdir, _ = elsewhere
    (logdir / "again").symlink_to("own")
    (tmp_path / "link").symlink_to(logdir)
    for path in (logdir, tmp_path / "link"):
        listing = PluginApp(path).json("/runs")
        assert {one["run"] for one in listing["recordings"]} == {"own", "again"}
        assert listing["problems"] == []
        assert len(read_recordings(path)) == 2


def test_each_directory_of_a_list_has_its_own_bounds(elsewhere, tmp_path):
    logdir, outside = elsewhere
    (logdir / "b").symlink_to(outside.parents[2])
    spec = f"first:{logdir},{tmp_path / 'outside'}"
    own, b = str(logdir / "own"), str(logdir / "b")
    assert log_directory("", spec, own) == str(logdir)
    assert log_directory("", spec, str(tmp_path / "outside" / "b")) == str(tmp_path / "outside")
    assert log_directory(str(logdir), "", own) == str(logdir)
    paths = {"first/own": own, "first/b": b, "b": str(tmp_path / "outside" / "b")}
    listing = PluginApp("", spec, paths).json("/runs")
    assert {one["run"] for one in listing["recordings"]} == {"first/own", "b"}
    assert len(listing["problems"]) == 1


def test_the_total_of_all_runs_has_a_row_for_each(tmp_path):
    for name, scenario in (("a", "slow"), ("b", "healthy")):
        make_recording(tmp_path / name, scenario, steps=200, gpus=3, scalars=False)
    damaged = make_recording(tmp_path / "c", "slow", steps=60, gpus=1, scalars=False)
    (damaged / "manifest.json").write_text("{")
    app = PluginApp(tmp_path)
    found = app.json("/total")
    rows = {row["id"].partition("/")[0]: row for row in found["runs"]}
    assert set(rows) == {"a", "b", "c"} and found["runs"][0] is rows["a"]
    assert rows["a"]["top"] == "input_bound"
    assert rows["c"]["lost"] == pytest.approx(2.27 / 3600, rel=0.01), "no GPU is known: in hours of its own"
    assert found["unit"] == "gpu_hours" and rows["a"]["recordings"] == []
    assert sum(part["hours"] for part in found["shares"]) == pytest.approx(found["hours"])
    assert found["headline"].startswith("3 trainings, ") and "lost to Input-bound" in found["headline"]
    listed = {row["id"] for row in app.json("/runs")["recordings"]}
    assert {row["id"] for row in found["runs"]} == listed  # from a row into its timeline
    assert app.json("/total") == found
    assert found["left"] == 0
    make_recording(tmp_path / "d", "healthy", steps=60, gpus=1, scalars=False)
    assert len(PluginApp(tmp_path).json("/total")["runs"]) == 4


def test_runs_that_nobody_has_diagnosed_are_judged_a_few_a_request(tmp_path, monkeypatch):
    """The sums say how many are left, and are those of the terminal once there is none."""
    for name in "abc":
        path = make_recording(tmp_path / name, "slow", steps=200, gpus=3, scalars=False)
        manifest = path / "manifest.json"
        facts = json.loads(manifest.read_text())
        del facts["diagnosis"]
        manifest.write_text(json.dumps(facts))
    app = PluginApp(tmp_path)
    monkeypatch.setattr("tensorboard_plugin.plugin.DIAGNOSE_S", 0)
    found = app.json("/total")
    assert found["left"] == 3 and "lost" not in found["headline"]
    monkeypatch.setattr("tensorboard_plugin.plugin.DIAGNOSE_S", 600)
    found = app.json("/total")
    assert found["left"] == 0
    known = total(survey([str(tmp_path)]))
    assert found["headline"] == headline(known) and "lost to Input-bound" in found["headline"]
    assert sorted(row["lost"] for row in found["runs"]) == pytest.approx(
        sorted(run["gpu_hours"]["lost"] for run in known["runs"])
    )
