"""Python's stack: our own frames left out of warnings' levels, and other threads' frames."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

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


def stack_of(thread: int, until: CodeType | None = None, deepest: int = 10_000) -> list[tuple[int, CodeType]]:
    """Return the stack of another thread as it runs, from the innermost frame on.

    Args:
        thread: its identifier.
        until: the stack ends after the first frame of this code.
        deepest: the most frames.

    Returns: (id of the frame, its code) of each; no frame is kept. Empty: there is no such thread.
    """
    frames: list[tuple[int, CodeType]] = []
    # To look at a frame allocates it. A garbage collection there runs finalizers, which may give up
    # Python's lock, the thread goes on, and CPython is left with a frame that is no longer there.
    collects = gc.isenabled()
    gc.disable()
    try:
        frame: FrameType | None = sys._current_frames().get(thread)
        while frame is not None and len(frames) < deepest:
            frames.append((id(frame), frame.f_code))
            if frame.f_code is until:
                break
            frame = frame.f_back
        del frame
    finally:
        if collects:
            gc.enable()
    return frames
