"""What every test may use: the checkout, the support modules, the folder of real traces."""

import contextlib
import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent

# `from nvml import …`, `from tensorboard_server import …`: helpers shared between areas.
sys.path.insert(0, str(REPOSITORY / "harness" / "support"))
sys.path.append(str(REPOSITORY))  # `harness`; last, so that the matrix tests the package that it has installed


# Their files take minutes, and their programs one framework after the other: while others have tests
# left, so that no worker waits for one long file, and while the fork servers are there.
FIRST = ("backends", "trying", "run", "unchanged", "work", "keras", "memory", "profiling")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run what fails once more, and what a real clock decides twice: a loaded machine holds one run up by seconds.

    Thousands of tests train for real, and one that a machine's speed decides refuses a whole change. What is
    really broken fails each time; what passed only when run again is listed at the end (RERUN), and is a fault.
    """
    for item in items:
        clock = item.get_closest_marker("real_clock")
        if clock is not None:
            (reason,) = clock.args
            assert reason, f"{item.nodeid}: what of it depends on the clock?"
        by_clock = clock or item.get_closest_marker("timed") or item.get_closest_marker("browser")
        reruns = clock.kwargs.get("reruns", 2) if clock else 2 if by_clock else 1
        item.add_marker(pytest.mark.flaky(reruns=reruns, reruns_delay=2))
    folders = {item: item.path.relative_to(TESTS).parts[0] if TESTS in item.path.parents else "" for item in items}
    items.sort(key=lambda item: FIRST.index(folders[item]) if folders[item] in FIRST else len(FIRST))


@pytest.fixture
def register_store(monkeypatch):
    """register_store(FileSystem): fsspec knows it by its protocol until the test ends."""
    from fsspec.registry import _registry

    def register(store):
        monkeypatch.setitem(_registry, store.protocol, store)

    return register


@pytest.fixture
def fresh_keras():
    """The same random numbers as ever, and nothing left behind in Keras."""
    import keras

    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()


@pytest.fixture(autouse=True)
def script_of_its_own(monkeypatch):
    """Each test is a script: the time between its fits is not that between tests."""
    recorder = sys.modules.get("gpu_util_callback.recorder.recorder")
    messages = sys.modules.get("gpu_util_callback.recorder.messages")
    if recorder is not None:
        monkeypatch.setattr(recorder, "_process", type(recorder._process)())
    if messages is not None:
        monkeypatch.setattr(messages, "_fits_at_last_verdict", {})
        monkeypatch.setattr(messages, "_short_fits", messages._ShortFits())
        monkeypatch.setattr(messages, "_same", type(messages._same)())
    redaction = sys.modules.get("gpu_util_callback.redaction")
    if redaction is not None:  # what a script prints is redacted once it asked for it
        monkeypatch.setattr(redaction, "_redactor", None)


def unreadable_parts(folder: Path) -> list[str]:
    """What our own reader leaves out of the manifests below a folder: "path: field …".

    Of recorders and imported traces: what tests make up, or damage, is theirs.
    """
    from gpu_util_callback.recording.manifest import ManifestError, parse

    found = []
    for place, _, files in os.walk(folder):
        path = Path(place, "manifest.json")
        if path.name not in files or path.parent.parent.name != "gpu_utilization":
            continue
        if not path.is_file():  # a named pipe, of a test of such files
            continue
        text = path.read_bytes()
        if b'"recorder_cpu_pct":' in text or b'"source":{"tool":' in text:
            with contextlib.suppress(ManifestError):
                facts, problems = parse(text)
                found += [f"{path}: {part}" for part in (*problems, *undeclared(json.loads(text), facts))]
    return found


# Facts that are no longer recorded, in the recordings of `docs/try` and `tests/evidence`.
FORMER = {"cudnn", "input_queue", "matched_by", "nvml_version", "seen_ns", "trainable_variables"}


def undeclared(written: Any, read: Any, at: str = "") -> list[str]:
    """The fields of a manifest that are gone once it is read: nothing declares them."""
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [part for pair in zip(written, read, strict=True) for part in undeclared(*pair, f"{at}[]")]
    if not isinstance(written, dict) or not isinstance(read, dict):
        return []
    gone = [f"{at}.{name} is not declared" for name in written.keys() - read.keys() - FORMER]
    return gone + [
        part for name in written.keys() & read.keys() for part in undeclared(written[name], read[name], f"{at}.{name}")
    ]


_checked: set[Path] = set()


@pytest.fixture(autouse=True)
def what_we_write_is_read_back(request):
    """Fail a test whose recordings our own reader finds fault with."""
    yield
    folder = request.node.funcargs.get("tmp_path")
    if folder is not None and folder not in _checked:
        _checked.add(folder)
        assert not unreadable_parts(folder)


@pytest.fixture(autouse=True, scope="module")
def imported_is_not_collected():
    """A collection looks at what a test made, not at the million objects that were imported before it.

    Keras collects whenever its session is cleared.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def what_is_shared_is_read_back(tmp_path_factory):
    """The same for what the tests of a module share, and for programs that they start."""
    base = tmp_path_factory.getbasetemp()
    # Their temporary files (`environment` of `backends/processes`): Ray's sockets need short paths.
    with tempfile.TemporaryDirectory(prefix="gu", ignore_cleanup_errors=True) as programs:
        os.environ["TESTS_PROGRAMS"] = programs
        yield
        folders = [one for one in base.iterdir() if not one.is_symlink()]
        shared = [one for one in folders if one not in _checked]
        _checked.update(shared)
        assert not [part for one in (*shared, Path(programs)) for part in unreadable_parts(one)]


@pytest.fixture(scope="session")
def trace_data() -> Path:
    """The folder of public traces with known answers, beside the checkout; skips without it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data with the public reference traces beside this checkout")
    return folder


@pytest.fixture(scope="session")
def browser():
    """A real Chromium: one for all tests of a process, which can have no second one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install -e .[test]")
    import chromium

    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium or Chrome on this machine (set CHROMIUM=/path/to/it)")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=chromium.FLAGS)
        yield started
        started.close()


@pytest.fixture
def open_file(browser):
    """`open_file(path, width, height) -> page`: fails on every message, and on requests for anything but the file."""
    contexts, problems = [], []

    def open_(path: Path, width: int = 1440, height: int = 900):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
        page.on("console", lambda message: problems.append(message.text))
        page.on(
            "request", lambda request: request.url.startswith((path.as_uri(), "blob:")) or problems.append(request.url)
        )
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not problems, problems
