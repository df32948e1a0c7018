"""Pasting a printed line into a program by rule, as somebody would who thinks about nothing else.

Reads the line as `gpu-util try` does; where that gives no rule, the program stays as it is.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from gpu_util_callback.trying.changes import ONCE, VALIDATION, Change, change_of

Edits = list[tuple[int, int, str]]  # from, to (offsets), what is there then


def pasted(source: str, code: str) -> str | None:
    """The program with the line in it; None where no rule says how."""
    change = change_of(code)
    if isinstance(change, str):
        return None
    page = _Page(source)
    rule = _optioned if "options" in change.args else _RULES.get(change.target, lambda page, change: [])
    edits = rule(page, change)
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    if not edits:
        return None
    ast.parse(source)
    return source


def monitored(source: str) -> str | None:
    """The program with the monitor's two lines around its own training loop; None where no loop of a loader trains."""
    page = _Page(source)
    loaders = page.calls("DataLoader")
    made = [node for node in ast.walk(page.tree) if isinstance(node, ast.Assign) and node.value in loaders]
    names = {page.text(node.targets[0]) for node in made}
    loops = [node for node in ast.walk(page.tree) if isinstance(node, ast.For)]
    trains = [
        loop
        for loop in loops
        if (loop.iter in loaders or page.text(loop.iter) in names)
        and any(isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".backward") for call in ast.walk(loop))
    ]
    if len(trains) != 1:
        return None
    around = next(loop for loop in loops if trains[0] in ast.walk(loop))  # the outermost one comes first
    start, end = page.span(trains[0].iter)
    lines = f"{source[:start]}monitor.batches({source[start:end]}){source[end:]}".splitlines()
    first, last, indent = around.lineno - 1, around.end_lineno, page.indent(around)
    lines[first:last] = [line and f"    {line}" for line in lines[first:last]]
    begin = [f"{indent}import gpu_util_callback", f'{indent}with gpu_util_callback.GpuUtilMonitor("logs") as monitor:']
    return "\n".join([*lines[:first], *begin, *lines[first:], ""])


class _Page:
    """A source and its tree, with offsets for the tree's lines and columns."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))

    def span(self, node: Any) -> tuple[int, int]:
        """Offsets in characters of a node's text."""
        raw = self.source.encode()
        first = self._starts[node.lineno - 1] + node.col_offset
        last = self._starts[node.end_lineno - 1] + node.end_col_offset
        return len(raw[:first].decode()), len(raw[:last].decode())

    def text(self, node: Any) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def calls(self, name: str, first: str = "") -> list[ast.Call]:
        """Calls of that last name, with that first argument where one is given."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] == name
            and (not first or (node.args and ast.unparse(node.args[0]).rpartition(".")[2] == first))
        ]

    def statement(self, inner: ast.AST) -> ast.stmt:
        """The innermost statement that has it."""
        holders = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt) and inner in ast.walk(node)]
        return max(holders, key=lambda node: node.lineno)

    def indent(self, statement: ast.stmt) -> str:
        return " " * statement.col_offset


def _with_arguments(page: _Page, calls: list[ast.Call], args: dict[str, Any]) -> Edits:
    edits: Edits = []
    for call in calls:
        there = {keyword.arg: keyword.value for keyword in call.keywords}
        for name, value in args.items():
            text = "tf.data.AUTOTUNE" if value == "AUTOTUNE" else repr(value)
            if name in there:
                edits.append((*page.span(there[name]), text))
            else:
                # Behind the last argument, which a comma may follow.
                last = max((page.span(node)[1] for node in (*call.args, *call.keywords)), default=None)
                end = last or page.span(call)[1] - 1
                edits.append((end, end, f"{', ' if last else ''}{name}={text}"))
    return edits


def _fitted(page: _Page, suffix: str) -> Edits:
    """Add a stage behind what fit is given first."""
    ends = [page.span(call.args[0])[1] for call in page.calls("fit") if call.args]
    return [(end, end, suffix) for end in ends]


def _optioned(page: _Page, change: Change) -> Edits:
    """Make the options before fit, and give them to what it is given first; arguments of stages where they are."""
    edits = _fitted(page, ".with_options(options)")
    lines = [] if re.search(r"\btf\b", page.source) else ["import tensorflow as tf"]  # else it is there
    lines += ["options = tf.data.Options()"]
    lines += [f"options.{name} = {value!r}" for name, value in change.args["options"].items()]
    for call in page.calls("fit") if edits else ():
        statement = page.statement(call)
        start = page.span(statement)[0]
        edits.append((start, start, "".join(f"{line}\n{page.indent(statement)}" for line in lines)))
    args = {name: value for name, value in change.args.items() if name != "options"}
    return edits + _with_arguments(page, page.calls(change.target, change.of), args)


def _repeated(page: _Page, change: Change) -> Edits:
    epochs = _with_arguments(page, page.calls("fit"), {"epochs": change.args["epochs"]})
    return _fitted(page, f".repeat({change.args['count']})") + epochs


def _whole_batches(page: _Page) -> Edits:
    """Make each loader anew behind its assignment, as the printed line does; one without a name gets it."""
    edits: Edits = []
    for call in page.calls("DataLoader"):
        statement, kind = page.statement(call), page.text(call.func)
        assigned = isinstance(statement, ast.Assign) and statement.value is call
        name = page.text(statement.targets[0]) if assigned else "loader"  # type: ignore[attr-defined]
        line = f"{name} = {kind}({name}.dataset, sampler={name}.batch_sampler, batch_size=None)"
        start, end = page.span(statement)
        if assigned:
            edits.append((end, end, f"\n{page.indent(statement)}{line}"))
        else:
            lines = [f"{name} = {page.text(call)}", line, ""]
            edits += [(start, start, f"\n{page.indent(statement)}".join(lines)), (*page.span(call), name)]
    return edits


def _attributes(page: _Page, change: Change) -> Edits:
    """Give data of fit a name, those that it is given first or to validate on, and set their attributes before."""
    edits: Edits = []
    for call in page.calls("fit"):
        given = _data(call, change.of)
        if given is None:
            continue
        statement = page.statement(call)
        name = given.id if isinstance(given, ast.Name) else "dataset"
        lines = [] if isinstance(given, ast.Name) else [f"{name} = {page.text(given)}"]
        lines += [f"{name}.{attribute} = {value!r}" for attribute, value in change.args.items()]
        start = page.span(statement)[0]
        edits.append((start, start, "".join(f"{line}\n{page.indent(statement)}" for line in lines)))
        if not isinstance(given, ast.Name):
            edits.append((*page.span(given), name))
    return edits


def _data(call: ast.Call, of: str) -> Any:
    """The argument of fit that a change is about; None where it has none."""
    first = call.args[0] if call.args else None
    return next((k.value for k in call.keywords if k.arg == of), None) if of == VALIDATION else first


def _every(page: _Page, change: Change) -> Edits:
    """Begin a callback's hook with a look at how often it was called."""
    kind, _, hook = change.of.partition(".")
    for node in ast.walk(page.tree):
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == hook:
                    if change.args["every"] == ONCE:
                        return _once(page, node, function)
                    first = function.body[0]
                    space = page.indent(first)
                    lines = ['self._calls = getattr(self, "_calls", -1) + 1']
                    lines += [f"if self._calls % {change.args['every']}:", "    return"]
                    start = page.span(first)[0]
                    return [(start, start, "".join(f"{line}\n{space}" for line in lines))]
    return []


def _once(page: _Page, kind: ast.ClassDef, hook: ast.FunctionDef) -> Edits:
    """Move what a hook does to the end of the training, where its class does nothing there yet."""
    if any(isinstance(other, ast.FunctionDef) and other.name == "on_train_end" for other in kind.body):
        return []
    start, inner = page.span(hook)[0], page.indent(hook)
    lines = [f"def {hook.name}(self, *last):", "    self.last = last", "def on_train_end(self, logs=None):"]
    lines += ["    self.work(*self.last)", "def work("]
    end = page.source.index("(", start) + 1
    return [(start, end, f"\n{inner}".join(lines))]


def _without(page: _Page, change: Change) -> Edits:
    """Take a callback out of the lists that name it, or a variable that holds it."""
    names = {
        ast.unparse(node.targets[0])
        for node in ast.walk(page.tree)
        if isinstance(node, ast.Assign) and node.value in page.calls(change.of)
    }
    edits: Edits = []
    for node in ast.walk(page.tree):
        if isinstance(node, ast.keyword) and node.arg == "callbacks" and isinstance(node.value, ast.List):
            left = [
                one for one in node.value.elts if ast.unparse(one) not in names and one not in page.calls(change.of)
            ]
            if len(left) < len(node.value.elts):
                edits.append((*page.span(node.value), f"[{', '.join(map(page.text, left))}]"))
    return edits


def _cache(page: _Page, change: Change) -> Edits:
    suffix = ".cache()"
    if change.of == VALIDATION:
        data = [data for call in page.calls("fit") if (data := _data(call, change.of)) is not None]
        return [(end, end, suffix) for node in data for end in [page.span(node)[1]]]
    stage, _, function = change.of.removesuffix(" + batch").rstrip(")").partition("(")
    if not stage:
        return _fitted(page, suffix)
    calls = page.calls("from_generator" if stage == "generator" else stage, function)
    if change.of.endswith(" + batch"):  # the first one behind it
        ends = [min((page.span(batch)[1] for batch in page.calls("batch") if page.span(batch)[1] > page.span(call)[1]),
                    default=None) for call in calls]  # fmt: skip
        return [(end, end, suffix) for end in ends if end is not None]
    return [(end, end, suffix) for call in calls for end in [page.span(call)[1]]]


_RULES = {
    "PyDataset": _attributes,
    "every": _every,
    "without": _without,
    "cache": _cache,
    "prefetch": lambda page, change: _fitted(page, ".prefetch(-1)"),
    "repeat": _repeated,
    "DataLoader": lambda page, change: (
        _whole_batches(page)
        if "whole_batches" in change.args
        else _with_arguments(page, page.calls("DataLoader"), change.args)
    ),
    **{
        name: (lambda page, change: _with_arguments(page, page.calls(change.target), change.args))
        for name in ("compile", "fit")
    },
    **{
        name: (lambda page, change: _with_arguments(page, page.calls(change.target, change.of), change.args))
        for name in ("map", "interleave")
    },
    "class": lambda page, change: _with_arguments(page, page.calls(change.of), change.args),
    "reader": lambda page, change: _with_arguments(page, page.calls(change.of), change.args),
}
