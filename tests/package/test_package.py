"""What is uploaded to a package index, and what people get from there."""

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from programs import ran

from gpu_util_callback import __version__

REPOSITORY = Path(__file__).parents[2]
RELATIVE = re.compile(r"\]\((?!https?://|#)[^)]*\)")


def metadata(dist: Path) -> email.message.Message:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith("/METADATA")]
        return email.message_from_bytes(file.read(name))


def test_the_wheel_has_what_runs_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"gpu_util_callback-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 1.5e6
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
        points = file.read(f"gpu_util_callback-{__version__}.dist-info/entry_points.txt").decode()
    there = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("gpu_util_callback", "tensorboard_plugin")
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == there
    assert "gpu-util = gpu_util_callback.cli:main" in points
    assert "gpu_utilization = tensorboard_plugin.loader:Loader" in points


def test_the_source_distribution_is_the_repository(dist):
    listed = ran("git", "ls-files", "--cached", "--others", "--exclude-standard", ends=None, cwd=REPOSITORY)
    if listed.returncode:
        pytest.skip("this is no clone")
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {member.name.partition("/")[2] for member in file if member.isfile()}
    made = {name for name in names if name.startswith("gpu_util_callback.egg-info/")}
    ours = set(listed.stdout.splitlines()) - {".gitattributes", ".gitignore"}
    assert names - made - {"PKG-INFO", "setup.cfg"} == ours


def test_an_index_gets_a_page_that_works_away_from_the_repository(dist, monkeypatch):
    from build.util import project_wheel_metadata

    monkeypatch.setenv("REPOSITORY_URL", "https://example.org/us/it/")
    plain, linked = metadata(dist), project_wheel_metadata(dist / "checkout", isolated=False)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme)
    assert pictures and RELATIVE.search(readme), "else this shows nothing"
    for page in (plain, linked):
        assert page["Description-Content-Type"] == "text/markdown"
        assert not RELATIVE.search(page.get_payload())
        assert "```python" in page.get_payload()
    assert "![" not in plain.get_payload() and plain.get_all("Project-URL") is None
    captions = re.findall(r"^!\[.*\n+\*(.+)", readme, re.M)
    assert captions and not any(caption in plain.get_payload() for caption in captions)
    assert all(caption in linked.get_payload() for caption in captions)
    for picture in pictures:
        assert f"(https://example.org/us/it/raw/main/{picture})" in linked.get_payload()
        assert (REPOSITORY / picture).is_file()
    assert "Source, https://example.org/us/it" in linked.get_all("Project-URL")


def test_metadata(dist):
    found = metadata(dist)
    assert (found["Name"], found["Version"]) == ("gpu-util-callback", __version__)
    assert found["Author"] == "The gpu-util-callback developers"
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert found["Requires-Python"] == ">=3.11"
    kinds = found.get_all("Classifier")
    assert all(f"Programming Language :: Python :: 3.{minor}" in kinds for minor in (11, 12, 13))
    requirements = found.get_all("Requires-Dist")
    always = {re.split(r"[>=\[; ]", one)[0] for one in requirements if "extra ==" not in one}
    assert always == {"numpy", "protobuf", "nvidia-ml-py", "psutil", "fsspec", "tensorboard", "werkzeug"}
    assert {"tensorflow", "keras", "parquet", "test", "backends", "reach"} <= {*found.get_all("Provides-Extra")}


def test_the_bundles_packages_travel_with_their_licences(dist):
    notice = (REPOSITORY / "NOTICE").read_bytes()
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        assert file.read(f"gpu_util_callback-{__version__}.dist-info/licenses/NOTICE") == notice
        script = file.read("tensorboard_plugin/static/index.js").decode()
    with tarfile.open(sdist) as file:
        assert file.extractfile(f"gpu_util_callback-{__version__}/NOTICE").read() == notice
    banner = re.match(r"/\*!\n(.*?)\*/", script, re.S)[1]
    assert notice.decode().endswith(banner), "run `make frontend`"
    bundled = dict(re.findall(r"^(\S+) (\d+\.\d+\.\d+)$", banner, re.M))
    package = json.loads((REPOSITORY / "frontend" / "package.json").read_text(encoding="utf-8"))
    assert bundled == package["dependencies"]
    assert banner.count("Permission is hereby granted") == len(bundled)


@pytest.mark.parametrize("tool", ["twine check --strict", "check_wheel_contents"])
def test_the_tools_of_packagers_find_nothing(tool, dist):
    module, *arguments = tool.split()
    pytest.importorskip(module, reason='pip install -e ".[reach]"')
    files = [str(path) for path in dist.iterdir() if path.suffix == ".whl"]
    files += [str(path) for path in dist.glob("*.tar.gz")] if module == "twine" else []
    ran(sys.executable, "-m", module, *arguments, *files, cwd=REPOSITORY, timeout=120)


def test_versions_agree():
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.M)[1] == __version__
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(.+?)\](.*)$", changelog, re.M)
    if ".dev" in __version__:
        assert newest[1] == "Unreleased" and "date-released" not in citation
    else:
        day = re.search(r"^date-released: (.+)$", citation, re.M)[1]
        assert newest.groups() == (__version__, f" - {day}")


def test_documents_install_from_where_the_package_is():
    """docs/installing.md has the command; until there is a release, no index has the package."""
    texts = [
        path.read_text(encoding="utf-8")
        for folder in ("docs", "demo", "gpu_util_callback")
        for path in (REPOSITORY / folder).rglob("*.*")
        if path.suffix in (".md", ".py", ".yml", ".ipynb")
    ]
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    installing = (REPOSITORY / "docs" / "installing.md").read_text(encoding="utf-8")
    command = re.search(r"^pip install \S+$", installing, re.M)[0]
    assert f"`{command}`" in readme
    if ".dev" in __version__:
        from_an_index = re.compile(r"pip install[^`\n#]*\bgpu-util-callback\b")
        assert not [found[0] for text in [readme, *texts] if (found := from_an_index.search(text))]


def test_development_tools_are_locked_within_their_bounds():
    """Tests drive xprof; it is no tool of ours, and `make test` takes the newest."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lock = (REPOSITORY / "tools.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", lock, re.M))
    for text in [*extras["test"], *extras["docs"]]:
        wanted = Requirement(text)
        if wanted.name != "xprof":
            assert wanted.specifier.contains(pinned.get(wanted.name, "0")), f"{text}: make lock"
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert {"build", "twine", "check-wheel-contents"} <= set(pinned) and "$(LOCKED)" in makefile


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=REPOSITORY, timeout=120)


def test_the_command_line_is_a_module_too():
    done = python("-m", "gpu_util_callback", "--version")
    assert done.stdout == f"gpu-util {__version__}\n" and not done.stderr


def test_without_keras_the_callback_says_so_in_one_line():
    program = "import sys; sys.modules['keras'] = None; import gpu_util_callback as g; g.{}"
    last = python("-c", program.format("GpuUtilCallback")).stderr.splitlines()
    assert last[-1] == (
        "ModuleNotFoundError: GpuUtilCallback needs Keras: pip install keras. Without Keras, use GpuUtilMonitor."
    )
    assert "During handling" not in "".join(last)
    assert python("-c", program.format("GpuUtilMonitor")).returncode == 0


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "ARCHITECTURE.md"])
def test_links_between_documents_lead_somewhere(document):
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (REPOSITORY / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_runs_in_an_empty_environment(kind, dist, tmp_path):
    """Neither a compiler nor Node is at hand, nor Keras or a framework."""
    from make_recording import make_recording

    (package,) = dist.glob(kind)
    venv.create(tmp_path / "env", with_pip=True)
    bin_ = tmp_path / "env" / "bin"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"PATH": str(bin_), "CC": "/bin/false", "HOME": str(tmp_path)}

    def run(*command: str) -> str:
        done = ran(bin_ / command[0], *command[1:], env=environment, cwd=tmp_path)
        return done.stdout

    run("python", "-m", "pip", "install", "-q", str(package))
    assert __version__ in run("gpu-util", "--version")
    make_recording(tmp_path / "logs", "thirds", steps=300, gpus=1)
    assert "The input pipeline starves the GPU" in run("gpu-util", "report", "logs")
    run("gpu-util", "report", "logs", "--html", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 100_000
    run("gpu-util", "export", "logs", "--perfetto", "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    listed = run(
        "python",
        "-c",
        "import importlib.metadata as m; print([p.value for p in m.entry_points(group='tensorboard_plugins')])",
    )
    assert "tensorboard_plugin.loader:Loader" in listed
    absent = run(
        "python",
        "-c",
        "from importlib.util import find_spec as f; print("
        "[n for n in ('keras', 'tensorflow', 'torch', 'jax') if f(n)])",
    )
    assert absent.strip() == "[]"
