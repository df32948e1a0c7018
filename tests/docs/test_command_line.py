"""What the pages say of the command line is so."""

import json
import re
from pathlib import Path

import pytest
from make_recording import make_recording

from gpu_util_callback.cli import COMMANDS, main
from gpu_util_callback.doctor import _checks

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGE = (DOCS / "command-line.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def options_of(name: str, capsys) -> set[str]:
    """The options that a command's `--help` lists."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    return set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_each_command_has_its_section():
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_has_an_example_and_real_options(name, capsys):
    section = SECTIONS[name]
    assert f"\ngpu-util {name} " in section
    named = set(re.findall(r"--[a-z][a-z-]+", section))
    assert named and named <= options_of(name, capsys)


def commands_of(page: str) -> list[str]:
    """The command lines of a page, in its text and in blocks."""
    text = page.replace("\\|", "|")
    found = re.findall(r"`(gpu-util [a-z][^`]*)`", text) + re.findall(r"^(gpu-util [a-z].*)", text, re.M)
    return [" ".join(one.partition("  #")[0].split()) for one in found]


PAGES = [*DOCS.rglob("*.md"), *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_on_all_pages_exist(page, capsys):
    for command in commands_of(page.read_text(encoding="utf-8")):
        name = command.split()[1]
        assert name in COMMANDS, command
        assert set(re.findall(r"--[a-z-]+", command)) <= options_of(name, capsys), command


def test_the_commands_of_the_table_run(tmp_path, capsys, monkeypatch, trace_data):
    make_recording(tmp_path / "logs", "thirds", steps=300, gpus=1)
    monkeypatch.chdir(tmp_path)
    # The doctor would import each framework: tests/gpus/test_doctor.py.
    monkeypatch.setattr(_checks, "FRAMEWORKS", dict.fromkeys(_checks.FRAMEWORKS, ()))
    stands_for = {
        "LOGDIR…": "logs",
        "LOGDIR": "logs",
        "PCT": "1",
        "…": "--forbid gpu_lost",
        "FILE": "trace.json",
        "DIR": "tables",
    }
    # `run`, `look` and `ab` need processes of their own: tests/run, tests/trying.
    rows = re.findall(r"^\| `(gpu-util (?!run|look|ab)[^`]+)` \|", PAGE, re.M)
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
