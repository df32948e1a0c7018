"""What promises to save time names what measured that: a program of the gauntlet or a test."""

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from gauntlet.blind.__main__ import SETS
from gpu_util_callback.diagnosis.advice.input_work import KINDS
from gpu_util_callback.diagnosis.rule import LEAST_GAIN

ROOT = Path(__file__).resolve().parents[2]
DIAGNOSIS = ROOT / "gpu_util_callback" / "diagnosis"
GAUNTLET = ROOT / "gauntlet"
UNPROVEN = 47  # lines to paste that nothing measured: lower it where one is proven, or goes
TESTS_OF_CURES = "assert_kept", "assert_gone", "findings(after"


def remedies() -> Iterator[tuple[str, str, dict[str, ast.expr]]]:
    """Yield kind, place and arguments of each call that makes a remedy; those of a `replace` are only its changes."""
    for path in sorted(DIAGNOSIS.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            kind = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if kind not in ("Advice", "Entry") or path.name == "table.py":
                continue
            names = ("text", "code", "saves") if kind == "Advice" else ("name",)
            given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords}
            yield kind, f"{path.relative_to(DIAGNOSIS)}:{call.lineno}", given


def promises(given: dict[str, ast.expr]) -> bool:
    """Return whether a remedy promises to save something, whatever somebody answers."""
    saves, question = given.get("saves"), "question" in given or "asks" in given
    return saves is not None and ast.unparse(saves) not in ("0", "0.0") and not question


def said(given: dict[str, ast.expr]) -> str:
    return ast.unparse(given.get("name", given.get("text", ast.Constant(""))))[:90]


def test_no_remedy_promises_what_nothing_has_measured():
    """One that nobody can show asks a question, or says what limits the run without a number."""
    unproven = [(place, said(given)) for _, place, given in remedies() if promises(given) and "proof" not in given]
    assert unproven == []


def test_no_work_of_a_line_promises_what_nothing_has_measured():
    """They share one entry of the table, which takes the proof of the kind at hand."""
    assert [kind.does for kind in KINDS if kind.share and not (kind.asks or kind.proof)] == []


def proofs() -> list[str]:
    named = {
        word.value.value
        for path in DIAGNOSIS.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg == "proof" and isinstance(word.value, ast.Constant)
    }
    return sorted(named - {""})


@cache
def measured() -> dict[str, float]:
    """Return how many times faster each program of the gauntlet got with its cure, or without its cause."""
    gains = {}
    for file in ("measured.json", "measured_h200.json"):
        for row in json.loads((GAUNTLET / file).read_text()):
            times = row["seconds"]
            cured = [median(times[side]) for side in times if side not in ("base", "recorded")]
            gains[row["program"]] = row["followed"] or (median(times["base"]) / min(cured) if cured else 0.0)
    for row in json.loads((GAUNTLET / "trials.json").read_text()):
        gains[f"new_trials/{row['program']}"] = row["ratio"] if row.get("resolved") else 0.0
    for each in SETS:
        for name, row in json.loads((GAUNTLET / "blind" / f"{each}.json").read_text()).items():
            right = any(row.get(when, "").startswith("right") for when in ("judged", "again"))
            gains[f"blind/{each}/{name}"] = median(row["pairs"][0]) if right and "pairs" in row else 0.0
    return gains | {name: row["gain"] for name, row in json.loads((GAUNTLET / "cures.json").read_text()).items()}


@pytest.mark.parametrize("proof", proofs())
def test_each_proof_is_a_measured_gain(proof):
    path, _, name = proof.partition("::")
    if name:
        functions = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)]
        [test] = [node for node in functions if node.name == name]
        assert any(words in ast.unparse(test) for words in TESTS_OF_CURES)
    else:
        assert measured()[proof] >= LEAST_GAIN


def test_the_rows_of_small_programs_are_programs_that_exist():
    source = ast.parse((GAUNTLET / "cures.py").read_text())
    programs = {node.name for node in source.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    assert set(json.loads((GAUNTLET / "cures.json").read_text())) <= programs


def test_few_lines_to_paste_have_no_proof():
    """Neither a question nor a line without a promise needs one. Their number may only fall."""
    lines = [given for _, _, given in remedies() if "code" in given and ast.unparse(given["code"]) != "''"]
    assert len([given for given in lines if "proof" not in given]) <= UNPROVEN
