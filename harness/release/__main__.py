"""What can be done for a release without an account: `make release-check`. docs/releasing.md has the rest.

    python -m harness.release check [--repository-url https://…]
    python -m harness.release version 0.1.0          # in _version.py, CITATION.cff, CHANGELOG.md and the recipe

`check` builds wheel and sdist twice, in two folders and at two times, and compares their bytes; looks at the metadata
with twine and check-wheel-contents, and at the page that an index will show; installs the wheel in an empty environment
of each Python from 3.11 on that this machine has, and runs it there; has the recipe for conda rendered, and built where
its channel answers; says whether the commit has a signed tag. `dist/` then holds what is to be uploaded.

Exit code: 0 = nothing is wrong, 1 = something is. What this machine lacks is said, and is no fault.
"""

from __future__ import annotations

import argparse
import datetime
import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path

from harness.versions.environments import REPOSITORY, Failed, find_python, run, snapshot

RECIPE = Path(__file__).with_name("recipe.yaml")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RELATIVE = re.compile(r"\]\((?!https?://|#)([^)]*)\)")
RECORDED = "demo/recorded/h200-jax/slow-input"
EXAMPLE_URL = "https://example.org/owner/gpu-util-callback"


class Lacking(Exception):
    """This machine cannot tell; no fault of the release."""


class Release:
    """One look at the release.

    Args:
        url: the repository's, for the page on an index.
        folder: for copies, environments and builds.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.dist = REPOSITORY / "dist"

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Each thing to look at, with what looks: it returns what it saw, raises `Failed` or `Lacking`."""
        yield "built twice, the same bytes", self.built_twice
        yield "versions agree", self.versions
        yield "metadata (twine, check-wheel-contents)", self.tools
        yield "the page on an index", self.page
        for python in PYTHONS:
            yield f"installed and run on Python {python}", lambda python=python: self.installed(python)
        yield "recipe for conda", self.recipe
        yield "signed tag", self.tag

    def built_twice(self) -> str:
        epoch = run(["git", "log", "-1", "--format=%ct"]).strip()
        environ = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "REPOSITORY_URL": self.url}
        made: list[dict[str, str]] = []
        given = snapshot(self.folder)  # once: work in the checkout may go on
        for name in ("first", "second-build"):
            checkout, out = self.folder / name / "checkout", self.folder / name / "dist"
            shutil.copytree(given, checkout, copy_function=shutil.copy)  # with the times of now
            run([sys.executable, "-m", "build", "--outdir", str(out), str(checkout)], env=environ)
            made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())})
        shutil.rmtree(self.dist, ignore_errors=True)
        shutil.copytree(self.folder / "first" / "dist", self.dist)
        different = [name for name in made[0] if made[1].get(name) != made[0][name]]
        if different or len(made[0]) != 2:
            raise Failed(f"differ from one build to the next: {', '.join(different) or made}")
        return "; ".join(f"{name} {digest[:12]}…" for name, digest in made[0].items())

    def metadata(self) -> Message:
        (wheel,) = self.dist.glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            (name,) = [name for name in file.namelist() if name.endswith("/METADATA")]
            return email.message_from_bytes(file.read(name))

    def versions(self) -> str:
        version = self.metadata()["Version"]
        known = {path.name: found for path, found in versions().items()}
        if any(found not in (version, "Unreleased") for found in known.values()):
            raise Failed(f"the wheel says {version}, {known}")
        if ".dev" in version:
            raise Lacking(f"{version} is no release yet: `python -m harness.release version X.Y.Z`")
        return version

    def tools(self) -> str:
        run([sys.executable, "-m", "twine", "check", "--strict", *map(str, self.dist.iterdir())])
        run([sys.executable, "-m", "check_wheel_contents", *map(str, self.dist.glob("*.whl"))])
        return "nothing found"

    def page(self) -> str:
        text = str(self.metadata().get_payload())
        if relative := RELATIVE.findall(text):
            raise Failed(f"leads nowhere from an index: {', '.join(relative)}")
        pictures = re.findall(rf"!\[[^\]]*\]\(({re.escape(self.url)}/raw/main/[^)]+)\)", text)
        if not pictures:
            raise Failed("shows no picture by its absolute address")
        lost = [picture for picture in pictures if not (REPOSITORY / picture.partition("/raw/main/")[2]).is_file()]
        if lost:
            raise Failed(f"there is no {', '.join(lost)}")
        return ", ".join(pictures)

    def installed(self, version: str) -> str:
        interpreter = find_python(version, [sys.executable])
        if interpreter is None:
            raise Lacking("not on this machine")
        place = self.folder / f"env-{version}"
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        (wheel,) = self.dist.glob("*.whl")
        run([interpreter, "-m", "venv", str(place)])
        python = str(place / "bin" / "python")
        run([python, "-m", "pip", "install", "--quiet", str(wheel)], env=environ)
        run([python, "-m", "pip", "check"], env=environ)
        run([python, "-I", "-W", "error", "-c", "import gpu_util_callback"], env=environ, cwd=self.folder)
        run([python, "-I", "-c", "import tensorboard_plugin.loader"], env=environ, cwd=self.folder)
        said = run([str(place / "bin" / "gpu-util"), "report", str(REPOSITORY / RECORDED)], env=environ)
        if "input pipeline" not in said:
            raise Failed(f"gpu-util report {RECORDED} says: {said[:200]}")
        return run([str(place / "bin" / "gpu-util"), "--version"], env=environ).strip()

    def recipe(self) -> str:
        compare_recipe(self.metadata())
        try:
            from rattler_build import RattlerBuildError, Stage0Recipe
        except ImportError:
            raise Lacking("agrees with the wheel; not rendered: pip install py-rattler-build") from None
        recipe = Stage0Recipe.from_file(str(RECIPE))
        rendered = [variant.recipe.to_dict()["build"]["string"] for variant in recipe.render()]
        try:
            made = recipe.run_build(output_dir=str(self.folder / "conda"))
        except (RattlerBuildError, RuntimeError) as error:
            said = str(error).splitlines()[0]
            raise Lacking(f"agrees with the wheel, and renders ({rendered[0]}); not built here: {said}") from None
        return f"built: {made[0].packages[0]}"

    def tag(self) -> str:
        tags = run(["git", "tag", "--points-at", "HEAD"]).split()
        if not tags:
            raise Lacking("HEAD has no tag yet: `git tag --sign`")
        run(["git", "tag", "--verify", tags[0]])
        return tags[0]


def compare_recipe(metadata: Message, text: str | None = None) -> None:
    """Hold the recipe's version, entry point and requirements against the wheel's. Raises: Failed."""
    text = RECIPE.read_text(encoding="utf-8") if text is None else text
    declared = re.findall(r"^    - (\S+) (>=\S+)$", text.partition("\n  run:\n")[2], re.M)
    wanted = [("python", metadata["Requires-Python"])]
    for requirement in metadata.get_all("Requires-Dist", []):
        if "extra ==" not in requirement:
            wanted.append(re.fullmatch(r"([\w-]+)(>=\S+)", requirement).groups())  # type: ignore[union-attr, arg-type]
    if sorted(declared) != sorted(wanted):
        raise Failed(f"the recipe needs {sorted(declared)}, the wheel {sorted(wanted)}")
    for part in (f'version: "{metadata["Version"]}"', "gpu-util = gpu_util_callback.cli:main"):
        if part not in text:
            raise Failed(f"the recipe lacks {part}")


# Where a version stands, and the text around it.
PLACES = {
    REPOSITORY / "gpu_util_callback" / "_version.py": r'(?<=__version__ = ")[^"]+',
    REPOSITORY / "CITATION.cff": r"(?<=\nversion: )\S+",
    RECIPE: r'(?<=version: ")[^"]+(?="\n\npackage)',
    REPOSITORY / "CHANGELOG.md": r"(?<=\n## \[)[^\]]+",
}


def versions() -> dict[Path, str]:
    """Of each place that names one; CHANGELOG.md's newest heading may be "Unreleased"."""
    found = {path: re.search(pattern, path.read_text(encoding="utf-8")) for path, pattern in PLACES.items()}
    return {path: match[0] if match else "none" for path, match in found.items()}


def set_version(version: str, today: datetime.date) -> None:
    """Write a version, in each place; that of a release with its date, the next one's with a heading for news."""
    for path, pattern in PLACES.items():
        text = path.read_text(encoding="utf-8")
        if path.name == "CHANGELOG.md":
            if ".dev" in version:
                text = re.sub(r"\n## \[(?!Unreleased)", "\n## [Unreleased]\n\n## [", text, count=1)
            else:
                text = text.replace("\n## [Unreleased]\n", f"\n## [{version}] - {today}\n", 1)
        else:
            text = re.sub(pattern, version, text, count=1)
        if path.name == "CITATION.cff":
            text = re.sub(r"\ndate-released: \S+", "", text)
            if ".dev" not in version:
                text = re.sub(r"(\nversion: \S+)", rf"\1\ndate-released: {today}", text)
        path.write_text(text, encoding="utf-8")


def check(url: str) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        for name, look in Release(url.rstrip("/"), Path(folder)).checks():
            try:
                said, how = look(), "ok"
            except Lacking as lacking:
                said, how = str(lacking), "--"
            except (Failed, ValueError) as failed:
                said, how = str(failed), "WRONG"
                wrong += 1
            print(f"{how:<6} {name}: {said}", flush=True)
    return 1 if wrong else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("check").add_argument("--repository-url", default=os.environ.get("REPOSITORY_URL") or EXAMPLE_URL)
    steps.add_parser("version").add_argument("version")
    args = parser.parse_args(argv)
    if args.step == "check":
        return check(args.repository_url)
    set_version(args.version, datetime.date.today())
    return subprocess.run(["git", "diff", "--stat"], cwd=REPOSITORY).returncode


if __name__ == "__main__":
    sys.exit(main())
