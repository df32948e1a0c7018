"""Pictures of the tab: python tests/browser/screenshots.py LOGDIR OUTDIR [--run NAME]

Opens the log directory in a real TensorBoard and photographs the run (default: the one shown first)
in light and dark, zoomed into its first span, and in a notebook-sized frame.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

import chromium  # noqa: E402
from gpu_tab import Tab  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from tensorboard_server import TensorBoardServer  # noqa: E402


def shoot(tab: Tab, out: Path, run: str | None, dark: bool, zoom: bool) -> None:
    tab.open()
    if dark:
        tab.page.evaluate("document.body.classList.add('dark-mode')")
    if run:
        tab.find(".chooser-button").click()
        tab.find(".choice").filter(has_text=run).first.click()
        tab.wait_for(".tl-value:not(:empty)")
    if zoom and tab.find(".finding").count():
        tab.button("time").click()
        tab.page.keyboard.press("f")
        tab.settle()
        box = tab.plot()
        tab.page.mouse.move(box["x"] + box["width"] * 0.42, box["y"] + 50)
    tab.settle()
    tab.page.wait_for_timeout(500)
    tab.page.screenshot(path=str(out))
    print(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logdir", type=Path)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--run")
    arguments = parser.parse_args()
    path = chromium.find()
    if path is None:
        raise SystemExit("no Chromium or Chrome on this machine (set CHROMIUM=/path/to/it)")
    arguments.outdir.mkdir(parents=True, exist_ok=True)
    pictures = {
        "tab-light.png": (1440, 900, False, False),
        "tab-dark.png": (1440, 900, True, False),
        "tab-zoomed.png": (1440, 900, False, True),
        "tab-notebook.png": (800, 800, False, False),
    }
    with (
        sync_playwright() as playwright,
        TensorBoardServer(arguments.logdir.resolve(), True) as server,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=chromium.FLAGS)
        for name, (width, height, dark, zoom) in pictures.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, device_scale_factor=1.5
            )
            tab = Tab(context, server.url, host=True)
            shoot(tab, arguments.outdir / name, arguments.run, dark, zoom)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
