"""The documentation's site: built strictly, with a page for each cause."""

import json
import os
import re
import sys
from functools import cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest
from fork_server import python
from packages import need
from programs import ran

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import RULES

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason='pip install -e ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder]
    ran(*build, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    return folder


def text(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_each_link_and_picture_is_there_on_a_code_host_too():
    """The site adds pages that are made of others; a link to one must lead somewhere without it."""
    gone = []
    for page in [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not re.match(r"https?:|mailto:", target) and not (page.parent / target).exists():
                gone.append(f"{page.relative_to(REPOSITORY)}: {target}")
    assert not gone


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
    for page, picture in (("", "tab-gpu.png"), ("tab", "tab-gpu.png")):
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
    for run in ("1-healthy", "2-slow-map", "3-long-validation", "h200-jax/slow-input"):
        assert f'"run":"{run}"' in page
    [data] = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    assert all(listed["verdict"] for listed in json.loads(data)["runs"]["recordings"])
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


@cache
def recorded(code, folder):
    """The recording of a recipe, which is run once."""
    modules = set(re.findall(r"^(?:import|from) (\w+)", code, re.M))
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; make matrix runs the guides with it")
    (folder / "train.py").write_text(code, encoding="utf-8")
    done = ran(
        *python(*modules & {"tensorflow", "jax", "torch"}),
        "train.py",
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
    )
    assert "gpu-util: " in done.stderr + done.stdout, "the verdict"
    (recording,) = read_recordings(folder / "logs")
    return recording


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each recipe."""
    return {code.values[0]: tmp_path_factory.mktemp("recipe") for code in RECIPES}


@pytest.mark.parametrize("code", RECIPES)
def test_recipes_run(code, folders):
    recording = recorded(code, folders[code])
    assert recording.status == "ended" and recording.step_count in (8, 16, 32, 64)


def test_the_pytorch_recipe_tells_validation_and_checkpoints_apart(folders):
    need("torch")
    [code] = [one.values[0] for one in RECIPES if one.id == "pytorch-training-loop-0"]
    kinds = [str(kind) for kind in recorded(code, folders[code]).phases["kind"]]
    assert kinds.count("validation") == kinds.count("checkpoint") == 2
