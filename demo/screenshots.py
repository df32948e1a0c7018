"""Take the screenshots of the tab, from the runs that `make demo` recorded.

    make screenshots     # after DEMO_SERVE=0 make demo
    python demo/screenshots.py --trace FILE     # of a profiler's trace of a GPU

The GPU's lanes of docs/tab.md are those of PyTorch's public sample of a ResNet-50 on a V100:
`tb_plugin/samples/resnet50_num_workers_0` of pytorch/kineto.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "support"), str(HERE.parent / "tests" / "browser")]

RUN = "2-slow-map"
OTHER = "1-healthy"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", metavar="FILE", type=Path, help="a profiler's trace of a GPU")
    trace = parser.parse_args(argv).trace
    return of_trace(trace) if trace else of_demo()


def of_demo() -> int:
    from chromium import FLAGS, find
    from gpu_tab import Tab, new_page
    from playwright.sync_api import sync_playwright
    from tensorboard_server import TensorBoardServer

    from gpu_util_callback import read_recordings

    logs = HERE / "logs"
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
                tab.page.screenshot(path=out / "tab.png", clip=_first_lanes(tab))
                print(out / "tab.png")
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
    """Return the part of the page that holds the headline, the spans, two lanes and the fix."""
    top = tab.find(".topbar").bounding_box()["y"]
    lane = tab.find(".tl-label").nth(1).bounding_box()
    width = tab.page.viewport_size["width"]
    return {"x": 0, "y": top, "width": width, "height": lane["y"] + lane["height"] - top}


def of_trace(trace: Path) -> int:
    from chromium import FLAGS, find
    from gpu_tab import Tab, new_page
    from playwright.sync_api import sync_playwright
    from tensorboard_server import TensorBoardServer

    from gpu_util_callback.cli import main as gpu_util

    path = HERE / "screenshots" / "tab-gpu.png"
    with tempfile.TemporaryDirectory() as logs:
        name = trace.name.partition(".")[0]
        if gpu_util(["trace", str(trace), "--log-dir", str(Path(logs, name))]):
            return 2
        with TensorBoardServer(Path(logs), load_fast=True) as server, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=find(), args=FLAGS)
            page = new_page(browser, viewport={"width": 1440, "height": 900})
            tab = Tab(page, server.url, host=True)
            tab.open()
            tab.settle()
            tab.page.screenshot(path=path)
            browser.close()
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
