"""Size and shape of the two packages: `python -m harness.size` prints them.

Ends with 1 where a function is too long or branches too often (in harness/, too), a class or file has the
name of another, or modules import each other in a circle. Late imports count, and those for type checkers
or by a module's name in a string. Also where a room has more lines of code than `tool.rooms` of pyproject.toml
grants it: then make it smaller, or lower another room's number by as much in the same commit.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from gpu_util_callback.diagnosis import RULES
from gpu_util_callback.diagnosis.thresholds import constants, shared_constants

PACKAGES = "gpu_util_callback", "tensorboard_plugin"
TOOLS = ("harness",)
MAX_LINES = 60  # of a function, without its docstring
MAX_BRANCHES = 20
_BRANCHING = ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.match_case


def main() -> int:
    """Print the figures; return 1 for a circle, a name used twice, a long function or one of many branches."""
    texts, tools = sources(*PACKAGES), sources(*TOOLS)
    trees = {module_name(path): ast.parse(text) for path, text in texts.items()}
    nodes = [(module, node) for module, tree in trees.items() for node in ast.walk(tree)]
    in_tools = [(module_name(path), node) for path, text in tools.items() for node in ast.walk(ast.parse(text))]
    functions = [(m, n) for m, n in nodes + in_tools if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f"{m}.{n.name}" for m, n in functions if code_lines(n) > MAX_LINES]
    branchy = [f"{m}.{n.name}" for m, n in functions if branches(n) > MAX_BRANCHES]
    circle = find_circle(trees)
    rules = [constants(type(rule).__module__) for rule in RULES]
    print("lines", sum(text.count("\n") for text in texts.values()))
    print("statements", sum(isinstance(node, ast.stmt) for _, node in nodes))
    print("modules", len(trees))
    print("lines with Any", sum(len(re.findall(r"^.*\bAny\b.*$", text, re.M)) for text in texts.values()))
    print("thresholds", len({id(t) for rule in RULES for t in rule.thresholds.values()}))
    print("constants", sum(map(len, [*rules, *shared_constants().values()])))
    classes = twice((n.name, m) for m, n in nodes if isinstance(n, ast.ClassDef))
    files = twice((path.name, topic(path)) for path in texts)
    print("class names twice", *classes)
    print("file names twice", *files)
    print(f"functions over {MAX_LINES} lines", len(long), *long)
    print(f"functions over {MAX_BRANCHES} branches", len(branchy), *branchy)
    print("circle", " -> ".join(circle) or "none")
    sizes, limits = rooms(texts), tomllib.loads(Path("pyproject.toml").read_text())["tool"]["rooms"]
    over = [f"{room} {size} of {limits.get(room, 0)}" for room, size in sizes.items() if size > limits.get(room, 0)]
    if "--rooms" in sys.argv:
        print(*(f'"{room}" = {size}' for room, size in sizes.items()), sep="\n")
    print("lines of code", sum(sizes.values()), "of", sum(limits.values()), "granted")
    print("rooms over their limit", len(over), *over)
    if over:
        print("Delete as much in that room, or lower another one's number in [tool.rooms] of pyproject.toml.")
    return bool(over or circle or long or branchy or len(classes) > 1 or len(files) > 1)


def sources(*folders: str) -> dict[Path, str]:
    """Return the text of each file in some folders."""
    return {path: path.read_text() for folder in folders for path in sorted(Path(folder).rglob("*.py"))}


_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
# Folders that are rooms of their own within another one.
_INNER = {"diagnosis": ("advice", "evidence", "rules"), "backends": ("jax", "tensorflow", "torch")}


def rooms(texts: dict[Path, str]) -> dict[str, int]:
    """Return the lines of code by room: a folder of the package, its own files, the plugin."""
    sizes: dict[str, int] = defaultdict(int)
    for path, text in texts.items():
        package, *folders = path.parts[:-1]
        room = folders[0] if folders and package == PACKAGES[0] else package
        if folders[1:] and folders[1] in _INNER.get(room, ()):
            room += "/" + folders[1]
        sizes[room] += lines_of_code(text)
    return dict(sorted(sizes.items()))


def lines_of_code(text: str) -> int:
    """Return how many lines of a module hold code: no docstring, no comment, none that is blank."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, node.end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    first = function.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) else 0
    return function.end_lineno - function.lineno + 1 - docstring


def branches(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return a function's branches: statements, expressions and comprehensions with a condition, `and`, `or`."""
    count = 0
    for node in ast.walk(function):
        if isinstance(node, _BRANCHING):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count


def module_name(path: Path) -> str:
    """Return a file's module: `a.b` of a/b.py and of a/b/__init__.py."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def find_circle(trees: dict[str, ast.Module]) -> list[str]:
    """Return modules that import each other, each the next; [] where there are none."""
    graph = {module: imported(module, tree, trees) for module, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def imported(module: str, tree: ast.Module, modules: dict[str, ast.Module]) -> set[str]:
    """Return the modules of the packages that a module names in imports and strings."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & modules.keys() or {node.module}
        elif isinstance(node, ast.Constant) and "." in str(node.value):  # not a logger's name
            names.add(str(node.value))
    return names & modules.keys() - {module}


def topic(path: Path) -> Path:
    """Return a file's folder; the frameworks' packages, which have the same parts, are one topic."""
    return path.parents[1] if path.parents[1].name == "backends" else path.parent


def twice(named) -> list[str]:
    """Return the names that several have, after their number."""
    places = defaultdict(set)
    for name, place in named:
        places[name].add(place)
    names = sorted(n for n, used in places.items() if len(used) > 1 and n != "__init__.py")
    return [str(len(names)), *names]


if __name__ == "__main__":
    sys.exit(main())
