"""Python's frames: our own left out of warnings' levels, others' stacks, the fit that calls us; objects by class.

The frame of a `fit` or loop has its input, its variables, and is on a stack for as long as it runs.
"""

from __future__ import annotations

import functools
import gc
import keyword
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, TypeVar

# `warnings.warn(..., stacklevel=n)` and `logging` skip frames whose file name contains both
# "importlib" and "_bootstrap". No public API does so for other people's warnings.
_MARK = " (left out of stack levels, as importlib._bootstrap is)"

Wrapper = TypeVar("Wrapper", bound=Callable | type)
Answer = TypeVar("Answer")
MOST_KNOWN = 4096  # functions of which an answer is kept


def per_code(ask: Callable[..., Answer]) -> Callable[..., Answer]:
    """Cache what a function answers about a code object, and other arguments, for each file and name apart.

    Python takes code of two files for equal where name, first line and instructions are.

    Example:

    ```python
    @per_code
    def part_of(code: CodeType) -> str: ...
    ```
    """

    @functools.lru_cache(MOST_KNOWN)
    def known(_file: str, _name: str, code: CodeType, *others: object) -> Answer:
        return ask(code, *others)

    @functools.wraps(ask)
    def asked(code: CodeType, *others: object) -> Answer:
        return known(code.co_filename, code.co_qualname, code, *others)

    return asked


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
    """Return code whose file's name, and those of the code in it, carry our mark."""
    if code.co_filename.endswith(_MARK):
        return code
    constants = tuple(_marked(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=code.co_filename + _MARK, co_consts=constants)


# (id of the frame, its code, its line) of each frame of a thread, the innermost first.
Stack = list[tuple[int, CodeType, int]]


def stack_of(thread: int, until: CodeType | None = None, deepest: int = 10_000) -> Stack:
    """Return the stack of another thread as it runs; no frame is kept. Empty: there is no such thread.

    Args:
        thread: its identifier.
        until: the stack ends after the first frame of this code.
        deepest: the most frames.
    """
    return all_stacks(deepest, thread, until).get(thread, [])


def all_stacks(
    deepest: int = 200, only_thread: int = 0, until: CodeType | None = None, instructions: dict[int, int] | None = None
) -> dict[int, Stack]:
    # To look at a frame allocates it. A garbage collection there runs finalizers, which may give up
    # Python's lock, the thread goes on, and CPython is left with a frame that is no longer there.
    """Return the stacks of Python's threads by their identifiers, innermost frame first.

    Args:
        deepest: frames of a stack at the most.
        only: one thread's identifier; 0 = all.
        until: the stack ends after the first frame of this code, as in `stack_of`; None = at the outermost frame.
        instructions: filled with each thread's identifier -> offset of its instruction in the innermost frame's code.
    """
    collects = gc.isenabled()
    gc.disable()
    stacks: dict[int, Stack] = {}
    try:
        innermost = sys._current_frames()
        for thread in [only_thread] if only_thread else innermost:
            frame: FrameType | None = innermost.get(thread)
            frames = stacks.setdefault(thread, [])
            if instructions is not None and frame is not None:
                instructions[thread] = frame.f_lasti
            while frame is not None and len(frames) < deepest:
                frames.append((id(frame), frame.f_code, frame.f_lineno or _line_before(frame.f_code, frame.f_lasti)))
                if frame.f_code is until:
                    break
                frame = frame.f_back
        del innermost, frame
    finally:
        if collects:
            gc.enable()
    return stacks


def _line_before(code: CodeType, instruction: int) -> int:
    """Return the last line number before an instruction that has none itself.

    Such is the end of a loop's body, where threads take turns.

    Args:
        instruction: its offset in the code, bytes.
    """
    return [code.co_firstlineno, *(line for start, _, line in code.co_lines() if line and start <= instruction)][-1]


def stacks_in(codes: Collection[CodeType], deepest: int = 200) -> list[list[tuple[CodeType, int]]]:
    """Return what the other threads run inside these functions: a list of (code, line) a thread, innermost frame first.

    Each list ends with the outermost of these functions; threads outside them are left out.
    """
    stacks = []
    for thread, stack in all_stacks(deepest).items():
        depth = max((at for at, (_, code, _) in enumerate(stack) if code in codes), default=None)
        if depth is not None and thread != threading.get_ident():
            stacks.append([(code, line) for _, code, line in stack[: depth + 1]])
    return stacks


# ---- the running fit or loop ---------------------------------------------------------------------

# Frames of these packages are not the program's; a decorator of theirs may lie between.
_LIBRARIES = frozenset({"keras", "tf_keras", "tensorflow", "torch", "jax", "gpu_util_callback"})


def calling_fit(depth: int = 15) -> FrameType | None:
    """Return the frame of the Keras `fit` that is calling us, at most `depth` frames up; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(depth):
        if frame is None:
            return None
        names = frame.f_code.co_varnames
        # Keras 3's variable, or Keras 2's
        if frame.f_code.co_name == "fit" and ("epoch_iterator" in names or "data_handler" in names):
            return frame
        frame = frame.f_back
    return None


def epoch_iterator(frame: FrameType | None) -> object | None:
    """Return what the `fit` in `frame` iterates over in each epoch."""
    return frame.f_locals.get("epoch_iterator") if frame is not None else None


def given_adapter() -> object | None:
    """Return the data adapter of the `fit` that is calling us: Keras' own view of its input."""
    return getattr(epoch_iterator(calling_fit()), "data_adapter", None)


def is_tf_keras(model: object) -> bool:
    """Return whether a model is one of `tf_keras` (Keras 2), whatever Keras 3's backend."""
    return any(base.__module__.split(".")[0] == "tf_keras" for base in type(model).__mro__)


class FitWatch:
    """Watch on a call of `fit` from another thread: whether it is still on its thread's stack.

    An interrupted fit calls no `on_train_end`. The frame is identified by its id alone: a reference
    would keep alive all that the fit works on.

    Args:
        frame: of the fit, on the calling thread; None = it could not be found.
        located: no watch is needed.

    Attributes:
        located: whether the fit could be found at all, or needs no watch.
        code: of the fit; None where it could not be found.
    """

    def __init__(self, frame: FrameType | None, located: bool = False):
        self._thread = threading.get_ident()
        self._id = id(frame) if frame is not None else None
        self.located = located or frame is not None
        self.code = frame.f_code if frame is not None else None

    def over(self) -> bool:
        """Return whether the fit has been left. False where that cannot be known."""
        # Three looks: a generator that pauses in the middle of one cuts the stack short.
        frames = ((frame, code) for _ in range(3) for frame, code, _ in stack_of(self._thread))
        return self._id is not None and not any(frame == (self._id, self.code) for frame in frames)

    def same_place(self, other: FitWatch) -> bool:
        """Return whether both fits' frames have one address, which means that the earlier fit is over.

        A frame is often allocated where the last one was, as in a cell that is run again after an
        error, and `over` cannot distinguish the two.
        """
        return self._id is not None and self._id == other._id and self._thread == other._thread


# ---- the program's own names, so that advice can be pasted ------------------------------


def names_in_fit(frame: FrameType | None, source: object = None) -> dict[str, str]:
    """Return the program's names of the arguments given to the call of `fit` in `frame`; {} without a frame.

    Args:
        source: the object that makes the input's samples, where it is another one (a Dataset).

    Returns: role -> name, where the roles are `input`, `input_source`, `validation`, `model`, `y`, `sample_weight`;
        arguments without a name are left out (see `names_of`).
    """
    if frame is None:
        return {}
    arguments = frame.f_locals
    objects = {
        "input": arguments.get("x"),
        "input_source": source,
        "validation": arguments.get("validation_data"),
        "model": arguments.get("self"),
        "y": arguments.get("y"),
        "sample_weight": arguments.get("sample_weight"),
    }
    return names_of(frame.f_back, objects)


def names_in_loop(
    frame: FrameType | None, monitor: object, dataset: object, source: object, validating: bool
) -> dict[str, str]:
    """Return the names of what the loop in `frame` passed to `monitor.batches`."""
    kind = "validation" if validating else "input"
    return names_of(frame, {"monitor": monitor, kind: dataset, f"{kind}_source": source})


def names_of(frame: FrameType | None, objects: Mapping[str, object]) -> dict[str, str]:
    """Return role -> name of these objects around `frame`: a variable, or an attribute of `self`.

    Frames of libraries between are skipped. Objects that are None or have no name there are left out; so are
    names that begin with an underscore.

    Args:
        frame: where the names are looked up; None = {} is returned.
        objects: role -> the object.
    """
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    if frame is None:
        return {}
    roles_by_id = {id(value): role for role, value in objects.items() if value is not None}
    names: dict[str, str] = {}
    for name, value in _variables(frame):
        role = roles_by_id.get(id(value))
        if role is not None and role not in names:
            names[role] = name
    return names


def _variables(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield the frame's variables, newest first: of two names for one object the later one wins."""
    local_variables = frame.f_locals
    yield from _public_names(local_variables, "")
    yield from _public_names(getattr(local_variables.get("self"), "__dict__", {}), "self.")
    if frame.f_globals is not local_variables:
        yield from _public_names(frame.f_globals, "")


def _public_names(variables: Mapping[str, object], before: str) -> Iterator[tuple[str, object]]:
    """Yield names that a program may use, newest first, each behind `before`."""
    for name, value in reversed(list(variables.items())):
        public = isinstance(name, str) and name.isidentifier() and not name.startswith("_")
        if public and name != "self" and not keyword.iskeyword(name):
            yield before + name, value


def instances(*kinds: type) -> list[Any]:
    """Return the objects of exactly these classes; 0.1 us per object of the process.

    `gc.get_objects` would hold a tuple that another thread is building too, and that thread's `tuple(generator)`
    then raises SystemError, be it the user's. A class is referred to by little else than its instances.
    """
    return [found for found in gc.get_referrers(*kinds) if type(found) in kinds] if kinds else []
