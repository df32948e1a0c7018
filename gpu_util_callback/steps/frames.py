"""Frames of ours between the caller and the user's code, left out of warnings' stack levels."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TypeVar

__all__ = ["uncounted"]

# `warnings.warn(..., stacklevel=n)` and `logging` skip frames whose file name contains both
# "importlib" and "_bootstrap". No public API does so for other people's warnings.
_MARK = " (left out of stack levels, as importlib._bootstrap is)"

Wrapper = TypeVar("Wrapper", bound=Callable | type)


def uncounted(wrapper: Wrapper) -> Wrapper:
    """Exclude a function, those defined in it, or a class's methods from warnings' stack levels.

    A callback, train step or data iterator that warns with a `stacklevel` then names the same line
    as without us. Tracebacks still show our lines.

    Example:

    ```python
    @uncounted
    def timed(hook): ...
    ```
    """
    functions = vars(wrapper).values() if isinstance(wrapper, type) else [wrapper]
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            function.__code__ = _marked(code)
    return wrapper


def _marked(code: CodeType) -> CodeType:
    if code.co_filename.endswith(_MARK):
        return code
    constants = tuple(_marked(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=code.co_filename + _MARK, co_consts=constants)
