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
