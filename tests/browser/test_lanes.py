"""Lanes as one wants them: listed, shown, pinned; steps and ranges read off them."""

import csv

from waiting import wait_until

STEPS = 2400


def titles(tab) -> list[str]:
    return tab.find(".tl-label .tl-title").all_inner_texts()


def test_all_lanes_are_listed_shown_and_pinned(tab):
    tab.settle()
    tab.find(".viewbar button").first.click()
    listed = tab.find(".lane-list li")
    run = tab.recording()
    wait_until(
        lambda: listed.count() == sum(lane["kind"] != "time" for lane in run["lanes"]),
        what="folded and hidden lanes, too",
    )
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
    address = f"{tab.url}/data/plugin/gpu_utilization/export.csv?id={tab.link()['id'].replace('/', '%2F')}"
    (reply,) = csv.DictReader(tab.context.request.get(f"{address}&first={step}&last={step}").text().splitlines())
    rows = dict(row.split("\t")[:2] for row in tab.find(".measure table").first.inner_text().split("\n")[1:])
    for title, column in (("train function", "body_ns"), ("input wait", "input_wait_ns")):
        (shown,) = [text for name, text in rows.items() if title in name]
        assert abs(float(shown.split()[0]) - int(reply[column]) / 1e6) < 0.06, (title, shown)


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


def test_the_steps_in_sight_are_saved_as_numbers(tab):
    head = tab.head()
    y = head["y"] + 5
    tab.drag((head["x"] + head["width"] * 0.4, y), (head["x"] + head["width"] * 0.5, y))
    tab.settle()
    start, end = tab.view()
    download = tab.export("Steps of this view")
    assert download.suggested_filename.endswith(".csv"), download.suggested_filename
    with download.path().open(newline="", encoding="utf-8") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == list(range(int(start), int(end + 0.999)))


def test_a_legend_hides_and_shows_its_series(tab):
    tab.settle()
    label = tab.find(".tl-label").first
    entry = label.locator(".tl-legend button").filter(has_text="train function")
    whole = tab.number("[data-value$='#steps']")
    entry.click()
    wait_until(lambda: entry.get_attribute("aria-pressed") == "false", what="hiding the series")
    wait_until(lambda: tab.number("[data-value$='#steps']") < 0.7 * whole, what="the rest's value")
    assert "train" not in tab.text(".tooltip") if tab.find(".tooltip").count() else True
    # The link keeps it, and the place where it was drawn is empty.
    link = wait_until(lambda: "hidden" in (link := tab.evaluate("location.href")) and link, what="the link")
    tab.page.goto("about:blank")
    tab.page.goto(link)
    tab.wait_for(".tl-value:not(:empty)")
    assert entry.get_attribute("aria-pressed") == "false"
    entry.click()
    wait_until(lambda: tab.number("[data-value$='#steps']") == whole, what="the series again")
    # Without the last one nothing would be left, so all come back.
    pressed = label.locator(".tl-legend button[aria-pressed=true]")
    many = pressed.count()
    for left in range(many - 1, 0, -1):
        pressed.first.click()
        wait_until(lambda left=left: pressed.count() == left, what=f"{left} of them")
    pressed.click()
    wait_until(lambda: pressed.count() == many, what="all of them")


def test_groups_are_one_stop_of_the_tab_key(tab):
    tab.settle()
    groups = tab.find(".tl-labels .tl-group")
    assert groups.count() >= 3
    assert tab.find(".tl-labels [tabindex='0']").count() == 1
    groups.first.focus()
    tab.page.keyboard.press("ArrowDown")
    assert groups.nth(1).evaluate("(row) => row === document.activeElement")
    tab.page.keyboard.press("End")
    last = groups.last
    assert last.evaluate("(row) => row === document.activeElement")
    assert last.get_attribute("tabindex") == "0", "Tab comes back to where one was"
    before = last.get_attribute("aria-expanded")
    tab.page.keyboard.press("ArrowLeft" if before == "true" else "ArrowRight")
    wait_until(lambda: last.get_attribute("aria-expanded") != before, what="folding by key")
    assert tab.view() is None, "arrows did not pan"


def test_a_step_is_found_by_its_number(tab):
    tab.button("time").click()
    tab.page.keyboard.press("g")
    tab.find(".finder input:focus").wait_for()
    tab.page.keyboard.type("1,234")
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert tab.text(".measure h2") == "Step 1,234"
    start, end = tab.view()
    assert start < 1234 < end and end - start < 100
    assert tab.button("steps").get_attribute("aria-pressed") == "true"
    # Beyond the end: the last one there is.
    tab.button("Find a lane, run, step or command").click()
    tab.find(".finder input:focus").wait_for()
    tab.page.keyboard.type("999999")
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert tab.text(".measure h2") == f"Step {STEPS - 1:,}"
