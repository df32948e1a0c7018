"""Headline, lanes and remedy in every frame; causes found in at most two actions."""

import re

import pytest
from gallery import HOT_GPU, REFERENCE, SCENES
from gpu_tab import Hand
from tensorboard_server import TensorBoardServer
from test_tab_access import violations
from waiting import wait_until

MOST_ACTIONS = 2
# What stands where, from above to below, in a frame of one column.
ORDER = ("h1", ".tl-head", ".tl-scroll", ".details .advice", ".accounts")


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


def test_the_cause_on_one_of_many_gpus(open_tab, scene):
    tab = open_tab(scene("gpus"))
    hand = Hand(tab)
    tab.settle()
    assert f"gpu{HOT_GPU} is too hot" in tab.text(".details .advice p")
    assert f"gpu{HOT_GPU}" in tab.text(".tl-label"), "its utilization is the first lane"
    account = tab.find(".account:has(.gpu-table)")
    assert f"gpu{HOT_GPU} of 64" in account.locator("summary").inner_text(), "its account"
    cells = tab.find(".gpu-strip i")
    assert cells.count() == 64 and tab.find(".gpu-strip .named").count() == 1
    assert "thermal 40 %" in tab.find(".gpu-strip .named").get_attribute("title").replace("\u00a0", " ")
    account.locator("summary").click()
    rows = tab.find(".gpu-table tbody tr")
    texts = [" ".join(text.split()) for text in rows.all_inner_texts()]
    assert len(texts) == 2
    assert texts[0].startswith(f"gpu{HOT_GPU} ") and "thermal 40 %" in texts[0]
    assert texts[1].startswith("▸ 63 alike ") and texts[1].endswith("0 %")
    # All groups but that GPU's are folded; scrolled away, its finding leads back to it.
    scroller, card = tab.find(".tl-scroll"), tab.find(".finding").first
    at = "(box) => box.scrollTop"
    assert scroller.evaluate(at) == 0, "at first glance, how steps went"
    group = tab.find(".tl-labels .tl-group").filter(has_text=f"gpu{HOT_GPU} ·").first
    top = scroller.bounding_box()["y"]

    def to_the_span():
        tab.page.keyboard.press("]")

    for choose in (to_the_span, lambda: hand.click("the finding", card), lambda: card.press("Enter")):
        scroller.evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
        tab.settle()
        choose()
        wait_until(lambda: -2 <= group.bounding_box()["y"] - top < 150, what=f"gpu{HOT_GPU}'s lanes")
        assert group.get_attribute("aria-expanded") == "true"
    # Once there, nothing moves.
    tab.settle()
    place = scroller.evaluate(at)
    to_the_span()
    tab.settle()
    assert scroller.evaluate(at) == place
    assert len(hand.did) <= MOST_ACTIONS
    hand.click("the alike GPUs", tab.find(".gpu-table .alike button"))
    assert rows.count() == 65

    def tint(gpu: int) -> int:
        label = tab.find(".tl-group").filter(has_text=f"gpu{gpu} ·").first
        if label.get_attribute("aria-expanded") == "false":
            label.click()
        label.scroll_into_view_if_needed()
        tab.settle()
        y = label.bounding_box()["y"] - tab.plot()["y"] + 27  # the upper edge of its first lane
        red, _, blue = tab.colour_at(".tl-surface canvas", 0.75 * tab.plot()["width"], y)
        return red - blue

    assert tint(HOT_GPU) > tint(0) + 8, "the steps it is about are tinted in its lanes alone"
    tab.resize(390, 844)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    table, cell = tab.find(".gpu-table").bounding_box(), tab.find(".gpu-table tbody td.warn").first.bounding_box()
    assert cell["x"] + cell["width"] <= table["x"] + table["width"], "why it is slow is in sight"


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
LEGENDS = "[...document.querySelectorAll('.account:not([open]) .legend')]"


# Scenes that differ in what stands where: findings, ranks, GPUs, ceilings, what a trace lacks.
@pytest.mark.parametrize("name", ["eight", "workers", "gpus", "ceilings", "traces"])
def test_every_scene_in_every_frame(open_tab, scene, name):
    if name == "traces" and not REFERENCE.is_dir():
        pytest.skip("no public traces beside the checkout (../shared/data)")
    tab = open_tab(scene(name))
    wait_until(lambda: not tab.text("h1").startswith("Comparing"), what="the verdict")
    assert not violations(tab)
    for size in ((1280, 656), (3840, 2000)):
        tab.resize(*size)
        check_that_all_fits(tab, size)
    if name in ("eight", "workers", "gpus"):
        for size in WIDE:
            tab.resize(*size)
            check_that_the_lanes_have_half_of_the_frame_and_the_remedy_is_beside(tab, size)
    if name == "ceilings":
        tab.resize(1440, 900)
        assert in_sight(tab, ".ceilings") and in_sight(tab, ".tl-surface")
    if name in ("gpus", "ceilings"):
        tab.resize(390, 780)
        assert tab.evaluate(f"{LEGENDS}.length") >= 2
        assert tab.evaluate(f"{LEGENDS}.every((one) => one.scrollWidth <= one.clientWidth + 1)"), "none is cut off"
    if name in ("eight", "workers"):
        check_one_column_in_the_order_of_reading(tab)


def check_that_all_fits(tab, size):
    width, height = size
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for selector in ("h1", ".account", ".finding", ".tl-surface", ".details"):
        box = tab.find(selector).first.bounding_box()
        assert box and box["x"] >= -1 and box["x"] + box["width"] <= width + 1, (selector, box)
        assert box["width"] > 60 and box["height"] > 15, (selector, box)
    plot = tab.plot()
    assert plot["width"] > 0.4 * min(width, 1000), "the lanes are wide enough to read"
    assert plot["y"] + 60 < height, "and there at first glance"


def check_that_the_lanes_have_half_of_the_frame_and_the_remedy_is_beside(tab, size):
    code = ".details .advice pre"  # a worker's finding has none
    remedy = code if tab.find(code).count() else ".details .advice"
    assert in_sight(tab, remedy) and in_sight(tab, ".details h2"), size
    timeline, lanes = (tab.find(part).bounding_box() for part in (".timeline", ".tl-scroll"))
    frame = size[0] * size[1]
    assert timeline["width"] * timeline["height"] > 0.58 * frame, size
    assert lanes["width"] * lanes["height"] > (0.5 if size[1] >= 836 else 0.44) * frame, size
    assert tab.find(".advice").count() == 1, "the remedy is said once"
    head, accounts = (tab.find(part).bounding_box()["y"] for part in (".tl-head", ".accounts"))
    verdict = tab.find(".verdict").bounding_box()
    below = head - verdict["y"] - verdict["height"]
    assert below < 2 and accounts > lanes["y"], f"the timeline is below the headline in {size}"


def check_one_column_in_the_order_of_reading(tab):
    heights = {}
    for size in NARROW:
        tab.resize(*size)
        boxes = [tab.find(selector).first.bounding_box() for selector in ORDER]
        ends = [box["y"] + box["height"] for box in boxes]
        assert all(end <= box["y"] + 1 for end, box in zip(ends, boxes[1:], strict=False)), (size, boxes)
        assert in_sight(tab, ".tl-label"), f"the first lane is on the first screen of {size}"
        assert "GPU active" in tab.text(".tl-label") and "Step time" in tab.text(".tl-label:nth-child(2)")
        check_that_all_fits(tab, size)
        assert tab.find("h1").evaluate("(head) => head.scrollHeight <= head.clientHeight + 2"), size
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
    assert tab.text(".selected-nav span") == "Finding 1 of 8 · 3rd of 4 spans"
    tab.find(".finding-list .linklike").click()
    rows = tab.find(".finding")
    wait_until(lambda: rows.count() == 8, what="a row a finding")
    names = [row.inner_text() for row in rows.all()]
    assert len(set(names)) == 8, "equal ones are one row"
    about = rows.first.get_attribute("title").replace("\u00a0", " ")
    assert re.search(r"4 times, 6\.[78] s each \(max 7\.5 s\)", about), about
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
    tab.page.go_back()
    wait_until(lambda: tab.text(".selected-nav span").startswith("Finding 1"), what="the first")


@pytest.mark.parametrize("size", [(1440, 836), (390, 780)], ids=lambda size: str(size[0]))
def test_from_the_verdict_to_the_fix_in_three_actions(open_tab, scene, size):
    """A first-time reader's way: verdict, span, evidence, fix."""
    tab = open_tab(scene("two"), width=size[0], height=size[1])
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.settle()
    hand = Hand(tab)
    report = tab.recording()["report"]
    assert in_sight(tab, "h1") and tab.text("h1") == report["verdict"]
    spans = [one for one in report["spans"] if one["id"] in report["headline"]["ids"]]
    first = min(spans, key=lambda one: one["start_step"])
    facts = f"steps {first['start_step']:,}–{first['end_step'] - 1:,}"
    assert facts not in tab.text(".details .facts"), "another one is chosen at first"
    name, head = tab.find(".finding").first.bounding_box(), tab.head()
    middle = tab.x_of((first["start_step"] + first["end_step"]) / 2, (0, report["steps"])) - head["x"]
    hand.click("a span", tab.find(".tl-head canvas"), (middle, name["y"] + name["height"] / 2 - head["y"]))
    assert facts in tab.text(".details .facts") and tab.find(".finding[aria-pressed=true]").count() == 1
    evidence = " ".join(tab.text(".details .evidence").split())
    assert all(row["label"] in evidence for row in first["rows"][:3])
    began = (first["start_ns"] - tab.recording()["extent"]["start_ns"]) / 1e9
    minutes, seconds = re.search(r"began at (\d+):(\d+)", tab.text(".details .facts")).groups()
    assert abs(int(minutes) * 60 + int(seconds) - began) <= 1
    hand.click("“zoom”", tab.find(".selected-nav").get_by_text("zoom"))
    assert tab.view()[0] < first["start_step"] < first["end_step"] < tab.view()[1]
    hand.click("“copy code”", tab.button("copy code"))
    assert tab.evaluate("navigator.clipboard.readText()") in [one["advice"]["code"] for one in spans]
    assert tab.button("copied ✓").count() == 1
    assert len(hand.did) <= 3
