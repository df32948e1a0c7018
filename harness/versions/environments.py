"""Private virtual environments for the version matrix: made, filled, tested in, asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path
from xml.etree import ElementTree

from harness.versions.rows import SUITES, Row

REPOSITORY = Path(__file__).resolve().parents[2]
TESTING = ("pytest>=8", "pytest-timeout>=2.3", "pytest-rerunfailures>=14", "hypothesis>=6.100")
LIMIT_S = 1500  # for a row's tests
SECOND_TRY = 8  # more failures than that are no noise


class Failed(Exception):
    """A step of making an environment did not work; one line, pip's own where it was pip."""


@dataclass
class Result:
    """What pytest said of a suite.

    `late` = those that failed at first and passed when they ran by themselves; `problem` = why
    there is nothing to count.
    """

    passed: int = 0
    skipped: int = 0
    late: int = 0
    failures: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def ran(self) -> bool:
        return not self.problem and self.passed + len(self.failures) > 0

    @property
    def good(self) -> bool:
        return self.ran and not self.failures

    @property
    def summary(self) -> str:
        """E.g. "63 passed (1 at the second try), 2 skipped"."""
        if not self.ran:
            return self.problem or "no test ran"
        late = f" ({self.late} at the second try)" if self.late else ""
        parts = [f"{self.passed + self.late}{late}"]
        parts += [f"{len(self.failures)} failed"] if self.failures else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        return ", ".join(parts)


def find_python(version: str, given: list[str]) -> str | None:
    """An interpreter of version "3.x": one of `given`, `python3.x` on the PATH, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [*given, shutil.which(f"python{version}"), shutil.which("python3")]
    candidates += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    question = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", question], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return str(candidate)
    return None


def snapshot(folder: Path) -> Path:
    """A copy of the checkout as it is now (no ignored files): work in it goes on meanwhile."""
    checkout = folder / "checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    names = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    for name in filter(None, names.split("\0")):
        if (REPOSITORY / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, checkout / name)
    traces = REPOSITORY.parent / "shared"
    if traces.is_dir() and not (folder / "shared").exists():
        (folder / "shared").symlink_to(traces)
    return checkout


def wheel(checkout: Path, folder: Path) -> Path:
    """Our package, built as an installer gets it."""
    target = folder / "wheel"
    shutil.rmtree(target, ignore_errors=True)
    run(["python3", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(target), str(checkout)])
    shutil.rmtree(checkout / "build", ignore_errors=True)
    return next(target.glob("*.whl"))


def lower_bounds(package: Path) -> list[str]:
    """`name==bound` for each `name>=bound` that the wheel requires, its extras left out."""
    with zipfile.ZipFile(package) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    found = []
    for requirement in metadata.get_all("Requires-Dist", []):
        if "extra ==" not in requirement:
            found.append(requirement.replace(">=", "=="))
    return found


def run(command: list[str], **options) -> str:
    """Output of a command run in the checkout. Raises: Failed, with the line that says why."""
    options = {"cwd": REPOSITORY, "timeout": 1200, **options}
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or [f"{command[0]} failed"]
        said = [line for line in lines if re.match(r"(ERROR|error|fatal)\b", line)]
        raise Failed((said or lines)[-1].removeprefix("ERROR: ")[:300])
    return done.stdout


class Environment:
    """One virtual environment.

    Args:
        folder: where it goes.
        python: the interpreter it is made with.
    """

    def __init__(self, folder: Path, python: str):
        self.folder = folder
        self.maker = python
        self.python = folder / "bin" / "python"

    def install(self, package: Path, requirements: list[str]) -> None:
        """Make it, with our wheel and what it needs, as pip resolves it.

        One that was kept, and made of the same, only gets the new wheel.
        """
        made_of = self.folder / "made-of.txt"
        wanted = "\n".join([self.maker, *requirements, *TESTING])
        if made_of.is_file() and made_of.read_text() == wanted:
            self._pip("install", "--no-deps", "--force-reinstall", str(package))
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        run([self.maker, "-m", "venv", str(self.folder)])
        self._pip("install", str(package), *requirements, *TESTING)
        made_of.write_text(wanted)

    def swap(self, requirement: str) -> None:
        """Replace one distribution and nothing else."""
        self._pip("install", "--no-deps", "--upgrade", requirement)

    def unhappy(self) -> str:
        """What the installed packages say against their own company ("" = nothing)."""
        done = subprocess.run([str(self.python), "-m", "pip", "check"], capture_output=True, text=True)
        return "" if done.returncode == 0 else "; ".join(done.stdout.strip().splitlines())

    def versions(self) -> dict[str, str]:
        """Of Python and of all distributions; checks that our package is the installed one."""
        program = (
            "import gpu_util_callback, importlib.metadata as m, json, platform\n"
            "assert 'site-packages' in gpu_util_callback.__file__, gpu_util_callback.__file__\n"
            "found = {d.name.lower().replace('_', '-'): d.version for d in m.distributions()}\n"
            "print(json.dumps({**found, 'python': platform.python_version()}))"
        )
        return json.loads(run([str(self.python), "-I", "-c", program]))

    def test(self, checkout: Path, row: Row, log: Path, arguments: list[str]) -> Result:
        """Run the row's suite from the snapshot; the output goes to `log`.

        What fails is run once more, by itself: these tests time real trainings, and whatever else
        the machine does may delay them. What is broken fails twice.
        """
        command = [
            str(self.python),
            "-P",
            "-m",
            "pytest",
            "--tb=short",
            "-m",
            "not slow and not browser",
            "-o",
            f"cache_dir={log.with_suffix('.cache')}",
            *SUITES[row.suite],
            *arguments,
        ]
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TF_CONFIG")}
        home = log.parent / "keras-home"  # a keras.json of the user's must not choose the backend
        variables = {**kept, "KERAS_BACKEND": row.backend, "KERAS_HOME": str(home)}
        first = pytest(command, checkout, variables, log)
        if not first.failures or len(first.failures) > SECOND_TRY:
            return first
        again = log.with_suffix(".again.log")
        second = pytest([*command, "--last-failed"], checkout, variables, again)
        if not second.ran:
            return first
        first.late = len(first.failures) - len(second.failures)
        first.failures = second.failures
        return first

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments]
        run(command, env={**os.environ, "PIP_QUIET": "1"})


def pytest(command: list[str], checkout: Path, variables: dict[str, str], log: Path) -> Result:
    """Run pytest and count what it wrote down; a run that ended before it did is a failure."""
    results = log.with_suffix(".xml")
    results.unlink(missing_ok=True)
    with log.open("w") as output:
        try:
            subprocess.run(
                [*command, f"--junitxml={results}"],
                cwd=checkout,
                env=variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return Result(problem=f"no end after {LIMIT_S} s")
    if not results.is_file():
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        return Result(problem=f"pytest did not run: {''.join(last)[:200]}")
    found = Result()
    ends: dict[str, str] = {}  # a test that was run again is there twice
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((p for p in case if p.tag in ("failure", "error")), None)
        if problem is not None:
            said = (problem.get("message") or "").strip().splitlines()[:1]
            ends[name] = "".join(said)[:160] or "failed"
        else:
            ends[name] = "skipped" if case.find("skipped") is not None else ""
    found.failures = [f"{name}: {end}" for name, end in ends.items() if end not in ("", "skipped")]
    found.skipped = sum(end == "skipped" for end in ends.values())
    found.passed = sum(end == "" for end in ends.values())
    return found
