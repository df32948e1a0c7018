"""A real Chromium on a real TensorBoard, over recordings that a script made."""

import os
from pathlib import Path

import pytest
from gpu_tab import Tab
from make_recording import make_recording
from tensorboard_server import TensorBoardServer

pytest.importorskip("playwright.sync_api", reason="pip install -e .[test]")

RUNS = {"thirds": ("thirds", 2400, 2), "healthy": ("healthy", 600, 1), "laptop": ("no_gpu", 300, 0)}


@pytest.fixture(scope="session")
def logdir(tmp_path_factory) -> Path:
    """Three runs: one starved by its input in its middle third, one healthy, one without a GPU."""
    root = tmp_path_factory.mktemp("browser-logs")
    for number, (name, (scenario, steps, gpus)) in enumerate(RUNS.items()):
        # The first run is the newest, so that it is the one shown first.
        make_recording(root / name, scenario, steps=steps, gpus=gpus, past_s=300 + 1000 * number)
    return root


@pytest.fixture(scope="session")
def server(logdir):
    with TensorBoardServer(logdir, load_fast=True) as started:
        yield started


@pytest.fixture
def open_tab(browser):
    """`open_tab(url, link="", **options) -> Tab`: the tab alone, or inside TensorBoard with `host=True`.

    After the test no tab may have logged an error or asked for anything beyond its server.
    """
    tabs: list[Tab] = []

    def open_(url, *, host=False, link="", width=1440, height=900, **options) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        tab = Tab(context, url, host=host)
        tabs.append(tab)
        return tab.open(link)

    yield open_
    problems = []
    for tab in tabs:
        problems += tab.problems
        folder = os.environ.get("SCREENSHOTS")
        if folder and not tab.page.is_closed():
            name = os.environ.get("PYTEST_CURRENT_TEST", "tab").split("::")[-1].split(" ")[0]
            tab.page.screenshot(path=str(Path(folder) / f"{name}-{len(tab.page.url)}.png"))
        tab.context.close()
    assert not problems, "\n".join(problems)


@pytest.fixture
def tab(open_tab, server) -> Tab:
    """The tab over `logdir`, alone in a page, with the run of three thirds open."""
    return open_tab(server.url)
