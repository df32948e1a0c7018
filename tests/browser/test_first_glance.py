"""Headline, lanes and remedy in every frame; causes found in at most two actions."""

import re

import pytest
from gallery import HOT_GPU, REFERENCE, SCENES
from gpu_tab import Hand, hurry
from make_recording import SyntheticRun, make_recording
from tensorboard_server import TensorBoardServer
from test_tab_access import violations
from waiting import wait_until

MOST_ACTIONS = 2
# What stands where, from above to below, in a frame of one column.
ORDER = ("h1", ".budget", ".tl-head", ".tl-scroll", ".fix-first")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """`scene(name) -> url` of a log directory of the gallery, made once and served."""
    servers = {}

    def serve(name):
        if name not in servers:
            root = tmp_path_factory.mktemp("scenes") / name
            SCENES[name](root)
            servers[name] = TensorBoardServer(root, load_fast=True).__enter__()
        return servers[name].url

    yield serve
    for server in servers.values():
        server.__exit__(None, None, None)


def in_sight(tab, selector) -> bool:
    """Whether all of an element is in the frame as it stands."""
    box = tab.find(selector).first.bounding_box()
    size = tab.page.viewport_size
    return box["y"] >= 0 and box["y"] + box["height"] <= size["height"] and box["x"] >= 0


def pixels(tab, x_share: float, y: float) -> tuple[int, ...]:
    """The colour of the head at a share of its width and `y` pixels below its lane's upper edge."""
    lane = tab.find(".tl-time").bounding_box()
    head = tab.head()
    return tuple(tab.colour_at(".tl-head canvas", x_share * head["width"], lane["y"] - head["y"] + y))


def test_the_cause_on_one_of_many_gpus(open_tab, scene):
    tab = open_tab(scene("gpus"))
    hand = Hand(tab)
    tab.settle()
    assert f"gpu{HOT_GPU}" in tab.text("h1") and "98 %" in tab.text(".busy")
    assert "64 GPUs, mean" in tab.text(".tl-time"), "the lane is the mean of all"
    assert f"gpu{HOT_GPU} ▸ and 63 others" in tab.text(".tl-head-labels"), "the named one is the first row below it"
    lane = tab.find(".tl-time").bounding_box()
    red, _, blue = pixels(tab, 0.5, lane["height"] + 8)
    assert blue > red + 60, "each GPU is a thin row, as blue as it is busy"
    groups = tab.find(".tl-labels .tl-group")
    assert groups.first.inner_text().endswith("8 lanes") and f"gpu{HOT_GPU} ·" in groups.first.inner_text()
    assert tab.find(".details").count() == 0, "closed until it is asked for"
    hand.click("the findings", tab.find(".all-findings"))
    hand.click("the finding", tab.find(".finding").first)
    assert f"Heat slows gpu{HOT_GPU} down" in tab.text(".details .advice")
    assert groups.first.get_attribute("aria-expanded") == "true", "its lanes open with it"
    assert len(hand.did) <= MOST_ACTIONS
    tab.find(".about summary:has-text('64 GPUs')").click()
    rows = tab.find(".gpu-table tbody tr")
    texts = [" ".join(text.split()) for text in rows.all_inner_texts()]
    assert len(texts) == 2
    assert texts[0].startswith(f"gpu{HOT_GPU} ") and "thermal 40 %" in texts[0]
    assert texts[1].startswith("▸ 63 alike ") and texts[1].endswith("0 %")
    tab.find(".gpu-table .alike button").click()
    assert rows.count() == 65
    tab.resize(390, 844)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_chooser_is_sorted_and_walked_by_keys(open_tab, scene):
    tab = open_tab(scene("runs"))
    tab.find(".chooser-button").click()
    tab.wait_for(".sums h1")
    lines = "[...document.querySelectorAll('.sums-worth .dim')].map((one) => one.getClientRects().length)"
    assert tab.evaluate(lines) == [1] * 4, "what fixing three of them saves, and what was lost most, in a line each"
    assert len({tab.find(".sums-worth .small").nth(i).bounding_box()["y"] for i in range(4)}) == 1
    tab.find(".runs-head .run-lost button").click()
    assert tab.find("[aria-sort=descending]").inner_text().startswith("Lost")
    lost = tab.find(".choice .lost").all_inner_texts()
    seconds = [float(text.split()[0]) * (1e-3 if "ms" in text else 1) for text in lost]
    assert len(seconds) > 5 and seconds == sorted(seconds, reverse=True)
    names = tab.find(".choice b").all_inner_texts()
    tab.page.get_by_label("Search runs").fill("lr-")
    tab.page.get_by_label("Search runs").focus()
    for _ in range(20):
        tab.page.keyboard.press("ArrowDown")
    tab.settle()
    active = tab.find(".choice.active")
    assert active.count() == 1 and active.get_attribute("aria-rowindex") == "21"
    box, shown = active.bounding_box(), tab.find(".runs").bounding_box()
    assert shown["y"] < box["y"] and box["y"] + box["height"] <= shown["y"] + shown["height"] + 1
    name = active.locator("b").inner_text()
    assert name not in names[:10]
    # The end of a long name tells the runs of a sweep apart: it is what can be read.
    assert active.locator("bdi").first.evaluate(
        "(name) => name.getBoundingClientRect().right <= name.parentElement.getBoundingClientRect().right + 1"
    )
    tab.page.keyboard.press("Enter")
    wait_until(lambda: name in tab.find(".chooser-button").get_attribute("title"), what=name)
    assert tab.find(".chooser-list").count() == 0


NARROW = ((1024, 576), (800, 736), (720, 386), (390, 780))
WIDE = ((1366, 704), (1440, 836), (1920, 980))
# The part of the tab that the lane of time has with its name, in each frame.
LANE = {(1366, 704): 0.15, (1440, 836): 0.19, (1920, 980): 0.19}


@pytest.mark.parametrize("name", SCENES)
def test_axe_finds_nothing_in_any_scene(open_tab, scene, name):
    """With and without the panel."""
    if name == "traces" and not REFERENCE.is_dir():
        pytest.skip("no public traces beside the checkout (../shared/data)")
    tab = open_tab(scene(name), wait=False)  # of damaged rows no lane has a value
    wait_until(lambda: tab.find("h1").count() and not tab.text("h1").startswith("Comparing"), what="the verdict")
    assert not violations(tab)
    tab.panel()
    assert not violations(tab), "with its panel"


# Scenes that differ in what stands where: findings, ranks, GPUs, what a trace lacks.
@pytest.mark.parametrize("name", ["eight", "workers", "gpus", "waiting", "traces"])
def test_every_scene_in_every_frame(open_tab, scene, name):
    if name == "traces" and not REFERENCE.is_dir():
        pytest.skip("no public traces beside the checkout (../shared/data)")
    tab = open_tab(scene(name))
    wait_until(lambda: not tab.text("h1").startswith("Comparing"), what="the verdict")
    for size in ((1280, 656), (3840, 2000)):
        tab.resize(*size)
        check_that_all_fits(tab, size)
    for size in WIDE:
        tab.resize(*size)
        check_that_the_first_glance_is_whole(tab, size)
    if name in ("eight", "workers"):
        check_one_column_in_the_order_of_reading(tab)


def check_that_all_fits(tab, size):
    width, height = size
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for selector in ("h1", ".budget ul", ".fix-first", ".tl-surface"):
        box = tab.find(selector).first.bounding_box()
        assert box and box["x"] >= -1 and box["x"] + box["width"] <= width + 1, (selector, box)
        assert box["width"] > 60 and box["height"] > 15, (selector, box)
    plot = tab.head()
    assert plot["width"] > 0.4 * min(width, 1000), "the lanes are wide enough to read"
    assert plot["y"] + 60 < height, "and there at first glance"


def check_that_the_first_glance_is_whole(tab, size):
    """Number, sentence, fix, bar and lane are in sight; the lane has a fifth of the tab."""
    assert all(in_sight(tab, part) for part in (".busy", "h1", ".fix-first", ".budget", ".tl-time")), size
    lane, head = tab.find(".tl-time").bounding_box(), tab.head()
    assert lane["height"] * head["width"] > LANE[size] * size[0] * size[1] * 0.98, size
    bar = tab.find(".budget ul").bounding_box()
    assert bar["y"] + bar["height"] <= head["y"] + 2, "the bar stands over the lane that has its colours"
    assert tab.find(".details").count() == 0 and tab.find(".fix-first").count() == 1, "the remedy is said once"


def check_one_column_in_the_order_of_reading(tab):
    heights = {}
    for size in NARROW:
        tab.resize(*size)
        order = ORDER if size[0] > 560 else ORDER[:-1]  # a phone has the fix as a sheet
        boxes = [tab.find(selector).first.bounding_box() for selector in order]
        ends = [box["y"] + box["height"] for box in boxes]
        assert all(end <= box["y"] + 1 for end, box in zip(ends, boxes[1:], strict=False)), (size, boxes)
        if size[1] > 400:
            assert tab.head()["y"] + 100 < size[1], f"the lane of time is on the first screen of {size}"
        if size[0] == 390:
            sheet = tab.find(".fix-first").bounding_box()
            assert sheet["y"] + sheet["height"] == pytest.approx(size[1], abs=2)
            assert tab.head()["width"] > 370, "the lane has the full width"
        check_that_all_fits(tab, size)
        heights[size] = [tab.find(part).bounding_box()["height"] for part in (".tl-scroll", ".tl-content")]
    tab.button("▾ all lanes").click()
    for size, (short, content) in heights.items():
        tab.resize(*size)
        least = min(content, 1.2 * short)
        wait_until(
            lambda least=least: tab.find(".tl-scroll").bounding_box()["height"] >= least,
            what=f"room for the lanes in {size}",
        )


def test_another_finding_brings_its_span_its_evidence_and_its_remedy(open_tab, scene):
    tab = open_tab(scene("eight"))
    tab.settle()
    tab.find(".all-findings").click()
    rows = tab.find(".finding")
    wait_until(lambda: rows.count() == 8, what="a row a finding")
    names = [row.inner_text() for row in rows.all()]
    assert len(set(names)) == 8, "equal ones are one row"
    about = rows.first.get_attribute("title").replace("\u00a0", " ")
    assert re.search(r"4 times, \d\.\d s each", about), about
    wandb = rows.filter(has_text="WandbMetricsLogger").first
    wandb.click()
    tab.settle()
    assert wandb.get_attribute("aria-pressed") == "true"
    assert "WandbMetricsLogger" in tab.text(".details h2")
    assert "WandbMetricsLogger" in tab.text(".details .advice")
    assert tab.text(".selected-nav span").startswith("Finding 2 of 8")
    # Once more: its next occurrence, zoomed into.
    steps = tab.text(".details .facts")
    wandb.click()
    tab.settle()
    assert tab.text(".details .facts") != steps and tab.view() is not None
    tab.link()
    tab.page.go_back()
    wait_until(lambda: tab.text(".details .facts") == steps, what="the span before")


def test_bar_and_lane_say_the_same_and_lead_to_the_cause(open_tab, scene):
    """The colour of a cause: pointed at it stays while others fade, a click brings its fix, a double click zooms."""
    tab = open_tab(scene("two"))
    tab.settle()
    budget = tab.recording()["budgets"][0]
    share = {part["name"]: 100 * part["seconds"] / budget["known_s"] for part in budget["parts"]}
    parts = {part.get_attribute("data-part"): part.inner_text() for part in tab.find(".budget-part").all()}
    assert f"{share['busy']:.0f} %" in tab.text(".busy") and f"{share['input']:.0f} %" in parts["input"]
    middle = 0.2  # of the run: within the first starved stretch
    amber = pixels(tab, middle, 40)
    assert amber[0] > 200 and amber[2] < 80
    tab.find(".budget-part[data-part=checkpoint]").hover()
    tab.settle()
    alpha = "(canvas, [x, y]) => canvas.getContext('2d').getImageData(x, y, 1, 1).data[3]"
    lane, head = tab.find(".tl-time").bounding_box(), tab.head()
    place = [middle * head["width"], lane["y"] - head["y"] + 40]
    assert tab.find(".tl-head canvas").evaluate(alpha, place) < 100, "the other causes fade"
    assert tab.find(".budget li.faded").count() == len(parts) - 1
    head, lane = tab.head(), tab.find(".tl-time").bounding_box()
    x, y = head["x"] + middle * head["width"], lane["y"] + 40
    tab.page.mouse.move(x, y)
    wait_until(lambda: "▸ waiting for input" in tab.text(".tooltip"), what="what took this time")
    assert "−8" in tab.text(".tooltip"), "the seconds of this stretch"
    tab.page.mouse.click(x, y)
    tab.settle()
    assert tab.link()["span"].startswith("input_bound@250") and "Input-bound" in tab.text(".details h2")
    cause, other = "input_bound", "host_stall"
    for key, where in (("]", f"{cause}@650"), ("[", f"{cause}@250"), ("}", other), ("{", cause), ("{", other)):
        tab.page.keyboard.press(key)
        assert tab.link()["span"].startswith(where), f"{key}: the next place of this cause, or the next cause"
    tab.page.keyboard.press("Escape")
    wait_until(lambda: tab.find(".details").count() == 0, what="the panel to close")
    head = tab.head()
    tab.page.mouse.dblclick(head["x"] + middle * head["width"], y)
    tab.settle()
    start, end = tab.view()
    assert 8e9 < start < 10.5e9 and 23e9 < end < 27e9, "the hole fills the view"


def test_what_was_not_sampled_is_dotted_and_not_joined(open_tab, scene):
    """From 6.7 to 12.7 of 19.1 seconds the driver did not answer."""
    tab = open_tab(scene("unsampled"))
    tab.settle()
    blue, *gap = (pixels(tab, x, y) for x, y in ((0.3, 190), (0.5, 190), (0.37, 7), (0.37, 203), (0.65, 203)))
    assert blue[2] > blue[0] + 60
    assert all(max(colour) - min(colour) < 24 for colour in gap), f"neither busy nor idle, and no slope: {gap}"
    tab.panel()
    tab.find(".finding").first.click()
    assert "the GPU was not sampled" in tab.text(".beside"), "why the lane shows less than the finding lost"


def test_damaged_rows_leave_axis_and_verdict_and_a_grey_lane(open_tab, scene):
    tab = open_tab(scene("damaged"), wait=False)
    tab.wait_for(".trouble")
    tab.settle()
    assert "its rows are not shown" in tab.text(".trouble") and "starves the GPU: 7.6 s of 23 s" in tab.verdict()
    assert tab.find(".busy, .budget").count() == 0, "no number is made up"
    red, green, blue = pixels(tab, 0.5, 190)
    assert max(red, green, blue) - min(red, green, blue) < 14, "grey"
    tab.panel()
    tab.find(".finding").first.click()
    assert tab.link()["span"].startswith("input_bound@"), "the spans are the manifest's"


def test_rows_that_turn_out_damaged_are_said_over_what_is_known(open_tab, tmp_path, start_tensorboard):
    path = make_recording(tmp_path / "run", "thirds", steps=40_000, gpus=1)
    for segment in path.glob("segment-*.npz"):
        segment.write_bytes(segment.read_bytes()[:-22])
    tab = open_tab(start_tensorboard(tmp_path).url, before=hurry, alone=True)
    tab.settle()
    said, amber = tab.text("h1"), pixels(tab, 0.5, 40)
    box = tab.plot()
    tab.zoom_wheel(tab.x_of(0.5, (0, 1)), box["y"] + 40, 25)  # only here are rows needed, which cannot be read
    tab.wait_for(".trouble", 20)
    assert " steps not readable" in tab.text(".trouble")
    tab.page.keyboard.press("0")
    tab.settle()
    assert tab.text("h1") == said and pixels(tab, 0.5, 40) == amber


def test_a_live_run_grows_and_counts(open_tab, tmp_path, start_tensorboard):
    run = SyntheticRun(tmp_path / "today", "healthy", steps=2000, gpus=1, past_s=40)
    run.advance(500).flush()
    tab = open_tab(start_tensorboard(tmp_path).url, before=hurry, alone=True)
    tab.settle()
    assert tab.text(".status").strip() == "live" and tab.find(".follow").count() == 0
    known = tab.number(".busy small")
    dotted = pixels(tab, 0.99, 190)
    run.advance(700).flush()
    wait_until(lambda: tab.number(".busy small") > known + 10, 20, "the number to count on")
    tab.settle()
    assert tab.view() is None and min(dotted) > 180
    run.close()


def test_c_copies_the_fix_of_the_selected_cause_and_else_the_first(open_tab, scene):
    tab = open_tab(scene("eight"))
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.settle()
    report = tab.recording()["report"]
    codes = {one["id"]: one["advice"]["code"] for one in (*report["spans"], *report["findings"])}
    selected = next(one for one in codes if codes[one] and codes[one] != codes[report["lead"]])
    for wanted in (report["lead"], selected):
        tab.evaluate("navigator.clipboard.writeText('')")
        tab.page.keyboard.press("c")
        wait_until(lambda: "copied" in tab.text(".notice"), what="the copy")
        assert tab.evaluate("navigator.clipboard.readText()") == codes[wanted]
        tab.open(f"&p.gpu_utilization.span={selected}")
        tab.settle()


def test_a_dragged_range_has_a_budget_of_its_own(open_tab, scene):
    """Within the first starved stretch most of the time is amber, and no checkpoint lies there."""
    tab = open_tab(scene("two"))
    tab.settle()
    whole = {part.get_attribute("data-part"): part.inner_text() for part in tab.find(".budget-part").all()}
    box = tab.plot()
    tab.drag((tab.x_of(0.14, (0, 1)), box["y"] + 40), (tab.x_of(0.26, (0, 1)), box["y"] + 40))
    tab.settle()
    parts = {part.get_attribute("data-part"): part.inner_text() for part in tab.find(".budget-part").all()}
    assert "checkpoint" in whole and "checkpoint" not in parts
    shares = [int(parts["input"].split()[-2]), int(whole["input"].split()[-2])]
    assert shares[0] > shares[1] + 20, shares
    assert 8 < tab.number(".budget-range") < 13, "seconds of the range"
    tab.page.keyboard.press("Escape")
    wait_until(lambda: tab.find(".budget-range").count() == 0, what="the budget of the run again")


def test_each_part_is_named_in_the_bar_or_below_it(open_tab, scene):
    tab = open_tab(scene("eight"))
    shown = "(names) => names.filter((name) => name.getBoundingClientRect().width > 20).map((name) => name.innerText)"
    for size in ((1440, 836), (390, 844)):
        tab.resize(*size)
        said = [" ".join(text.split()) for text in tab.find(".budget-names small").evaluate_all(shown)]
        wide = [text for text in tab.find(".budget-part").all_inner_texts() if len(text) > len("≈ 22 %")]
        budget = tab.recording()["budgets"][0]
        titles = [part["title"] for part in budget["parts"] if part["seconds"] > 0.005 * budget["known_s"]]
        for title in titles:
            assert sum(text.strip().startswith(title) for text in (*said, *wide)) == 1, (title, said, wide)


def test_the_run_without_a_loss_is_as_long_as_promised(open_tab, scene):
    tab = open_tab(scene("two"), "&p.gpu_utilization.span=input_bound@250")
    tab.settle()
    before = pixels(tab, 0.95, 60)
    tab.button("Show without it").click()
    tab.settle()
    assert pixels(tab, 0.95, 60) != before, "the lane ends earlier"
    assert tab.find(".without[aria-pressed=true]").count() == 1
    tab.button("Show the run as it was").click()
    tab.settle()
    assert pixels(tab, 0.95, 60) == before


def test_the_first_glance_is_copied_as_a_picture(open_tab, scene):
    tab = open_tab(scene("two"))
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.settle()
    tab.button("Export").click()
    tab.find(".popover :text('Copy picture')").click()
    wait_until(lambda: "Picture copied" in tab.text(".notice"), what="the copy")
    size = """(async () => {
      const [item] = await navigator.clipboard.read();
      const image = await createImageBitmap(await item.getType('image/png'));
      return [image.width, image.height];
    })()"""
    assert tab.evaluate(size) == [2400, 840], "1200 by 420, for sharp screens"


def test_anything_is_found_by_its_name(open_tab, scene):
    tab = open_tab(scene("eight"))
    tab.settle()
    tab.page.keyboard.press("Control+k")
    tab.find(".finder input:focus").wait_for()
    tab.page.keyboard.type("wandb")
    assert tab.find(".finder [aria-selected=true]").inner_text().startswith("finding")
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert "WandbMetricsLogger" in tab.text(".details h2")
    tab.page.keyboard.press("Control+k")
    tab.find(".finder input:focus").wait_for()
    tab.page.keyboard.type("power")
    tab.page.keyboard.press("Enter")
    tab.settle()
    wait_until(lambda: tab.find(".tl-label").filter(has_text="Power").count() > 0, what="the lane, its group open")
    assert not violations(tab)
    for words, kind in (("steps on the axis", "command"), ("all-at-once", "run")):
        tab.page.keyboard.press("Control+k")
        tab.find(".finder input:focus").wait_for()
        tab.page.keyboard.type(words)
        assert tab.find(".finder [aria-selected=true]").inner_text().startswith(kind)
        tab.page.keyboard.press("Enter")
        tab.settle()
    assert tab.button("steps").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("size", [(1440, 836), (390, 780)], ids=lambda size: str(size[0]))
def test_from_the_verdict_to_the_fix_in_three_actions(open_tab, scene, size):
    """A first-time reader's way: verdict, colour, evidence, fix."""
    tab = open_tab(scene("two"), width=size[0], height=size[1])
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.settle()
    hand = Hand(tab)
    report = tab.recording()["report"]
    said = " ".join(tab.text("h1").split())
    assert in_sight(tab, "h1") and said.replace(" :", ":") == report["verdict"].rstrip()
    spans = [one for one in report["spans"] if one["id"] in report["headline"]["ids"]]
    hand.click("the amber part of the bar", tab.find(".budget-part[data-part=input]"))
    tab.settle()
    assert tab.link()["span"] in report["headline"]["ids"]
    first = next(one for one in spans if one["id"] == tab.link()["span"])
    evidence = " ".join(tab.text(".details .evidence").split())
    assert all(row["label"] in evidence for row in first["rows"][:3])
    began = (first["start_ns"] - tab.recording()["extent"]["start_ns"]) / 1e9
    minutes, seconds = re.search(r"began at (\d+):(\d+)", tab.text(".details .facts")).groups()
    assert abs(int(minutes) * 60 + int(seconds) - began) <= 1
    hand.click("“copy code”", tab.button("copy code"))
    assert tab.evaluate("navigator.clipboard.readText()") in [one["advice"]["code"] for one in spans]
    assert tab.button("copied ✓").count() == 1
    assert len(hand.did) <= 3
