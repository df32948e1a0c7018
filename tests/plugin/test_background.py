"""Background jobs: one at a time, the newest first, each once, and none lost to another's error."""

import threading

from tensorboard_plugin.tiles.engine import BackgroundJobs


def held(jobs):
    """Occupy the thread; returns what lets it go on."""
    begun, go_on = threading.Event(), threading.Event()
    jobs.do("holds", lambda: begun.set() or go_on.wait(60))
    assert begun.wait(60)
    return go_on.set


def test_the_newest_goes_first_and_one_that_waits_is_not_added_again():
    jobs, done = BackgroundJobs(), []
    go_on = held(jobs)
    events = [jobs.do(id, lambda id=id: done.append(id)) for id in ("a", "b", "a", "c")]
    assert events[0] is events[2]
    assert jobs.has("a") and jobs.has("holds") and not jobs.has("d")
    go_on()
    assert all(event.wait(60) for event in events)
    assert done == ["c", "b", "a"]


def test_a_job_that_may_wait_holds_up_no_other():
    jobs, done = BackgroundJobs(), []
    later = jobs.do("later", lambda: done.append("later"), pause_s=0.2)
    at_once = jobs.do("at once", lambda: done.append("at once"))
    assert at_once.wait(60) and later.wait(60)
    assert done == ["at once", "later"]
    assert not jobs.has("later")


def test_an_error_ends_its_own_job_alone(caplog):
    jobs, done = BackgroundJobs(), []
    go_on = held(jobs)
    after = jobs.do("after", lambda: done.append("after"))
    fails = jobs.do("fails", lambda: 1 / 0)
    go_on()
    assert fails.wait(60) and after.wait(60)
    assert done == ["after"]
    assert "failed" in caplog.text


def test_of_too_many_the_oldest_are_forgotten():
    jobs, done = BackgroundJobs(), []
    go_on = held(jobs)
    events = [jobs.do(str(id), lambda id=id: done.append(id)) for id in range(jobs.MOST + 3)]
    go_on()
    assert events[3].wait(60)
    assert done == list(range(jobs.MOST + 2, 2, -1))
    assert not any(event.is_set() for event in events[:3])
