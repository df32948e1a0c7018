"""Lanes as one wants them: listed, shown, pinned, moved; steps and ranges read off them."""

import csv
import io

import numpy as np
import pytest
from gpu_tab import wait_until
from make_recording import SyntheticRun
from tensorboard_server import TensorBoardServer

pytestmark = pytest.mark.browser

STEPS = 2400


def titles(tab) -> list[str]:
    return tab.find(".tl-label .tl-title").all_inner_texts()


def test_all_lanes_are_listed_and_managed_without_dragging(tab):
    tab.settle()
    tab.find(".viewbar button").first.click()
    listed = tab.find(".lane-list li")
    run = tab.recording()
    wait_until(lambda: listed.count() == len(run["lanes"]), what="folded and hidden lanes, too")
    box = tab.find(".lane-list")
    # The last one can be clicked: the list ends where the timeline does.
    box.evaluate("(list) => list.scrollTo(0, list.scrollHeight)")
    timeline = tab.find(".timeline").bounding_box()
    last = listed.last.bounding_box()
    assert last["y"] + last["height"] <= timeline["y"] + timeline["height"]
    box.get_by_label("Input wait", exact=True).uncheck()
    wait_until(lambda: "Input wait" not in titles(tab) and "hidden" in tab.link(), what="hiding")
    box.get_by_label("Input wait", exact=True).check()
    box.locator("input[type=search]").fill("gpu1 temp")
    wait_until(lambda: listed.count() == 1, what="the search")
    listed.get_by_text("pin", exact=True).click()
    tab.page.keyboard.press("Escape")
    wait_until(lambda: box.count() == 0, what="Escape")
    tab.settle()
    assert titles(tab)[0] == "Temperature" and "gpu1" in tab.find(".tl-origin").first.inner_text()


def test_lanes_and_groups_are_moved_by_keyboard_and_by_mouse(tab):
    tab.settle()
    assert titles(tab)[:2] == ["Step time", "Input wait"]
    tab.button("Move Input wait up").focus()
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert titles(tab)[:2] == ["Input wait", "Step time"]
    # A group's label, dragged below the next group's.
    groups = tab.find(".tl-group")
    before = groups.all_inner_texts()
    box = groups.nth(0).bounding_box()
    x, y = box["x"] + 40, box["y"] + 10
    tab.drag((x, y), (x, y + 700))
    tab.settle()
    after = groups.all_inner_texts()
    assert sorted(after) == sorted(before) and after[0] != before[0], after
    # The link keeps the order.
    url = tab.page.url
    tab.page.goto("about:blank")
    tab.page.goto(url)
    tab.wait_for(".tl-value:not(:empty)")
    tab.settle()
    assert titles(tab)[:2] == ["Input wait", "Step time"]
    assert groups.all_inner_texts() == after


def test_zooms_are_undone_by_a_button(tab):
    tab.button("Zoom in").click()
    one = tab.view()
    tab.button("Zoom in").click()
    assert tab.view() != one
    tab.button("Undo zoom").click()
    assert tab.view() == one
    tab.button("Whole run").click()
    assert tab.view() is None
    assert tab.button("Whole run").is_disabled()


def test_a_click_on_a_step_tells_where_it_went(tab):
    box = tab.plot()
    tab.zoom_wheel(tab.x_of(1200, (0, STEPS)), box["y"] + 40, 30)
    tab.settle()
    start, end = tab.view()
    step = int(start) + 1
    x = tab.x_of(step + 0.5, (start, end))
    tab.page.mouse.click(x, box["y"] + 40)
    tab.settle()
    assert tab.text(".measure h2") == f"Step {step:,}"
    reply = tab._json(
        f"{tab.url}/data/plugin/gpu_utilization/steps?id={tab.link()['id'].replace('/', '%2F')}"
        f"&first={step}&last={step}"
    )["columns"]
    rows = dict(
        row.split("\t")[:2] for row in tab.find(".measure table").first.inner_text().split("\n")[1:]
    )
    for title, column in (("train function", "body_ns"), ("input wait", "input_wait_ns")):
        (shown,) = [text for name, text in rows.items() if title in name]
        assert abs(float(shown.split()[0]) - reply[column][0] / 1e6) < 0.06, (title, shown)


def test_a_range_is_measured_by_keyboard(tab):
    tab.find(".tl-surface").focus()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("m")
    for _ in range(6):
        tab.page.keyboard.press("Shift+ArrowRight")
    tab.page.keyboard.press("m")
    tab.settle()
    low, high = map(float, tab.link()["range"].split("~"))
    assert low == 0 and 100 < high < STEPS
    assert tab.find(".measure .sum").count() == 1


def test_a_finger_that_rests_measures(open_tab, server):
    tab = open_tab(server.url, width=800, height=1000, has_touch=True)
    tab.find(".tl-surface").scroll_into_view_if_needed()
    box = tab.plot()
    client = tab.context.new_cdp_session(tab.page)
    x, y = box["x"] + box["width"] / 2, box["y"] + 40

    def touch(kind: str, *points: float) -> None:
        where = [{"x": x + dx, "y": y, "id": i} for i, dx in enumerate(points)]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})

    touch("touchStart", 0.0)
    # By the page's own clock: its timer of a resting finger is older and runs out before.
    tab.evaluate("new Promise((done) => setTimeout(done, 600))")
    for step in range(1, 6):
        touch("touchMove", 20.0 * step)
    touch("touchEnd")
    tab.settle()
    low, high = map(float, tab.link()["range"].split("~"))
    per_pixel = STEPS / box["width"]
    assert abs((high - low) - 100 * per_pixel) < 6 * per_pixel
    assert tab.view() is None, "it did not pan"


def test_lanes_in_sight_are_saved_as_numbers(tab):
    head = tab.head()
    y = head["y"] + 25
    tab.drag((head["x"] + head["width"] * 0.4, y), (head["x"] + head["width"] * 0.5, y))
    tab.settle()
    start, end = tab.view()
    tab.button("Export").click()
    with tab.page.expect_download() as waiting:
        tab.find(".popover :text('Lanes of this view')").click()
    with open(waiting.value.path(), newline="", encoding="utf-8") as file:  # noqa: PTH123
        rows = list(csv.reader(io.StringIO(file.read())))
    names, values = rows[0], [[float(cell or "nan") for cell in row] for row in rows[1:]]
    assert names[:2] == ["step", "time_s"]
    assert abs(values[0][0] - start) < 2 and abs(values[-1][0] - end) < 3
    wait = names.index("Input wait mean [ms]")
    low, high = names.index("Input wait min [ms]"), names.index("Input wait max [ms]")
    assert all(row[low] <= row[wait] <= row[high] for row in values)
    starved = [row[wait] for row in values if row[0] > 800]
    assert min(starved) > 20, "the starved third, as it is drawn"
    assert "gpu1 Kernel active mean [%]" in names


def test_a_throttled_gpu_is_marked_in_the_lanes_that_show_it(open_tab, tmp_path):
    run = SyntheticRun(tmp_path / "hot", "healthy", steps=600, gpus=1, epochs=1)
    run.advance(600)
    times = np.arange(run.start, run.now, 100_000_000)
    hot = (times - run.start) / (run.now - run.start)
    pct = np.where((hot > 0.4) & (hot < 0.6), 35.0, 0.0)
    names = ("throttle_thermal_pct", "throttle_power_pct", "throttle_other_pct")
    run._put_samples("gpu0/counters", names, times, np.stack([pct, 0 * pct, 0 * pct], axis=1))
    run.close()
    with TensorBoardServer(tmp_path, load_fast=True) as server:
        tab = open_tab(server.url, height=1200)
        tab.button("time").click()
        tab.settle()
        plot = tab.plot()

        def reddish(title: str, share: float) -> bool:
            label = tab.find(".tl-label").filter(has=tab.page.get_by_text(title, exact=True))
            at = label.first.bounding_box()["y"] - plot["y"] + 1.5
            red, green, blue = tab.colour_at(".tl-surface canvas", share * plot["width"], at)
            return red > green + 80 and red > blue + 80

        for title in ("Power", "SM clock", "Temperature"):
            wait_until(lambda title=title: reddish(title, 0.5), what=f"the mark over {title}")
            assert not reddish(title, 0.2) and not reddish(title, 0.8)
        assert not reddish("Kernel active", 0.5)
        # In words: at the pointer, and for a screen reader.
        box = tab.find(".tl-label").filter(has_text="Power").first.bounding_box()
        tab.page.mouse.move(plot["x"] + plot["width"] / 2, box["y"] + box["height"] / 2)
        wait_until(lambda: "throttled, thermal" in tab.text(".tooltip"), what="the tooltip")
        assert "35 %" in tab.text(".tooltip")
