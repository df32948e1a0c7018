"""Moving about in the timeline, and what it tells: mouse, wheel, keyboard, touch."""

from waiting import wait_until

STEPS = 2400


def slow_span(tab) -> dict:
    return max(tab.recording()["report"]["spans"], key=lambda one: one["lost_s"])


def test_the_lanes_show_what_was_recorded(tab):
    """Amber in the starved third of the step lane, none of it in the healthy ones."""
    tab.settle()
    box = tab.plot()
    row = tab.find(".tl-label").first.bounding_box()
    middle = row["y"] - box["y"] + row["height"] * 0.5

    steps = (200, 600, 900, 1200, 1500, 1800, 2200)
    colours = tab.colours_at(".tl-surface canvas", [box["width"] * step / STEPS for step in steps], middle)
    amber = [red > 200 and 130 < green < 200 and blue < 60 for red, green, blue in colours]
    assert amber == [False, False, True, True, True, False, False]


def test_values_under_the_cursor_are_the_recordings(tab):
    box = tab.plot()
    span = slow_span(tab)
    middle = (span["start_step"] + span["end_step"]) / 2
    tab.page.mouse.move(tab.x_of(middle, (0, STEPS)), box["y"] + 50)
    tab.settle()
    tooltip = tab.text(".tooltip")
    assert "input wait" in tooltip and "train function" in tooltip
    assert abs(tab.number(".tooltip > b") - middle) < 4, tooltip
    shown = tab.number("[data-value$='#steps']")
    assert 0.8 * span["evidence"]["step_ms"] < shown < 1.2 * span["evidence"]["step_ms"]
    lanes = tab.find(".with-cursor .tl-value")
    values = [lanes.nth(i).inner_text() for i in range(min(4, lanes.count()))]
    assert all(value and value != "no data" for value in values), values


def test_a_click_on_a_span_shows_its_evidence(tab):
    assert tab.find(".details").count() == 0
    head, span = tab.head(), slow_span(tab)
    x = tab.x_of((span["start_step"] + span["end_step"]) / 2, (0, STEPS))
    tab.page.mouse.click(x, head["y"] + 60)
    assert tab.link()["span"] == span["id"]
    details = tab.text(".details")
    assert span["title"] in details
    assert f"≥ {span['threshold']['wait_pct']:g} %" in details, "evidence stands beside its threshold"
    assert span["advice"]["code"] in tab.text(".details .advice")


def test_wheel_zooms_at_the_pointer_pans_with_shift_and_z_undoes(tab):
    tab.unfold()
    box = tab.plot()
    at = 0.25
    tab.zoom_wheel(box["x"] + box["width"] * at, box["y"] + 40, 5)
    start, end = tab.view()
    assert 0 < start < end < STEPS
    assert abs(start + (end - start) * at - STEPS * at) < 3, "what was under the pointer stays"
    tab.page.keyboard.press("z")
    assert tab.view() is None
    # A plain wheel scrolls the lanes and leaves the view alone.
    tab.page.mouse.wheel(0, 120)
    scrolled = "document.querySelector('.tl-scroll').scrollTop > 0"
    wait_until(lambda: tab.evaluate(scrolled), what="scrolling the lanes")
    assert tab.view() is None
    # With shift it pans, as a drag does.
    middle, y = box["x"] + box["width"] / 2, box["y"] + 40
    tab.zoom_wheel(middle, y, 12)
    start, end = tab.view()
    assert end - start < 1200
    tab.page.keyboard.down("Shift")
    tab.page.mouse.wheel(0, 200)
    tab.page.keyboard.up("Shift")
    moved = tab.view()
    assert moved[0] > start and abs((moved[1] - moved[0]) - (end - start)) < 1e-3
    tab.drag((middle, y), (middle + 150, y), key="Shift")
    back = tab.view()
    assert back[0] < moved[0] and abs((back[1] - back[0]) - (end - start)) < 1e-3
    # A zoom is undone on the other axis, too.
    tab.button("time").click()
    assert tab.view() is not None
    for _ in range(3):
        tab.page.keyboard.press("z")
    wait_until(lambda: tab.view() is None, what="undoing the zoom made on the step axis")


def test_dragging_on_the_overview_and_on_the_axis_zooms(tab):
    head = tab.head()
    left, width = head["x"], head["width"]
    tab.drag((left + width * 0.2, head["y"] + 5), (left + width * 0.4, head["y"] + 5))
    start, end = tab.view()
    assert abs(start - STEPS * 0.2) < 5 and abs(end - STEPS * 0.4) < 5
    # Inside the brush: move it.
    tab.drag((left + width * 0.3, head["y"] + 5), (left + width * 0.5, head["y"] + 5))
    moved = tab.view()
    assert abs(moved[0] - STEPS * 0.4) < 6 and abs((moved[1] - moved[0]) - (end - start)) < 1e-3
    tab.drag((left + width * 0.25, head["y"] + 20), (left + width * 0.75, head["y"] + 20))
    inner = tab.view()
    length = moved[1] - moved[0]
    assert abs(inner[0] - (moved[0] + length * 0.25)) < 3
    assert abs(inner[1] - (moved[0] + length * 0.75)) < 3
    tab.page.mouse.dblclick(left + width * 0.9, head["y"] + 5)
    assert tab.view() is None


def test_dragging_measures_a_range(tab):
    tab.unfold()
    tab.find(".tl-scroll").evaluate("(box) => box.scrollTo(0, 0)")
    box, span = tab.plot(), slow_span(tab)
    y = box["y"] + 40
    tab.drag((tab.x_of(1000, (0, STEPS)), y), (tab.x_of(1400, (0, STEPS)), y))
    tab.settle()
    panel = tab.text(".measure")
    assert abs(tab.number(".measure .facts >> nth=0") - 1000) < 4, panel
    # Mean of the range: all of it in the starved third.
    row = tab.find(".measure .sum td").first.inner_text()
    assert abs(float(row.split()[0]) - span["evidence"]["step_ms"]) < 0.15 * float(row.split()[0])
    assert "%" in tab.find(".measure table").nth(1).inner_text()
    tab.page.keyboard.press("f")
    start, end = tab.view()
    assert abs(start - 1000) < 4 and abs(end - 1400) < 4
    tab.page.keyboard.press("Escape")
    assert "range" not in tab.link()
    # Escape lets go of a range while it is being dragged.
    mouse = tab.page.mouse
    mouse.move(box["x"] + 200, y)
    mouse.down()
    mouse.move(box["x"] + 300, y)
    tab.page.keyboard.press("Escape")
    mouse.move(box["x"] + 400, y)
    mouse.up()
    assert "range" not in tab.link()


def test_the_axis_changes_under_the_same_part_of_the_run(tab):
    span = slow_span(tab)
    tab.panel()
    tab.find(".finding").first.click()
    tab.page.keyboard.press("f")
    tab.settle()
    steps = tab.view()
    assert steps[0] < span["start_step"] < span["end_step"] < steps[1]
    tab.button("time").click()
    start, end = tab.view()
    began = tab.recording()["extent"]["start_ns"]
    first, last = span["start_ns"] - began, span["end_ns"] - began
    margin = 0.25 * (last - first)
    assert first - margin < start < first and last < end < last + margin
    tab.button("clock").click()
    assert tab.view() == (start, end)
    tab.button("steps").click()
    again = tab.view()
    assert abs(again[0] - steps[0]) < 6 and abs(again[1] - steps[1]) < 6


def test_keyboard_moves_zooms_and_steps_through_spans(tab):
    tab.page.keyboard.press("w")
    zoomed = tab.view()
    assert zoomed and zoomed[1] - zoomed[0] < STEPS
    tab.page.keyboard.press("d")
    right = tab.view()
    assert right[0] > zoomed[0]
    tab.page.keyboard.press("a")
    assert abs(tab.view()[0] - zoomed[0]) < 1e-3
    tab.page.keyboard.press("s")
    assert tab.view() is None
    tab.page.keyboard.press("+")
    assert tab.view() is not None
    tab.page.keyboard.press("0")
    assert tab.view() is None
    # The same by buttons.
    tab.button("Zoom in").click()
    first = tab.view()
    tab.button("Zoom in").click()
    assert tab.view() != first
    tab.button("Undo zoom").click()
    assert tab.view() == first
    tab.button("Whole run").click()
    assert tab.view() is None
    assert tab.button("Whole run").is_disabled()
    tab.page.keyboard.press("Escape")
    assert "span" not in tab.link()
    tab.page.keyboard.press("]")
    assert tab.link()["span"] == min(tab.recording()["report"]["spans"], key=lambda one: one["start_step"])["id"]
    tab.page.keyboard.press("?")
    tab.find("dialog.help").wait_for(state="visible")
    tab.page.keyboard.press("Escape")
    tab.find("dialog.help").wait_for(state="hidden")
    assert tab.link()["span"], "Escape closed the help only"
    # Letters typed into the filter do not move the view.
    tab.find(".chooser-button").click()
    tab.page.keyboard.press("w")
    assert tab.view() is None
    tab.find(".chooser-list").wait_for(state="visible")
    tab.page.keyboard.press("Escape")
    tab.find(".chooser-list").wait_for(state="hidden")


def test_arrow_keys_read_values_aloud(tab):
    tab.find(".tl-surface").focus()
    tab.page.keyboard.press("ArrowRight")
    live = ".timeline [aria-live]"
    wait_until(lambda: "Step time" in tab.text(live), what="reading the steps aloud")
    first = tab.text(live)
    assert "step" in first and "ms" in first
    tab.page.keyboard.press("ArrowDown")
    wait_until(lambda: "Input wait" in tab.text(live), what="reading the next lane aloud")
    before = tab.number(live)
    for _ in range(5):
        tab.page.keyboard.press("Shift+ArrowRight")
    wait_until(lambda: tab.number(live) > before, what="reading a later step aloud")
    tab.page.keyboard.press("Enter")
    assert "span" in tab.link()


def test_touch_pans_pinches_and_measures(open_tab, server):
    tab = open_tab(server.url, "&p.gpu_utilization.axis=steps", width=800, height=1000, has_touch=True)
    touch = tab.fingers()

    def move(*points):
        for step in range(1, 6):
            touch("touchMove", *(point * step for point in points))
        touch("touchEnd")

    # A finger that rests before it moves. By the page's own clock: its timer is older and runs out before.
    touch("touchStart", 0.0)
    tab.evaluate("new Promise((done) => setTimeout(done, 600))")
    move(20.0)
    tab.settle()
    low, high = map(float, tab.link()["range"].split("~"))
    per_pixel = STEPS / tab.plot()["width"]
    assert abs((high - low) - 100 * per_pixel) < 6 * per_pixel
    assert tab.view() is None, "it did not pan"
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("w")
    tab.page.keyboard.press("w")
    start, end = tab.view()
    touch = tab.fingers()
    touch("touchStart", 0.0)
    move(20.0)
    panned = tab.view()
    assert panned[0] < start and abs((panned[1] - panned[0]) - (end - start)) < 1e-3
    touch("touchStart", -40.0, 40.0)
    for step in range(1, 6):
        touch("touchMove", -40.0 - 10 * step, 40.0 + 10 * step)
    touch("touchEnd")
    pinched = tab.view()
    assert (pinched[1] - pinched[0]) < 0.7 * (panned[1] - panned[0])


def test_groups_fold_and_lanes_pin_and_hide(tab):
    tab.unfold()
    labels = tab.find(".tl-label").count()
    tab.find(".tl-group").first.click()
    tab.settle()
    assert tab.find(".tl-label").count() < labels
    assert "closed" in tab.link()
    tab.find(".tl-group").first.click()
    tab.settle()
    assert tab.find(".tl-label").count() == labels
    pin = tab.frame.get_by_role("button", name="Pin GPU active").first
    pin.focus()
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert "GPU active" in tab.find(".tl-label").first.inner_text()
    tab.button("Hide Input wait").focus()
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert tab.find(".tl-label").count() == labels - 1
    assert "hidden" in tab.link() and "pinned" in tab.link()
    tab.find(".tables button").filter(has_text="1 hidden").click()
    tab.settle()
    assert tab.find(".tl-label").count() == labels


# By the page's clock each line of a lane takes 5 ms, as on a slow machine, and each frame of a zoom 16 ms; what the
# lanes' canvas is in each. The view rests after the last.
SLOW = """(() => {
  let now = performance.now();
  performance.now = () => now;
  window.pass = (ms) => { now += ms; };
  const { stroke } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.stroke = function (...all) {
    pass(5);
    return stroke.apply(this, all);
  };
})()"""
ZOOM = """(async () => {
  const surface = document.querySelector('.tl-surface'), canvas = surface.querySelector('canvas'), seen = [];
  const { left, top } = surface.getBoundingClientRect(), { setTimeout } = window;
  const zoom = () => surface.dispatchEvent(new WheelEvent('wheel', {
    bubbles: true, cancelable: true, ctrlKey: true, deltaY: -14, clientX: left + 300, clientY: top + 40,
  }));
  window.setTimeout = (act, ms, ...rest) => setTimeout(act, ms && 1e5, ...rest);
  for (let i = 0; i < 25; i++) {
    zoom();
    pass(16);
    await frameDrawn();
    seen.push(canvas.style.transform);
  }
  window.setTimeout = setTimeout;
  zoom();
  return seen;
})()"""


def test_lanes_that_draw_slowly_are_stretched_until_the_view_rests(tab):
    tab.settle()
    tab.evaluate(SLOW)
    tab.evaluate(ZOOM)  # the first slow drawing tells how long it takes
    asked = len(tab.requests)
    seen = tab.evaluate(ZOOM)
    stretched = [transform for transform in seen if "scaleX" in transform]
    assert len(stretched) > 0.7 * len(seen), seen
    assert len(tab.requests) - asked <= len(seen) + 1, "at most one request a frame"
    tab.settle()
    canvas = tab.find(".tl-surface canvas")
    wait_until(lambda: canvas.evaluate("(it) => it.style.transform") == "", what="the lanes as they are")
    assert tab.find(".tl-value:not(:empty)").count()
