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
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=250,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
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
    assert f"causes/{rule.cause}" in (
        site / "causes" / "index.html"
    ).read_text() or rule.cause in text(site / "causes" / "index.html")


def test_the_api_has_the_public_names(site):
    page = text(site / "api" / "index.html")
    for name in ("GpuUtilCallback", "GpuUtilMonitor", "read_recordings", "TraceSchedule",
                 "trace_handler", "input_wait_pct"):  # fmt: skip
        assert name in page


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        found = re.findall(r'(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8"))
        fetched = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"',
                             page.read_text(encoding="utf-8"))  # fmt: skip
        assert not fetched, (page, fetched, found)


RECIPES = re.findall(
    r"## (\w+)\n\n```python\n(.*?)```",
    (DOCS / "guides" / "loops-without-fit.md").read_text(encoding="utf-8"), re.S,
)  # fmt: skip


@pytest.mark.parametrize(("framework", "code"), RECIPES, ids=[name for name, _ in RECIPES])
def test_recipes_run(framework, code, tmp_path):
    module = {"PyTorch": "torch", "JAX": "jax"}[framework]
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make test BACKENDS=1")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=200,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    from gpu_util_callback import read_recordings

    (recording,) = read_recordings(tmp_path / "logs")
    assert recording.status == "ended" and recording.step_count in (8, 16)
