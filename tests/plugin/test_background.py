"""Background jobs: the newest first, each once, and none lost to another's error."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from make_recording import make_recording
from plugin_app import clients

from tensorboard_plugin import plugin as plugin_module
from tensorboard_plugin.tiles.recording_tiles import Jobs


def held(jobs):
    """Occupy the threads; returns what lets one of them go on."""
    go_on = [threading.Event() for _ in range(jobs.THREADS)]
    begun = threading.Barrier(jobs.THREADS + 1)
    for at, event in enumerate(go_on):
        jobs.do(f"holds {at}", lambda event=event: (begun.wait(60), event.wait(60)))
    begun.wait(60)
    return go_on[0].set


def test_the_newest_goes_first_and_one_that_waits_is_not_added_again():
    jobs, done = Jobs(), []
    go_on = held(jobs)
    events = [jobs.do(id, lambda id=id: done.append(id)) for id in ("a", "b", "a", "c")]
    assert events[0] is events[2]
    assert jobs.has("a") and jobs.has("holds 1") and not jobs.has("d")
    go_on()
    assert all(event.wait(60) for event in events)
    assert done == ["c", "b", "a"]


def test_a_job_that_hangs_holds_up_no_other():
    jobs, released = Jobs(), threading.Event()
    hung = jobs.do("hung", lambda: released.wait(60))
    assert jobs.do("other", lambda: None).wait(10)
    assert jobs.has("hung") and not hung.is_set()
    assert jobs.do("hung", lambda: None) is hung, "it is done once"
    released.set()
    assert hung.wait(10)


def test_an_error_ends_its_own_job_alone(caplog):
    jobs, done = Jobs(), []
    go_on = held(jobs)
    after = jobs.do("after", lambda: done.append("after"))
    fails = jobs.do("fails", lambda: 1 / 0)
    go_on()
    assert fails.wait(60) and after.wait(60)
    assert done == ["after"]
    assert "failed" in caplog.text


def test_of_too_many_the_oldest_are_forgotten():
    jobs, done = Jobs(), []
    go_on = held(jobs)
    events = [jobs.do(str(id), lambda id=id: done.append(id)) for id in range(jobs.MOST + 3)]
    go_on()
    assert events[3].wait(60)
    assert done == list(range(jobs.MOST + 2, 2, -1))
    assert not any(event.is_set() for event in events[:3])


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
    apps = clients(tmp_path)
    (one,) = apps["/runs"].get("/runs").json["recordings"]

    def ask(route):
        assert apps[route].get(f"{route}?id={quote(one['id'])}").status_code == 200

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, ["/recording", "/total", "/job"] * 4))
    assert len(made) == 2


def test_two_hundred_requests_do_not_wait_for_a_long_one(tmp_path, monkeypatch):
    """None of them computes for long, and the report of one recording holds up no other."""
    for run in ("long", "other"):
        make_recording(tmp_path / run, "thirds", steps=3000, scalars=False)
    apps = clients(tmp_path, ["long", "other"])
    ids = {one["run"]: one["id"] for one in apps["/runs"].get("/runs").json["recordings"]}
    begun, go_on, report = threading.Event(), threading.Event(), plugin_module.run_report

    def held(recording, *args, **options):
        if recording.id == ids["long"]:
            begun.set()
            assert go_on.wait(60)
        return report(recording, *args, **options)

    monkeypatch.setattr(plugin_module, "run_report", held)

    def ask(route, run="other"):
        wall, cpu = time.perf_counter(), time.thread_time()
        query = f"id={quote(ids[run])}&level=0&first=0&last=99&count=64&lanes=steps"
        assert apps[route].get(f"{route}?{query}").status_code == 200
        return time.perf_counter() - wall, time.thread_time() - cpu

    with ThreadPoolExecutor(200) as pool:
        last = pool.submit(ask, "/recording", "long")
        assert begun.wait(60)
        took = list(pool.map(ask, ["/runs", "/recording", "/tiles", "/steps"] * 50))
        assert not last.done()
        go_on.set()
        last.result()
    walls, cpus = zip(*took, strict=True)
    assert sorted(walls)[197] < 10 and max(cpus) < 1, (sorted(walls)[-3:], max(cpus))
