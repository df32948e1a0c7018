"""What a notebook shows of a run: its report, and the timeline in a frame."""

from html.parser import HTMLParser

import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.report.notebook import Summary
from gpu_util_callback.report.terminal import render

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


def test_a_cell_has_what_the_terminal_shows(run):
    report, recording = run
    seen = Checked(recording._repr_html_())
    assert render({"runs": [report]}, 100).rstrip() in seen.text
    assert report["verdict"] in " ".join(seen.text.split())
    assert "[0].show()" in seen.text and repr(recording.path) in seen.text
    assert len(recording._repr_html_()) < 40_000, "small enough to be kept in a notebook"


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


def test_a_recording_without_steps_or_top_is_shown(tmp_path):
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
def test_reports_fit_a_page(tmp_path, show):
    for scenario in SCENARIOS:
        make_recording(tmp_path / scenario, scenario, steps=600, gpus=2)
    page = show("".join(recording._repr_html_() for recording in read_recordings(tmp_path)))
    assert len(page.locator(".gpu-util-report").all()) == len(SCENARIOS)
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
