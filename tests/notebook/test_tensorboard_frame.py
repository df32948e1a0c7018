"""`%tensorboard` shows TensorBoard in a frame of 800 pixels: the tab is of use in it."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from make_recording import make_recording
from tensorboard_server import TensorBoardServer

pytestmark = pytest.mark.browser


@pytest.fixture
def notebook_server():
    """`notebook_server(folder) -> url`: a web server of the folder, on loopback."""
    servers: list[ThreadingHTTPServer] = []

    def start(folder: Path) -> str:
        handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_verdict_findings_and_timeline_are_seen_at_once(browser, notebook_server, tmp_path):
    make_recording(tmp_path / "logs", "thirds", steps=600, gpus=1)
    page = browser.new_context(viewport={"width": 1100, "height": 900}).new_page()
    with TensorBoardServer(tmp_path / "logs", load_fast=True) as server:
        # As `tensorboard.notebook` writes it, on a page that another server of this host serves.
        cell = (
            '<iframe id="tensorboard-frame" width="100%" height="800" frameborder="0" '
            f'src="{server.url}/#gpu_utilization"></iframe>'
        )
        (tmp_path / "notebook.html").write_text(cell, encoding="utf-8")
        page.goto(f"{notebook_server(tmp_path)}/notebook.html")
        tab = page.frame_locator("#tensorboard-frame").frame_locator("iframe")
        tab.locator(".tl-value:not(:empty)").first.wait_for(state="attached", timeout=60_000)
        assert "The input pipeline starves the GPU" in tab.locator("h1").inner_text()
        page.wait_for_timeout(300)
        bottom = 800
        for seen in ("h1", "canvas"):
            box = tab.locator(seen).first.bounding_box()
            assert box["y"] >= 0 and box["y"] + 60 < bottom, (seen, box)
    page.context.close()
