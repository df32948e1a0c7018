"""Promises are measured by two fits; what comes between them on a busy machine is not theirs."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items):
    for item in items:
        # Before and after are some seconds each: a neighbour that begins or ends between them
        # changes their ratio by more than the 20 % that are asked for.
        if item.path.parent == HERE and item.path.name.startswith("test_advice"):
            item.add_marker(pytest.mark.flaky(reruns=3), append=False)
