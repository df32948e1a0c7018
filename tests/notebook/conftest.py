"""Runs to show in a notebook, and a real Chromium to look at them."""

import pytest


@pytest.fixture
def show(open_file, tmp_path):
    """`show(html) -> page`: the HTML as a notebook's cell puts it on its page."""

    def open_(html: str):
        file = tmp_path / "cell.html"
        file.write_text(f'<!doctype html><meta charset="utf-8"><body>{html}', "utf-8")
        return open_file(file, width=1000)

    return open_
