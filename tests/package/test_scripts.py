"""Benchmarks, harness, gauntlet and demo are no packages of the wheel: nothing else notices a name that has gone."""

import os
from pathlib import Path

from fork_server import python
from packages import need
from programs import ran

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_script_finds_what_it_imports():
    need("keras")
    scripts = [f"benchmarks.{path.stem}" for path in (REPOSITORY / "benchmarks").glob("[!_]*.py")]
    scripts += [path.stem for path in (REPOSITORY / "demo").glob("*.py")]
    for path in (path for top in ("harness", "gauntlet") for path in (REPOSITORY / top).rglob("[!_]*.py")):
        inner = path.relative_to(REPOSITORY).with_suffix("")
        if "new_trials" in inner.parts:  # programs of strangers: importing one trains
            continue
        scripts.append(path.stem if "support" in inner.parts else ".".join(inner.parts))
    folders = (REPOSITORY / name for name in ("", "benchmarks", "harness/support", "demo"))
    ran(*python("keras"), "-c", IMPORT, *scripts, env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))})
