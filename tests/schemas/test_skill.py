"""The page for coding agents: short, shipped, and every command, option and field in it exists."""

import re
from importlib.resources import files

import pytest

from gpu_util_callback.cli import COMMANDS, main

TEXT = (files("gpu_util_callback") / "SKILL.md").read_text(encoding="utf-8")


def test_it_is_printed_or_put_where_the_user_says(tmp_path, capsys):
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == TEXT
    assert main(["skill", "--install", str(tmp_path / "new" / "skills")]) == 0
    place = tmp_path / "new" / "skills" / "gpu-util" / "SKILL.md"
    assert capsys.readouterr().out == f"{place}\n"
    assert place.read_text(encoding="utf-8") == TEXT
    (tmp_path / "file").write_text("")
    assert main(["skill", "--install", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_it_is_short_and_says_what_it_is_for():
    """A name and a description is what agents look at to decide whether they read on."""
    assert len(TEXT.splitlines()) <= 80
    head = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", TEXT)
    assert head and head[1] == "gpu-util" and len(head[2]) < 1024


def test_its_commands_and_options_exist(capsys):
    commands = [line.split() for line in re.findall(r"^    (gpu-util .+)", TEXT, re.M)]
    assert [words[1] for words in commands] == ["run", "report", "try", "ab"]
    for words in commands:
        assert words[1] in COMMANDS
        with pytest.raises(SystemExit):
            main([words[1], "--help"])
        known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= known
    with pytest.raises(SystemExit):
        main(["try", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {"--fix", "--change"} <= known and "`--fix N`" in TEXT and "`--change " in TEXT


def test_its_fields_are_those_of_the_schemas():
    schema = (files("gpu_util_callback") / "schemas" / "report.json").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:runs\[-1\]|advice)\.(\w+)", TEXT)) | {
        "findings",
        "spans",
        "unavailable",
        "cure",
        "ids",
    }
    assert {"verdict", "headline", "code", "changes", "question", "text"} <= named
    assert all(f'"{name}"' in schema for name in named)
    from gpu_util_callback.trying.trial import Trial

    written = Trial.to_json.__code__.co_consts
    fields = {name for constant in written if isinstance(constant, tuple) for name in constant} | set(written)
    assert {"resolved", "low", "high", "ratio", "code"} <= fields
