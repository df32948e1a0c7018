"""The hosted workflows use pinned actions, commands that exist and the Pythons that we declare."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from programs import ran

yaml = pytest.importorskip("yaml", reason='pip install -e ".[docs]"')

REPOSITORY = Path(__file__).parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
STEPS = [
    step
    for path in WORKFLOWS
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    for step in job.get("steps", [])
]


def test_actions_are_pinned_by_hash_and_name_their_version():
    used = [
        line
        for path in WORKFLOWS
        for line in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
        if not line.startswith("./")
    ]
    pins = dict(line.split("@", 1) for line in used)
    assert pins and all(re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", pin) for pin in pins.values())
    assert len({*used}) == len(pins), "one version of each action"


def test_pythons_are_those_of_the_classifiers(tmp_path):
    [step] = [step for step in STEPS if step.get("id") == "classifiers"]
    environment = {
        **os.environ,
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    subprocess.run(["bash", "-e"], input=step["run"], text=True, cwd=REPOSITORY, env=environment, check=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, _, pythons = (tmp_path / "output").read_text().strip().partition("=")
    assert name == "pythons" and len(yaml.safe_load(pythons)) >= 3
    for python in yaml.safe_load(pythons):
        assert f"Programming Language :: Python :: {python}" in project["classifiers"]
        only = "--only", f"{python} tensorflow-newest keras-newest"
        rows = ran(sys.executable, "-m", "harness.versions.matrix", "--list", *only, cwd=REPOSITORY)
        assert rows.stdout.strip()


def test_what_make_is_asked_for_exists():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = {target for step in STEPS for target in re.findall(r"\bmake (\w+)", step.get("run", ""))}
    assert {"dist", "docs", "matrix", "quick"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
