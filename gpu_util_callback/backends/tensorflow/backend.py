"""The TensorFlow backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from gpu_util_callback.backends.adapters import KerasAdapter
from gpu_util_callback.backends.base import CountedWork, Failed, NotCounted
from gpu_util_callback.backends.functions import Batches, KerasModel, TimedFunction, unwrapped
from gpu_util_callback.backends.tensorflow import distribute as tensorflow_distribute
from gpu_util_callback.backends.tensorflow.distribute import is_distributed, timed_distributed
from gpu_util_callback.backends.tensorflow.flops import count, declared_shape, function_of_a_step, traces_of_step
from gpu_util_callback.backends.tensorflow.iterator import KEY, InputTiming, current, deterministic, probe, timed
from gpu_util_callback.backends.tensorflow.queue import RowQueue
from gpu_util_callback.backends.tensorflow.runtime import RUNTIME
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.manifest_facts import Unavailable
from gpu_util_callback.steps.frames import calling_fit, epoch_iterator, is_tf_keras, uncounted
from gpu_util_callback.steps.rows import InputRows
from gpu_util_callback.steps.timeline import TRACED, Timeline

_KEPT = "_gpu_util_kept"  # on the function: its rows and its shapes, for the next fit


class GraphBatches(Batches):
    """Batches that a compiled function fetches in its graph, or (eager) one by one in Python.

    Args:
        way: "graph" or "eager", where batches are timed; "hooks" = nowhere.
        tell_seen: called with each iterator the function is given, once.
    """

    exhausted = (StopIteration, tf.errors.OutOfRangeError)

    def __init__(self, way: str, tell_seen: Callable[[Iterator], object]):
        self.queue: RowQueue | None = None  # what the wrapped function writes into
        self.shapes: dict[float, int] = {}
        self._way = way
        self._iterator: Callable[[], object] = lambda: None  # the newest dataset iterator
        self._tell_seen = tell_seen
        self._timing = InputTiming(None)
        self._stamps: list[float] = []  # of batches that Python fetched in the last call
        self._traces_of_step: Callable[[], int] = int  # of the function that Keras gives a batch
        self._traces_seen = 0

    def wraps(self, inner: Callable) -> None:
        """Prepare for the calls of this function: its queue of rows, its shapes, its traces so far."""
        # The queue is kept on the model's function: from now on it is read for this fit.
        if self._way != "graph":
            return
        self._traces_of_step = traces_of_step(inner)
        self._traces_seen = self._traces_of_step()
        queue_and_shapes: tuple[RowQueue, dict[float, int]] | None = inner.__dict__.get(_KEPT)
        if queue_and_shapes is None:
            queue_and_shapes = inner.__dict__[_KEPT] = (RowQueue(), {})
        self.queue, shapes = queue_and_shapes
        if self.rows is None or self.queue.reader is not self.rows:
            self.rows = GraphRows(self.queue)
        shapes.update(self.shapes)
        self.shapes = shapes
        self._timing = InputTiming(self.queue)

    def ours(self, args: tuple[object, ...]) -> bool:
        return is_iterator(args[0])  # `train_on_batch` passes a generator

    @uncounted
    def timed(self, function: TimedFunction, inner: Callable) -> Callable:
        """Return `inner`, timed: a call is given a timed iterator, and sets when it ran, its flags and stamps."""
        clock, timeline = time.perf_counter_ns, function.timeline

        def timed(*args: object) -> object:
            """Call the function with a timed iterator, and set when it ran, its flags and stamps on the timeline."""
            entered = clock()
            if not function.armed:
                return function.unexpected(inner, args)
            try:
                timed_iterator = self._timed_iterator(args[0])
            except Exception as error:
                function.failed(error)
                timed_iterator = None
            if timed_iterator is None:  # not a dataset's iterator, or an error of ours: as without us
                return inner(*args)
            function.armed = False
            queue = self.queue
            traces = queue.traces if queue is not None else 0
            start = clock()
            try:
                result = inner(timed_iterator)
            except BaseException as error:
                function.raised(error, start, had_batch=False)
                raise
            finally:
                current.timing = None
            timeline.call = start
            timeline.call_end = end = clock()
            timeline.stamps = self._stamps
            if queue is not None and (queue.traces != traces or (self._stamps and self._step_was_traced())):
                timeline.flags |= TRACED
            if timeline.sampled:
                timeline.own_step_ns += start - entered + clock() - end
            return result

        return timed

    def _step_was_traced(self) -> bool:
        """Return True if the function of a batch, which Python fetched, has new traces."""
        before, self._traces_seen = self._traces_seen, self._traces_of_step()
        return self._traces_seen > before

    def _timed_iterator(self, iterator: tf.data.Iterator) -> object:
        """Return the timed iterator that stands in for `iterator`; None if the call is not to be timed."""
        if self._iterator() is not iterator:
            if not is_iterator(iterator):
                return None
            self._timing.read_from(iterator)
            self._iterator = weakref.ref(iterator)
            self._tell_seen(iterator)
        timed_iterator = getattr(iterator, KEY, None)
        if timed_iterator is None:
            timed_iterator = timed_distributed(iterator) if is_distributed(iterator) else timed(iterator)
        current.timing = self._timing
        self._timing.stamps = self._stamps = []
        return timed_iterator


def is_iterator(value: object) -> bool:
    """Return True for an iterator of tf.data, distributed or not."""
    return isinstance(value, tf.data.Iterator) or is_distributed(value)


class GraphRows:
    """Rows that a function's graph writes in one fit, read on the recorder's thread.

    The queue is kept with the function, and read by one fit after the other. Its stamps are of the wall clock.
    """

    def __init__(self, queue: RowQueue):
        self._queue = queue
        self._clock = Clock()
        queue.read_by(self)

    def take(self) -> InputRows:
        """Return the rows since the last call, on `perf_counter_ns`; -1 delivered where no batch came."""
        rows = self._queue.take(self)
        self._clock.pair()  # the wall clock may have been set since the last one
        stamps = np.round(rows[:, :2] * 1e9).astype(np.int64)
        requested = self._clock.from_wall(stamps[:, 0]) - self._clock.offset_ns
        delivered = np.where(rows[:, 1] >= 0, requested + stamps[:, 1] - stamps[:, 0], -1)
        return InputRows(requested, delivered, rows[:, 2].copy())


class TensorFlowAdapter(KerasAdapter):
    """Times batches inside the compiled train and test functions."""

    def __init__(self) -> None:
        super().__init__("tensorflow", "hooks", RUNTIME)
        self._batches: list[GraphBatches] = []  # of the train and the test function
        self._timeline: Timeline | None = None
        self._failed: Failed = lambda source, error: None
        self._way = "hooks"
        self._deterministic = False  # `enable_op_determinism()`
        self._test_stays = False  # wrapped from the fit's begin to its end

    def begin(self, model: KerasModel, timeline: Timeline, stale: Callable[[], None], failed: Failed) -> None:
        """Time a fit: its train and test function, by what this TensorFlow allows (`_timing_of`)."""
        self._model, self._timeline, self._failed = model, timeline, failed
        timeline.batches_per_hook = int(getattr(model, "steps_per_execution", 1) or 1)
        self.every_shape_compiles = bool(getattr(model, "jit_compile", False))
        self.shapes_compile = self.every_shape_compiles or bool(tf.config.list_physical_devices("GPU"))
        self._way = self._timing_of(model)
        self.timing = self._way + (" (determinism)" if self._deterministic else "")
        timeline.serial = self._way == "eager"
        self._batches = []
        self._train = self._make_timer("train_function", stale, raised=stale)
        self._test = self._make_timer("test_function", None, raised=stale)  # it leaves the fit, too
        self._train.wrap()
        self._time_input(failed)
        self._pipelines.note_dataset("train", getattr(epoch_iterator(calling_fit()), "_distributed_dataset", None))
        self.shapes = self._batches[0].shapes
        self._test_stays = is_tf_keras(model)
        if self._test_stays:
            # Keras 2 takes hold of the test function before it says that a validation begins.
            model.test_function = model.make_test_function()
            self._test.wrap()

    def _timing_of(self, model: object) -> str:
        """Return how a model's input is timed, "graph", "eager" or "hooks"; says why, if by hooks alone."""
        self._deterministic = deterministic()
        if getattr(model, "run_eagerly", False):
            return "eager"
        reason = probe()
        if not reason:
            return "graph"
        self.unavailable.append(
            {
                "source": "input wait in the graph",
                "reason": f"this TensorFlow does not let batches be timed ({reason})",
                "cure": "report it with the version of TensorFlow; step times are measured without it",
            }
        )
        return "hooks"

    def _make_timer(self, name: str, stale: Callable[[], None] | None, raised: Callable[[], None]) -> TimedFunction:
        """Return a timer for the caller to wrap the model's train or test function with."""
        assert self._timeline is not None
        phase = "train" if name == "train_function" else "validation"
        batches = GraphBatches(self._way, lambda iterator: self._pipelines.note_iterator(phase, iterator))
        self._batches.append(batches)
        return TimedFunction(
            self._model,
            name,
            self._timeline,
            batches,
            stale=stale,
            on_exit=raised,
            on_failure=lambda error: self._failed("input wait", error),
        )

    def test_begin(self) -> None:
        if not self._test_stays:
            super().test_begin()

    def test_end(self) -> None:
        if not self._test_stays:
            super().test_end()
        elif self._test is not None:
            self._test.armed = False

    def problems(self) -> list[Unavailable]:
        failures = [batches.queue.failure for batches in self._batches if batches.queue is not None]
        return [
            *self.unavailable,
            *(Unavailable(source="input wait", reason=failure, cure="report it") for failure in failures if failure),
        ]

    def work(self, batch: int | None) -> CountedWork | None:
        if self._way == "eager":
            raise NotCounted("the model runs eagerly")
        function = function_of_a_step(unwrapped(getattr(self._model, "train_function", None)))
        return None if function is None else count(function, batch, declared_shape(self._model))

    def fit_facts(self) -> dict[str, object]:
        strategy = getattr(self._model, "_distribute_strategy", None)
        return {
            "strategy": type(strategy).__name__ if strategy is not None else None,
            "replicas": tensorflow_distribute.replicas(self._model),
        }


ADAPTER = TensorFlowAdapter
