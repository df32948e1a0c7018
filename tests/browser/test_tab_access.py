"""What people who do not use a mouse, or do not see the canvas, find."""

from pathlib import Path

import pytest
from waiting import wait_until

AXE = Path(__file__).resolve().parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
# Of axe's rules, only these depend on the colours.
BY_SCHEME = {"light": {}, "dark": {"runOnly": ["color-contrast", "link-in-text-block"]}}
FIND = """async (only) => (await axe.run(document, {resultTypes: ['violations'], ...only})).violations.map((one) =>
    `${one.impact} ${one.id}: ` + one.nodes.slice(0, 3).map((node) =>
        `${node.html.slice(0, 160)} ${node.any[0]?.message ?? ''}`).join(' | '))"""


def violations(tab) -> list[str]:
    """What axe finds on the page as it stands, light and dark; the test is skipped without axe."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: `make frontend` (or npm ci in frontend/)")
    if not tab.page.evaluate("'axe' in window"):
        tab.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = []
    for scheme, only in BY_SCHEME.items():
        tab.paint(scheme)
        found += [f"{scheme}: {one}" for one in tab.page.evaluate(FIND, only) if not one.startswith("minor")]
    return found


def test_axe_finds_nothing(tab):
    tab.page.keyboard.press("t")
    for width in (1440, 390):
        tab.resize(width, 900)
        assert not violations(tab), width


def test_axe_finds_nothing_in_what_opens(open_tab, server):
    """Lists, a comparison, a measured range, the cost of recording, help."""
    tab = open_tab(server.url)
    tab.find(".chooser-button").click()
    tab.find(".chooser-list input[type=checkbox]").first.check()
    assert not violations(tab), "the chooser"
    tab.page.keyboard.press("Escape")
    box = tab.plot()
    tab.drag((box["x"] + 100, box["y"] + 40), (box["x"] + 300, box["y"] + 40))
    tab.find(".cost summary").click()
    tab.find(".viewbar button").first.click()
    tab.settle()
    assert tab.find(".compare, .measure, .lane-list").count() == 3
    assert not violations(tab), "comparison, range and lanes"
    tab.page.keyboard.press("Escape")
    tab.button("Export").click()
    assert not violations(tab), "the exports"
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("?")
    tab.find("dialog.help").wait_for(state="visible")
    assert not violations(tab), "help"


# What a finger may be meant for, and is smaller than 24 pixels; words of a text, and boxes inside of
# their labels, are none.
SMALL = """(() => [...document.querySelectorAll('button, summary, select, input, a, [tabindex="0"]')]
  .map((one) => one.closest('label') ?? one)
  .filter((one) => one.checkVisibility() && getComputedStyle(one).pointerEvents !== 'none')
  .filter((one) => getComputedStyle(one).display !== 'inline')
  .filter((one) => { const { width, height } = one.getBoundingClientRect(); return width < 24 || height < 24; })
  .map((one) => `${one.className} ${one.textContent.slice(0, 40)} ${JSON.stringify(one.getBoundingClientRect())}`))()"""


def test_fingers_find_targets_of_24_pixels(open_tab, server):
    tab = open_tab(server.url, height=844, has_touch=True)
    assert tab.evaluate("matchMedia('(pointer: coarse)').matches")
    tab.panel()
    for width in (1024, 390):
        tab.resize(width, 844)
        tab.find(".viewbar button").first.click()
        tab.settle()
        assert tab.evaluate(SMALL) == [], width
        tab.page.keyboard.press("Escape")
        tab.find(".chooser-button").click()
        tab.settle()
        assert tab.evaluate(SMALL) == [], width
        tab.page.keyboard.press("Escape")


def test_everything_can_be_reached_with_tab(tab):
    seen = []
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        seen.append(
            tab.evaluate(
                "(document.activeElement.getAttribute('aria-label') ?? "
                "document.activeElement.innerText ?? '').slice(0, 40)"
            )
        )
    joined = "\n".join(seen)
    for name in ("steps", "Share", "Export", "waiting for input", "Lanes over the axis", "copy"):
        assert name in joined, f"{name} not in\n{joined}"


def test_spans_and_values_are_in_tables(tab):
    """And every series of every lane: those of one lane are many, and a lane may be scrolled away."""
    tab.unfold()
    box = tab.plot()
    tab.drag((box["x"] + 200, box["y"] + 40), (box["x"] + 300, box["y"] + 40))
    wanted = {"Pipeline stages, map(decode)", "Pipeline stages, batch", "gpu1 Power", "host CPU"}
    rows = tab.find(".measure table").nth(1).locator("tbody th")
    wait_until(lambda: wanted <= set(rows.all_inner_texts()), what="lanes out of sight, too")
    tab.button("The numbers as tables", exact=False).click()
    phases = tab.find(".tables table").first.inner_text()
    assert "epoch 1" in phases and "validation 2" in phases and "ModelCheckpoint" in phases
    lanes = tab.find(".tables table").nth(1)
    assert lanes.locator("tbody tr").count() == 20
    heads = lanes.locator("thead th").all_inner_texts()
    assert wanted | {"Step time", "Step time, callbacks"} <= set(heads), heads
    column = heads.index("Step time")
    values = [float(row.split("\t")[column].split()[0]) for row in lanes.locator("tbody").inner_text().split("\n")]
    healthy, starved = values[:6], values[7:13]
    assert min(starved) > 1.5 * max(healthy), values
    tab.find(".finding-list tbody button").first.click()
    assert "span" in tab.link(), "spans are rows of the panel's table"
