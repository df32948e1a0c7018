"""A store that does not answer holds up nothing but what it holds itself."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from make_recording import SyntheticRun, make_recording
from plugin_app import PluginApp
from waiting import wait_until

from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.storage import LocalStorage, storage_for
from tensorboard_plugin import plugin as plugin_module
from tensorboard_plugin import runs as runs_module
from tensorboard_plugin.plugin import NoAnswer
from tensorboard_plugin.runs import RunIndex
from tensorboard_plugin.tiles.server import TileServer


class SilentFileSystem(MemoryFileSystem):
    """Answers once `answers` is set."""

    protocol = "silent"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    answers = threading.Event()
    asked = 0

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("silent://"))

    def _wait(self):
        type(self).asked += 1
        assert self.answers.wait(60)

    def ls(self, path, detail=True, **options):
        self._wait()
        return super().ls(path, detail, **options)

    def info(self, path, **options):
        self._wait()
        return super().info(path, **options)

    def cat_file(self, path, start=None, end=None, **options):
        self._wait()
        return super().cat_file(path, start, end, **options)


@pytest.fixture
def silent(tmp_path, register_store):
    """A recording in such a store, which answers from `silent.set()` on."""
    register_store(SilentFileSystem)
    SilentFileSystem.answers = threading.Event()
    fs = SilentFileSystem()
    path = make_recording(tmp_path / "made", "thirds", steps=60, scalars=False)
    for file in path.iterdir():
        folder = f"/bucket/run/plugins/gpu_utilization/{path.name}"
        MemoryFileSystem.pipe_file(fs, f"{folder}/{file.name}", file.read_bytes())
    yield SilentFileSystem.answers
    SilentFileSystem.answers.set()
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(runs_module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(runs_module, "SILENT_S", 0.3)
    monkeypatch.setattr(runs_module, "FRESH_S", 0.0)
    monkeypatch.setattr(plugin_module, "ANSWER_S", 1.0)


def test_other_stores_are_listed_and_it_is_once_it_answers(silent, impatient, tmp_path):
    make_recording(tmp_path / "here", "healthy", steps=30, scalars=False)
    places = {"there": "silent://bucket/run", "here": str(tmp_path / "here")}
    index = RunIndex(lambda: places)
    wait_until(lambda: [one.run for one in index.recordings()] == ["here"] and index.complete, 30)
    (problem,) = index.problems
    assert problem.path == "silent://bucket/run"
    assert problem.message.startswith("no answer; ")
    make_recording(tmp_path / "here", "healthy", steps=30, scalars=False)
    wait_until(lambda: len(index.recordings()) == 2, 30)
    threads = sum(one.name == "gpu-util-runs" for one in threading.enumerate())
    for _ in range(5):
        wait_until(lambda: index.recordings() and index.complete, 30)
    assert sum(one.name == "gpu-util-runs" for one in threading.enumerate()) <= threads
    silent.set()
    there_too = ["here", "there"]
    wait_until(lambda: sorted({one.run for one in index.recordings()}) == there_too and not index.problems, 30)


def test_a_download_ends_and_says_that_it_is_incomplete(silent, impatient, monkeypatch):
    places = {"there": "silent://bucket/run"}
    app = PluginApp("", "there:silent://bucket/run,here:/there", places)
    silent.set()
    wait_until(lambda: app.json("/runs").get("recordings"), 30)
    (one,) = app.json("/runs")["recordings"]
    address = f"/export.csv?id={quote(one['id'])}"
    whole = app.ask(address).text
    assert whole.count("\n") == 61
    begun = app.ask(address).response
    lines = iter(begun)
    assert next(lines).decode() == whole[: whole.index("\n") + 1]
    silent.clear()
    monkeypatch.setattr(plugin_module, "ANSWER_S", 0.2)
    asked = SilentFileSystem.asked
    assert b"incomplete" in next(lines)
    assert SilentFileSystem.asked > asked, "it waited for something else"
    with pytest.raises(NoAnswer, match="does not answer"):
        next(lines)


def test_lanes_of_others_are_read_meanwhile(silent, tmp_path):
    silent.set()
    storage, _ = storage_for("silent://bucket/run")
    (folder,) = storage.folders("/bucket/run/plugins/gpu_utilization")
    there = Recording(storage, f"/bucket/run/plugins/gpu_utilization/{folder}", id="there")
    here = Recording(*storage_for(make_recording(tmp_path / "b", "thirds", steps=600)), id="here")
    server, request = TileServer(), ("step", 0, 0, 8, ["steps"])
    silent.clear()
    asked = SilentFileSystem.asked
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.tile, there, *request)
        wait_until(lambda: SilentFileSystem.asked > asked, 30)
        assert server.tile(here, *request) and not waiting.done()
        silent.set()
        assert waiting.result(30)


class Hung(set):
    """Local folders that do not answer until `answer()`."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def wait(self, path):
        """Return once a path answers."""
        silent = lambda: any(Path(path).is_relative_to(one) for one in self)  # noqa: E731
        with self.changed:
            assert self.changed.wait_for(lambda: not silent(), 60)

    def answer(self):
        with self.changed:
            self.clear()
            self.changed.notify_all()


@pytest.fixture
def hung(monkeypatch):
    folders = Hung()

    def answering(name):
        plain = getattr(LocalStorage, name)

        def waiting(self, path, *args):
            folders.wait(path)
            return plain(self, path, *args)

        monkeypatch.setattr(LocalStorage, name, waiting)

    for name in ("names", "folders", "read", "exists", "stamp", "age_s"):
        answering(name)
    yield folders
    folders.answer()


def listing(app):
    began = time.monotonic()
    reply = app.ask("/runs")
    assert reply.status_code == 200
    assert time.monotonic() - began < 5
    return sorted(one["run"] for one in reply.json["recordings"]), reply.json["problems"]


def waiting_requests() -> int:
    return sum(one.name.startswith("gpu-util-request") for one in threading.enumerate())


@pytest.mark.parametrize("spec", [False, True], ids=["one directory", "a list"])
def test_a_mount_that_hangs_holds_up_nothing_else(spec, hung, impatient, tmp_path, monkeypatch):
    """Its mount point is below the log directory, or a log directory itself."""
    monkeypatch.setattr(plugin_module, "LOOK_S", 0.2)
    for folder in ("a", "nfs/b", "nfs/c", "z"):
        run = SyntheticRun(tmp_path / folder, "healthy", steps=30, scalars=False)
        run.advance(30)  # live: its status is in no file
    names = ["a", "nfs/b", "nfs/c", "z"]
    listed = ",".join(str(tmp_path / n) for n in ("a", "nfs", "z")) if spec else ""
    paths = {n: str(tmp_path / n) for n in names}
    app = PluginApp("" if spec else tmp_path, listed, paths, names)
    wait_until(lambda: listing(app)[0] == names, 30)
    ids = {one["run"]: one["id"] for one in app.json("/runs")["recordings"]}

    def ask(route, run):
        return app.ask(f"{route}?id={quote(ids[run])}&level=0&first=0&count=8&lanes=steps")

    hung.add(tmp_path / "nfs")
    wait_until(lambda: any("no answer" in one["message"] for one in listing(app)[1]), 30)
    make_recording(tmp_path / "z", "healthy", steps=30, scalars=False)
    wait_until(lambda: listing(app)[0] == [*names, "z"], 30)
    before = threading.active_count()
    with ThreadPoolExecutor(2) as pool:
        silent = [*pool.map(lambda route: ask(route, "nfs/b"), ("/recording", "/tiles"))]
    assert all(one.status_code == 504 and "does not answer" in one.json["error"] for one in silent)
    for run in ("a", "z"):
        assert [ask(route, run).status_code for route in ("/recording", "/tiles")] == [200, 200]
    assert app.ask("/total").status_code == 200
    for _ in range(5):
        waiting = waiting_requests()
        assert ask("/recording", "nfs/b").status_code == 504
        assert waiting_requests() <= waiting, "no third request waits for it"
        listing(app)
    assert threading.active_count() <= before + 4
    hung.answer()
    wait_until(lambda: ask("/recording", "nfs/b").status_code == 200, 30)


def test_a_log_directory_that_hangs_is_answered_for(hung, impatient, tmp_path, monkeypatch):
    monkeypatch.setattr(plugin_module, "LOOK_S", 0.2)
    make_recording(tmp_path, "healthy", steps=30, scalars=False)
    released = threading.Event()
    monkeypatch.setattr(Path, "is_dir", lambda self: released.wait(60))
    hung.add(tmp_path)
    app = PluginApp(tmp_path, names=())
    wait_until(lambda: "no answer" in str(listing(app)[1]), 30)
    assert app.json("/runs")["logdir_exists"] is None
    released.set()
