"""Pictures of the tab: python tests/browser/screenshots.py OUTDIR [--scene NAME] [--logdir LOGDIR]

Photographs made-up log directories of every kind (gallery.py), or LOGDIR, in a real TensorBoard:
the run that opens first, in frames from a desktop's to a phone's, light and dark.
"""

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

import chromium  # noqa: E402
from gallery import SCENES  # noqa: E402
from gpu_tab import Tab  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from tensorboard_server import TensorBoardServer  # noqa: E402

FRAMES = ((1440, 900), (1366, 768), (800, 736), (390, 844))
PHONE = 560


def shoot(browser: Browser, url: str, out: Path, size: tuple[int, int], dark: bool) -> Path:
    """Photograph what opens first; of a narrow frame, which scrolls, the whole page as well.

    A desktop's frame is TensorBoard's window, a narrow one the tab's own.
    """
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    host = width > 1080
    tab = Tab(context, url, host=host).open()
    if dark and host:
        tab.page.evaluate("document.body.classList.add('dark-mode')")
    tab.settle()
    path = out / f"{width}x{height}{'-dark' if dark else ''}.png"
    tab.page.screenshot(path=path)
    if not host and not dark:
        tab.page.screenshot(path=path.with_stem(f"{path.stem}-page"), full_page=True)
    context.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--scene", action="append", choices=SCENES, help="default: all")
    parser.add_argument("--logdir", type=Path, help="photograph this one instead")
    parser.add_argument("--frame", action="append", metavar="WIDTHxHEIGHT", help="default: all")
    arguments = parser.parse_args()
    path = chromium.find()
    if path is None:
        raise SystemExit("no Chromium or Chrome on this machine (set CHROMIUM=/path/to/it)")
    frames = [tuple(map(int, one.split("x"))) for one in arguments.frame or ()] or FRAMES
    scenes = ["own"] if arguments.logdir else arguments.scene or list(SCENES)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.FLAGS)
        for scene in scenes:
            logdir = arguments.logdir or Path(scratch) / scene
            if not arguments.logdir:
                SCENES[scene](logdir)
            out = arguments.outdir / scene
            out.mkdir(parents=True, exist_ok=True)
            with TensorBoardServer(logdir.resolve(), load_fast=True) as server:
                for size in frames:
                    for dark in (False, True):
                        print(shoot(browser, server.url, out, size, dark), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
