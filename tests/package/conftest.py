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


@pytest.fixture(scope="session")
def epoch_s() -> int:
    """The time that all files of the distributions have."""
    return 1_700_000_000


@pytest.fixture(scope="session")
def dist(tmp_path_factory, epoch_s) -> Path:
    """A folder with wheel and sdist, built without an address of the repository, and the checkout they are of."""
    pytest.importorskip("build", reason='pip install -e ".[reach]"')
    folder = tmp_path_factory.mktemp("dist")
    # A copy: a build leaves its traces in the folder it is made in.
    checkout = folder / "checkout"
    shutil.copytree(REPOSITORY, checkout, ignore=shutil.ignore_patterns(*LEFT_OUT))
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout]
    ran(*build, env={**os.environ, "REPOSITORY_URL": "", "SOURCE_DATE_EPOCH": str(epoch_s)})
    return folder
