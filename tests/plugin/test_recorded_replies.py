"""The replies on which the tab's own tests render it are those of the server."""

import pytest

from harness.replies import FOLDER, RECORDED, record


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_replies_are_what_the_server_says(name, tmp_path):
    kept = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert record(name, tmp_path / "logs") == kept, "run -m harness.replies"
