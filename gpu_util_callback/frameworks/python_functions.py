"""Wraps a model's train and test functions where batches are fetched in Python (JAX, torch)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpu_util_callback.frameworks.base import InputRows
from gpu_util_callback.frameworks.timeline import TRACED

__all__ = ["CompileClock", "FunctionTimer", "TimedFetch", "shape_signature"]

_WRAPPED = "_gpu_util_wrapped"  # on our wrapper: the function inside

Stamp = tuple[int, int, float]  # requested, delivered, shape signature


class CompileClock:
    """Time that the training thread has spent compiling, as the framework itself reports it.

    `start` and `stop` register with the framework; the reports of other threads are not counted.
    """

    def __init__(self) -> None:
        self.ns = 0
        self._thread = threading.get_ident()

    def add(self, ns: int) -> None:
        """The framework has compiled for so long, on the calling thread."""
        if threading.get_ident() == self._thread:
            self.ns += ns

    def start(self) -> None:
        """Listen. On the training thread."""

    def stop(self) -> None:
        """Listen no more. May be called more than once."""


class FunctionTimer:
    """One model function under our wrapper: `train_function` or `test_function`.

    Args:
        model: the Keras model.
        name: "train_function" or "test_function".
        compile_clock: tells which calls were spent compiling.
        called: told (start_ns, end_ns, flags) of each call that delivered.
        no_batch: told (start_ns, end_ns) of a call that found the input ended.
        stale: told when the training turns out to be over; None = an unexpected call is normal.
        fetches_inside: whether the function is given an iterator as its last argument and calls
            `next` on it; else it is given the batch, whose stamp is in `pending`.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        compile_clock: CompileClock,
        *,
        called: Callable[[int, int, int], None],
        no_batch: Callable[[int, int], None],
        stale: Callable[[], None] | None,
        fetches_inside: bool,
    ):
        self.model = model
        self.name = name
        self.armed = False
        self.pending: Stamp | None = None  # of the batch that the next call is given
        self.untimed = 0  # calls whose batch came without a stamp
        self._clock = compile_clock
        self._stamps: list[Stamp] = []
        self._called = called
        self._no_batch = no_batch
        self._stale = stale
        self._inside = fetches_inside
        self._wrapper: Any = None

    def arm(self) -> None:
        """The next call is ours. Wraps anew where somebody remade the function."""
        self.armed = True
        if getattr(self.model, self.name) is not self._wrapper:
            self.wrap()

    def wrap(self) -> None:
        """Put the wrapper in place of the model's function, whatever wrapper of ours was there."""
        inner = unwrapped(getattr(self.model, self.name, None))
        if inner is None:
            return
        self._wrapper = self._fetching(inner) if self._inside else self._given(inner)
        self._wrapper.__dict__[_WRAPPED] = inner
        setattr(self.model, self.name, self._wrapper)

    def unwrap(self) -> None:
        """Put the original back, if our wrapper is still there."""
        self.armed = False
        if self._wrapper is not None and getattr(self.model, self.name, None) is self._wrapper:
            setattr(self.model, self.name, self._wrapper.__dict__[_WRAPPED])
        self._wrapper = None

    def drain(self) -> Callable[[], InputRows] | None:
        """The rows since the last drain; the returned call converts them, on any thread."""
        stamps, self._stamps = self._stamps, []
        if self.untimed:
            return None
        return lambda: _rows(stamps)

    def _fetching(self, inner: Callable) -> Callable:
        clock = time.perf_counter_ns
        compiling = self._clock

        def function(*args: Any) -> Any:
            if not self.armed:
                return self._unexpected(inner, args)
            self.armed = False
            stamps = self._stamps
            fetched = len(stamps)
            fetch = TimedFetch(args[-1], stamps.append, compiling)
            before = compiling.ns
            start = clock()
            try:
                result = inner(*args[:-1], fetch)
            except StopIteration:
                if len(stamps) == fetched:
                    self._no_batch(start, clock())
                raise
            end = clock()
            # What a fetch compiled (a conversion) is part of its wait.
            compiled = compiling.ns - before - fetch.compile_ns
            waited = sum(d - r for r, d, _ in stamps[fetched:]) if compiled else 0
            self._called(start, end, TRACED if compiled * 2 > end - start - waited else 0)
            return result

        return function

    def _given(self, inner: Callable) -> Callable:
        clock = time.perf_counter_ns
        compiling = self._clock

        def function(*args: Any) -> Any:
            if not self.armed:
                return self._unexpected(inner, args)
            self.armed = False
            stamp, self.pending = self.pending, None
            before = compiling.ns
            start = clock()
            result = inner(*args)
            end = clock()
            if stamp is None:
                self.untimed += 1
            else:
                self._stamps.append(stamp)
            compiled = compiling.ns - before
            self._called(start, end, TRACED if compiled * 2 > end - start else 0)
            return result

        return function

    def _unexpected(self, inner: Callable, args: tuple[Any, ...]) -> Any:
        """A call that does not follow our own hook.

        From a `fit` (or `evaluate`) loop it means that the fit we belong to is over; a callback
        that calls `train_on_batch` means nothing by it.
        """
        if self._stale is not None and sys._getframe(2).f_code.co_name == "fit":
            self.unwrap()
            self._stale()
        return inner(*args)


class TimedFetch:
    """An iterator that writes down when each batch was requested and when it came.

    Args:
        iterator: the framework's own.
        stamp: given (requested_ns, delivered_ns, shape signature) of each batch that came.
        compile_clock: `compile_ns` sums up what it counts during the fetches.
    """

    __slots__ = ("_clock", "_iterator", "_stamp", "compile_ns")

    def __init__(
        self, iterator: Iterator[Any], stamp: Callable[[Stamp], None], compile_clock: CompileClock
    ):
        self._iterator = iterator
        self._stamp = stamp
        self._clock = compile_clock
        self.compile_ns = 0

    def __iter__(self) -> TimedFetch:
        return self

    def __next__(self) -> Any:
        compiled = self._clock.ns
        requested = time.perf_counter_ns()
        data = next(self._iterator)  # StopIteration: no batch, no row
        delivered = time.perf_counter_ns()
        self.compile_ns += self._clock.ns - compiled
        self._stamp((requested, delivered, shape_signature(data)))
        return data


def unwrapped(function: Any) -> Any:
    """The user's own function behind any wrapper of ours."""
    while function is not None and _WRAPPED in getattr(function, "__dict__", {}):
        function = function.__dict__[_WRAPPED]
    return function


def _rows(stamps: list[Stamp]) -> InputRows:
    times = np.array([stamp[:2] for stamp in stamps], np.int64).reshape(-1, 2)
    signatures = np.array([stamp[2] for stamp in stamps], np.float64)
    return InputRows(times[:, 0], times[:, 1], signatures)


def shape_signature(data: Any) -> float:
    """A number that differs for batches whose shapes differ; 0 where there are no shapes.

    Args:
        data: arrays or tensors in any nest of tuples, lists and dictionaries.
    """
    shapes: list[Any] = []
    _collect(data, shapes)
    if not shapes:
        return 0.0
    return float(1 + (hash(tuple(shapes)) & 0xFFFFFFFFFFFF))  # exact as a float64


def _collect(data: Any, shapes: list[Any]) -> None:
    if isinstance(data, tuple | list):
        for part in data:
            _collect(part, shapes)
    elif isinstance(data, dict):
        for part in data.values():
            _collect(part, shapes)
    else:
        shape = getattr(data, "shape", None)
        if shape is not None:
            shapes.append(tuple(shape))
