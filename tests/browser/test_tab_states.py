"""The tab when there is nothing yet, when things break, while training continues, in any frame."""

import json
import re
import shlex
from urllib.parse import quote

import numpy as np
import pytest
from gpu_tab import Hand, hurry, routed
from make_recording import SyntheticRun, make_recording
from tensorboard_server import TensorBoardServer
from waiting import wait_until

from gpu_util_callback.cli import main

NASTY = [
    '<img src=x onerror="window.pwned=1">',
    "\u202egnp.exe\u202c right to left",
    "nul\u0000byte\u0007bell",
    "long" * 2500,
    "../../etc/passwd?%00#&p.gpu_utilization.id=x",
]

# Share of a row of pixels, from x to x, that is the blue of steps: no background shines through.
BLUE = """(canvas, [y, from, to]) => {
    const scale = canvas.width / canvas.clientWidth;
    const wide = Math.floor((to - from) * scale);
    const { data } = canvas.getContext('2d').getImageData(from * scale, y * scale, wide, 1);
    let blue = 0;
    for (let x = 0; x < wide; x++) blue += data[4 * x + 2] > data[4 * x] + 110;
    return blue / wide;
}"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of which each test opens one."""
    root = tmp_path_factory.mktemp("states")
    windows = [(100, 110), (300, 310)]
    make_recording(root / "traced", "thirds", steps=600, gpus=1, epochs=1, windows=windows)
    make_recording(root / "stalled", "host_stall", steps=600, gpus=1)
    with TensorBoardServer(root, load_fast=True) as server:
        yield server


def linked(server, run):
    """The part of a link that opens a run."""
    listed = json.loads(server.get("data/plugin/gpu_utilization/runs")[2])["recordings"]
    return f"&p.gpu_utilization.id={next(quote(one['id'], safe='') for one in listed if one['run'] == run)}"


def test_a_run_that_begins_is_found_and_followed(open_tab, tmp_path, start_tensorboard, capsys):
    server = start_tensorboard(tmp_path, False)
    tab = open_tab(server.url, "&p.gpu_utilization.axis=steps", before=hurry, alone=True)
    assert str(tmp_path) in tab.text(".state")
    # Nobody touches it: it looks again in so many seconds, as it says.
    assert "checks again every 15 seconds" in tab.text(".state")
    run = SyntheticRun(tmp_path / "live", "healthy", steps=2000, gpus=1, past_s=30, windows=((620, 626),))
    run.advance(500)
    tab.wait_for(".tl-value:not(:empty)", timeout=45)
    assert tab.text(".status").strip() == "live"
    assert tab.number(".facts") == 500

    def flush(steps):
        run.advance(steps)
        wait_until(lambda: tab.number(".facts") == run.done, 15, "the next flush")

    flush(100)
    # The whole run follows; a part one looks at stays where it is.
    assert tab.find(".follow").count() == 0, "the whole run is in view"
    box = tab.plot()
    tab.zoom_wheel(box["x"] + box["width"] / 2, box["y"] + 40, 8)
    start, end = tab.view()
    tab.panel()
    assert tab.find(".window-button").count() == 0
    flush(100)
    assert tab.view() == (start, end)
    # The command that it offers asks this run for a window; whatever window is recorded is shown.
    title = tab.button("look now").get_attribute("title")
    command = title[title.index("gpu-util look") :].partition("\n")[0]
    assert command == f"gpu-util look {tmp_path} --run live"
    assert main([*shlex.split(command)[1:], "--timeout", "0.1"]) == 1
    assert "none came within" in capsys.readouterr().err
    assert "620" in tab.text(".window-button")
    tab.button("follow").click()
    wait_until(lambda: tab.view()[1] == 700, what="the end in view")
    run.advance(200)
    wait_until(lambda: tab.view()[1] == 900, 15, "the view to move on")
    assert tab.link()["follow"] == "1"
    assert abs((tab.view()[1] - tab.view()[0]) - (end - start)) < 1e-3
    # Whoever looks elsewhere stays there.
    tab.page.keyboard.press("a")
    wait_until(lambda: tab.button("follow").get_attribute("aria-pressed") == "false", what="it")
    here = tab.view()
    assert here[1] < 900
    flush(100)
    assert tab.view() == here
    tab.page.keyboard.press("e")
    wait_until(lambda: tab.view()[1] == 1000, what="the end, by its key")
    tab.page.keyboard.press("0")
    tab.settle()
    run.close()
    wait_until(lambda: tab.text(".status").strip() == "ended", 15, "the end")
    tab.settle()
    assert tab.find("button:has-text('look now')").count() == 0
    # The end of the step lane holds what was added: not the page background.
    row = tab.find(".tl-label").first.bounding_box()
    bottom = row["y"] - tab.plot()["y"] + row["height"] - 10
    red, green, blue = tab.colour_at(".tl-surface canvas", tab.plot()["width"] * 0.97, bottom)
    assert blue > red + 40, (red, green, blue)


def test_errors_say_what_to_do_and_keep_what_was_read(open_tab, server):
    tab = open_tab(server.url, before=hurry, alone=True, expect_errors=True)
    verdict = tab.text("h1")
    tab.page.route("**/gpu_utilization/runs*", lambda route: route.abort())
    tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    tab.wait_for(".trouble")
    assert "does not answer" in tab.text(".trouble")
    assert tab.text("h1") == verdict
    tab.page.unroute("**/gpu_utilization/runs*")
    wait_until(lambda: tab.find(".trouble").count() == 0, 15, "recovering")
    # An empty lane would look as if nothing had been measured.
    tiles = "**/gpu_utilization/tiles*"
    tab.page.route(tiles, lambda route: route.fulfill(status=422, json={"error": "see the log"}))
    for _ in range(5):
        tab.page.keyboard.press("w")
    tab.wait_for(".trouble")
    assert "see the log" in tab.text(".trouble")
    tab.page.unroute(tiles)
    tab.evaluate("(() => { const now = performance.now.bind(performance); performance.now = () => now() + 6000; })()")
    wait_until(lambda: tab.find(".trouble").count() == 0, 20, "asking again by itself")


def test_runs_are_chosen_and_compared(open_tab, server):
    def refuse(route):
        route.fulfill(status=400, json={"error": "the disk is on fire"})

    def before(page):
        hurry(page, times=0.01)  # it does not try again by itself
        routed("runs", refuse)(page)

    tab = open_tab(server.url, before=before, alone=True, expect_errors=True)
    tab.page.unroute("**/gpu_utilization/runs*")
    tab.button("Try again").click()
    tab.wait_for(".tl-value:not(:empty)")
    tab.settle()
    hand = Hand(tab)
    hand.click("the run's name", tab.find(".chooser-button"))
    assert tab.find(".choice").count() == 3
    hand.click("“compare” at another run", tab.find(".choice:has(.run-name:has-text('healthy')) input"))
    hand.click("the run's name, to close the list", tab.find(".chooser-button"))
    starved, healthy = (" ".join(row.split()) for row in tab.find(".compare tbody tr").all_inner_texts())
    assert len(hand.did) <= 3
    assert "thirds" in starved and "Input-bound" in starved
    assert "healthy" in healthy and "nothing" in healthy

    def pace(run):
        report = tab.recording(run)["report"]
        return (report["wall_s"] - report["time_s"]["compile"]) / report["steps"]

    assert abs(float(re.search(r"([\d.]+)×", healthy)[1]) - pace("thirds") / pace("healthy")) < 0.02
    assert f"{1e3 * pace('healthy'):.1f} ms" in healthy, "the mean step that the speed rests on"
    assert tab.link()["with"].startswith("healthy") and "healthy" in tab.text(".tl-labels")
    tab.find(".chooser-button").click()
    tab.find(".run-name").filter(has_text="laptop").click()
    wait_until(lambda: "Training thread" in tab.text(".tl-time"), 10, "the run without a GPU")


def test_lanes_keep_their_room_beside_the_tables(open_tab, runs):
    link = f"{linked(runs, 'traced')}&p.gpu_utilization.window=1&p.gpu_utilization.tables=1"
    tab = open_tab(runs.url, link)
    tab.wait_for(".kernels td")
    for width, height in ((1280, 720), (1440, 900), (800, 900), (390, 780)):
        tab.resize(width, height)
        short = height <= 820 and width > 1080  # there the table gets some of their room
        least = 115 if short else 195
        assert tab.find(".tl-scroll").bounding_box()["height"] >= least
        # All of it can be reached: nothing is cut off below.
        for table in (".kernels .table-scroll", ".tables:last-child table"):
            tab.find(table).first.scroll_into_view_if_needed()
            box = tab.find(table).first.bounding_box()
            assert box["y"] < height - 20 and box["height"] > 60, (table, box)


def test_system_theme_and_forced_colours(open_tab, server):
    tab = open_tab(server.url, before=lambda page: page.emulate_media(color_scheme="dark", reduced_motion="reduce"))
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 30)"
    tab.page.emulate_media(color_scheme="light")
    white = "getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'"
    wait_until(lambda: tab.evaluate(white), what="the light theme")
    tab.page.emulate_media(forced_colors="active")
    tab.settle()
    assert tab.find("h1").is_visible()
    running = "document.getAnimations().filter((one) => one.playState === 'running').length"
    assert tab.evaluate(running) == 0


def test_stalls_between_steps_open_on_the_axis_they_have_a_width_on(open_tab, runs):
    tab = open_tab(runs.url, linked(runs, "stalled"))
    tab.settle()
    assert tab.button("time").get_attribute("aria-pressed") == "true"
    plot, group = tab.plot(), tab.find(".tl-group").last.bounding_box()
    assert group["x"] + group["width"] == plot["x"] + plot["width"]
    # An epoch's steps follow each other without a gap that is none.
    recording, row = tab.recording(), tab.find(".tl-label").first.bounding_box()
    extent = recording["extent"]
    scale = plot["width"] / (extent["end_ns"] - extent["start_ns"])
    times = {one["name"]: one for one in recording["phases"]}
    first = (times["epoch 2"]["start_ns"] - extent["start_ns"]) * scale + 3
    last = (times["validation 2"]["start_ns"] - extent["start_ns"]) * scale - 3
    y = row["y"] - plot["y"] + row["height"] - 10
    assert tab.find(".tl-surface canvas").evaluate(BLUE, [y, first, last]) == 1.0
    tab.button("steps").click()
    tab.settle()
    assert tab.button("steps").get_attribute("aria-pressed") == "true"


def test_hostile_folders_and_facts_are_inert(open_tab, tmp_path, start_tensorboard):
    """Names as they really come: of folders, hosts, models and layers, in what the server reads."""
    folder = "<img src=x onerror=window.pwned=1> \u202egnp " + "n" * 120
    run = SyntheticRun(tmp_path / folder, "thirds", steps=300, gpus=1, windows=((20, 24),))
    gpu = {**run.writer.facts["gpus"][0], "name": NASTY[0] * 20}
    missing = [{"source": NASTY[1], "reason": NASTY[2], "cure": f"`{NASTY[0]}`"}]
    run.writer.update(host=NASTY[0] + NASTY[1], gpus=[gpu], unavailable=missing, trial=NASTY[3])
    run.advance(300)
    times = run.start + np.arange(1, 50) * 100_000_000
    for group in ("".join(NASTY), "gpu0" + "".join(NASTY)):
        run.writer.append_samples(group, (NASTY[0] + NASTY[1],), times, np.ones((49, 1)))
    run.close()
    server = start_tensorboard(tmp_path, True)
    tab = open_tab(server.url)
    tab.find(".chooser-button").click()
    tab.page.keyboard.press("Escape")
    tab.panel()
    tab.find(".window-button").click()
    tab.page.keyboard.press("t")
    tab.page.mouse.move(tab.plot()["x"] + 300, tab.plot()["y"] + 30)
    tab.settle()
    assert tab.find(".tooltip").count() == 1
    assert tab.evaluate("window.pwned") is None
    assert tab.evaluate("document.querySelectorAll('img, script[src=\"x\"]').length") == 0
    assert tab.evaluate("getComputedStyle(document.querySelector('.cure')).display") == "block", "on its own line"
    text = tab.text("body")
    assert "onerror" in text and not set(text) & set("\u202e\u0000")
    assert "long" * 200 not in text
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
