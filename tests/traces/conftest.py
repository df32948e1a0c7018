"""Fixtures of the trace tests: where the reference traces lie."""

from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def reference() -> Callable[[str], Path]:
    """A reference trace by its path below the data folder; the test is skipped without it."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"reference trace ../shared/data/{name} is not here")
        return path

    return find
