"""Pictures of the tab: python benchmarks/tab_pictures.py OUTDIR [--scene NAME] [--logdir LOGDIR] [--frame NAME]

Photographs made-up log directories of every kind (harness/support/gallery.py), or LOGDIR, through a real TensorBoard:
the run that opens first, in frames from a desktop's to a phone's, light and dark, and once with its panel open. Prints
which part of each picture the lane of time has, and puts all of them on one sheet, OUTDIR/sheet.png. With the
environment variable CHECKOUT=DIR the tab and the scenes are those of another checkout, such as one of before a change.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ.get("CHECKOUT") or Path(__file__).parents[1]).resolve()
sys.path[:0] = [str(ROOT / "harness" / "support"), str(ROOT)]

import chromium  # noqa: E402
from gallery import SCENES  # noqa: E402
from gpu_tab import Tab, new_page  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from tensorboard_server import TensorBoardServer  # noqa: E402

# Width and height of the tab; TensorBoard's own bar, 64 pixels, is above it.
FRAMES = {"1440x836": (1440, 836), "1920x1080": (1920, 1080), "1024x640": (1024, 640), "390x844": (390, 844)}
PANEL = "1440x836"
THUMBNAIL = 300  # pixels, the height of a picture on the sheet

# The part of the frame that the lane of time has, with its name beside it; before there was one, the first lane.
LANE = """(() => {
  const { clientWidth, clientHeight } = document.documentElement;
  const lane = document.querySelector('.tl-head canvas').getBoundingClientRect();
  const row = document.querySelector('.tl-time') ?? document.querySelector('.tl-label');
  const label = row.getBoundingClientRect(), high = parseFloat(row.style.height);
  return high * (lane.right - (label.width ? label.left : lane.left)) / clientWidth / clientHeight;
})()"""


def shoot(browser: Browser, url: str, folder: Path, frame: str, dark: bool) -> float:
    """Photograph what opens first, as `<frame>[-dark].png`, and with its panel; return what `LANE` is."""
    width, height = FRAMES[frame]
    options = {"viewport": {"width": width, "height": height}, "color_scheme": "dark" if dark else "light"}
    tab = Tab(new_page(browser, **options), url, host=False).open(wait=False)
    tab.wait_for("h1", 45)
    tab.settle()
    path = folder / f"{frame}{'-dark' if dark else ''}.png"
    tab.page.screenshot(path=path)
    share = tab.evaluate(LANE)
    if frame == PANEL and not dark and tab.find(".all-findings").count():
        tab.find(".fix-open" if tab.find(".fix-open").count() else ".all-findings").click()
        tab.settle()
        tab.page.screenshot(path=folder / f"{frame}-panel.png")
    tab.context.close()
    return share


def contact_sheet(browser: Browser, outdir: Path) -> Path:
    """Put all pictures of a folder on one: a row a scene."""
    rows = []
    for scene in sorted(path for path in outdir.iterdir() if path.is_dir()):
        pictures = "".join(
            f"<figure><img src='{picture.resolve().as_uri()}'><p>{scene.name} {picture.stem}</p></figure>"
            for picture in sorted(scene.glob("*.png"))
        )
        rows.append(f"<section>{pictures}</section>")
    page = outdir / "sheet.html"
    style = f"section{{display:flex;gap:8px;align-items:start}}figure{{margin:4px}}img{{height:{THUMBNAIL}px}}"
    page.write_text(f"<meta charset=utf-8><style>{style}body{{width:max-content}}</style>{''.join(rows)}", "utf-8")
    tab = browser.new_page()
    tab.goto(page.resolve().as_uri())
    tab.screenshot(path=outdir / "sheet.png", full_page=True)
    tab.close()
    page.unlink()
    return outdir / "sheet.png"


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
            folder = arguments.outdir / scene
            folder.mkdir(parents=True, exist_ok=True)
            with TensorBoardServer(logdir.resolve(), load_fast=True) as server:
                for frame in arguments.frame or FRAMES:
                    shares = [shoot(browser, server.url, folder, frame, dark) for dark in (False, True)]
                    print(f"{folder / frame}: the lane has {shares[0]:.0%}", flush=True)
        print(contact_sheet(browser, arguments.outdir))
        browser.close()


if __name__ == "__main__":
    main()
