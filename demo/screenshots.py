"""Take the screenshots of the tab, from the runs that `make demo` recorded.

    make screenshots     # after DEMO_SERVE=0 make demo

Those of the README and of docs/tab.md are of a run that was recorded on an NVIDIA H200.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness" / "support")]

RUN = "2-slow-map"
OTHER = "1-healthy"
RECORDED = Path("h200-jax", "slow-input")
# The demo's runs, as they were recorded for the docs.
TRIED = HERE.parent / "docs" / "try" / "recordings"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args(argv)
    of_recorded()
    of_scenes()
    return of_demo()


def of_demo() -> int:
    from chromium import FLAGS, find
    from gpu_tab import Tab, new_page
    from playwright.sync_api import sync_playwright
    from tensorboard_server import TensorBoardServer

    from gpu_util_callback import read_recordings

    logs = next(folder for folder in (HERE / "logs", TRIED) if folder.is_dir())
    runs = [recording for recording in read_recordings(logs) if recording.run == RUN]
    if not runs:
        print(f"no run {RUN} in {logs}: run `DEMO_SERVE=0 make demo` first", file=sys.stderr)
        return 2
    out = HERE / "screenshots"
    out.mkdir(exist_ok=True)
    with TensorBoardServer(logs, load_fast=True) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=FLAGS)
        for scheme in ("light", "dark"):
            page = new_page(browser, viewport={"width": 1440, "height": 900}, color_scheme=scheme)
            tab = Tab(page, server.url, host=True)
            tab.open(f"&p.gpu_utilization.id={quote(runs[-1].id, safe='')}")
            if scheme == "dark":
                tab.page.evaluate("document.body.classList.add('dark-mode')")
            tab.settle()
            tab.page.screenshot(path=out / f"tab-{scheme}.png")
            print(out / f"tab-{scheme}.png")
            if scheme == "light":
                tab.find(".chooser-button").click()
                other = tab.find(f".choice:has(.run-name:has-text('{OTHER}'))")
                other.locator("input").check()
                tab.page.keyboard.press("Escape")
                tab.settle()
                tab.page.screenshot(path=out / "tab-compare.png")
                print(out / "tab-compare.png")
        browser.close()
    return 0


def _first_lanes(tab) -> dict[str, float]:
    """Return the part of the page that holds number, sentence, fix, bar and lane."""
    top = tab.find(".topbar").bounding_box()["y"]
    head = tab.head()
    width = tab.page.viewport_size["width"]
    return {"x": 0, "y": top, "width": width, "height": head["y"] + head["height"] - top}


def of_recorded() -> None:
    """Photograph a run of an H200, `demo/recorded`: `tab-gpu.png`, and its first lanes, `tab.png`."""
    from chromium import FLAGS, find
    from gpu_tab import Tab, new_page
    from playwright.sync_api import sync_playwright
    from tensorboard_server import TensorBoardServer

    out = HERE / "screenshots"
    with TensorBoardServer(HERE / "recorded" / RECORDED, load_fast=True) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find(), args=FLAGS)
        tab = Tab(new_page(browser, viewport={"width": 1440, "height": 900}), server.url, host=True)
        tab.open()
        tab.settle()
        tab.page.screenshot(path=out / "tab-gpu.png")
        tab.page.screenshot(path=out / "tab.png", clip=_first_lanes(tab))
        browser.close()
    print(out / "tab-gpu.png", out / "tab.png", sep="\n")


def of_scenes() -> None:
    """Photograph the first lanes of two made-up runs with several causes: `lane-two-dark.png`, `lane-eight.png`."""
    from chromium import FLAGS, find
    from gallery import SCENES
    from gpu_tab import Tab, new_page
    from playwright.sync_api import sync_playwright
    from tensorboard_server import TensorBoardServer

    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find(), args=FLAGS)
        for scene, scheme in (("two", "dark"), ("eight", "light")):
            SCENES[scene](Path(scratch) / scene)
            with TensorBoardServer(Path(scratch) / scene, load_fast=True) as server:
                page = new_page(browser, viewport={"width": 1440, "height": 836}, color_scheme=scheme)
                tab = Tab(page, server.url, host=False).open()
                tab.settle()
                path = HERE / "screenshots" / f"lane-{scene}{'-dark' if scheme == 'dark' else ''}.png"
                tab.page.screenshot(path=path, clip=_first_lanes(tab))
                print(path)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
