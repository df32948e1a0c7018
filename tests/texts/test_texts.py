"""All text that people read: complete, and without the words that are nobody's English."""

import ast
import re
from pathlib import Path

import pytest

from harness.texts import texts

ROOT = Path(__file__).parents[2]
ODD = re.compile(
    r"\b(tells?|told|anew|beside|seldom|whoever|no longer ago|in a rhythm|by a public road"
    r"|the same sight|works not|goes on without|on it goes|fully? well)\b"
    r"|\b(synchronis|analys(?!is|es\b|er)|recognis|utilis|organis)\w*"
    r"|is no (number|integer|percentage|object|step)\b|from 0 on\b|All well",
    re.IGNORECASE,
)
# A name in somebody's file or library.
NAMES = ("beside_server",)


@pytest.fixture(scope="module")
def all_texts():
    """Every text that people read, as (place, text)."""
    return list(texts())


def test_the_list_has_text_of_every_place(all_texts):
    places = " ".join(place for place, _ in all_texts)
    for place in (
        "cli/report.py",
        "doctor/_checks.py",
        "diagnosis/advice/tf_data.py",
        "diagnosis/rules/input_bound.py",
        "recorder/settings.py",
        "traces/read.py",
        "tensorboard_plugin/plugin.py",
        "frontend/src/views/help.tsx",
        "report/terminal.py",
        "gpus/_gate.py",
        "words.py",
    ):
        assert place in places, f"no text of {place} is listed"
    assert len(all_texts) > 1500


@pytest.mark.parametrize("package", ["gpu_util_callback", "tensorboard_plugin"])
def test_no_odd_words(package, all_texts):
    found = [
        f"{place}: {text}"
        for place, text in all_texts
        if place.startswith(package) and ODD.search(re.sub("|".join(NAMES), "", text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", ["gpu_util_callback", "tensorboard_plugin"])
def test_docstrings_are_imperatives_or_noun_phrases(package):
    """PEP 257; `pydocstyle` cannot tell a question ("Whether …") from a noun phrase."""
    odd = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                if re.match(r"(What|Whether|How|Where|Let|Look|Ask|Say)\b", summary):
                    odd.append(f"{path.name}: {summary}")
    assert not odd, "\n".join(odd)
