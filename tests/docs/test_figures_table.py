"""The table of figures in the documentation of figures is made, not typed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_readme_in_this_repository_is_made_of_its_figures():
    spec = importlib.util.spec_from_file_location("figures_table", BENCHMARKS / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.FIGURES.exists():
        pytest.skip("no figures are kept here")
    assert module.main(["--check"]) == 0
