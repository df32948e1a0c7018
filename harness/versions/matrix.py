"""`make matrix`: our package under every version it declares to work with, as a table.

One private environment for each Python and TensorFlow, in a temporary folder, gone afterwards. In
it the package is installed as users install it, from a wheel; then each Keras of the list replaces
the one before (`pip install --no-deps keras==…`: minutes quicker than an environment of its own)
and the project's own tests run: real fits whose input waits are compared with the waits stamped
inside their pipelines, custom loops, profiler windows, the report, TensorBoard serving the tab.

Exit status: 0 = every row that could run passed, 1 = one failed or could not be installed, 2 = no
row was chosen. A Python that this machine lacks is said in the table and is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.versions.environments import REPOSITORY, Environment, Failed, find_python, lower_bounds, snapshot, wheel
from harness.versions.rows import ROWS, Row, groups

WORDS = {"passed": "passed", "failed": "FAILED", "absent": "not here", "refused": "not installable"}


@dataclass
class Outcome:
    """What became of a row.

    `kind` is one of "passed", "failed", "absent" (no such Python here) and "refused" (pip or the
    packages themselves say no).
    """

    row: Row
    kind: str
    detail: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


class Matrix:
    """Runs rows one after the other and tells how far it is.

    Args:
        folder: where environments, the snapshot of the checkout and the logs go.
        pythons: interpreters given by hand, e.g. `["/opt/python3.13/bin/python3"]`.
        keep: leave the environments.
        arguments: more of pytest's, e.g. `["-k", "wait"]`.
        package: a wheel to test; else one is built of the checkout.
    """

    def __init__(self, folder: Path, pythons: list[str], keep: bool, arguments: list[str], package: Path | None = None):
        self.folder = folder
        self.pythons = pythons
        self.keep = keep
        self.arguments = arguments
        self.package = package
        self.start = time.monotonic()
        self.outcomes: list[Outcome] = []

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.start), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", flush=True)

    def run(self, rows: list[Row]) -> list[Outcome]:
        self.checkout = snapshot(self.folder)
        self.package = self.package or wheel(self.checkout, self.folder)
        self.say(f"{len(rows)} rows; {self.package.name}, tests and logs in {self.folder}")
        for group in groups(rows):
            self._group(f"env-{group[0].python}-{group[0].base.replace(', ', '-')}", group)
        return self.outcomes

    def _group(self, name: str, rows: list[Row]) -> None:
        """The rows that share an environment."""
        first = rows[0]
        python = find_python(first.python, self.pythons)
        if python is None:
            for row in rows:
                self._done(Outcome(row, "absent", f"no Python {row.python} on this machine"))
            return
        environment = Environment(self.folder / name, python)
        try:
            started = time.monotonic()
            bounds = lower_bounds(self.package) if first.oldest else []
            try:
                environment.install(self.package, [*first.requirements(), *bounds])
            except Failed as error:
                for row in rows:
                    self._done(Outcome(row, "refused", str(error)))
                return
            self.say(f"Python {first.python}, {first.base}: {time.monotonic() - started:.0f} s")
            for row in rows:
                self._done(self._row(environment, row))
        finally:
            if not self.keep:
                shutil.rmtree(environment.folder, ignore_errors=True)

    def _row(self, environment: Environment, row: Row) -> Outcome:
        started = time.monotonic()
        try:
            if row.swapped:
                environment.swap(f"keras=={row.keras}.*" if row.keras else "keras")
            versions = environment.versions()
            unhappy = environment.unhappy()
            if unhappy:
                return Outcome(row, "refused", unhappy, versions)
            log = self.folder / f"{row.slug}.log"
            result = environment.test(self.checkout, row, log, self.arguments)
        except Failed as error:
            return Outcome(row, "refused", str(error))
        kind = "passed" if result.good else "failed"
        seconds = time.monotonic() - started
        return Outcome(row, kind, result.summary, versions, seconds, result.failures)

    def _done(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.say(f"{outcome.row.title}: {WORDS[outcome.kind]} {outcome.detail} ({outcome.seconds:.0f} s)")
        for failure in outcome.failures:
            print(f"          {failure}", flush=True)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a Markdown table, with the versions that really were installed."""
    lines = [("Python", "backend", "Keras", "with", "result", "s")]
    for outcome in outcomes:
        row, has = outcome.row, outcome.versions
        # A nightly build is a distribution of another name.
        backend = has.get("tf-nightly") or has.get(row.backend, row.backend_version or "newest")
        lines.append(
            (
                has.get("python", row.python),
                f"{row.backend} {backend}",
                has.get("keras-nightly") or has.get("keras", row.keras or "newest"),
                f"{row.note} ({', '.join(f'{k} {has[k]}' for k in row.shown if k in has)})" if row.note else "",
                f"{WORDS[outcome.kind]} {outcome.detail}".strip(),
                f"{outcome.seconds:.0f}" if outcome.seconds else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.versions.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="rows whose title has all of TEXT's words, e.g. --only '3.11 tensorflow-2.18'; may be given several times",
    )
    parser.add_argument("--list", action="store_true", help="print the rows' titles and end")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an interpreter to use (else python3.x on the PATH, then pyenv's)",
    )
    parser.add_argument("--wheel", type=Path, help="test this one, instead of building it")
    parser.add_argument("--folder", type=Path, help="where to work, and leave the logs")
    parser.add_argument(
        "--keep", action="store_true", help="leave the environments (2 GB each) for the next run in the same --folder"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, too")
    parser.add_argument("pytest", nargs="*", metavar="-- PYTEST", help="more arguments of pytest")
    given = parser.parse_args()
    chosen = [row for row in ROWS if row.chosen(given.only)]
    if given.list:
        print("\n".join(row.title for row in chosen))
        return 0
    if not chosen:
        print("no such row; --list names them", file=sys.stderr)
        return 2
    folder = given.folder or Path(tempfile.mkdtemp(prefix="gpu-util-matrix-"))
    folder.mkdir(parents=True, exist_ok=True)
    package = given.wheel and given.wheel.resolve()
    matrix = Matrix(folder.resolve(), given.python, given.keep, given.pytest, package)
    try:
        outcomes = matrix.run(chosen)
    except Failed as error:
        print(f"cannot start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        outcomes = matrix.outcomes
    print(f"\n{table(outcomes)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    bad = [one for one in outcomes if one.kind in ("failed", "refused")]
    if not bad and not given.folder and not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    elif bad:
        print(f"\nlogs: {os.path.relpath(folder, REPOSITORY) if given.folder else folder}")
    return 1 if bad or len(outcomes) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
