"""The one timed function (a Keras model's, wrapped for a fit) and the one timed iterator."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import ENDED_MEANWHILE, UNSEEN, DeviceProbe, Stamp, shape_signature
from gpu_util_callback.steps.timeline import TRACED, Rows, Timeline

_WRAPPED = "_gpu_util_wrapped"  # on our wrapper: the function inside
_BATCHES = "_gpu_util_batches"  # on the function: how many batches a call takes
_OBSERVED = "_gpu_util_observed"  # on the function: what its first call showed, for the next fit
_clock = time.perf_counter_ns
# Whether the device worked during so short a fetch matters little: a query takes JAX 3 µs while it
# works and 8 between steps, and may give up Python's lock. After some such fetches one in many
# queries, and the others take its answer; a long one is worth a few of them.
_QUICK_NS = 50_000
_QUICK_ONES, _LONG_ONE, _QUERIED_EVERY = 16, 4, 32


class KerasModel(Protocol):
    """The functions of a Keras model that run its steps, built anew by each `fit`."""

    train_function: Callable | None
    test_function: Callable | None

    def make_test_function(self) -> Callable: ...


class Batches:
    """Timing of the batches of a function's calls: in Python, or in the graph.

    One object a function.

    Attributes:
        rows: what the wrapped function writes itself; None = its calls have stamps.
        exhausted: what a call raises that found no batch.
    """

    rows: Rows | None = None
    exhausted: tuple[type[BaseException], ...] = ()

    def wraps(self, inner: Callable) -> None:
        """Prepare for the calls of this function."""

    def ours(self, args: tuple[object, ...]) -> bool:
        """Return whether a call that we did not expect is one of a fit's loop."""
        raise NotImplementedError

    def timed(self, function: TimedFunction, inner: Callable) -> Callable:
        """Return `inner`, timed. It runs every step: little code, in few calls."""
        raise NotImplementedError


@dataclass(eq=False)
class TimedFunction:
    """`train_function` or `test_function`, wrapped so that its calls and batches are timed.

    Added and removed with the fit.

    Args:
        model: the Keras model.
        name: "train_function" or "test_function".
        timeline: notified of every call.
        batches: times the batches of its calls.
        stale: called when the training turns out to be over; None = unexpected calls are normal.
        on_exit: called when the function raised; the error propagates.
        on_failure: called with an error of ours; the function is unwrapped then.
        first: looks at its first call.
    """

    model: KerasModel
    name: str
    timeline: Timeline
    batches: Batches
    _: KW_ONLY
    stale: Callable[[], None] | None = None
    on_exit: Callable[[], None] = lambda: None
    on_failure: Callable[[BaseException], None] = lambda error: None
    first: FirstCall | None = None
    armed: bool = field(default=False, init=False)
    wrapper: Callable | None = field(default=None, init=False)

    def failed(self, error: BaseException) -> None:
        """Handle an error of ours: this function is timed no more."""
        self.on_failure(error)
        self.unwrap()

    def arm(self) -> None:
        """Expect the next call as ours. Wraps again where the function was rebuilt."""
        self.armed = True
        if getattr(self.model, self.name) is not self.wrapper:
            self.wrap()

    def wrap(self) -> None:
        """Replace the model's function by the wrapper, and any earlier wrapper of ours.

        Nothing where it is not built yet.
        """
        inner = unwrapped(getattr(self.model, self.name, None))
        if inner is None:
            return
        self.batches.wraps(inner)
        call = inner if self.first is None else self.first.around(self.model, inner)
        self.wrapper = self.batches.timed(self, call)
        # It may have been rebuilt in the middle of a fit, with another number of batches.
        which = "train" if self.name == "train_function" else "validation"
        # As the model had it when the function was first seen: a later change takes effect in the next that is built.
        batches = int(getattr(self.model, "steps_per_execution", 1) or 1)
        self.timeline.takes(which, getattr(inner, "__dict__", {}).setdefault(_BATCHES, batches), self.batches.rows)
        self.wrapper.__dict__[_WRAPPED] = inner
        self.wrapper.__name__ = getattr(inner, "__name__", self.name)
        setattr(self.model, self.name, self.wrapper)

    def unwrap(self) -> None:
        """Restore the original, if our wrapper is still there."""
        self.armed = False
        if self.wrapper is not None and getattr(self.model, self.name, None) is self.wrapper:
            setattr(self.model, self.name, self.wrapper.__dict__[_WRAPPED])
        self.wrapper = None

    @uncounted
    def unexpected(self, inner: Callable, args: tuple[object, ...]) -> object:
        """Handle a call that does not follow our own hook: the fit we belong to is over.

        From a callback that calls `train_on_batch` it means nothing.
        """
        if self.stale is not None and self.batches.ours(args):
            self.unwrap()
            self.stale()
        return inner(*args)

    def raised(self, error: BaseException, start: int, had_batch: bool) -> None:
        """Handle an error of the function, which propagates; there may just be no batch.

        Args:
            start: of the call, perf ns.
            had_batch: it had one before the error.
        """
        if not isinstance(error, self.batches.exhausted):  # an error of the training
            self.on_exit()
        elif not had_batch:  # the input is exhausted
            ended = self.timeline.no_batch if self.name == "train_function" else self.timeline.test_no_batch
            ended(start, _clock())


def unwrapped(function: Callable | None) -> Callable | None:
    """Return the user's own function inside any wrapper of ours."""
    while function is not None and _WRAPPED in getattr(function, "__dict__", {}):
        function = function.__dict__[_WRAPPED]
    return function


@dataclass(eq=False)
class FirstCall:
    """Facts from the first call of a train function. From the second call on it costs nothing.

    Args:
        look: calls the function with the arguments, returns (its result, what was observed).

    Attributes:
        function: returns the model's own, or None once the model has let it go. It is not kept for longer: JAX would
            take a step compiled before `model.compile` for the one after it, with the old loss and optimizer.
        observed: None before the first call.
    """

    look: Callable[[Callable, tuple[object, ...]], tuple[object, object]]
    function: Callable[[], Callable | None] = field(default=lambda: None, init=False)
    observed: Any = field(default=None, init=False)

    @uncounted
    def around(self, model: KerasModel, inner: Callable) -> Callable:
        """Return the model's own function, looked at in its first call, unless an earlier fit has done so.

        From the second call on the model has its own function again.
        """
        if not hasattr(inner, "__dict__"):
            return inner
        self.function, self.observed = weakref.ref(inner), inner.__dict__.get(_OBSERVED)
        if self.observed is not None:
            return inner
        is_first = True

        def first(*args: object) -> object:
            """Inspect the first call, and give the model its own function back."""
            nonlocal is_first
            if not is_first:  # called again, by whoever kept it
                return inner(*args)
            is_first = False
            model.train_function = inner  # the timed one is put around it before the next call
            result, self.observed = self.look(inner, args)
            inner.__dict__[_OBSERVED] = self.observed
            return result

        return first


# ---- batches that Python fetches -------------------------------------------------------


@uncounted
@dataclass(eq=False)
class TimedBatches:
    """Iterator over batches that stamps when each was requested and delivered.

    Args:
        iterator: the framework's or the user's own.
        came: called with each batch's stamp, and the batch; None = they are kept in `stamps`.
        ended: called with when a batch was requested and when it was known that there is none.
        requesting: called before each request.
        probe: asked whether the device is still at work.
        finished: asked whether the next batch is ready.
        first: called with the first batch, which must not be changed; may return what to call with the next.

    Attributes:
        stamps: one after the other, where nothing is called with them.
        own_ns: what all of this took, without the fetch; where they are kept, of several fetches.
    """

    iterator: Any
    came: Callable[[Stamp, Any], None] | None = None
    _: KW_ONLY
    ended: Callable[[int, int], None] | None = None
    requesting: Callable[[], None] | None = None
    probe: DeviceProbe | None = None
    finished: Finished | None = None
    first: Callable[[object], Callable | None] | None = None
    own_ns: int = field(default=0, init=False)
    stamps: tuple[float, ...] = field(default=(), init=False)
    _idle: bool = field(default=True, init=False)  # whether the device was, when last queried
    _short_streak: int = field(default=0, init=False)  # short fetches, more than long ones
    _fetches_to_skip: int = field(default=0, init=False)  # fetches before the next query

    def __post_init__(self) -> None:
        self._polls = not (self.requesting is None and self.probe is None and self.finished is None)

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Any:
        """Return the next batch, stamped; raises StopIteration at the end of the input."""
        # Little code runs every step: what a step's own puts out of the cache is slow.
        entered = requested = _clock()
        if self._polls:
            self._poll()
            requested = _clock()
        try:
            data = next(self.iterator) if waits.mark is None else waits.fetch(self.iterator)
        except StopIteration:  # no batch, no row
            if self.ended is not None:
                self.ended(requested, _clock())
            raise
        delivered = _clock()
        # until when the device was busy: until the delivery, as of its last query
        busy = 0 if self._idle else delivered
        if delivered - requested > _QUICK_NS or self.finished is not None:
            busy = self._end_long_fetch(requested, delivered)
        if self.first is not None:
            look, self.first = self.first, None
            with contextlib.suppress(Exception):  # a batch can be any object
                self.first = look(data)
        stamp = (requested, delivered, shape_signature(data), busy)
        if self.came is None:  # kept; their cost is summed up over the call
            self.stamps += stamp
            self.own_ns += requested - entered + _clock() - delivered
        else:
            self.came(stamp, data)
            self.own_ns = requested - entered + _clock() - delivered
        return data

    def _poll(self) -> None:
        """Query the device and the next batch before a request.

        The device only now and then where fetches are short.
        """
        if self.requesting is not None:
            self.requesting()
        if self.finished is not None:
            self.finished.begin()
        if self.probe is None:
            return
        if self._fetches_to_skip:
            self._fetches_to_skip -= 1
            return
        self._idle = self.probe.idle()
        if self._short_streak < _QUICK_ONES:
            self._short_streak += 1
        else:
            self._fetches_to_skip = _QUERIED_EVERY - 1

    def _end_long_fetch(self, requested: int, delivered: int) -> int:
        """End a fetch that was long, or whose readiness is looked at; return until when the device worked.

        Args:
            requested, delivered: perf ns.

        Returns: perf ns; 0 = it was idle; `ENDED_MEANWHILE` = it became idle in the fetch.
        """
        if self.finished is not None:
            self.finished.end(delivered - requested)
        if self.probe is None:
            return 0
        if delivered - requested > _QUICK_NS:
            self._short_streak = max(self._short_streak - _LONG_ONE, 0)
            self._fetches_to_skip = 0
            if not self._idle and self.probe.idle():
                return ENDED_MEANWHILE
        return 0 if self._idle else delivered


class Finished(Protocol):
    """Poll whether the next batch is ready."""

    def begin(self) -> None:
        """Poll the next batch as it is about to be requested."""

    def end(self, ns: int) -> None:
        """Note that it came `ns` after it was requested."""


@dataclass(eq=False)
class PythonBatches(Batches):
    """Batches that Python fetches: in a call of the function (JAX), or before it (PyTorch).

    Args:
        compile_clock: identifies calls that were spent compiling.
        inside: whether the function is given an iterator as its last argument and calls `next` on
            it; else it is given the batch.
        probe: reports whether the device still works on the previous step.
        first: as of `TimedBatches`.

    Attributes:
        fetches: times the fetches; None = nothing does.
        pending: stamp of the batch that the next call is given; None = it was not observed.
    """

    compile_clock: CompileClock
    _: KW_ONLY
    inside: bool
    probe: DeviceProbe | None = None
    first: Callable[[object], Callable | None] | None = None
    pending: Stamp | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.exhausted = (StopIteration,) if self.inside else ()
        self.fetches = TimedBatches(None, probe=self.probe, first=self.first) if self.inside else None

    def ours(self, args: tuple[object, ...]) -> bool:
        # The function is called by `train_on_batch` as well, with arguments of the same kinds.
        return sys._getframe(3).f_code.co_name == "fit"

    @uncounted
    def timed(self, function: TimedFunction, inner: Callable) -> Callable:
        """Return `inner`, timed.

        Each call sets when it ran, its flags, and the stamps of its batches on the timeline.
        """
        clock, timeline, compiling = _clock, function.timeline, self.compile_clock
        inside = self.fetches if self.inside else None
        mark = self.probe.mark if self.probe is not None else None

        def timed(*args: object) -> object:
            """Call the function, and set when it ran, its flags and stamps on the timeline."""
            start = clock()
            if not function.armed:
                return function.unexpected(inner, args)
            function.armed = False
            stamps: Sequence[float]
            if inside is None:
                # given a batch, which was fetched before the call
                stamps, self.pending = self.pending or (UNSEEN, start, 0.0, 0), None
            else:
                # given an iterator: ours takes its place
                inside.iterator, inside.stamps, inside.own_ns = args[-1], (), 0
                args = (*args[:-1], inside)
            compiled = compiling.ns
            call_start = clock() if timeline.sampled else start
            try:
                result = inner(*args)
            except BaseException as error:
                function.raised(error, start, inside is None or bool(inside.stamps))
                raise
            finally:
                if inside is not None:
                    inside.iterator, stamps = None, inside.stamps
            timeline.call = start
            timeline.call_end = end = clock()
            timeline.stamps = stamps
            if mark is not None:
                mark(result)
            if compiling.ns != compiled and self._explains(compiling.ns - compiled, end - start):
                timeline.flags |= TRACED
            if timeline.sampled:
                fetches = self.fetches  # another thread may end the recording
                fetching = fetches.own_ns if fetches is not None else 0
                timeline.own_step_ns += call_start - start + fetching + clock() - end
            return result

        return timed

    def _explains(self, compiled: int, ns: int) -> bool:
        """Return whether a call was a compilation, not counting what its fetches took and compiled.

        Args:
            compiled: ns of the call that were compiling.
            ns: duration of the call.
        """
        fetches = self.fetches
        stamps = fetches.stamps if fetches is not None else ()
        for requested, delivered in zip(stamps[0::4], stamps[1::4], strict=True):
            # What a fetch in the call compiled (a conversion) is part of its wait.
            compiled -= self.compile_clock.between(int(requested), int(delivered))
            ns -= int(delivered - requested)
        return compiled > 0 and self.compile_clock.explains(compiled, ns)
