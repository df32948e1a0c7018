"""Eight GPUs of which one is too hot: where the eye is led, and what fits into small frames."""

import pytest
from simulated_boards import H100
from simulated_jobs import Job
from tensorboard_server import TensorBoardServer
from waiting import wait_until

from gpu_util_callback.recording.event_files import ScalarWriter

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def hot(tmp_path_factory):
    """Eight GPUs; from step 300 on gpu5 slows itself down and so all of them."""
    root = tmp_path_factory.mktemp("hot")
    job = Job(seed=1, board=H100, gpus=8, hz=2)
    job.train(300, gpu=120)
    job.set(gpu=5, sm_clock_mhz=1200, temperature_c=89, throttle_thermal_pct=70)
    job.train(300, gpu=165)
    job.write(root / "run")
    marker = ScalarWriter(str(root / "run"))
    marker.marker(job.facts["started_ns"] / 1e9)
    marker.close()
    with TensorBoardServer(root, load_fast=True) as server:
        yield server


def test_a_finding_about_one_gpu_leads_to_its_lanes(open_tab, hot):
    tab = open_tab(hot.url)
    tab.settle()
    assert "gpu5" in tab.find(".finding").get_attribute("title")
    assert "gpu5" in tab.text(".tl-label"), "its utilization is the first lane"
    scroller = tab.find(".tl-scroll")
    assert scroller.evaluate("(box) => box.scrollTop") == 0, "at first glance, how steps went"
    tab.page.keyboard.press("]")
    group = tab.find(".tl-group").filter(has_text="gpu5 ·").first
    top = scroller.bounding_box()["y"]
    wait_until(lambda: -1 <= group.bounding_box()["y"] - top < 100, what="the lanes of gpu5")
    # Once there, nothing moves; and the steps it is about are tinted in these lanes alone.
    tab.settle()
    at = scroller.evaluate("(box) => box.scrollTop")
    tab.page.keyboard.press("]")
    tab.settle()
    assert scroller.evaluate("(box) => box.scrollTop") == at

    def tint(gpu: int) -> int:
        box = tab.find(".tl-group").filter(has_text=f"gpu{gpu} ·").first
        box.scroll_into_view_if_needed()
        tab.settle()
        y = box.bounding_box()["y"] - tab.plot()["y"] + 27  # the upper edge of its first lane
        red, _, blue = tab.colour_at(".tl-surface canvas", 0.75 * tab.plot()["width"], y)
        return red - blue

    assert tint(5) > tint(0) + 8


def test_the_table_of_gpus_fits_a_phone(open_tab, hot):
    tab = open_tab(hot.url, width=390, height=844)
    tab.settle()
    tab.find(".account:has(.gpu-table) summary").click()
    assert tab.find(".gpu-table tbody tr").count() == 2, "gpu5, and those that are alike"
    tab.find(".gpu-table .alike button").click()
    assert tab.find(".gpu-table tbody tr").count() == 9
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    right = tab.find(".gpu-table").bounding_box()
    cell = tab.find(".gpu-table tbody td.warn").first.bounding_box()
    assert cell["x"] + cell["width"] <= right["x"] + right["width"], "why it is slow is in sight"
