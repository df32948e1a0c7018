"""Background jobs: each once, few at a time, and none lost to another's error."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from make_recording import make_recording
from plugin_app import PluginApp
from waiting import wait_until

from tensorboard_plugin import plugin as plugin_module
from tensorboard_plugin.tiles.recording_tiles import Jobs


def test_a_job_that_hangs_is_begun_once_and_holds_up_no_other():
    jobs, released, done = Jobs(), threading.Event(), []
    jobs.do("hung", lambda: released.wait(60))
    jobs.do("other", lambda: done.append("other"), 60)
    jobs.do("hung", lambda: done.append("hung"))
    assert done == ["other"] and list(jobs.running) == ["hung"]
    released.set()
    wait_until(lambda: not jobs.running, 10)
    jobs.do("hung", lambda: done.append("hung"), 60)
    assert done == ["other", "hung"]


def test_of_too_many_the_newest_are_refused():
    jobs, released, done = Jobs(), threading.Event(), []
    for id in range(jobs.MOST):
        jobs.do(id, lambda: released.wait(60))
    jobs.do("refused", lambda: done.append("refused"), 60)
    assert len(jobs.running) == jobs.MOST and not done
    released.set()
    wait_until(lambda: not jobs.running, 10)


def test_an_error_ends_its_own_job_alone(caplog):
    jobs, done = Jobs(), []
    jobs.do("fails", lambda: 1 / 0, 60)
    jobs.do("after", lambda: done.append("after"), 60)
    assert done == ["after"] and not jobs.running
    assert "failed" in caplog.text


def test_requests_at_the_same_time_have_one_report_made(tmp_path, monkeypatch):
    make_recording(tmp_path, "thirds", steps=60, scalars=False)
    made = []

    def slow(of):
        def counted(*args, **options):
            made.append(of)
            time.sleep(0.2)
            return of(*args, **options)

        return counted

    for name in ("run_report", "total"):
        monkeypatch.setattr(plugin_module, name, slow(getattr(plugin_module, name)))
    app = PluginApp(tmp_path, names=())
    (one,) = app.json("/runs")["recordings"]

    def ask(route):
        assert app.get(route, id=one["id"])[0] == 200

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, ["/recording", "/total", "/job"] * 4))
    assert len(made) == 2


def test_two_hundred_requests_do_not_wait_for_a_long_one(tmp_path, monkeypatch):
    """None of them computes for long, and the report of one recording holds up no other."""
    for run in ("long", "other"):
        make_recording(tmp_path / run, "thirds", steps=3000, scalars=False)
    app = PluginApp(tmp_path)
    ids = {one["run"]: one["id"] for one in app.json("/runs")["recordings"]}
    begun, go_on, report = threading.Event(), threading.Event(), plugin_module.run_report

    def held(recording, *args, **options):
        if recording.id == ids["long"]:
            begun.set()
            assert go_on.wait(60)
        return report(recording, *args, **options)

    monkeypatch.setattr(plugin_module, "run_report", held)

    def ask(route, run="other"):
        wall, cpu = time.perf_counter(), time.thread_time()
        query = {"id": ids[run], "level": 0, "first": 0, "last": 99, "count": 64, "lanes": "steps"}
        assert app.get(route, **query)[0] == 200
        return time.perf_counter() - wall, time.thread_time() - cpu

    with ThreadPoolExecutor(200) as pool:
        last = pool.submit(ask, "/recording", "long")
        assert begun.wait(60)
        took = list(pool.map(ask, ["/runs", "/recording", "/tiles", "/export.csv"] * 50))
        assert not last.done()
        go_on.set()
        last.result()
    walls, cpus = zip(*took, strict=True)
    assert sorted(walls)[197] < 10 and max(cpus) < 1, (sorted(walls)[-3:], max(cpus))
