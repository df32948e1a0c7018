"""What a program declares about itself, and the list of all programs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

THEMES = (
    "vision",
    "text_series",
    "tables",
    "python_input",
    "datasets",
    "loaders",
    "loops",
    "around",
    "fits",
    "steps",
    "on_gpu",
)

# A first finding that names a slow input, and not just the start of each epoch.
INPUT = r"\Ainput_bound(?![\s\S]*Setting the input up)"
# Printed lines that `child.py` applies to the call of `fit`, whatever the program.
ANYWHERE = {"sliced": r"from_tensor_slices\(\(x, y\)\)", "repeated": r"\.repeat\(\)"}

PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """One training script with a known truth.

    Attributes:
        train: trains once and returns the model, or arrays that stand for its result.
        truth: what holds this training back, for people.
        bound: what the measurement without our package must confirm: "input" or "model" alone
            takes longer, or "without": the variant of this name is at least 1.2 times as fast.
        first: regular expression of an accepted first finding, searched in its cause, title, code
            and text; None = there must be none.
        nothing: it is also right to find nothing.
        cures: variant -> regular expression of the printed code or text that asks for it; a group
            in it is handed to the program as `run.value`.
        harmful: regular expression of code that must not be printed.
        burners: processes beside the training that each keep a core busy.
        gpu: whether it is for an NVIDIA GPU; the others train on the CPU.
    """

    train: Callable[[Any], Any]
    truth: str
    bound: str
    first: str | None
    nothing: bool = False
    cures: Mapping[str, str] = field(default_factory=dict)
    harmful: str = ""
    burners: int = 0
    backend: str = "tensorflow"
    gpu: bool = False

    @property
    def name(self) -> str:
        return self.train.__name__


def program(truth: str, bound: str, first: str | None, **more: Any) -> Callable:
    """Register the decorated function as a program; the arguments are those of `Program`."""

    def register(train: Callable) -> Callable:
        PROGRAMS[train.__name__] = Program(train, truth, bound, first, **more)
        return train

    return register


def load() -> dict[str, Program]:
    """Return all programs by name."""
    for theme in THEMES:
        importlib.import_module(f"gauntlet.{theme}")
    return PROGRAMS
