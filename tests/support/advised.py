"""Applying advice to the letter: the printed code is run where the user's own names are."""

import ast
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["Given", "apply", "assert_gone", "assert_kept", "claims", "only", "paced"]

# What the promise may differ from what was got: the machine is shared, fits scatter by 10-20 %.
TOLERANCE = 0.2


class Given:
    """A call as the user wrote it; the printed line calls it with `...` and what it changes.

    `model.fit(..., validation_freq=5)`, run with `model.fit` being `Given(fit, data, epochs=10)`,
    calls `fit(data, epochs=10, validation_freq=5)`; its result is in `result`, too.
    """

    def __init__(self, target: Callable[..., Any], *arguments: Any, **keywords: Any):
        self.target, self.arguments, self.keywords = target, arguments, keywords
        self.result: Any = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        assert Ellipsis in arguments, "the line leaves the user's own arguments out"
        others = [one for one in arguments if one is not Ellipsis]
        positional = (*others, *self.arguments[len(others) :])
        self.result = self.target(*positional, **{**self.keywords, **keywords})
        return self.result


class _Filled(ast.NodeTransformer):
    """Puts the user's own statements where the code has `...` as a statement."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant) and node.value.value is Ellipsis:
            return ast.copy_location(ast.parse("_own_work()").body[0], node)
        return self.generic_visit(node)


def apply(code: str, work: Callable[[], Any] | None = None, **names: Any) -> dict[str, Any]:
    """Run a printed line with the user's names around it; what the names are afterwards.

    Args:
        code: as printed. `...` as a statement is the user's own `work`.
    """
    assert code, "no code was printed"
    tree = ast.parse(code)
    if work is not None:
        tree = ast.fix_missing_locations(_Filled().visit(tree))
        names["_own_work"] = work
    exec(compile(tree, "<advice>", "exec"), names)
    return names


def claims(run: dict, cause: str) -> list[dict]:
    """Spans and findings of a cause."""
    return [one for one in [*run["spans"], *run["findings"]] if one["cause"] == cause]


def only(run: dict, cause: str) -> dict:
    """The one claim of a cause that is there."""
    [claim] = claims(run, cause)
    return claim


def paced(run: dict) -> float:
    """Seconds of the run but for compilation, which both runs pay."""
    return run["wall_s"] - run["time_s"]["compile"]


def assert_gone(after: dict, cause: str) -> None:
    """No claim of the cause is left."""
    left = [(one["title"], one["lost_s"], one["evidence"]) for one in claims(after, cause)]
    assert left == []


def assert_kept(before: dict, after: dict, cause: str) -> None:
    """The finding is gone, and the run is as much faster as its advice promised."""
    assert_gone(after, cause)
    saves = sum(claim["saves_s"] for claim in claims(before, cause))
    promised = paced(before) / (paced(before) - saves)
    got = paced(before) / paced(after)
    assert promised > 1.1, f"promised no more than {promised:.2f}"
    print(f"promised {promised:.2f}, got {got:.2f}")
    assert got == pytest.approx(promised, rel=TOLERANCE), f"promised {promised:.2f}, got {got:.2f}"
