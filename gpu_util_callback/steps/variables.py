"""The program's own variable names for what it trains with, so that advice can be pasted."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

__all__ = ["names_in_fit", "names_in_loop", "names_of"]

# Frames of these packages are not the program's; a decorator of theirs may lie between.
_LIBRARIES = frozenset({"keras", "tf_keras", "tensorflow", "torch", "jax", "gpu_util_callback"})


def names_in_fit(frame: FrameType | None, source: Any = None) -> dict[str, str]:
    """Return the names of the arguments given to the call of `fit` in `frame`.

    Args:
        source: the object that makes the input's samples, where it is another one (a Dataset).
    Returns: as of `names_of`, for `input`, `input_source`, `validation`, `model` and more arrays.
    """
    if frame is None:
        return {}
    given = frame.f_locals
    wanted = {
        "input": given.get("x"), "input_source": source, "validation": given.get("validation_data"),
        "model": given.get("self"), "y": given.get("y"),
        "sample_weight": given.get("sample_weight"),
    }  # fmt: skip
    return names_of(frame.f_back, wanted)


def names_in_loop(
    frame: FrameType | None, monitor: Any, dataset: Any, source: Any, validating: bool
) -> dict[str, str]:
    """Return the names of what the loop in `frame` passed to `monitor.batches`."""
    kind = "validation" if validating else "input"
    return names_of(frame, {"monitor": monitor, kind: dataset, f"{kind}_source": source})


def names_of(frame: FrameType | None, wanted: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of these objects around `frame`: a variable, or an attribute of `self`.

    Objects that are None or have no name there are left out; so are names that begin with an
    underscore.
    """
    while frame is not None and _library(frame):
        frame = frame.f_back
    if frame is None:
        return {}
    left = {id(thing): role for role, thing in wanted.items() if thing is not None}
    found: dict[str, str] = {}
    for name, thing in _variables(frame):
        role = left.get(id(thing))
        if role is not None and role not in found:
            found[role] = name
    return found


def _library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the frame's variables, newest first: of two names for one object the later one wins."""
    here = frame.f_locals
    yield from _named(here, "")
    yield from _named(getattr(here.get("self"), "__dict__", {}), "self.")
    if frame.f_globals is not here:
        yield from _named(frame.f_globals, "")


def _named(variables: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, thing in reversed(list(variables.items())):
        public = isinstance(name, str) and name.isidentifier() and not name.startswith("_")
        if public and name != "self" and not keyword.iskeyword(name):
            yield before + name, thing
