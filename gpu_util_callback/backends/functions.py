"""Wrapped train and test functions of models whose batches are fetched in Python (JAX, torch)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu_util_callback.backends.wrapped_function import WrappedFunction
from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import UNSEEN, DeviceProbe, Stamp, busy_until, shape_signature
from gpu_util_callback.steps.timeline import TRACED, Timeline

__all__ = ["FunctionTimer", "TimedFetch"]


class FunctionTimer(WrappedFunction):
    """One model function under our wrapper.

    Args:
        model, name, timeline, stale, raised: as for `WrappedFunction`.
        compile_clock: identifies calls that were spent compiling.
        fetches_inside: whether the function is given an iterator as its last argument and calls
            `next` on it; else it is given the batch, whose stamp is in `pending`.
        probe: reports whether the device still works on the previous step.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        timeline: Timeline,
        compile_clock: CompileClock,
        *,
        stale: Callable[[], None] | None = None,
        raised: Callable[[], None] = lambda: None,
        fetches_inside: bool,
        probe: DeviceProbe | None = None,
    ):
        super().__init__(model, name, timeline, stale=stale, raised=raised)
        self.pending: Stamp | None = None  # of the batch that the next call is given
        self.probe = probe or DeviceProbe()
        self._clock = compile_clock
        self._inside = fetches_inside

    @uncounted
    def _make(self, inner: Callable) -> Callable:
        clock = time.perf_counter_ns
        timeline, compiling = self._timeline, self._clock
        mark = self.probe.mark
        fetch = TimedFetch(compiling, self.probe) if self._inside else None

        # Runs every step.
        def function(*args: Any) -> Any:
            if not self.armed:
                return self._unexpected(inner, args)
            entered = clock()
            self.armed = False
            stamps: Sequence[float] = ()
            if fetch is not None:
                fetch.of(args[-1])
                args = (*args[:-1], fetch)
            else:  # the request of a batch that came another way was not observed
                stamps, self.pending = self.pending or (UNSEEN, entered, 0.0, 0), None
            before = compiling.ns
            start = clock()
            try:
                result = inner(*args)
            except BaseException as error:
                if isinstance(error, StopIteration) and fetch is not None and not fetch.stamps:
                    self._no_batch(start, clock())
                elif fetch is None or not isinstance(error, StopIteration):
                    self._raised()
                raise
            finally:
                if fetch is not None:
                    fetch.of(None)
            end = clock()
            mark(result)
            compiled = compiling.ns - before
            waited = 0
            if fetch is not None:  # what a fetch compiled (a conversion) is part of its wait
                stamps = fetch.stamps
                compiled -= fetch.compile_ns
            traced = False
            if compiled > 0:
                if fetch is not None:
                    waited = int(sum(stamps[1::4]) - sum(stamps[0::4]))
                traced = compiling.explains(compiled, end - start - waited)
            timeline.called(start, end, TRACED if traced else 0, stamps)
            if timeline.sampled:
                fetching = fetch.own_ns if fetch is not None else 0
                timeline.own_step_ns += start - entered + fetching + clock() - end
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

    Attributes:
        stamps: of the call's batches, one after the other.
        own_ns: what recording them took.
    """

    __slots__ = ("_clock", "_iterator", "_probe", "compile_ns", "own_ns", "stamps")

    def __init__(self, compile_clock: CompileClock, probe: DeviceProbe):
        self._clock = compile_clock
        self._probe = probe
        self.of(None)

    def of(self, iterator: Any) -> None:
        """Begin a call with the framework's own iterator; with None, end it."""
        self._iterator = iterator
        if iterator is not None:
            self.stamps: tuple[float, ...] = ()
            self.compile_ns = self.own_ns = 0

    def __iter__(self) -> TimedFetch:
        return self

    def __next__(self) -> Any:
        entered = _clock()
        compiled = self._clock.ns
        probe = self._probe
        idle = probe.idle()
        requested = _clock()
        data = waits.fetch(self._iterator)  # StopIteration: no batch, no row
        delivered = _clock()
        self.compile_ns += self._clock.ns - compiled
        busy = 0 if idle else busy_until(idle, probe, delivered)
        self.stamps += (requested, delivered, shape_signature(data), busy)
        self.own_ns += requested - entered + _clock() - delivered
        return data


_clock = time.perf_counter_ns
