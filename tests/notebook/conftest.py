"""Runs to show in a notebook, and a real Chromium to look at them."""

import pytest


@pytest.fixture
def show(open_file, tmp_path):
    """`show(html, dark=False) -> page`: the HTML as a notebook's cell puts it on its page."""

    def open_(html: str, dark: bool = False):
        colours = "background:#111;color:#eee" if dark else "background:#fff;color:#000"
        file = tmp_path / "cell.html"
        file.write_text(f'<!doctype html><meta charset="utf-8"><body style="{colours}">{html}', "utf-8")
        return open_file(file, width=1000)

    return open_
