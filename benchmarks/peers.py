"""Other tools, installed into a folder of the benchmarks' own to be measured in the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def install(folder: Path, package: str) -> str | None:
    """None, or why `package` could not be installed into `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(folder), package],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def with_path(env: dict[str, str], *folders: Path) -> dict[str, str]:
    """An environment whose Python finds what is in these folders, after all it has."""
    paths = [env.get("PYTHONPATH", ""), *map(str, folders)]
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
