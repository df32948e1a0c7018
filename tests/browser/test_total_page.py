"""The page of `gpu-util total --html`: opened from disk, its table sorts and filters."""

import json
import re

import pytest
from make_recording import make_recording

from gpu_util_callback.cli import main

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser, tmp_path, capsys):
    for name, scenario in (("first", "slow"), ("second", "healthy"), ("third", "host_stall")):
        make_recording(tmp_path / "logs" / name, scenario, steps=200, gpus=3, scalars=False)
    path = tmp_path / "total.html"
    assert main(["total", str(tmp_path / "logs"), "--no-cache", "--html", str(path)]) == 0
    # Many runs: the same row under other names.
    text = path.read_text()
    data = re.search(r'id="runs">(.*?)</script>', text)[1]
    table = json.loads(data)
    row = json.dumps(table["rows"][0])
    table["rows"] += [json.loads(row.replace("first", f"copy{at}")) for at in range(10_000)]
    path.write_text(text.replace(data, json.dumps(table)))
    context = browser.new_context()
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
    page.on("console", lambda message: problems.append(message.text))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert not problems, problems


def names(page):
    return page.locator("tbody tr td:first-child").all_inner_texts()


def test_the_table_is_filtered_and_sorted(page):
    assert page.locator("#count").inner_text() == "10,003 of 10,003 trainings"
    assert len(names(page)) == 200 and "9,803 more" in page.locator("#more").inner_text()
    page.locator("#filter").fill("host_stall third")
    assert names(page) == ["third"]
    page.locator("#filter").fill("healthy")
    assert names(page) == []
    page.locator("#filter").fill("second")
    assert names(page) == ["second"]
    page.locator("#filter").fill("")
    page.get_by_role("button", name="training", exact=True).click()
    assert names(page)[0].startswith("copy0")
    page.get_by_role("button", name="training", exact=True).click()
    assert names(page)[0] == "third"
    page.get_by_role("button", name="saves up to").click()
    assert page.locator('th[aria-sort="descending"]').inner_text() == "saves up to"
    page.locator("#more").click()
    assert len(names(page)) == 700
    took = page.evaluate("""() => {
        const filter = document.getElementById("filter"), begin = performance.now();
        filter.value = "copy99";
        filter.oninput();
        return performance.now() - begin;
    }""")
    assert took < 2000  # some 20 ms where nothing else runs
    print(f"filtering 10,003 rows: {took:.0f} ms")
