"""Script time of the tab's frames while zooming and panning, time to first paint, bundle size.

python tests/browser/bench_frames.py [--gpus 2 8 64] [--steps 6400] prints a line per case. Budgets:
script time of a frame p95 <= 8 ms with 16 lanes in sight, first paint <= 500 ms, 60 kB gzipped.
"""

import argparse
import gzip
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

import chromium  # noqa: E402
from make_recording import make_recording  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from tensorboard_server import TensorBoardServer  # noqa: E402

STATIC = HERE.parents[1] / "tensorboard_plugin" / "static"
FRAMES = 90

# Every animation frame's callbacks, timed from inside the page.
TIMED_FRAMES = """
  window.frameTimes = [];
  const ask = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (callback) => ask((at) => {
    const began = performance.now();
    callback(at);
    window.frameTimes.push(performance.now() - began);
  });
"""
# As each wheel event would be handled: the event, then a frame.
MOVE = """async ([kind, frames, lanes]) => {
  const surface = document.querySelector('.tl-surface');
  const box = surface.getBoundingClientRect();
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  frameTimes.length = 0;
  for (let i = 0; i < frames; i++) {
    const back = i >= frames / 2 ? -1 : 1;
    const zoom = kind === 'zoom';
    surface.dispatchEvent(new WheelEvent('wheel', {
      bubbles: true, cancelable: true, ctrlKey: zoom, shiftKey: !zoom,
      deltaY: zoom ? -14 * back : 0, deltaX: zoom ? 0 : 24 * back,
      clientX: box.left + box.width / 2, clientY: box.top + 40,
    }));
    await frame();
  }
  return [...frameTimes];
}"""


def measure(browser, url: str, height: int) -> dict[str, object]:
    page = browser.new_page(viewport={"width": 1600, "height": height})
    page.add_init_script(TIMED_FRAMES)
    page.goto(f"{url}/data/plugin_entry.html?name=gpu_utilization")
    page.locator(".tl-value:not(:empty)").first.wait_for(state="attached")
    paint = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    )
    page.wait_for_timeout(1500)
    lanes = page.evaluate(
        "(() => { const s = document.querySelector('.tl-scroll').clientHeight;"
        " return [...document.querySelectorAll('.tl-label')].filter((l) => l.offsetTop < s).length;"
        " })()"
    )
    page.keyboard.press("w")  # away from the whole run, so that panning moves
    page.keyboard.press("w")
    page.wait_for_timeout(800)
    found: dict[str, object] = {"lanes in sight": lanes, "first paint ms": round(paint)}
    for kind in ("zoom", "pan"):
        page.evaluate(MOVE, [kind, FRAMES, lanes])  # tiles are fetched now; the second time counts
        page.wait_for_timeout(800)
        times = sorted(time for time in page.evaluate(MOVE, [kind, FRAMES, lanes]) if time > 0.05)
        found[f"{kind} p50 ms"] = round(statistics.median(times), 1)
        found[f"{kind} p95 ms"] = round(times[int(len(times) * 0.95)], 1)
    page.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[2, 8, 64])
    parser.add_argument("--steps", type=int, default=6400)
    arguments = parser.parse_args()
    size = sum(len(gzip.compress(file.read_bytes(), 9)) for file in STATIC.iterdir())
    print(f"bundle: {size} bytes gzipped")
    path = chromium.find()
    if path is None:
        raise SystemExit("no Chromium or Chrome on this machine (set CHROMIUM=/path/to/it)")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.FLAGS)
        for gpus in arguments.gpus:
            logdir = Path(folder) / str(gpus)
            make_recording(logdir / "run", "thirds", steps=arguments.steps, gpus=gpus)
            with TensorBoardServer(logdir, load_fast=True) as server:
                for height in (1080, 3000):
                    found = measure(browser, server.url, height)
                    shown = ", ".join(f"{name} {value}" for name, value in found.items())
                    print(f"{gpus} GPUs, {height} px: {shown}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
