"""What every test may use: the checkout, the support modules, the folder of real traces."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent

# `from nvml import …`, `from tensorboard_server import …`: helpers shared between areas.
sys.path.insert(0, str(TESTS / "support"))


# These time real fits, threads and processes. On a machine that others load, one run in hundreds is
# held up for seconds by somebody else; what is really broken fails three times.
TIMED = {"backends", "browser", "gpus", "keras", "plugin", "recording", "scenarios", "windows"}


def pytest_collection_modifyitems(items):
    for item in items:
        if TESTS in item.path.parents and item.path.relative_to(TESTS).parts[0] in TIMED:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))


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
