"""Fixtures of the trace tests: where the reference traces lie, and what a made-up one says."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import trace_oracle

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.analysis import Analysis
from gpu_util_callback.traces.imported import analyse

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


@pytest.fixture(scope="session")
def analysed(reference) -> Callable[[str], Analysis]:
    """The analysis of a reference trace, made once for all tests: they leave it as it is."""
    return cache(lambda name: analyse(read_trace(reference(name))))


@pytest.fixture
def explain(tmp_path) -> Callable[..., dict]:
    """The JSON of XSpaces, one a host."""

    def run(*spaces) -> dict:
        for number, space in enumerate(spaces):
            (tmp_path / f"host-{number}.xplane.pb").write_bytes(space.bytes())
        return trace_oracle.explain(tmp_path)

    return run
