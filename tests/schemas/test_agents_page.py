"""What the page for programs says is so."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from make_recording import make_recording

import gpu_util_callback
from gpu_util_callback.cli import COMMANDS, main

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


def test_all_commands_are_on_the_page():
    assert set(re.findall(r"`gpu-util (\w+)", PAGE)) == set(COMMANDS)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.S))
def test_its_programs_run(block, tmp_path):
    make_recording(tmp_path / "logs", "thirds", steps=300, gpus=1)
    command = tmp_path / "bin" / "gpu-util"  # as pip installs it
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom gpu_util_callback.cli import main\nexit(main())\n")
    command.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(DOCS.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert "input_bound" in done.stdout or "ended" in done.stdout


def commands_of(page: str) -> list[str]:
    """The command lines of a page, in its text and in blocks."""
    text = page.replace("\\|", "|")
    found = re.findall(r"`(gpu-util [a-z][^`]*)`", text) + re.findall(r"^(gpu-util [a-z].*)", text, re.M)
    return [" ".join(one.partition("  #")[0].split()) for one in found]


PAGES = [*DOCS.rglob("*.md"), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_on_all_pages_exist(page, capsys):
    for command in commands_of(page.read_text(encoding="utf-8")):
        name = command.split()[1]
        assert name in COMMANDS, command
        with pytest.raises(SystemExit):
            main([name, "--help"])
        known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert set(re.findall(r"--[a-z-]+", command)) <= known, command


def test_the_commands_of_the_table_run(tmp_path, capsys, monkeypatch, trace_data):
    for name in ("before", "logs"):
        make_recording(tmp_path / name, "thirds", steps=300, gpus=1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    stands_for = {
        "LOGDIR…": "logs",
        "LOGDIR": "logs",
        "RUN": "logs",
        "RUN_OR_LOGDIR": "before",
        "PCT": "1",
        "…": "--forbid gpu_lost",
        "FILE": "trace.json",
        "DIR": "tables",
    }
    # `run` and `look` need a process of their own: tests/run.
    rows = re.findall(r"^\| `(gpu-util (?!run|look)[^`]+)` \|", PAGE, re.M)
    assert len(rows) == 9
    statuses = {}
    for row in rows:
        words = [stands_for.get(word, word) for word in row.split()[1:]]
        if words[0] == "trace":
            words[1] = str(next(trace_data.rglob("*.xplane.pb")))
        if "--parquet" in words:
            pytest.importorskip("pyarrow", reason='pip install -e ".[reach]"')
        statuses[row] = main(" ".join(words).split())
        out = capsys.readouterr().out
        if "--json" in words:
            json.loads(out)
    assert list(statuses.values()) == [0, 1, 0, 0, 0, 0, 0, 0, 0], statuses
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert list((tmp_path / "tables").rglob("*.parquet"))


def test_statuses(tmp_path, capsys):
    make_recording(tmp_path / "logs", "thirds", steps=300, gpus=1)
    logs = str(tmp_path / "logs")
    assert main(["report", logs, "--json"]) == 0
    assert main(["report", logs, "--max-input-wait", "1"]) == 1
    capsys.readouterr()
    assert main(["report", str(tmp_path / "nothing"), "--json"]) == 2
    caught = capsys.readouterr()
    assert caught.out == "" and len(caught.err.splitlines()) == 1


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
