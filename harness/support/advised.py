"""Applying advice to the letter: the printed code is run where the user's own names are."""

import ast
from collections.abc import Callable
from typing import Any

import pytest

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


def findings(run: dict, cause: str) -> list[dict]:
    """Spans and findings of a cause.

    But for a change of epochs that took long by chance: TensorFlow's threads, which take the input
    of the epoch before down, sometimes sleep for seconds, with or without a callback.
    """
    return [
        one
        for one in [*run["spans"], *run["findings"]]
        if one["cause"] == cause and "change of epochs" not in one["title"]
    ]


def only(run: dict, cause: str) -> dict:
    """The one finding of a cause that is there."""
    [finding] = findings(run, cause)
    return finding


def paced(run: dict, cause: str = "input_bound") -> float:
    """Seconds of the run but for what an advice for this cause leaves alone: compiling, and the
    input, too, whose setting up in each epoch takes what the machine has to spare."""
    others = ("compile",) if cause == "input_bound" else ("compile", "input_wait")
    return run["wall_s"] - sum(run["time_s"][name] for name in others)


def assert_gone(after: dict, cause: str) -> None:
    """No finding of the cause is left."""
    left = [(one["title"], one["lost_s"], one["evidence"]) for one in findings(after, cause)]
    assert left == []


def assert_kept(before: dict, after: dict, cause: str) -> None:
    """The finding is gone, and the run is as much faster as its advice promised."""
    assert_gone(after, cause)
    assert_saved(paced(before, cause), paced(after, cause), findings(before, cause))


def assert_saved(before_s: float, after_s: float, told: list) -> None:
    """What took `before_s` takes as much less as the advice of findings promised."""
    if any(finding["advice"]["question"] for finding in told):  # the answer is yes: its range counts
        least_s, most_s = (sum(finding["saves_range_s"][end] for finding in told) for end in (0, 1))
        assert 0.75 * least_s <= before_s - after_s <= 1.25 * most_s
        return
    assert_faster(before_s, after_s, sum(finding["saves_s"] for finding in told))


def assert_faster(before_s: float, after_s: float, saves_s: float) -> None:
    """What took `before_s` takes as much less as was promised."""
    promised, got = before_s / (before_s - saves_s), before_s / after_s
    print(f"promised {promised:.2f}, got {got:.2f}")
    assert promised > 1.1, f"promised no more than {promised:.2f}"
    assert got == pytest.approx(promised, rel=TOLERANCE), f"promised {promised:.2f}, got {got:.2f}"
