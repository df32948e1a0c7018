"""Reports in one file: opened from disk, without a server, they show what the tab shows."""

import csv
import json
import re

import pytest
from make_recording import make_recording
from waiting import wait_until

from gpu_util_callback import read_recordings
from gpu_util_callback.cli import main
from tensorboard_plugin.downloads import html_report


@pytest.fixture
def open_report(open_file):
    """`open_report(path) -> page`: once it shows values."""

    def open_(path):
        page = open_file(path)
        page.locator(".tl-value:not(:empty)").first.wait_for(state="attached")
        return page

    return open_


def test_the_tab_saves_itself_as_a_file(tab, open_report, tmp_path):
    tab.find(".chooser-button").click()
    tab.find(".choice-compare input").first.check()
    tab.page.keyboard.press("Escape")
    tab.wait_for(".compare tbody tr:nth-child(2)")
    tab.settle()
    verdict, mean = tab.text("h1"), tab.find(".tl-value").first.inner_text()
    names = tab.find(".compare tbody th").all_inner_texts()
    ids = [tab.link()["id"], tab.link()["with"].replace("%2F", "/")]

    def saved(title: str, name: str):
        tab.export(title).save_as(tmp_path / name)
        return tmp_path / name

    steps = list(csv.DictReader(saved("Steps of this view", "steps.csv").open(newline="")))
    assert list(dict.fromkeys(row["run"] for row in steps)) == ids
    assert len({(row["run"], row["step"]) for row in steps}) == len(steps) == 2400 + 600
    page = open_report(saved("This tab as one file", "both.html"))
    page.locator(".compare tbody tr").nth(1).wait_for()
    assert page.locator(".compare tbody th").all_inner_texts() == names
    assert page.locator("h1").inner_text().replace("\u00a0", " ") == verdict
    # The same lanes with the same values; only the finest zoom levels stay on the server.
    wait_until(lambda: page.locator(".tl-value").first.inner_text() == mean, what=f"mean {mean}")
    page.locator(".compare tbody .small").click()
    wait_until(lambda: page.locator(".compare").count() == 0, what="the first run alone")
    page.get_by_role("button", name="steps", exact=True).click()
    box = page.locator(".tl-surface").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.locator(".tooltip").wait_for()
    # Tiles of the other axis are asked for first.
    wait_until(lambda: "input wait" in page.locator(".tooltip").inner_text(), what="values by step")
    for _ in range(30):
        page.keyboard.press("w")
    # Down to single steps: a run of this length is in the file as it is.
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    assert page.locator(".measure h2").inner_text().startswith("Step ")
    page.keyboard.press("Escape")
    assert "no data" not in page.locator(".tl-value").first.inner_text()
    page.get_by_role("button", name="time", exact=True).click()
    page.keyboard.press("0")
    shown = page.locator(".tl-value").first
    wait_until(lambda: re.search(r"\d", shown.inner_text()), what="values on the time axis")


def test_the_commands_write_all_runs_into_one_file(logdir, open_report, open_file, tmp_path, capsys):
    path = tmp_path / "report.html"
    assert main(["report", str(logdir), "--html", str(path)]) == 0
    assert str(path) in capsys.readouterr().err
    page = open_report(path)
    page.locator(".chooser-button").click()
    assert page.locator(".choice").count() == 3
    assert page.locator(".sums h1").inner_text().startswith("3 trainings, ")
    assert "lost to Input-bound" in page.locator(".sums h1").inner_text()
    page.locator(".run-name").filter(has_text="laptop").click()
    wait_until(lambda: "Training thread" in page.locator(".tl-time").inner_text())
    # The table of all runs alone: there is no run to open, and what to do is said.
    assert main(["total", str(logdir), "--html", str(path)]) == 0
    page = open_file(path)
    page.locator(".choice").first.wait_for()
    assert page.locator(".choice").count() == 3
    page.locator(".runs-head .run-saves button").click()
    assert page.locator("[aria-sort=descending]").inner_text().startswith("Saves up to")
    page.locator(".choice").first.click()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.locator(".choice").count() == 3, "the table is all there is"
    assert page.locator(".state, .choice-compare, .chooser-button").count() == 0
    assert page.locator(".sums-worth li, .sums-worth .small").count() >= 2
    assert page.locator(".sums-worth .fix").first.inner_text()


def test_a_file_that_cannot_be_written_is_one_clear_line(logdir, tmp_path, capsys):
    assert main(["report", str(logdir), "--html", str(tmp_path / "no" / "where.html")]) == 2
    error = capsys.readouterr().err.strip()
    assert "cannot write" in error and "\n" not in error


def test_a_file_has_profiler_windows_and_names_cannot_break_out_of_it(open_report, tmp_path):
    make_recording(tmp_path / "run", "thirds", steps=300, gpus=1, windows=((20, 26),))
    manifest = next(tmp_path.glob("run/plugins/*/*/manifest.json"))
    host = read_recordings(tmp_path)[0].facts["host"]
    nasty = "</script><script>window.pwned=1</script><!--<img src=x onerror='window.pwned=1'>"
    text = manifest.read_text().replace(json.dumps(host), json.dumps(nasty))
    assert text.count("pwned") >= 2
    manifest.write_text(text)
    path = tmp_path / "nasty.html"
    path.write_text("".join(html_report(read_recordings(tmp_path))), encoding="utf-8")
    page = open_report(path)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert "</script>" in page.locator(".facts").first.inner_text(), "shown as the text it is"
    page.locator(".all-findings").click()
    page.locator(".window-button").click()
    wait_until(lambda: page.locator(".traced h2").count() == 1)
    assert page.locator(".traced h2").inner_text() == "Step 20"
    assert "nvjet" in page.locator(".kernels tbody").inner_text()
    assert page.locator(".profile-link, .kernels a").count() == 0, "a file has no server to ask"
