"""`%tensorboard` shows TensorBoard in a frame of 800 pixels: the tab is of use in it."""

import os
from pathlib import Path

import pytest
from make_recording import make_recording
from tensorboard_server import TensorBoardServer

pytestmark = pytest.mark.browser


def test_verdict_findings_and_timeline_are_seen_at_once(browser, tmp_path):
    make_recording(tmp_path / "logs", "thirds", steps=600, gpus=1)
    page = browser.new_context(viewport={"width": 1100, "height": 900}).new_page()
    with TensorBoardServer(tmp_path / "logs", load_fast=True) as server:
        # As `tensorboard.notebook` writes it.
        page.set_content(
            '<iframe id="tensorboard-frame" width="100%" height="800" frameborder="0" '
            f'src="{server.url}/#gpu_utilization"></iframe>'
        )
        tab = page.frame_locator("#tensorboard-frame").frame_locator("iframe")
        tab.locator(".tl-value:not(:empty)").first.wait_for(state="attached", timeout=60_000)
        assert "The input pipeline starves the GPU" in tab.locator("h1").inner_text()
        page.wait_for_timeout(300)
        bottom = 800
        for seen in ("h1", "canvas"):
            box = tab.locator(seen).first.bounding_box()
            assert box["y"] >= 0 and box["y"] + 60 < bottom, (seen, box)
        folder = os.environ.get("SCREENSHOTS")
        if folder:
            page.screenshot(path=str(Path(folder) / "tensorboard-in-a-cell.png"))
    page.context.close()
