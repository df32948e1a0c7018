"""The documentation's site: built strictly, with a page for each cause."""

import os
import re
import subprocess
import sys
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu_util_callback.diagnosis import RULES

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason='pip install -e ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def text(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.cause)
def test_each_cause_has_its_page(rule, site):
    page = text(site / "causes" / rule.cause / "index.html")
    assert all(one in page for one in (rule.title, "The fix", "Traps", "How it is measured"))
    for name, threshold in rule.thresholds.items():
        assert name in page and f"{threshold.default:g}" in page
        assert threshold.reason.split()[0] in page
    assert f"causes/{rule.cause}" in (site / "causes" / "index.html").read_text() or rule.cause in text(
        site / "causes" / "index.html"
    )


def test_the_api_has_the_public_names(site):
    page = text(site / "api" / "index.html")
    for name in (
        "GpuUtilCallback",
        "GpuUtilMonitor",
        "read_recordings",
        "TraceSchedule",
        "trace_handler",
        "input_wait_pct",
    ):
        assert name in page


def test_the_map_of_the_code_is_a_page(site):
    page = text(site / "architecture" / "index.html")
    assert all(one in page for one in ("Floors", "The life of one step", "Recipes"))


def test_pictures_are_there(site):
    for page, picture in (("", "tab-light.png"), ("tab", "tab-gpu.png")):
        shown = re.findall(r'<img[^>]+src="([^"]+)"', (site / page / "index.html").read_text())
        assert [Path(one).name for one in shown] == [picture]
        assert (site / page / shown[0]).stat().st_size > 20_000


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        found = re.findall(r'(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8"))
        fetched = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8")
        )
        assert not fetched, (page, fetched, found)


def test_there_is_a_tab_to_try(site):
    page = (site / "try" / "demo.html").read_text(encoding="utf-8")
    for run in ("1-healthy", "2-slow-map", "3-long-validation"):
        assert f'"run":"{run}"' in page
    assert 'href="try/demo.html"' in (site / "index.html").read_text(encoding="utf-8")
    assert not (site / "try" / "recordings").exists()


# Blocks of the guides that begin with their imports run as they stand; the others are fragments.
RECIPES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in sorted((DOCS / "guides").glob("*.md"))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    if re.match(r"(?!from gpu_util)(import|from) ", code)
]


def test_recipes_are_found():
    assert {one.id for one in RECIPES} >= {
        "flax-nnx-grain-0",
        "loops-without-fit-1",
        "loops-without-fit-2",
        "pytorch-training-loop-0",
    }


@pytest.mark.parametrize("code", RECIPES)
def test_recipes_run(code, tmp_path):
    for module in re.findall(r"^(?:import|from) (\w+)", code, re.M):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed: make test BACKENDS=1")
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "gpu-util: " in done.stderr + done.stdout, "the verdict"
    from gpu_util_callback import read_recordings

    (recording,) = read_recordings(tmp_path / "logs")
    assert recording.status == "ended" and recording.step_count in (8, 16, 32, 64)


def test_the_pytorch_recipe_tells_validation_and_checkpoints_apart(tmp_path):
    pytest.importorskip("torch", reason="make test BACKENDS=1")
    [code] = [one.values[0] for one in RECIPES if one.id == "pytorch-training-loop-0"]
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        timeout=200,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    from gpu_util_callback import read_recordings

    (recording,) = read_recordings(tmp_path / "logs")
    kinds = [str(kind) for kind in recording.phases["kind"]]
    assert kinds.count("validation") == kinds.count("checkpoint") == 2
