"""What a person waits for in the browser: first paint, frames while moving, beside other tabs.

`compare(folder)` prints a table; `browse_cost.py` calls it. A frame's time is the thread's CPU time
of all script in it (event handlers and drawing), from Chromium's own trace: that of a busy
machine, too. Needs Chromium; XProf's part needs TensorFlow and xprof beside us.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlencode

import chromium
import numpy as np
from tensorboard_server import TensorBoardServer
from windowed_fit import FIT

TAB = "data/plugin_entry.html?name=gpu_utilization"
FRAMES = 90
REPEATS = 3
THROTTLED = ("throttle_thermal_pct", "throttle_power_pct", "throttle_other_pct")
DRAWN = ".tl-value:not(:empty)"
LIVE_S = 12

# As each wheel event would be handled: the event, then a frame. Half the way there, half back.
MOVE = """async ([kind, frames]) => {
  const surface = document.querySelector('.tl-surface');
  const box = surface.getBoundingClientRect();
  for (let i = 0; i < frames; i++) {
    const back = i >= frames / 2 ? -1 : 1;
    const zoom = kind === 'zoom';
    surface.dispatchEvent(new WheelEvent('wheel', {
      bubbles: true, cancelable: true, ctrlKey: zoom, shiftKey: !zoom,
      deltaY: zoom ? -14 * back : 0, deltaX: zoom ? 0 : 24 * back,
      clientX: box.left + box.width / 2, clientY: box.top + 40,
    }));
    await new Promise((done) => requestAnimationFrame(done));
  }
}"""
# How much taller the window must be for so many lanes to be in sight, in pixels.
MISSING = """(lanes) => {
  const scroll = document.querySelector('.tl-scroll').clientHeight;
  const label = document.querySelectorAll('.tl-label')[lanes - 1];
  return label ? label.offsetTop + label.offsetHeight - scroll : 0;
}"""
# Frames' callbacks as the trace names them; each holds the script of one frame.
FRAME_EVENT = "PageAnimator::serviceScriptedAnimations"


def compare(folder: Path) -> None:
    path = chromium.find()
    if path is None:
        print("\nno Chromium or Chrome on this machine (set CHROMIUM=/path/to/it): frames left out")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.FLAGS)
        try:
            _frames(browser, folder)
            _live(browser)
            _charts(browser, folder)
            _traces(browser)
        finally:
            browser.close()


def _frames(browser, folder: Path) -> None:
    print(f"\nframes, script of the thread in ms; load average {os.getloadavg()[0]:.1f}")
    print(f"{'GPUs':>6} {'lanes':>6} {'first paint':>12} {'drawn':>7} {'zoom p50/p95':>14} {'pan'}")
    for gpus, lanes, steps in ((8, 16, 0), (64, 16, 0), (64, 64, 0), (8, 16, 1_000_000)):
        logdir = folder / (f"{gpus}-gpus-{steps}" if steps else f"{gpus}-gpus")
        if not logdir.is_dir():
            _long(logdir / "run", gpus, steps) if steps else _throttled(logdir / "run", gpus)
        with TensorBoardServer(logdir, load_fast=True) as server:
            page = browser.new_page(viewport={"width": 1600, "height": 1080})
            began = time.perf_counter()
            page.goto(f"{server.url}/{TAB}")
            page.locator(DRAWN).first.wait_for(state="attached")
            drawn = 1e3 * (time.perf_counter() - began)
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
            for _ in range(3):
                page.wait_for_timeout(400)
                height = page.viewport_size["height"] + page.evaluate(MISSING, lanes)
                page.set_viewport_size({"width": 1600, "height": min(8000, int(height))})
            page.wait_for_timeout(1000)
            page.locator(".tl-surface").hover(position={"x": 500, "y": 60})
            for _ in range(8):
                page.keyboard.press("w")  # away from the whole run, so that panning moves
            page.wait_for_timeout(800)
            found = {}
            for kind in ("zoom", "pan"):
                page.evaluate(MOVE, [kind, FRAMES])  # tiles are fetched now; the next one counts
                page.wait_for_timeout(800)
                found[kind] = _script_ms(browser, page, [kind, FRAMES])
            shown = page.evaluate(
                "() => [...document.querySelectorAll('.tl-label')].filter((l) => l.offsetTop < "
                "document.querySelector('.tl-scroll').clientHeight).length"
            )
            print(
                f"{gpus:>6} {shown:>6} {paint:>9.0f} ms {drawn:>5.0f} {_two(found['zoom']):>13}  {_two(found['pan'])}",
                flush=True,
            )
            page.close()


def _long(path: Path, gpus: int, steps: int) -> None:
    from long_recording import make_long_recording

    make_long_recording(path, steps=steps, gpus=gpus, metrics=16)


def _throttled(path: Path, gpus: int) -> None:
    """A run whose GPUs are slowed down in two seconds of ten: their lanes carry marks of it."""
    from make_recording import SyntheticRun

    class Hot(SyntheticRun):
        def _put_samples(self, group, names, times, values):
            super()._put_samples(group, names, times, values)
            if group.startswith("gpu"):
                pct = np.where((times // 1_000_000_000) % 10 < 2, 35.0, 0.0)
                counters = np.stack([pct, 0.5 * pct, 0 * pct], axis=1)
                super()._put_samples(f"{group}/counters", THROTTLED, times, counters)

    Hot(path, "thirds", 6400, gpus).advance(6400).close()


def _script_ms(browser, page, move: list | None, meanwhile=None) -> list[float]:
    """CPU time of each frame's script during a MOVE, or while `meanwhile` runs; ascending."""
    browser.start_tracing(page=page, categories=["blink", "devtools.timeline"])
    if move is not None:
        page.evaluate(MOVE, move)
    if meanwhile is not None:
        meanwhile()
    events = json.loads(browser.stop_tracing())["traceEvents"]
    times = [
        event["tdur"] / 1e3
        for event in events
        if event.get("name") == FRAME_EVENT and event.get("ph") == "X" and "tdur" in event
    ]
    return sorted(times)


def _two(times: list[float]) -> str:
    if not times:
        return "n/a"
    return f"{statistics.median(times):.1f} / {times[int(0.95 * (len(times) - 1))]:.1f}"


def _live(browser) -> None:
    """A run that goes on: what a refresh asks for, and what its frames take."""
    from make_recording import SyntheticRun

    with tempfile.TemporaryDirectory() as folder:
        run = SyntheticRun(Path(folder) / "run", "thirds", 200_000, 8, past_s=600)
        run.advance(20_000)
        with TensorBoardServer(folder, load_fast=True) as server:
            page = browser.new_page(viewport={"width": 1600, "height": 1080})
            page.goto(f"{server.url}/{TAB}")
            page.locator(DRAWN).first.wait_for(state="attached")
            page.wait_for_timeout(1500)
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))

            def watch() -> None:
                end = time.monotonic() + LIVE_S
                while time.monotonic() < end:
                    run.advance(80)
                    page.wait_for_timeout(2000)

            frames = _script_ms(browser, page, None, watch)
            tiles = [url for url in asked if "/tiles?" in url]
            polls = max(1, sum("/recording?" in url for url in asked))
            print(
                f"  a run that goes on, 8 GPUs: {polls} refreshes in {LIVE_S} s, "
                f"{len(tiles) / polls:.1f} tile requests each, frames {_two(frames)} ms"
            )
            page.close()
        run.close()


def _charts(browser, folder: Path) -> None:
    """Our first lanes beside the first chart of TensorBoard's own tab, from the same data."""
    from browse_cost import recording

    print("\nfrom the address to the first chart, ms, in TensorBoard with an empty cache")
    print(f"{'steps':>12} {'GPU Utilization':>16} {'Time Series':>12} {'ratio':>6}")
    for steps in (1_000, 100_000, 1_000_000):
        logdir = folder / f"{steps}-steps"
        if not logdir.is_dir() and steps > 100_000:
            continue
        with TensorBoardServer(recording(folder, steps), load_fast=True) as server:
            server.wait_for(lambda: b"same/" in server.get("data/plugin/scalars/tags")[2])
            ours, theirs = [], []
            for _ in range(REPEATS):
                ours.append(_open(browser, f"{server.url}/#gpu_utilization", DRAWN, frame=True))
                theirs.append(_open(browser, f"{server.url}/#timeseries", CHART))
            mine, other = statistics.median(ours), statistics.median(theirs)
            print(f"{steps:>12,} {mine:>16.0f} {other:>12.0f} {mine / other:>6.2f}", flush=True)


CHART = "scalar-card line-chart .series-view :is(canvas, svg)"


def _open(browser, url: str, selector: str, frame: bool = False) -> float:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    began = time.perf_counter()
    page.goto(url)
    place = page.frame_locator("iframe") if frame else page
    place.locator(selector).first.wait_for(state="attached", timeout=60_000)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    took = 1e3 * (time.perf_counter() - began)
    context.close()
    return took


def _traces(browser) -> None:
    """A traced step in our tab beside XProf's trace viewer on the same profiler window."""
    absent = [name for name in ("tensorflow", "xprof") if find_spec(name) is None]
    if absent:
        print(f"\nXProf's trace viewer is left out: {' and '.join(absent)} not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", FIT, f"{folder}/fit"], capture_output=True, text=True, timeout=240, check=False
        )
        if done.returncode:
            print(f"\nXProf's trace viewer is left out: {done.stderr.strip().splitlines()[-1]}")
            return
        with TensorBoardServer(folder, load_fast=False, python=sys.executable) as server:
            listing = json.loads(server.get("data/plugin/gpu_utilization/runs")[2])
            id = listing["recordings"][0]["id"]
            ours, theirs = [], []
            for _ in range(REPEATS):
                link = f"p.gpu_utilization.id={quote(id, safe='')}&p.gpu_utilization.window=0~20"
                url = f"{server.url}/#gpu_utilization&{link}"
                ours.append(_open(browser, url, ".kernels tbody tr", frame=True))
                theirs.append(_trace_viewer(browser, server))
        mine, other = statistics.median(ours), statistics.median(theirs)
        print(
            f"\na profiler window, ms from the address: our traced step {mine:.0f}, XProf's trace "
            f"viewer {other:.0f} (until its data are there, undrawn); ratio {mine / other:.2f}"
        )


def _trace_viewer(browser, server: TensorBoardServer) -> float:
    """Until the trace viewer's page has the trace; what it then draws is not counted."""
    runs = json.loads(server.get("data/plugin/profile/runs")[2])
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    began = time.perf_counter()
    with page.expect_event(
        "requestfinished", lambda one: "/profile/data?" in one.url and "tag=trace_viewer" in one.url, timeout=60_000
    ):
        # The Profile tab takes what to show from the query.
        query = urlencode({"tool": "trace_viewer@", "run": runs[0]})
        page.goto(f"{server.url}/?{query}#profile")
    took = 1e3 * (time.perf_counter() - began)
    context.close()
    return took
