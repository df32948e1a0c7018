"""What the page for programs says is so."""

import json
import os
import re
import shlex
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from make_recording import make_recording
from programs import ran

import gpu_util_callback
from gpu_util_callback.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "agents.md").read_text(encoding="utf-8")


def test_the_public_names_are_those_that_are_promised():
    promised = re.search(r"\*\*Python\*\*:(.*?), with their", PAGE, re.S)[1]
    names = set(re.findall(r"`(\w+)`", promised))
    assert names == {*gpu_util_callback.__all__} - {"__version__"}


def test_the_schemas_are_in_the_package():
    for name in ("report", "trace", "total"):
        schema = json.loads((files("gpu_util_callback") / "schemas" / f"{name}.json").read_text())
        assert schema["properties"]["version"] == {"const": 1}


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.S))
def test_its_programs_run(block, tmp_path):
    make_recording(tmp_path / "logs", "thirds", steps=300, gpus=1)
    command = tmp_path / "bin" / "gpu-util"  # as pip installs it
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom gpu_util_callback.cli import main\nexit(main())\n")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(DOCS.parent)}
    done = ran(sys.executable, "-c", block, cwd=tmp_path, timeout=120, env=environment)
    assert "input_bound" in done.stdout or "ended" in done.stdout


def commands(workflow: dict) -> list[str]:
    steps = next(iter(workflow["jobs"].values()))["steps"]
    return [step["run"] for step in steps if "gpu-util report" in step.get("run", "")]


@pytest.mark.parametrize(("baseline", "status"), [("healthy", 0), ("faster", 1), ("nothing", 2)])
def test_the_example_with_a_baseline_is_a_gate(baseline, status, tmp_path, monkeypatch):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    text = (DOCS / "examples" / "training-baseline.yml").read_text(encoding="utf-8")
    [gate] = commands(yaml.safe_load(text))
    make_recording(tmp_path / "logs" / "new", "healthy", steps=600, gpus=1)
    if baseline != "nothing":
        faster = {"step_ms": 18.0} if baseline == "faster" else {}
        make_recording(tmp_path / "logs" / "main", "healthy", steps=600, gpus=1, **faster)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(gate)[1:]) == status
    assert (tmp_path / "gate.xml").is_file() == (status < 2)


@pytest.mark.parametrize(("scenario", "status"), [("healthy", 0), ("slow", 1)])
def test_the_example_for_ci_is_a_gate(scenario, status, tmp_path, monkeypatch):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    text = (DOCS / "examples" / "training-check.yml").read_text(encoding="utf-8")
    gate, page = commands(yaml.safe_load(text))
    make_recording(tmp_path / "logs" / "ci", scenario, steps=300, gpus=1)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(gate)[1:]) == status
    assert main(shlex.split(page)[1:]) == 0 and (tmp_path / "report.html").is_file()
