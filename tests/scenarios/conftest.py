"""What the tests of whole jobs have in common."""

import pytest


def pytest_itemcollected(item):
    """Have `make quick` run this folder's tests: they train nothing, but for those marked `heavy`."""
    item.add_marker(pytest.mark.quick)
