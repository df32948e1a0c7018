"""Compare what another revision and this checkout say about the same recordings and traces.

    python -m harness.golden make CORPUS
    python -m harness.golden compare CORPUS --against REVISION

`make` writes recordings of made-up jobs, of real fits on every backend that is installed, and of
the reference traces. `compare` has both versions print `report --json` and `trace --json`
for each of them, and prints where they differ: nothing, after a change that only moves code.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_util_callback.traces.imported import import_trace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRACES = ROOT.parent / "shared" / "data"
SUFFIXES = (".pb", ".pb.gz", ".json", ".json.gz", ".sqlite")


def make(corpus: Path) -> None:
    """Write the corpus: one log directory a case, in a folder of its own."""
    run = [sys.executable, "-m", "harness.golden.made_up", str(corpus)]
    subprocess.run(run, cwd=ROOT, check=True)
    for backend in ("tensorflow", "jax", "torch"):
        environ = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
        run = [sys.executable, "-m", "harness.golden.fits", str(corpus), backend]
        if subprocess.run(run, cwd=ROOT, env=environ, check=False).returncode:
            print(f"no fits on {backend}", file=sys.stderr)
    for name, file in references().items():
        import_trace(file, corpus / f"imported-{name.replace('/', '-')}")
    print(f"{len(list(corpus.iterdir()))} log directories in {corpus}")


def references() -> dict[str, Path]:
    """The reference traces by name; none where they are not at hand."""
    files = sorted(TRACES.rglob("*")) if TRACES.is_dir() else []
    return {
        file.relative_to(TRACES).as_posix(): file
        for file in files
        if file.name.endswith(SUFFIXES) and "hostile" not in file.parts
    }


def inputs(corpus: Path) -> dict[str, list[str]]:
    """The command line behind each name, for both versions alike."""
    commands = {one.name: ["report", str(one), "--json"] for one in sorted(corpus.iterdir())}
    return commands | {name: ["trace", str(file), "--json"] for name, file in references().items()}


def answers(tree: Path, commands: dict[str, list[str]]) -> dict[str, Any]:
    """What the code in `tree` prints, parsed."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked.json", Path(folder) / "answered.json"
        asked.write_text(json.dumps(commands))
        subprocess.run(
            [sys.executable, str(HERE / "answer.py"), str(asked), str(answered)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            check=True,
        )
        return json.loads(answered.read_text())


def differences(old: Any, new: Any, ignored: set[str], path: str = "") -> Iterator[str]:
    """Where two JSON values differ: `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new} - ignored):
            yield from differences(old.get(key), new.get(key), ignored, f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, ignored, f"{path}[{index}]")
    elif old != new:
        yield f"{path}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 100 else text[:97] + "..."


def compare(corpus: Path, revision: str, ignored: set[str]) -> int:
    """Print the differences; returns how many inputs have some."""
    commands = inputs(corpus)
    folder = Path(tempfile.mkdtemp()) / "old"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "-q", "--detach", str(folder), revision], check=True)
    try:
        old, new = answers(folder, commands), answers(ROOT, commands)
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)
        shutil.rmtree(folder.parent, ignore_errors=True)
    changed = 0
    for name in commands:
        found = list(differences(old[name], new[name], ignored))
        changed += bool(found)
        for line in found:
            print(f"{name}{line}")
    print(f"{len(commands)} inputs compared with {revision}, {changed} differ")
    return changed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.golden", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("make", "compare"))
    parser.add_argument("corpus", type=Path, help="a folder; `make` creates it")
    parser.add_argument("--against", default="HEAD", metavar="REVISION", help="default: HEAD")
    parser.add_argument(
        "--ignore", nargs="*", default=[], metavar="KEY", help="JSON keys that may differ, such as title"
    )
    given = parser.parse_args()
    if given.what == "make":
        if given.corpus.exists():
            parser.error(f"{given.corpus} exists already")
        given.corpus.mkdir(parents=True)
        make(given.corpus)
        return 0
    if not given.corpus.is_dir():
        parser.error(f"{given.corpus} is no folder: make it first")
    return 1 if compare(given.corpus.resolve(), given.against, set(given.ignore)) else 0


if __name__ == "__main__":
    sys.exit(main())
