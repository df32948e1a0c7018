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


def commands(example: str) -> list[list[str]]:
    """The arguments of each `gpu-util` in the steps of an example's first job."""
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    workflow = yaml.safe_load((DOCS / "examples" / example).read_text(encoding="utf-8"))
    steps = next(iter(workflow["jobs"].values()))["steps"]
    return [shlex.split(step["run"])[1:] for step in steps if step.get("run", "").startswith("gpu-util ")]


@pytest.mark.parametrize(("recorded", "status"), [("healthy", 0), ("slow", 1)])
def test_the_example_of_limits_for_ci_is_a_gate(recorded, status, tmp_path, monkeypatch):
    gate, page = commands("training-check.yml")
    make_recording(tmp_path / "logs" / "ci", recorded, steps=600, gpus=1)
    monkeypatch.chdir(tmp_path)
    assert main(gate) == status
    assert main(page) == 0 and (tmp_path / "report.html").is_file()


PROGRAM = """
import time
from gpu_util_callback import GpuUtilMonitor
with GpuUtilMonitor("logs") as monitor:
    for batch in monitor.batches(range(200)):
        time.sleep({seconds})
"""


@pytest.mark.parametrize(("seconds", "status"), [pytest.param(0.004, 0, marks=pytest.mark.slow), (0.03, 1)])
def test_the_example_of_two_commands_for_ci_is_a_gate(seconds, status, tmp_path, monkeypatch, capsys):
    (gate,) = commands("training-ab.yml")
    for place, step_s in (("main", 0.01), ("new", seconds)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "train.py").write_text(PROGRAM.format(seconds=step_s))
    monkeypatch.chdir(tmp_path / "new")
    python = [word.replace("python ", f"{sys.executable} ") for word in gate]
    assert main([*python, "--steps", "20", "--seconds", "0.5", "--pairs", "2-4"]) == status, capsys.readouterr()
    assert (tmp_path / "new" / "ab.xml").is_file()
