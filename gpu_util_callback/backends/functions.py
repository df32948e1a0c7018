"""The one timed function (a Keras model's, wrapped for a fit) and the one timed iterator."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import (
    ENDED_MEANWHILE,
    UNSEEN,
    DeviceProbe,
    Stamp,
    shape_signature,
)
from gpu_util_callback.steps.timeline import TRACED, Rows, Timeline

__all__ = ["Batches", "PythonBatches", "TimedBatches", "TimedFunction", "unwrapped"]

_WRAPPED = "_gpu_util_wrapped"  # on our wrapper: the function inside
_BATCHES = "_gpu_util_batches"  # on the function: how many batches a call takes
_clock = time.perf_counter_ns
# A fetch as short as this ends before the device does: a query would take as long. JAX' takes
# 3 µs while the device works, and 8 between steps. After some such fetches in a row one in a few
# queries, and the others take its answer.
_QUICK_NS = 10_000
_QUICK_ONES, _QUERIED_EVERY = 16, 8


class Batches:
    """How the batches of a timed function's calls are timed: in Python, or in the graph.

    One object a function. `begin`, and `done` or `end`, run every step.

    Attributes:
        rows: what the wrapped function writes itself; None = `done` returns stamps.
        exhausted: what a call raises that found no batch.
        own_ns: what timing the last call's batches took within the call.
    """

    rows: Rows | None = None
    exhausted: tuple[type[BaseException], ...] = ()
    own_ns = 0

    def wraps(self, inner: Callable) -> None:
        """Prepare for the calls of this function."""

    def ours(self, args: tuple[Any, ...]) -> bool:
        """Return whether a call that we did not expect is one of a fit's loop."""
        raise NotImplementedError

    def begin(self, args: tuple[Any, ...], entered: int) -> tuple[Any, ...] | None:
        """Begin a call; return what the function is given. None = this call is not to be timed."""
        raise NotImplementedError

    def end(self) -> bool:
        """End a call that raised; return whether it had a batch."""
        raise NotImplementedError

    def done(self, result: Any, ns: int) -> tuple[Sequence[float], bool]:
        """End a call that took `ns`; return the stamps of its batches, and whether it compiled."""
        raise NotImplementedError


class TimedFunction:
    """`train_function` or `test_function`, wrapped so that its calls and batches are timed.

    Added and removed with the fit.

    Args:
        model: the Keras model.
        name: "train_function" or "test_function".
        timeline: notified of every call.
        batches: times the batches of its calls.
        stale: called when the training turns out to be over; None = unexpected calls are normal.
        raised: called when the function raised; the error propagates.
        failed: called with an error of ours; the function is unwrapped then.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        timeline: Timeline,
        batches: Batches,
        *,
        stale: Callable[[], None] | None = None,
        raised: Callable[[], None] = lambda: None,
        failed: Callable[[BaseException], None] = lambda error: None,
    ):
        self.model = model
        self.name = name
        self.batches = batches
        self.armed = False
        training = name == "train_function"
        self._timeline = timeline
        self._no_batch = timeline.no_batch if training else timeline.test_no_batch
        self._takes = timeline.takes if training else timeline.test_takes
        self._stale = stale
        self._raised = raised
        self._failed = failed
        self._wrapper: Any = None

    def arm(self) -> None:
        """Expect the next call as ours. Wraps again where the function was rebuilt."""
        self.armed = True
        if getattr(self.model, self.name) is not self._wrapper:
            self.wrap()

    def wrap(self) -> None:
        """Replace the model's function by the wrapper, and any earlier wrapper of ours."""
        inner = unwrapped(getattr(self.model, self.name, None))
        if inner is None:
            return
        self.batches.wraps(inner)
        self._wrapper = self._make(inner)
        # It may have been rebuilt in the middle of a fit, with another number of batches.
        self._takes(self._batches_per_call(inner), self.batches.rows)
        self._wrapper.__dict__[_WRAPPED] = inner
        self._wrapper.__name__ = getattr(inner, "__name__", self.name)
        setattr(self.model, self.name, self._wrapper)

    def _batches_per_call(self, inner: Any) -> int:
        """Return the batches per call, as the model had it when the function was first seen.

        A later change of the model's setting takes effect in the next function that is built.
        """
        batches = int(getattr(self.model, "steps_per_execution", 1) or 1)
        kept = getattr(inner, "__dict__", {})
        return kept.setdefault(_BATCHES, batches)

    def unwrap(self) -> None:
        """Restore the original, if our wrapper is still there."""
        self.armed = False
        if self._wrapper is not None and getattr(self.model, self.name, None) is self._wrapper:
            setattr(self.model, self.name, self._wrapper.__dict__[_WRAPPED])
        self._wrapper = None

    @uncounted
    def _make(self, inner: Callable) -> Callable:
        clock, timeline, batches = _clock, self._timeline, self.batches

        # Runs every step, hence so few calls in it.
        def function(*args: Any) -> Any:
            entered = clock()
            if not self.armed:
                return self._unexpected(inner, args)
            try:
                given = batches.begin(args, entered)
            except Exception as error:
                self._failed(error)
                self.unwrap()
                given = None
            if given is None:
                return inner(*args)
            self.armed = False
            start = clock()
            try:
                result = inner(*given)
            except BaseException as error:
                had_one = batches.end()
                if not isinstance(error, batches.exhausted):
                    self._raised()
                elif not had_one:
                    self._no_batch(start, clock())
                raise
            end = clock()
            stamps, compiled = batches.done(result, end - start)
            timeline.called(start, end, TRACED if compiled else 0, stamps)
            if timeline.sampled:
                timeline.own_step_ns += start - entered + batches.own_ns + clock() - end
            return result

        return function

    @uncounted
    def _unexpected(self, inner: Callable, args: tuple[Any, ...]) -> Any:
        """Handle a call that does not follow our own hook: the fit we belong to is over.

        From a callback that calls `train_on_batch` it means nothing.
        """
        if self._stale is not None and self.batches.ours(args):
            self.unwrap()
            self._stale()
        return inner(*args)


def unwrapped(function: Any) -> Any:
    """Return the user's own function inside any wrapper of ours."""
    while function is not None and _WRAPPED in getattr(function, "__dict__", {}):
        function = function.__dict__[_WRAPPED]
    return function


# ---- batches that Python fetches -------------------------------------------------------


@uncounted
class TimedBatches:
    """Iterator over batches that stamps when each was requested and delivered.

    Args:
        iterator: the framework's or the user's own.
        came: called with each batch's stamp, and the batch.
        ended: called with when a batch was requested and when it was known that there is none.
        requesting: called before each request.
        probe: asked whether the device is still at work.
        finished: asked whether the next batch is ready.

    Attributes:
        own_ns: what all of this took, without the fetches.
    """

    __slots__ = (
        "_came", "_ended", "_finished", "_idle", "_probe", "_quick", "_requesting", "iterator",
        "own_ns",
    )  # fmt: skip

    def __init__(
        self,
        iterator: Any,
        came: Callable[[Stamp, Any], None],
        *,
        ended: Callable[[int, int], None] = lambda requested, now: None,
        requesting: Callable[[], None] = lambda: None,
        probe: DeviceProbe | None = None,
        finished: Finished | None = None,
    ):
        self.iterator = iterator
        self.own_ns = 0
        self._came = came
        self._ended = ended
        self._requesting = requesting
        self._probe = probe or DeviceProbe()
        self._finished = finished
        self._idle = True  # whether the device was, when last queried
        self._quick = 0  # short fetches in a row

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Any:
        entered = _clock()
        self._requesting()
        probe, finished = self._probe, self._finished
        if self._quick < _QUICK_ONES or not self._quick % _QUERIED_EVERY:
            self._idle = probe.idle()
        if finished is not None:
            finished.begin()
        requested = _clock()
        try:
            data = waits.fetch(self.iterator)
        except StopIteration:  # no batch, no row
            self._ended(requested, _clock())
            raise
        delivered = _clock()
        if finished is not None:
            finished.end(delivered - requested)
        quick = delivered - requested <= _QUICK_NS
        self._quick = self._quick + 1 if quick else 0
        if self._idle:
            busy = 0
        elif not quick and probe.idle():
            busy = ENDED_MEANWHILE
        else:
            busy = delivered
        self._came((requested, delivered, shape_signature(data), busy), data)
        self.own_ns += requested - entered + _clock() - delivered
        return data


class Finished(Protocol):
    """Look at whether the next batch is ready."""

    def begin(self) -> None:
        """Look, as the batch is about to be requested."""

    def end(self, ns: int) -> None:
        """Note that it came `ns` after it was requested."""


class PythonBatches(Batches):
    """Batches that Python fetches: in a call of the function (JAX), or before it (PyTorch).

    Args:
        compile_clock: identifies calls that were spent compiling.
        inside: whether the function is given an iterator as its last argument and calls `next` on
            it; else it is given the batch, whose stamp is in `pending`.
        probe: reports whether the device still works on the previous step.
    """

    def __init__(
        self, compile_clock: CompileClock, *, inside: bool, probe: DeviceProbe | None = None
    ):
        self.exhausted = (StopIteration,) if inside else ()
        self.pending: Stamp | None = None  # of the batch that the next call is given
        self.probe = probe or DeviceProbe()
        self._clock = compile_clock
        self._before = self._at_request = self._fetching = 0  # readings of it; part of fetches
        self._stamps: tuple[float, ...] = ()
        self._fetch = (
            TimedBatches(None, self._came, requesting=self._requested, probe=self.probe)
            if inside
            else None
        )

    def ours(self, args: tuple[Any, ...]) -> bool:
        # The function is called by `train_on_batch` as well, with arguments of the same kinds.
        return sys._getframe(3).f_code.co_name == "fit"

    def begin(self, args: tuple[Any, ...], entered: int) -> tuple[Any, ...]:
        fetch = self._fetch
        if fetch is not None:
            self._stamps = ()
            self._fetching = fetch.own_ns = 0
            fetch.iterator = args[-1]
            args = (*args[:-1], fetch)
        else:  # the request of a batch that came another way was not observed
            self._stamps, self.pending = self.pending or (UNSEEN, entered, 0.0, 0), None
        self._before = self._clock.ns
        return args

    def end(self) -> bool:
        if self._fetch is not None:
            self._fetch.iterator = None
        return bool(self._stamps)

    def done(self, result: Any, ns: int) -> tuple[Sequence[float], bool]:
        self.probe.mark(result)
        stamps, compiled = self._stamps, self._clock.ns - self._before
        if self._fetch is None:
            return stamps, compiled > 0 and self._clock.explains(compiled, ns)
        self._fetch.iterator = None
        self.own_ns = self._fetch.own_ns
        compiled -= self._fetching  # what a fetch compiled (a conversion) is part of its wait
        if compiled <= 0:
            return stamps, False
        waited = int(sum(stamps[1::4]) - sum(stamps[0::4]))
        return stamps, self._clock.explains(compiled, ns - waited)

    def _requested(self) -> None:
        self._at_request = self._clock.ns

    def _came(self, stamp: Stamp, data: Any) -> None:
        self._fetching += self._clock.ns - self._at_request
        self._stamps += stamp
