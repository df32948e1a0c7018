"""Pictures of the tab: python benchmarks/tab_pictures.py OUTDIR [--scene NAME] [--logdir LOGDIR]

Photographs made-up log directories of every kind (harness/support/gallery.py), or LOGDIR, in a real TensorBoard:
the run that opens first, in frames from a desktop's to a phone's, light and dark. Prints which part of
the tab's page the lanes have in each, and whether the first lane is on the first screen.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "harness" / "support"), str(ROOT)]

import chromium  # noqa: E402
from gallery import SCENES  # noqa: E402
from gpu_tab import Tab, new_page  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from tensorboard_server import TensorBoardServer  # noqa: E402

# Width, height and scale of TensorBoard's window. The last one is the first at 200 %.
FRAMES = {"1440x900": (1440, 900, 1), "1024x640": (1024, 640, 1), "phone": (390, 844, 1), "200%": (720, 450, 2)}
NARROW = 1100

# The part of the tab's page that its lanes have, and whether all of the first one is in sight.
LANES = """(() => {
  const { clientWidth: width, clientHeight: height } = document.documentElement;
  const box = document.querySelector('.tl-scroll')?.getBoundingClientRect();
  const lane = document.querySelector('.tl-label')?.getBoundingClientRect();
  const shown = box && (Math.min(box.bottom, height) - Math.max(box.top, 0)) * box.width;
  return [shown > 0 ? shown / width / height : 0, !!lane && lane.bottom <= Math.min(height, box.bottom)];
})()"""


def shoot(browser: Browser, url: str, path: Path, frame: tuple[int, int, int], dark: bool) -> tuple[float, bool]:
    """Photograph what opens first, of a narrow frame, which scrolls, the whole page as well; return what `LANES` is."""
    width, height, scale = frame
    options = {"device_scale_factor": scale, "color_scheme": "dark" if dark else "light"}
    page = new_page(browser, viewport={"width": width, "height": height}, **options)
    tab = Tab(page, url, host=True).open()
    if dark:
        tab.page.evaluate("document.body.classList.add('dark-mode')")
    tab.settle()
    tab.page.screenshot(path=path)
    lanes = tab.evaluate(LANES)
    if width < NARROW and not dark:
        tab = Tab(page, url, host=False).open()
        tab.settle()
        page.screenshot(path=path.with_stem(f"{path.stem}-page"), full_page=True)
    page.context.close()
    return lanes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--scene", action="append", choices=SCENES, help="default: all")
    parser.add_argument("--logdir", type=Path, help="photograph this one instead")
    parser.add_argument("--frame", action="append", choices=FRAMES, help="default: all")
    arguments = parser.parse_args()
    path = chromium.find()
    if path is None:
        raise SystemExit("no Chromium or Chrome on this machine (set CHROMIUM=/path/to/it)")
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
                for name in arguments.frame or FRAMES:
                    for dark in (False, True):
                        path = out / f"{name.rstrip('%')}{'-dark' if dark else ''}.png"
                        share, first = shoot(browser, server.url, path, FRAMES[name], dark)
                        print(f"{path}: lanes {share:.0%}, first lane {'' if first else 'not '}in sight", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
