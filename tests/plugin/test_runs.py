"""Thousands of runs are looked at by one look each; what is new, grows or goes is seen."""

import json
import shutil
import threading
import time

import pytest
from make_recording import SyntheticRun, make_recording
from waiting import wait_until

from gpu_util_callback.recording import reader
from gpu_util_callback.recording.storage import LocalStorage
from tensorboard_plugin import runs as runs_module
from tensorboard_plugin.runs import RunIndex, run_directories


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def index(tmp_path, clock):
    return RunIndex(lambda: {path.name: str(path) for path in sorted(tmp_path.iterdir())}, clock)


def runs(index, clock, pause=1.0):
    clock.now += pause
    return [one.run for one in index.recordings()]


@pytest.fixture
def looked(monkeypatch):
    """Names of what the storage was asked for."""
    asked = []

    def watch(name):
        real = getattr(LocalStorage, name)

        def watched(self, path, *more):
            asked.append((name, path.rpartition("/")[2]))
            return real(self, path, *more)

        monkeypatch.setattr(LocalStorage, name, watched)

    for name in ("stamp", "folders", "read"):
        watch(name)
    return asked


def test_recordings_that_were_copied_without_event_files_are_found(clock, tmp_path):
    make_recording(tmp_path / "a" / "b", "healthy", steps=60, scalars=False)
    make_recording(tmp_path / "c", "healthy", steps=60, scalars=False)
    names: list[str] = []
    index = RunIndex(lambda: run_directories(str(tmp_path), names, None), clock=clock)
    assert runs(index, clock) == ["a/b", "c"]
    assert runs(index, clock, pause=20) == ["a/b", "c"] and index.progress == (3, 3)
    shutil.rmtree(tmp_path / "c")
    runs(index, clock, pause=20)  # finds that it is gone
    assert runs(index, clock, pause=20) == ["a/b"]
    names.append("d")
    assert runs(index, clock, pause=20) == [], "TensorBoard knows better"


def test_what_is_settled_costs_one_look_at_its_folder(index, clock, tmp_path, looked, monkeypatch):
    for name in "abc":
        make_recording(tmp_path / name, "healthy", steps=60, scalars=False)
    monkeypatch.setattr(runs_module, "GRANULARITY_S", 0.0)
    assert runs(index, clock) == ["a", "b", "c"]
    runs(index, clock)
    looked.clear()
    assert runs(index, clock) == ["a", "b", "c"]
    assert looked == [("stamp", "gpu_utilization")] * 3
    looked.clear()
    runs(index, clock, pause=0.1)
    assert looked == [], "asked again within the same moment"
    runs(index, clock, pause=20)
    assert ("stamp", "manifest.json") in looked, "but now and then also those are looked at"


def test_new_growing_and_deleted_recordings_are_seen(index, clock, tmp_path):
    make_recording(tmp_path / "a", "healthy", steps=60, scalars=False)
    assert runs(index, clock) == ["a"]
    live = SyntheticRun(tmp_path / "b", "healthy", 300, 1, scalars=False)
    live.advance(60)
    assert sorted(runs(index, clock)) == ["a", "b"]
    (growing,) = [one for one in index.recordings() if one.run == "b"]
    live.advance(60)
    runs(index, clock)
    assert growing.step_count == 120
    make_recording(tmp_path / "a", "healthy", steps=30, scalars=False)  # a second fit in that run
    assert sorted(runs(index, clock)) == ["a", "a", "b"]
    shutil.rmtree(tmp_path / "a")
    assert runs(index, clock) == ["b"]
    live.close()
    runs(index, clock)
    assert growing.status == "ended"
    manifest = next(tmp_path.rglob("manifest.json"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": [9, 0]}))
    assert runs(index, clock, pause=20) == []
    assert "upgrade gpu-util-callback" in index.problems[0].message


def test_who_looks_at_one_recording_takes_no_news_from_the_list(index, clock, tmp_path):
    """A rank whose manifest named its job late joins the others, whoever read it first."""
    job = {"job": "j", "world_size": 2, "fit_index": 0}
    make_recording(tmp_path / "a", "healthy", steps=30, scalars=False, rank=0, **job)
    late = make_recording(tmp_path / "b", "healthy", steps=30, scalars=False, rank=1)
    clock.now += 1
    first, second = index.recordings()
    assert first.session != second.session
    manifest = late / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **job}))
    clock.now += 5
    assert index.find(second.id).facts["job"] == "j"
    clock.now += 1
    first, second = index.recordings()
    assert first.session == second.session


def test_a_slow_file_system_holds_nobody_up(index, clock, tmp_path, monkeypatch):
    """A request gets what is known so far; a deep link is answered once its run was reached."""
    for number in range(6):
        make_recording(tmp_path / f"run{number}", "healthy", steps=30, scalars=False)
    go_on = threading.Event()
    real = reader.Recording.refresh

    def slow(self):
        if self.run > "run2" and not go_on.is_set():
            go_on.wait(20)
        return real(self)

    monkeypatch.setattr(reader.Recording, "refresh", slow)
    monkeypatch.setattr(runs_module, "PATIENCE_S", 0.4)
    began = time.monotonic()
    clock.now += 1
    some = index.recordings()
    assert time.monotonic() - began < 5
    assert not index.complete
    assert len(some) < 6
    go_on.set()
    wait_until(lambda: index.recordings() and index.complete, 20)
    assert runs(index, clock) == [f"run{number}" for number in range(6)]


def test_the_same_list_from_many_threads(index, clock, tmp_path):
    for name in "abcd":
        make_recording(tmp_path / name, "healthy", steps=30, scalars=False)
    found, failures = [], []

    def look():
        try:
            for _ in range(20):
                clock.now += 0.3
                found.append([one.run for one in index.recordings()])
                assert index.find(index.recordings()[0].id) is not None
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures, failures[0]
    assert all(one == ["a", "b", "c", "d"] for one in found)


def test_what_a_disk_refused_once_is_asked_for_again(index, clock, tmp_path, monkeypatch):
    path = make_recording(tmp_path / "a", "healthy", steps=60, scalars=False)
    real, broken = LocalStorage.read, [True]

    def read(self, name, limit):
        if broken[0] and "segment-" in name:
            raise OSError(5, "Input/output error")
        return real(self, name, limit)

    monkeypatch.setattr(LocalStorage, "read", read)
    clock.now += 1
    (one,) = index.recordings()
    assert len(one.steps["step"]) == 0
    (problem,) = one.problems
    assert problem.path.startswith(str(path))
    assert "cannot be read: Input/output error" in problem.message
    broken[0] = False
    clock.now += 20
    assert index.recordings() == [one]
    clock.now += 20
    (again,) = index.recordings()
    assert again.id == one.id
    assert len(again.steps["step"]) == 60
    assert again.problems == []
    assert index.find(one.id) is again
