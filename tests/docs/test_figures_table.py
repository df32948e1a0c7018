"""The table of figures in the documentation of figures is made, not typed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def maker(monkeypatch, tmp_path):
    """The table's maker, on a page and figures of its own."""
    spec = importlib.util.spec_from_file_location("figures_table", BENCHMARKS / "table.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr(module, "PAGE", tmp_path / "measured.md")
    return module


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median - 1, "high": median + 1}


def cost(us: float) -> dict:
    return {
        "added": {"thread_us": spread(us), "process_us": spread(2 * us)},
        "wall_ratio": {"median": 1.01, "low": 0.99, "high": 1.02},
    }


def figures() -> dict:
    run = {"date": "2026-11-22", "cpus": 2, "load": 1.5, "python": "3.11.7"}
    step = {name: spread(500) for name in ("thread_us", "process_us", "wall_us")}
    return {
        "step": {
            **run,
            "rounds": 3,
            "skipped": {"instructions": "not permitted"},
            "TensorFlow, fit, paced": {
                "step": step,
                "no callback": cost(-1),
                "gpu-util-callback": cost(11),
                "nvitop": cost(40),
            },
        },
        "diagnosis": {**run, "date": "2026-11-23", "steps": 1_000_000, "whole_s": 0.25, "more": 1000, "more_ms": 15.4},
    }


def write(maker, text: str = "before\n{begin}\nold\n{end}\nafter\n") -> None:
    maker.FIGURES.write_text(json.dumps(figures()))
    maker.PAGE.write_text(text.format(begin=maker.BEGIN, end=maker.END))


def test_the_figures_become_rows(maker):
    write(maker)
    assert maker.main([]) == 0
    text = maker.PAGE.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    (ours,) = [row for row in rows if "this callback" in row]
    (beside,) = [row for row in rows if "nvitop" in row]
    (diagnosis,) = [row for row in rows if "diagnosed" in row]
    assert ours.startswith("| TensorFlow, fit, 0.5 ms, mostly waiting |")
    assert "| 11 [10 … 12] | 22 [21 … 23] | ×1.01 [0.99 … 1.02] |" in ours
    assert beside.startswith("|  | nvitop | 40 [39 … 41] |")
    assert "1,000,000 steps" in diagnosis and "0.25 s / 15 ms" in diagnosis
    assert "2026-11-22 to 2026-11-23" in text and "no callback" not in text


def test_a_table_that_was_typed_is_noticed(maker, capsys):
    write(maker)
    assert maker.main(["--check"]) == 1
    assert "without --check" in capsys.readouterr().out
    maker.main([])
    assert maker.main(["--check"]) == 0
    maker.PAGE.write_text(maker.PAGE.read_text().replace("0.25 s", "0.20 s"))
    assert maker.main(["--check"]) == 1


def test_a_readme_without_markers_is_left_alone(maker):
    write(maker, "no table here\n")
    with pytest.raises(SystemExit, match="between which the table goes"):
        maker.main([])
    assert maker.PAGE.read_text() == "no table here\n"


def test_the_readme_in_this_repository_is_made_of_its_figures():
    spec = importlib.util.spec_from_file_location("figures_table", BENCHMARKS / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.FIGURES.exists():
        pytest.skip("no figures are kept here")
    assert module.main(["--check"]) == 0


def test_nothing_is_no_minus_nothing(maker):
    assert maker.between({"median": -0.4, "low": -1.2, "high": 0.3}) == "0 [-1 … 0]"
    assert maker.between({"median": -0.004, "low": -0.1, "high": 2.0}, 2) == "0.00 [-0.10 … 2.00]"
