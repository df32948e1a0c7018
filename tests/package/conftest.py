"""The distributions, built once as they would be uploaded."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from programs import ran

REPOSITORY = Path(__file__).parents[2]
LEFT_OUT = (
    "node_modules",
    ".git",
    ".venv*",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    "logs",
    ".*_cache",
    ".hypothesis",
)


def _built(folder: Path, **variables: str) -> Path:
    # A copy: a build leaves its traces in the folder it is made in.
    checkout = folder / "checkout"
    shutil.copytree(REPOSITORY, checkout, ignore=shutil.ignore_patterns(*LEFT_OUT))
    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, env={**os.environ, **variables})
    return folder


@pytest.fixture(scope="session")
def dist(tmp_path_factory) -> Path:
    """A folder with wheel and sdist, built without an address of the repository."""
    pytest.importorskip("build", reason='pip install -e ".[reach]"')
    return _built(tmp_path_factory.mktemp("dist"), REPOSITORY_URL="")


@pytest.fixture(scope="session")
def dist_of_repository(tmp_path_factory) -> Path:
    """The same with an address."""
    pytest.importorskip("build", reason='pip install -e ".[reach]"')
    return _built(tmp_path_factory.mktemp("dist"), REPOSITORY_URL="https://example.org/us/it/")
