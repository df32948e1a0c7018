"""Runs to show in a notebook, and a real Chromium to look at them."""

import pytest


@pytest.fixture
def show(browser, tmp_path):
    """`show(html, dark=False) -> page`: the HTML as a notebook's cell puts it on its page.

    Fails on errors and on every request.
    """
    problems = []
    page = browser.new_context(viewport={"width": 1000, "height": 900}).new_page()
    page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda request: (
            problems.append(f"asked for {request.url[:100]}")
            if not request.url.startswith(("file:", "about:", "blob:"))
            else None
        ),
    )

    def open_(html: str, dark: bool = False):
        colours = "background:#111;color:#eee" if dark else "background:#fff;color:#000"
        file = tmp_path / "cell.html"
        file.write_text(f'<!doctype html><meta charset="utf-8"><body style="{colours}">{html}', "utf-8")
        page.goto(file.as_uri())
        return page

    yield open_
    page.context.close()
    assert not problems, "\n".join(problems)
