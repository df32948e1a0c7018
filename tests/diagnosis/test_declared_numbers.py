"""Every number that decides is declared with its reason, and `report --rules` shows it."""

import ast
from pathlib import Path

import gpu_util_callback.diagnosis
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import RULES
from gpu_util_callback.diagnosis.thresholds import MOSTLY, Constant, constants, shared_constants

HERE = Path(gpu_util_callback.diagnosis.__file__).parent
# Numbers that decide nothing: how much is kept, shown or advised, units, tables of statistics, and
# versions of files.
DECIDE_NOTHING = {
    "LOOK_BACK",
    "MAX_BYTES",
    "MOST_IN_MEMORY",
    "MOST_RUNS",
    "MOST_WAITING",
    "ROW_VERSION",
    "_HOUR",
    "_NORMAL",
    "_J",
    "MAX_KERNELS",
    "MAX_NAMES",
    "MAX_SHAPES",
    "MAX_SPANS",
    "MAX_TIMED_SHAPES",
    "MAX_WINDOWS",
    "NEXT_WINDOW",
    "SMALLEST_WINDOW",
    "PARTS",
    "FEWEST_PARTS",
    "WINDOW_NS",
    "FEWEST",
    "AROUND_NS",
    "MOST_COMPILATIONS",
    "RULES_VERSION",
    "EVERY",
    "EVERY_BATCH",
    "FEW_SHAPES",
    "LEFT",
    "LESS_OFTEN",
    "MOST_READY",
    "MULTIPLE",
    "OFF_THE_BUS",
    "PER_CALL",
    "PHASES_SHOWN",
    "SELDOM",
    "UNEVEN",
    "MANY",
    "MIB",
    "_NS_OF_A_WEEK",
}


def bare_numbers(path: Path) -> set[str]:
    """Names of a module that are bound to plain or computed numbers, alone or several at a time."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (
                    zip(target.elts, node.value.elts, strict=False)
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    else [(target, node.value)]
                )
                for name, value in pairs:
                    number = isinstance(value, ast.Constant) and isinstance(value.value, (int, float))
                    computed = (isinstance(value, ast.BinOp) and not isinstance(value.op, ast.BitOr)) or (
                        isinstance(value, ast.Call) and ast.unparse(value.func) in ("int", "float", "round")
                    )
                    if computed or (number and not isinstance(value.value, bool)):
                        found.add(name.id)
    return found


def test_no_module_decides_by_a_bare_number():
    undeclared = {(path.name, name) for path in HERE.rglob("*.py") for name in bare_numbers(path) - DECIDE_NOTHING}
    assert not undeclared, (
        f"declare {sorted(undeclared)} as Threshold, Constant or Count with its reason, or list it "
        "in DECIDE_NOTHING if no verdict depends on it"
    )


def test_what_is_said_of_a_cause_is_said_by_its_rule():
    """Elsewhere rules are told apart by their attributes: a new one is one file."""
    package, causes = HERE.parent, {rule.cause for rule in RULES}
    named = {
        path.relative_to(package).as_posix(): node.value
        for folder in ("diagnosis", "report", "cli")
        for path in (package / folder).rglob("*.py")
        if "rules" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in causes
    }
    assert not named


def test_the_list_of_rules_shows_all_that_decide(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    assert main(["report", "--rules"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    own = {rule.cause: constants(type(rule).__module__) for rule in RULES}
    defined = [*own.values(), *shared_constants().values()]
    assert sum(len(one) for one in defined) > 60
    for one in defined:
        for name, constant in one.items():
            assert f"{name.lower()}=" in said
            assert " ".join(constant.reason.split()) in said, name
    for rule in RULES:
        for name, threshold in rule.thresholds.items():
            assert f"{name}={threshold.default:g} " in said


def test_a_constant_is_its_number_and_is_listed_where_it_is_defined():
    assert MOSTLY == 0.5 and 2 * MOSTLY == 1 and isinstance(MOSTLY, Constant)
    assert "MOSTLY" in shared_constants()["thresholds"]
    assert "MOSTLY" not in shared_constants().get("engine", {}), "which only uses it"
