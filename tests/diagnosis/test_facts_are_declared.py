"""The facts that rules ask for are fields of the manifest: a misspelt one is always unknown."""

import ast
from pathlib import Path
from typing import get_type_hints

import gpu_util_callback.diagnosis
from gpu_util_callback.diagnosis import Evidence, Run
from gpu_util_callback.recording.manifest_facts import Facts, Fit, Framework, Machine, Model

HERE = Path(gpu_util_callback.diagnosis.__file__).parent
DECLARED = {"fit": Fit, "model": Model, "machine": Machine, "framework_facts": Framework, "manifest": Facts}


def asked(path: Path) -> set[tuple[str, str]]:
    """`run.fit.get("name")` and the like: (part of the manifest, name)."""
    return {
        (node.func.value.attr, node.args[0].value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr in DECLARED
        and isinstance(node.args[0], ast.Constant)
    }


def test_every_fact_asked_for_is_declared():
    every = {path: asked(path) for path in HERE.rglob("*.py")}
    unknown = {
        (path, part, name)
        for path, facts in every.items()
        for part, name in facts
        if name not in get_type_hints(DECLARED[part])
    }
    assert not unknown
    found = set().union(*every.values())
    assert {("fit", "batch_size"), ("machine", "cpus"), ("manifest", "rank")} <= found, "the test finds what is asked"
    assert len(found) > 40


def test_null_facts():
    run = Run({"fit": {"batch_size": None, "epochs": 3}, "model": None}, Evidence())
    assert run.fit.get("batch_size", 32) == 32 and run.fit.get("epochs") == 3
    assert run.model == {} and run.machine == {}
