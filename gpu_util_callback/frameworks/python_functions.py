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

__all__ = [
    "CompileClock",
    "DeviceProbe",
    "FunctionTimer",
    "Stamp",
    "TimedFetch",
    "busy_until",
    "input_rows",
    "shape_signature",
]

ENDED_MEANWHILE = -1  # the device was busy when the batch was requested, and idle when it came
_WRAPPED = "_gpu_util_wrapped"  # on our wrapper: the function inside

# requested, delivered, shape signature, until when the device was busy (see `InputRows`)
Stamp = tuple[int, int, float, int]


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

    def explains(self, compiled_ns: int, spent_ns: int) -> bool:
        """Whether a call that took `spent_ns`, `compiled_ns` of it compiling, was a compilation."""
        return 2 * compiled_ns > spent_ns

    def start(self) -> None:
        """Listen. On the training thread."""

    def stop(self) -> None:
        """Listen no more. May be called more than once."""


class DeviceProbe:
    """Whether the device has done the last step, asked without waiting for it.

    The base class is for frameworks and devices where a step is done when its call returns.
    """

    def mark(self, result: Any) -> None:
        """The train function has returned `result`, which the device may still be working on."""

    def idle(self) -> bool:
        """Whether the device has done what was marked last."""
        return True


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
        probe: tells whether the device still works on the step before.
        done: when the device had done a call, by the call's number; filled by others, in time.
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
        probe: DeviceProbe | None = None,
        done: dict[int, int] | None = None,
    ):
        self.model = model
        self.name = name
        self.armed = False
        self.pending: Stamp | None = None  # of the batch that the next call is given
        self.untimed = 0  # calls whose batch came without a stamp
        self._clock = compile_clock
        self.probe = probe or DeviceProbe()
        self._stamps: list[Stamp] = []
        self._calls: list[int] = []  # the number of the call each stamp belongs to
        self._number = 0
        self._done = {} if done is None else done
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
        calls, self._calls = self._calls, []
        if self.untimed:
            return None
        return lambda: self._convert(stamps, calls)

    def _convert(self, stamps: list[Stamp], calls: list[int]) -> InputRows:
        done = self._done
        found: list[Stamp] = []
        for (requested, delivered, signature, busy), call in zip(stamps, calls, strict=True):
            if busy == ENDED_MEANWHILE:  # the device's end is seen a little late, never early
                busy = min(done.get(call - 1, delivered), delivered)
            found.append((requested, delivered, signature, busy))
        if calls:
            for call in [call for call in done if call < calls[-1]]:
                del done[call]
        return input_rows(found)

    def _fetching(self, inner: Callable) -> Callable:
        clock = time.perf_counter_ns
        compiling = self._clock

        def function(*args: Any) -> Any:
            if not self.armed:
                return self._unexpected(inner, args)
            self.armed = False
            stamps = self._stamps
            fetched = len(stamps)
            fetch = TimedFetch(args[-1], stamps.append, compiling, self.probe)
            before = compiling.ns
            start = clock()
            try:
                result = inner(*args[:-1], fetch)
            except StopIteration:
                if len(stamps) == fetched:
                    self._no_batch(start, clock())
                raise
            end = clock()
            self._calls += [self._number] * (len(stamps) - fetched)
            self._number += 1
            self.probe.mark(result)
            # What a fetch compiled (a conversion) is part of its wait.
            compiled = compiling.ns - before - fetch.compile_ns
            waited = sum(stamp[1] - stamp[0] for stamp in stamps[fetched:]) if compiled else 0
            traced = compiling.explains(compiled, end - start - waited)
            self._called(start, end, TRACED if traced else 0)
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
                self._calls.append(self._number)
            self._number += 1
            self.probe.mark(result)
            traced = compiling.explains(compiling.ns - before, end - start)
            self._called(start, end, TRACED if traced else 0)
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
        stamp: given the stamp of each batch that came.
        compile_clock: `compile_ns` sums up what it counts during the fetches.
        probe: asked whether the device is still at work.
    """

    __slots__ = ("_clock", "_iterator", "_probe", "_stamp", "compile_ns")

    def __init__(
        self,
        iterator: Iterator[Any],
        stamp: Callable[[Stamp], None],
        compile_clock: CompileClock,
        probe: DeviceProbe,
    ):
        self._iterator = iterator
        self._stamp = stamp
        self._clock = compile_clock
        self._probe = probe
        self.compile_ns = 0

    def __iter__(self) -> TimedFetch:
        return self

    def __next__(self) -> Any:
        compiled = self._clock.ns
        idle = self._probe.idle()
        requested = time.perf_counter_ns()
        data = next(self._iterator)  # StopIteration: no batch, no row
        delivered = time.perf_counter_ns()
        self.compile_ns += self._clock.ns - compiled
        busy = busy_until(idle, self._probe, delivered)
        self._stamp((requested, delivered, shape_signature(data), busy))
        return data


def busy_until(idle: bool, probe: DeviceProbe, delivered: int) -> int:
    """A stamp's last part.

    Args:
        idle: whether the device was idle when the batch was requested.
        probe: asked again, now that the batch is there.
        delivered: when it came.
    """
    if idle:
        return 0
    return ENDED_MEANWHILE if probe.idle() else delivered


def unwrapped(function: Any) -> Any:
    """The user's own function behind any wrapper of ours."""
    while function is not None and _WRAPPED in getattr(function, "__dict__", {}):
        function = function.__dict__[_WRAPPED]
    return function


def input_rows(stamps: list[Stamp]) -> InputRows:
    """Rows from stamps read in Python."""
    times = np.array([(s[0], s[1], s[3]) for s in stamps], np.int64).reshape(-1, 3)
    signatures = np.array([s[2] for s in stamps], np.float64)
    return InputRows(times[:, 0], times[:, 1], signatures, times[:, 2])


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
