"""The map of the code names files that are there, and every floor."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MAP = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = ("gpu_util_callback", "tensorboard_plugin", "frontend/src", "tests", "harness", "docs")


def test_the_files_it_names_are_there():
    files = [f"/{path.relative_to(REPOSITORY)}" for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.*")]
    files += [f"/{path.name}" for path in REPOSITORY.glob("*.md")] + ["/frontend/README.md"]
    named = set(re.findall(r"[\w/]*\w\.(?:py|ts|md)\b", MAP))
    assert len(named) > 60
    assert not [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)]


def test_every_floor_is_on_it():
    package = REPOSITORY / "gpu_util_callback"
    floors = {path.name + "/" for path in package.iterdir() if (path / "__init__.py").exists()}
    floors |= {path.name for path in package.glob("[!_]*.py")}
    assert not {floor for floor in floors if floor not in MAP}


def test_every_file_is_on_it_where_a_floor_lists_its_files():
    package = REPOSITORY / "gpu_util_callback"
    rooms = [path for path in package.rglob("*") if path.is_dir() and path.name not in ("rules", "host_stall", "cli")]
    files = [file for room in rooms if room.parent.name != "backends" for file in room.glob("[!_]*.py")]
    assert len(files) > 100
    assert not [file.name for file in files if not re.search(rf"^ +{file.name} ", MAP, re.MULTILINE)]


def test_each_row_of_what_we_rely_on_names_a_check_that_is_there():
    lines = (REPOSITORY / "docs" / "relied-on.md").read_text(encoding="utf-8").splitlines()
    rows = [row for line in lines if len(row := line.split("|")) == 6 and row[2].strip() not in ("seen in", "---")]
    assert len(rows) > 25
    for row in rows:
        checks = re.findall(r"`((?:findings|tests)/[^`]+)`", row[4])
        assert checks, row[1]
        for file, _, test in (check.partition("::") for check in checks):
            assert not test or f"def {test}(" in (REPOSITORY / file).read_text(encoding="utf-8"), test
            assert (REPOSITORY / file).exists(), file
        for name in re.findall(r"`([\w/]+\.py)`", row[3]):
            assert (REPOSITORY / "gpu_util_callback" / name).exists(), name


def test_each_finding_is_a_script_of_its_own():
    """They install what they need at one version, in a folder that is gone afterwards, and fail if all is otherwise."""
    findings = sorted((REPOSITORY / "findings").glob("*.sh"))
    assert len(findings) >= 20
    for path in findings:
        text = path.read_text(encoding="utf-8")
        assert all(part in text for part in ("# Guess: ", " Seen: ", "mktemp -d", "==", "set -euo pipefail")), path.name
        assert "assert " in text and "gpu_util" not in text, path.name
