"""Runs side by side: a table, one axis, one cursor, each run's own bottlenecks."""

import re

import numpy as np
import pytest
from generated_runs import STARTED
from make_recording import SyntheticRun, make_recording
from tensorboard_server import TensorBoardServer
from waiting import wait_until

LATER_S = 40
# What each lane that is there measures, and its scale.
SCALES = """[...document.querySelectorAll('.tl-label')].map((label) =>
    [label.querySelector('.tl-value').dataset.value.replace(/^.*#/, '').replace(/gpu[0-9]+/, 'gpu'),
     label.querySelector('.tl-scale').innerText])"""


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Two fits of one job: the first starved, the second not, begun 40 seconds later."""
    root = tmp_path_factory.mktemp("fits")
    for number, (name, scenario) in enumerate((("before", "slow"), ("after", "healthy"))):
        make_recording(root / name, scenario, steps=600, gpus=1, past_s=500 - LATER_S * number, **STARTED)
    with TensorBoardServer(root, load_fast=True) as server:
        yield server


def test_the_next_fit_says_whether_the_promise_was_kept(open_tab, fits):
    tab = open_tab(fits.url, "&p.gpu_utilization.axis=steps")
    wait_until(lambda: tab.find(".since").count() == 1, what="the fit before")
    said = tab.text(".since")
    assert "before" in said and "Input-bound gone" in said
    least, most, got = map(float, re.findall(r"[\d.]+(?=×| to)", said))
    assert 1.2 < least < got <= most * 1.1
    tab.find(".since button").click()
    wait_until(lambda: tab.find(".compare tbody tr").count() == 2, what="the comparison")
    rows = tab.find(".compare tbody tr").all_inner_texts()
    assert "Input-bound" in rows[1] and "nothing" in rows[0]
    # The lanes of both stand group by group, and the cursor reads both at the same step.
    box = tab.plot()
    tab.page.mouse.move(tab.x_of(300, (0, 600)), box["y"] + 50)
    tab.settle()
    steps = [float(text.split()[0]) for text in tab.find("[data-value$='#steps']").all_inner_texts() if text]
    assert len(steps) == 2 and steps[1] > 2 * steps[0], steps
    # A range is measured in both.
    tab.drag((box["x"] + 100, box["y"] + 50), (box["x"] + 300, box["y"] + 50))
    tab.settle()
    captions = tab.find(".measure caption").all_inner_texts()
    whose = [re.split("[ :]", text)[0] for text in captions]
    assert whose == ["after", "after", "before", "before"]
    means = tab.find(".measure .sum td:nth-child(2)").all_inner_texts()
    sums = [float(text.split()[0]) for text in means]
    assert sums[1] > 2 * sums[0], sums
    tab.page.keyboard.press("Escape")
    # The other one first, and out of it again.
    tab.find(".compare tbody .linklike").click()
    wait_until(lambda: "starves" in tab.text("h1"), what="the starved run first")
    assert tab.find(".compare tbody tr").count() == 2
    after = tab.find(".compare tbody tr").all_inner_texts()[1]
    assert "a sample" in after and re.search("nothing.*without.*Input-bound", after), after
    tab.find(".compare tbody .small").click()
    assert tab.find(".compare").count() == 0


def test_the_clock_puts_each_run_where_it_ran(open_tab, fits):
    tab = open_tab(fits.url, height=1500)
    after, before = tab.recording("after"), tab.recording("before")
    tab.find(".chooser-button").click()
    tab.find(".chooser-list input[type=checkbox]").check()
    tab.page.keyboard.press("Escape")
    tab.button("clock").click()
    wait_until(lambda: tab.find("[data-value$='#steps']").count() == 2, what="both runs' lanes")
    tab.settle()
    start = after["extent"]["start_ns"]
    low = before["extent"]["start_ns"] - start
    high = max(after["extent"]["end_ns"], before["extent"]["end_ns"]) - start
    assert abs(low / 1e9 + LATER_S) < 2
    box = tab.plot()

    def colour(row: int, at_s: float) -> tuple[int, int, int]:
        label = tab.find(".tl-label:has(.tl-legend:not(.inline))").nth(row).bounding_box()
        y = label["y"] - box["y"] + label["height"] - 12
        return tab.colour_at(".tl-surface canvas", box["width"] * (at_s * 1e9 - low) / (high - low), y)

    # While only the earlier one ran, the later one's lane is empty; later both have steps.
    before_s = -0.43 * LATER_S  # beside the line of a tick
    assert colour(1, before_s)[2] > colour(1, before_s)[0] + 30
    assert colour(0, before_s) == (0, 0, 0), "nothing is drawn there"
    assert colour(0, 6)[2] > colour(0, 6)[0] + 30


def test_compared_lanes_are_aligned_on_one_scale_that_stays(open_tab, tmp_path, start_tensorboard):
    """Like below like; what is scrolled into sight does not change the scale of what was there."""
    for number, (name, watts) in enumerate((("a", 180), ("b", 620))):
        run = SyntheticRun(tmp_path / name, "healthy", steps=600, gpus=3, past_s=500 - 40 * number)
        run.advance(600)
        times = np.arange(run.start, run.now, 100_000_000)
        for gpu, factor in ((0, 0.4), (1, 0.6), (2, 1.0)):
            power = np.full((len(times), 1), 1e3 * watts * factor)
            run._put_samples(f"gpu{gpu}/power", ("power_energy_mw",), times, power)
        run.close()
    server = start_tensorboard(tmp_path)
    tab = open_tab(server.url, height=700)
    tab.find(".chooser-button").click()
    tab.find(".chooser-list input[type=checkbox]").check()
    tab.page.keyboard.press("Escape")
    wait_until(lambda: tab.find("[data-value$='#steps']").count() == 2, what="both runs")
    tab.settle()
    titles = tab.find(".tl-label .tl-title").all_inner_texts()
    runs = tab.find(".tl-label .tl-origin").all_inner_texts()
    assert titles[0:4] == ["Step time", "Step time", "Input wait", "Input wait"]
    assert [run.split()[0] for run in runs[0:4]] == ["b", "a", "b", "a"]
    tab.unfold()
    scroller = tab.find(".tl-scroll")
    scales: dict[str, set[str]] = {}
    for at in range(0, int(scroller.evaluate("(box) => box.scrollHeight")), 300):
        scroller.evaluate("(box, top) => box.scrollTo(0, top)", at)
        tab.settle()
        for title, scale in tab.evaluate(SCALES):
            if scale:
                scales.setdefault(title, set()).add(scale)
    assert len(scales) > 4
    assert not {title: found for title, found in scales.items() if len(found) > 1}
