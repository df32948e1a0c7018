"""The frame of the running `fit` or loop: its input, its variables, whether it is on the stack."""

from __future__ import annotations

import keyword
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType

from gpu_util_callback.steps.frames import stack_of, uncounted
from gpu_util_callback.steps.timeline import Timeline

# Frames of these packages are not the program's; a decorator of theirs may lie between.
_LIBRARIES = frozenset({"keras", "tf_keras", "tensorflow", "torch", "jax", "gpu_util_callback"})


def calling_fit(depth: int = 15) -> FrameType | None:
    """Return the frame of the `fit` that is calling us, if there is one close by."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(depth):
        if frame is None:
            return None
        names = frame.f_code.co_varnames
        if frame.f_code.co_name == "fit" and ("epoch_iterator" in names or "data_handler" in names):
            return frame
        frame = frame.f_back
    return None


def given_adapter() -> object | None:
    """Return the data adapter of the `fit` that is calling us: Keras' own view of its input."""
    frame = calling_fit()
    iterator = frame.f_locals.get("epoch_iterator") if frame is not None else None
    return getattr(iterator, "data_adapter", None)


def given_dataset() -> object | None:
    """Return what the `fit` that is calling us iterates over, on the TensorFlow backend."""
    frame = calling_fit()
    iterator = frame.f_locals.get("epoch_iterator") if frame is not None else None
    return getattr(iterator, "_distributed_dataset", None)


def is_tf_keras(model: object) -> bool:
    """Return whether a model is one of `tf_keras` (Keras 2), whatever Keras 3's backend."""
    return any(base.__module__.split(".")[0] == "tf_keras" for base in type(model).__mro__)


class FitWatch:
    """Watch on a call of `fit` from another thread: whether it is still on its thread's stack.

    An interrupted fit calls no `on_train_end`. The frame is identified by its id alone: a reference
    would keep alive all that the fit works on.
    """

    def __init__(self, frame: FrameType | None):
        self._thread = threading.get_ident()
        self._id = id(frame) if frame is not None else None
        self._code = frame.f_code if frame is not None else None

    @property
    def located(self) -> bool:
        """Return whether the fit could be found at all."""
        return self._id is not None

    def over(self) -> bool:
        """Return whether the fit has been left. False where that cannot be known."""
        if self._id is None:
            return False
        # Three looks: a generator that pauses in the middle of one cuts the stack short.
        return not any(self._runs() for _ in range(3))

    def _runs(self) -> bool:
        return (self._id, self._code) in stack_of(self._thread)

    def same_place(self, other: FitWatch) -> bool:
        """Return whether both fits' frames have one address: the earlier fit is over, then.

        A frame is often allocated where the last one was, as in a cell that is run again after an
        error, and `over` cannot distinguish the two.
        """
        return self.located and self._id == other._id and self._thread == other._thread


# ---- input work between epochs ---------------------------------------------------------


class InputTimer:
    """Timing of Keras' input work between epochs, on the `EpochIterator`'s instances."""

    def __init__(self, timeline: Timeline, failed: Callable[[BaseException], None]):
        self._timeline = timeline
        self._failed = failed
        self._undo: list[tuple[object, str]] = []

    @uncounted
    def attach(self, frame: FrameType | None) -> None:
        """Start timing the input of the fit in `frame`."""
        iterator = frame.f_locals.get("epoch_iterator") if frame is not None else None
        adapter = getattr(iterator, "data_adapter", None)
        if adapter is None:
            return
        self._time(adapter, "on_epoch_end", "input: end of epoch")
        get = getattr(iterator, "_get_iterator", None)
        if get is not None and "_get_iterator" not in iterator.__dict__:
            timeline = self._timeline
            iterator.__dict__["_get_iterator"] = lambda: _TimedIterable(get(), timeline)
            self._undo.append((iterator, "_get_iterator"))

    @uncounted
    def _time(self, owner: object, name: str, title: str) -> None:
        method = getattr(owner, name, None)
        if method is None or name in owner.__dict__:
            return
        timeline = self._timeline

        def timed(*args: object, **kwargs: object) -> object:
            start = time.perf_counter_ns()
            try:
                return method(*args, **kwargs)
            finally:
                end = time.perf_counter_ns()
                if end - start > 20_000:
                    timeline.input_work(title, start, end)

        owner.__dict__[name] = timed
        self._undo.append((owner, name))

    def detach(self) -> None:
        """Restore the original methods. May be called more than once."""
        while self._undo:
            owner, name = self._undo.pop()
            try:
                owner.__dict__.pop(name, None)
            except Exception as error:
                self._failed(error)


@uncounted
class _TimedIterable:
    """A dataset whose `iter()` is timed; the iterator is the dataset's own."""

    def __init__(self, iterable: Iterable, timeline: Timeline):
        self._iterable = iterable
        self._timeline = timeline

    def __iter__(self) -> Iterator:
        start = time.perf_counter_ns()
        iterator = iter(self._iterable)
        self._timeline.input_work("new iterator", start, time.perf_counter_ns())
        return iterator


# ---- the program's own names, so that advice can be pasted ------------------------------


def names_in_fit(frame: FrameType | None, source: object = None) -> dict[str, str]:
    """Return the names of the arguments given to the call of `fit` in `frame`.

    Args:
        source: the object that makes the input's samples, where it is another one (a Dataset).
    Returns: as of `names_of`, for `input`, `input_source`, `validation`, `model` and more arrays.
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
    """Return the names of these objects around `frame`: a variable, or an attribute of `self`.

    Objects that are None or have no name there are left out; so are names that begin with an
    underscore.
    """
    while frame is not None and _library(frame):
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


def _library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES


def _variables(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield the frame's variables, newest first: of two names for one object the later one wins."""
    local_variables = frame.f_locals
    yield from _public_names(local_variables, "")
    yield from _public_names(getattr(local_variables.get("self"), "__dict__", {}), "self.")
    if frame.f_globals is not local_variables:
        yield from _public_names(frame.f_globals, "")


def _public_names(variables: Mapping[str, object], before: str) -> Iterator[tuple[str, object]]:
    for name, value in reversed(list(variables.items())):
        public = isinstance(name, str) and name.isidentifier() and not name.startswith("_")
        if public and name != "self" and not keyword.iskeyword(name):
            yield before + name, value
