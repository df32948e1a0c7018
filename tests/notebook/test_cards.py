"""What a notebook shows of a run: a card, and the timeline in a frame."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.report.notebook import Summary, card

VOID = {"br", "img", "meta", "input", "hr"}


class Checked(HTMLParser):
    """HTML whose elements are all closed; its text."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[tuple[str, dict]] = []
        self.feed(html)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


SCENARIOS = ("thirds", "healthy", "no_gpu", "host_stall")


@pytest.fixture(params=SCENARIOS)
def run(request, tmp_path):
    make_recording(tmp_path, request.param, steps=600, gpus=2)
    (recording,) = read_recordings(tmp_path)
    return run_report(recording), recording


def test_a_card_has_verdict_account_findings_and_remedy(run):
    report, recording = run
    seen = Checked(card(report, recording))
    assert report["verdict"] in seen.text
    for finding in [*report["findings"], *report["spans"]][:3]:
        assert finding["title"] in seen.text
        assert finding["advice"]["text"] in seen.text
        for line in finding["advice"]["code"].splitlines():
            assert line in seen.text
    spent = report["time_s"]
    assert f"{100 * spent['step'] / report['wall_s']:.0f} %" in seen.text
    curves = [attributes["aria-label"] for tag, attributes in seen.tags if tag == "svg"]
    used = [gpu for gpu in report["gpus"] if gpu["used_by_framework"]]
    assert len(curves) == 1 + len(used)
    assert curves[0].startswith("step time")
    assert len(card(report, recording)) < 40_000, "small enough to be kept in a notebook"


def test_the_curve_shows_when_the_input_was_late(tmp_path):
    make_recording(tmp_path, "thirds", steps=600, gpus=1)
    (recording,) = read_recordings(tmp_path)
    html = recording._repr_html_()
    (waits,) = re.findall(r'<path fill="#e69f00" d="M0 40([^"]*)V40Z"', html)
    heights = 40 - np.array([float(y) for y in re.findall(r"V([\d.]+)H", waits)])
    steps = recording.steps
    late = [k for k in range(600) if steps["input_wait_ns"][k] > steps["duration_ns"][k] / 3]
    since = (steps["start_ns"] - recording.start_ns) / (recording.end_ns - recording.start_ns)
    first, last = (round(160 * since[k]) for k in (late[0], late[-1]))
    assert heights[first + 2 : last - 2].min() > 5 * max(heights[3 : first - 2].max(), 1)
    assert heights[last + 4 :].max() < 2, "on the time axis, as the GPU's curve"


def test_names_from_a_recording_are_text(tmp_path):
    from gpu_util_callback.recording import Clock, RecordingWriter

    run_ = "<script>alert(1)<script>"
    writer = RecordingWriter(
        str(tmp_path / run_),
        {"gpus": [{"index": 0, "name": '"><img src=x onerror=alert(1)>', "used_by_framework": True}]},
        clock=Clock(),
    )
    writer.close("ended")
    (recording,) = read_recordings(tmp_path)
    for html in (recording._repr_html_(), recording.show()._repr_html_()):
        tags = {tag for tag, _ in Checked(html).tags}
        assert not tags & {"script", "img"}, tags
        assert "<script>alert" not in html


def test_a_recording_without_steps_or_top_has_a_card(tmp_path):
    make_recording(tmp_path, "healthy", steps=100, gpus=1)
    (folder,) = (tmp_path / "plugins" / "gpu_utilization").iterdir()
    (folder / "top.npz").write_bytes(b"broken")
    (recording,) = read_recordings(tmp_path)
    Checked(recording._repr_html_())
    for segment in folder.glob("segment-*"):
        segment.unlink()
    (recording,) = read_recordings(tmp_path)
    Checked(recording._repr_html_())
    assert "nothing was recorded" in Summary(None)._repr_html_().lower()


def test_show_wants_a_height_in_pixels(tmp_path):
    make_recording(tmp_path, "healthy", steps=60, gpus=1)
    (recording,) = read_recordings(tmp_path)
    with pytest.raises(ValueError, match="number of pixels"):
        recording.show(height="tall")
    frame = recording.show(height=500)
    assert "height:500px" in frame._repr_html_() and "gpu-util report --html" in repr(frame)


@pytest.mark.browser
def test_cards_fit_a_page_and_their_bars_are_full(tmp_path, show):
    for scenario in SCENARIOS:
        make_recording(tmp_path / scenario, scenario, steps=600, gpus=2)
    page = show("".join(card(run_report(one), one) for one in read_recordings(tmp_path)))
    cards = page.locator(".gpu-util-card").all()
    assert len(cards) == len(SCENARIOS)
    for box in cards:
        assert box.bounding_box()["width"] <= 800
        bar = box.locator("span[title]").all()
        assert sum(one.bounding_box()["width"] for one in bar) == pytest.approx(
            bar[0].locator("..").bounding_box()["width"], rel=0.03
        )
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


@pytest.mark.browser
def test_the_timeline_is_drawn_in_its_frame(tmp_path, show):
    make_recording(tmp_path, "thirds", steps=600, gpus=1)
    (recording,) = read_recordings(tmp_path)
    page = show(recording.show()._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator(".tl-value:not(:empty)").first.wait_for(state="attached")
    heading = " ".join(frame.locator("h1").inner_text().split()).replace(" :", ":")
    assert heading == run_report(recording)["verdict"]
    assert page.locator("iframe").bounding_box()["height"] == pytest.approx(800)
    # It has the page to itself: it reads and changes nothing of the notebook around it.
    page.keyboard.press("Tab")
    frame.locator("h1").click()
    page.wait_for_timeout(300)
    assert page.evaluate("location.hash") == ""
