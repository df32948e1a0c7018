"""A real Chromium on a real TensorBoard, over recordings that a script made."""

import os
from pathlib import Path

import pytest
from gpu_tab import Tab, new_page
from make_recording import make_recording
from tensorboard_server import TensorBoardServer, tensorboard_factory

pytest.importorskip("playwright.sync_api", reason="pip install -e .[test]")
from playwright.sync_api import Page

RUNS = {"thirds": ("thirds", 2400, 2), "healthy": ("healthy", 600, 1), "laptop": ("no_gpu", 300, 0)}


def pytest_itemcollected(item):
    """Have all tests of this folder run again where they fail: a real browser is at work."""
    item.add_marker(pytest.mark.browser)


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


@pytest.fixture(scope="session")
def pages() -> list[Page]:
    """Pages that no test has open: what they have loaded is compiled, and in their cache."""
    return []


@pytest.fixture
def start_tensorboard():
    """`start_tensorboard(logdir, load_fast=True, …) -> server`, until the test ends."""
    yield from tensorboard_factory()


@pytest.fixture
def open_tab(browser, pages, start_tensorboard):
    """`open_tab(url, link="") -> Tab`: the tab alone, or inside TensorBoard with `host=True`.

    `before(page)` is called before it opens; `alone`, or any other option, makes a page for this test
    only. After the test no tab may have logged an error or asked for anything beyond its server.
    """
    tabs: list[Tab] = []
    own: list[Page] = []

    def open_(
        url,
        link="",
        *,
        host=False,
        before=None,
        wait=True,
        expect_errors=False,
        width=1440,
        height=900,
        alone=False,
        **options,
    ) -> Tab:
        if alone or options:
            page = new_page(browser, **options)
            own.append(page)
        else:
            page = pages.pop() if pages else new_page(browser)
        page.set_viewport_size({"width": width, "height": height})
        if before:
            before(page)
        tab = Tab(page, url, host, expect_errors)
        tabs.append(tab)
        return tab.open(link, wait)

    yield open_
    problems = []
    for tab in tabs:
        problems += tab.problems
        folder = os.environ.get("SCREENSHOTS")
        if folder:
            name = os.environ.get("PYTEST_CURRENT_TEST", "tab").split("::")[-1].split(" ")[0]
            tab.page.screenshot(path=str(Path(folder) / f"{name}-{len(tab.page.url)}.png"))
        if tab.page in own:
            tab.context.close()
        else:
            tab.leave()
            pages.append(tab.page)
    assert not problems, "\n".join(problems)


@pytest.fixture
def tab(open_tab, server) -> Tab:
    """The tab over `logdir`, alone in a page, with the run of three thirds open, by its steps."""
    return open_tab(server.url, "&p.gpu_utilization.axis=steps")
