"""Wrapped train and test functions of models whose batches are fetched in Python (JAX, torch)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from gpu_util_callback.backends.wrapped_function import WrappedFunction
from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import (
    ENDED_MEANWHILE,
    UNSEEN,
    DeviceProbe,
    InputRows,
    Stamp,
    busy_until,
    input_rows,
    shape_signature,
)
from gpu_util_callback.steps.timeline import TRACED

__all__ = ["FunctionTimer", "TimedFetch"]


class FunctionTimer(WrappedFunction):
    """One model function under our wrapper.

    Args:
        model, name, called, no_batch, stale, raised, takes: as for `WrappedFunction`.
        compile_clock: identifies calls that were spent compiling.
        fetches_inside: whether the function is given an iterator as its last argument and calls
            `next` on it; else it is given the batch, whose stamp is in `pending`.
        probe: reports whether the device still works on the previous step.
        done: when the device had finished a call, by the call's number; filled elsewhere, in time.
        calls: the number of the first call.
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
        raised: Callable[[], None] = lambda: None,
        takes: Callable[[int], None] = lambda batches: None,
        fetches_inside: bool,
        probe: DeviceProbe | None = None,
        done: dict[int, int] | None = None,
        calls: int = 0,
    ):
        super().__init__(
            model, name,
            called=called, no_batch=no_batch, stale=stale, raised=raised, takes=takes,
        )  # fmt: skip
        self.pending: Stamp | None = None  # of the batch that the next call is given
        self.probe = probe or DeviceProbe()
        self._clock = compile_clock
        self._stamps: list[Stamp] = []
        self._calls: list[int] = []  # the number of the call each stamp belongs to
        self._number = calls
        self._done = {} if done is None else done
        self._inside = fetches_inside

    def _make(self, inner: Callable) -> Callable:
        return self._fetching(inner) if self._inside else self._given(inner)

    def drain(self) -> Callable[[], InputRows] | None:
        """Return the rows since the last drain, as a call that converts them on any thread."""
        stamps, self._stamps = self._stamps, []
        calls, self._calls = self._calls, []
        return lambda: self._convert(stamps, calls)

    def _convert(self, stamps: list[Stamp], calls: list[int]) -> InputRows:
        done = self._done
        found: list[Stamp] = []
        # A call that raised after fetching has stamps and no number: the fit was left there.
        for (requested, delivered, signature, busy), call in zip(stamps, calls, strict=False):
            if busy == ENDED_MEANWHILE:  # the device's end is seen a little late, never early
                busy = min(done.get(call - 1, delivered), delivered)
            found.append((requested, delivered, signature, busy))
        if calls:
            for call in [call for call in done if call < calls[-1]]:
                del done[call]
        return input_rows(found)

    @uncounted
    def _fetching(self, inner: Callable) -> Callable:
        clock = time.perf_counter_ns
        compiling = self._clock
        mark = self.probe.mark
        fetch = TimedFetch(compiling, self.probe)

        def function(*args: Any) -> Any:
            if not self.armed:
                return self._unexpected(inner, args)
            self.armed = False
            stamps = self._stamps
            fetched = len(stamps)
            fetch.of(args[-1], stamps.append)
            before = compiling.ns
            start = clock()
            try:
                result = inner(*args[:-1], fetch)
            except StopIteration:
                if len(stamps) == fetched:
                    self._no_batch(start, clock())
                raise
            except BaseException:
                self._raised()
                raise
            finally:
                fetch.of(None, None)
            end = clock()
            for _ in range(fetched, len(stamps)):
                self._calls.append(self._number)
            self._number += 1
            mark(result)
            # What a fetch compiled (a conversion) is part of its wait.
            compiled = compiling.ns - before - fetch.compile_ns
            traced = False
            if compiled > 0:
                waited = sum(stamp[1] - stamp[0] for stamp in stamps[fetched:])
                traced = compiling.explains(compiled, end - start - waited)
            self._called(start, end, TRACED if traced else 0)
            return result

        return function

    @uncounted
    def _given(self, inner: Callable) -> Callable:
        clock = time.perf_counter_ns
        compiling = self._clock
        mark = self.probe.mark

        def function(*args: Any) -> Any:
            if not self.armed:
                return self._unexpected(inner, args)
            self.armed = False
            stamp, self.pending = self.pending, None
            before = compiling.ns
            start = clock()
            try:
                result = inner(*args)
            except BaseException:
                self._raised()
                raise
            end = clock()
            # The request of a batch that came another way was not observed.
            self._stamps.append(stamp or (UNSEEN, start, 0.0, 0))
            self._calls.append(self._number)
            self._number += 1
            mark(result)
            compiled = compiling.ns - before
            traced = compiled > 0 and compiling.explains(compiled, end - start)
            self._called(start, end, TRACED if traced else 0)
            return result

        return function

    @uncounted
    def _unexpected(self, inner: Callable, args: tuple[Any, ...]) -> Any:
        """Handle a call that does not follow our own hook.

        From a `fit` (or `evaluate`) loop it means that the fit we belong to is over; from a
        callback that calls `train_on_batch` it means nothing.
        """
        if self._stale is not None and sys._getframe(2).f_code.co_name == "fit":
            self.unwrap()
            self._stale()
        return inner(*args)


@uncounted
class TimedFetch:
    """Iterator that records when each batch was requested and delivered.

    Args:
        compile_clock: `compile_ns` sums up what it counts during the fetches of one call.
        probe: asked whether the device is still at work.
    """

    __slots__ = ("_clock", "_iterator", "_probe", "_stamp", "compile_ns")

    def __init__(self, compile_clock: CompileClock, probe: DeviceProbe):
        self._clock = compile_clock
        self._probe = probe
        self.of(None, None)

    def of(self, iterator: Any, stamp: Any) -> None:
        """Begin a call (or, with None, end it).

        Args:
            iterator: the framework's own.
            stamp: called with the stamp of each delivered batch.
        """
        self._iterator = iterator
        self._stamp = stamp
        if iterator is not None:
            self.compile_ns = 0

    def __iter__(self) -> TimedFetch:
        return self

    def __next__(self) -> Any:
        compiled = self._clock.ns
        probe = self._probe
        idle = probe.idle()
        requested = _clock()
        data = waits.fetch(self._iterator)  # StopIteration: no batch, no row
        delivered = _clock()
        self.compile_ns += self._clock.ns - compiled
        busy = 0 if idle else busy_until(idle, probe, delivered)
        self._stamp((requested, delivered, shape_signature(data), busy))
        return data


_clock = time.perf_counter_ns
