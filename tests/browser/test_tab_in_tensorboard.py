"""The tab inside TensorBoard itself, below a path prefix: dark mode, address bar, other tabs."""

import time
from functools import partial

import pytest
from gpu_tab import hurry
from tensorboard_server import TensorBoardServer
from waiting import wait_until


@pytest.fixture(scope="module")
def below_a_prefix(logdir):
    with TensorBoardServer(logdir, load_fast=False, path_prefix="/tb/x") as server:
        yield server


def test_a_newcomer_sees_the_verdict_and_its_evidence(open_tab, below_a_prefix):
    assert below_a_prefix.url.endswith("/tb/x")
    replies = []

    def listen(page):
        page.on("response", lambda reply: replies.append(reply))

    tab = open_tab(below_a_prefix.url, host=True, before=listen, alone=True)
    report = tab.recording("thirds")["report"]
    assert tab.verdict() == report["verdict"]
    # Where the GPU's time went, in a bar and in the lane below it; what to write first, beside the verdict.
    assert "waiting for input" in tab.text(".budget") and "GPU busy" in tab.text(".busy")
    span = max(report["spans"], key=lambda one: one["lost_s"])
    assert "AUTOTUNE" in tab.text(".fix-first")
    tab.find(".fix-open").click()
    tab.find(".about summary:has-text('2 GPUs')").click()
    assert tab.find(".gpu-table tbody tr").count() == 2
    assert span["evidence"]["slowest_stage"] in tab.text(".details")
    before, code = span["advice"]["before"], span["advice"]["code"]
    assert before == "ds = ds.map(decode, num_parallel_calls=1)"
    assert tab.text(".details .advice pre") == f"- {before}\n+ {code}"
    # All that it loads is served under a policy.
    tab.settle()
    ours = [one for one in replies if "/data/plugin/gpu_utilization/" in one.url]
    for part in ("/static/index.js", "/static/style.css", "/runs", "/recording", "/tiles"):
        assert any(part in one.url for one in ours), part
    for one in ours:
        assert one.headers["content-security-policy"].startswith("default-src 'none'"), one.url
        assert one.headers["x-content-type-options"] == "nosniff", one.url
    # Styles and module were taken all the same, and the browser reported nothing.
    assert tab.evaluate("getComputedStyle(document.querySelector('.finding')).display") != "inline"
    assert not tab.problems
    # It follows TensorBoard's dark mode while it is open.
    background = "getComputedStyle(document.body).backgroundColor"
    wait_until(lambda: tab.evaluate(background) == "rgb(255, 255, 255)", what="light")
    light = tab.colour_at(".tl-head canvas", 5, 5)
    tab.page.evaluate("document.body.classList.add('dark-mode')")
    wait_until(lambda: tab.evaluate(background) == "rgb(22, 25, 30)", what="dark")
    wait_until(lambda: sum(tab.colour_at(".tl-head canvas", 5, 5)) < sum(light), what="drawing anew")
    tab.page.evaluate("document.body.classList.remove('dark-mode')")
    wait_until(lambda: tab.evaluate(background) == "rgb(255, 255, 255)", what="light again")


def test_a_link_opens_exactly_the_view_it_was_copied_from(open_tab, below_a_prefix):
    tab = open_tab(below_a_prefix.url, host=True)
    box = tab.plot()
    tab.zoom_wheel(box["x"] + box["width"] / 2, box["y"] + 30, 6)
    tab.drag((box["x"] + 100, box["y"] + 30), (box["x"] + 300, box["y"] + 30))
    # Tables that are open stay open.
    tab.button("The numbers as tables", exact=False).click()
    tab.button("Share view").click()
    assert "copied" in tab.text(".notice") or "address bar" in tab.text(".notice")
    url, link = tab.address(), tab.link()
    assert {"id", "view", "range", "tables"} <= link.keys() and "span" not in link
    shown = tab.text(".measure h2")
    other = open_tab(below_a_prefix.url, url.partition("#gpu_utilization")[2], host=True)
    for part in (".measure h2", ".tables table"):
        other.wait_for(part)
    assert other.link() == link
    assert other.text(".measure h2") == shown
    assert other.button("time").get_attribute("aria-pressed") == "true"
    assert other.find(".details .advice").count() == 0


def test_rests_while_another_tab_of_tensorboard_is_open(open_tab, below_a_prefix):
    tab = open_tab(below_a_prefix.url, host=True, before=partial(hurry, times=50), alone=True)
    tab.settle()
    tab.page.get_by_text("Time Series").first.click()
    wait_until(lambda: "gpu_utilization" not in tab.page.url.split("#")[1].split("&")[0], what="leaving")
    tab.page.wait_for_timeout(200)  # what had begun before may end
    left = time.monotonic()
    tab.page.wait_for_timeout(600)  # in which it would ask again, twice a fiftieth of 15 s
    ours = [url for at, url in tab.requests if at > left and "plugin/gpu_utilization" in url]
    assert not ours
    assert tab.page.url.split("#")[1].split("&")[0] != "gpu_utilization", "the hash is theirs now"
    tab.page.get_by_text("GPU Utilization").first.click()
    tab.find("h1").wait_for(state="visible")


def test_verdict_and_timeline_are_seen_at_once_in_the_frame_of_a_notebook(browser, server, below_a_prefix):
    """`%tensorboard` shows TensorBoard in a frame of 800 pixels, on a page of another server of this host."""
    page = browser.new_context(viewport={"width": 1100, "height": 900}).new_page()
    # As `tensorboard.notebook` writes it.
    cell = (
        '<iframe id="tensorboard-frame" width="100%" height="800" frameborder="0" '
        f'src="{below_a_prefix.url}/#gpu_utilization"></iframe>'
    )
    page.goto(f"{server.url}/data/environment")
    page.set_content(cell, wait_until="commit")
    tab = page.frame_locator("#tensorboard-frame").frame_locator("iframe")
    tab.locator(".tl-value:not(:empty)").first.wait_for(state="attached", timeout=20_000)
    assert "The input pipeline starves the GPU" in tab.locator("h1").inner_text()
    for seen in ("h1", "canvas"):
        box = tab.locator(seen).first.bounding_box()
        assert box["y"] >= 0 and box["y"] + 60 < 800, (seen, box)
    page.context.close()
