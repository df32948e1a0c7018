"""Iterators that stamp when a batch was requested and when it came."""

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from gpu_util_callback.backends.tensorflow.queue import RowQueue
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import shape_signature

current = threading.local()  # its `timing`: the active one of this thread, or None
KEY = "_gpu_util_timed"
# The type behind iter(dataset), by a public road.
_OwnedIterator: Any = tf.data.IteratorSpec(tf.TensorSpec([])).value_type


@dataclass(slots=True)
class InputTiming:
    """Destination of the input times of functions traced, or run, on this thread; active as `current.timing`.

    Attributes:
        rows: None where functions run eagerly.
        stamps: of batches fetched in Python, one after the other; None = they are not wanted.
        hold: whether a batch is handed on once its row is written.
        shapes_vary: whether batches may differ in shape.
    """

    rows: RowQueue | None
    stamps: list[float] | None = None
    hold: bool = False
    shapes_vary: bool = False

    def read_from(self, iterator) -> None:
        """Set whether batches of this iterator are held until their row is written, and may differ in shape."""
        self.hold = holds_batches(iterator)
        self.shapes_vary = bool(_varying(iterator.element_spec))


@uncounted
class TimedIterator(_OwnedIterator):
    """A dataset's iterator whose fetches are stamped, inside compiled functions as well.

    It shares the original's resource and owns a type spec of its own, so that a function traced
    with it never replaces the user's own trace. It holds no reference to the original: the
    original's life, and with it the pipeline's, stays as it was.
    """

    def __init__(self, inner):
        self.__dict__.update(inner.__dict__)
        self.__dict__.pop(KEY, None)
        kind = DeterministicIteratorSpec if deterministic() else TimedIteratorSpec
        self._gpu_util_spec = kind(inner.element_spec)

    @property
    def _type_spec(self):
        return self._gpu_util_spec

    def get_next(self):
        return stamped(super().get_next, self, optional=False)

    def get_next_as_optional(self):
        return stamped(super().get_next_as_optional, self, optional=True)

    def __next__(self):
        # Keras before 3.10 calls `next(iterator)`. The parent's own `__next__` reaches neither of
        # the two above.
        return stamped(super().__next__, self, optional=False)


class TimedIteratorSpec(tf.data.IteratorSpec):
    """Type spec that gives a function with a `TimedIterator` a trace of its own."""

    @property
    def value_type(self):
        return TimedIterator

    def _from_components(self, components):
        return TimedIterator(super()._from_components(components))


class DeterministicIteratorSpec(TimedIteratorSpec):
    """The type spec of a timed iterator, for a trace with the clock that op determinism permits."""


def timed(iterator) -> TimedIterator:
    """The timed twin of a dataset's iterator; made once and kept on the iterator itself."""
    twin = iterator.__dict__.get(KEY)
    if twin is None:
        twin = TimedIterator(iterator)
        iterator.__dict__[KEY] = twin
    return twin


def holds_batches(iterator) -> bool:
    """True if each batch waits until its row is written.

    Otherwise the stamp, which may run in parallel with the step, comes late where no thread is
    free. Next to a GPU, which takes the work off TensorFlow's threads, that is where there is a
    single one. Never for batches in the GPU's memory: they would wait for a stamp on the CPU.
    """
    if not tf.config.list_physical_devices("GPU"):
        return True
    device = getattr(getattr(iterator, "_iterator_resource", None), "device", "")
    return "CPU" in device and _op_threads() == 1  # "" = nobody knows: a strategy's, as a rule


def _op_threads() -> int:
    """Return the number of threads on which TensorFlow runs ops: as set, or the CPUs of this process."""
    setting = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    if threads or setting.isdecimal():
        return threads or int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@uncounted
def stamped(fetch: Callable[[], object], iterator: tf.data.Iterator, *, optional: bool):
    """Fetch a batch and record the times, in the graph being traced or at once.

    An error in the recording does not affect the fetch.

    Args:
        fetch: returns the batch, or (`optional`) an `Optional` of it.
    """
    timing: InputTiming | None = getattr(current, "timing", None)
    if timing is None:
        return fetch()
    if tf.executing_eagerly():
        return _stamped_eagerly(fetch, timing, optional)
    rows = timing.rows
    if rows is None:
        return fetch()
    requested = _now()
    with tf.control_dependencies([requested]):
        data = fetch()
    try:
        written = _write_down(rows, requested, data, iterator.element_spec, optional)
        if timing.hold:
            data = _after_row(data, written)
    except Exception as error:
        rows.failure = rows.failure or f"{type(error).__name__}: {error}".splitlines()[0]
    rows.traces += 1
    return data


def _write_down(rows: RowQueue, requested, data, element_spec, optional: bool) -> tf.Operation:
    """Add the second stamp and the row to the graph; return the op that writes it.

    Args:
        requested: the first stamp, seconds.
        optional: `data` is an `Optional`, which may hold no batch: then the second stamp is -1.
    """
    arrived = [data._variant_tensor] if optional else tf.nest.flatten(data, expand_composites=True)
    with tf.device("CPU:0"):
        with tf.control_dependencies(arrived):
            delivered = _now()
        if optional:
            has_value = data.has_value()
            delivered = tf.where(has_value, delivered, tf.constant(-1.0, tf.float64))
            signature = tf.constant(0, tf.int64)
            if _varying(element_spec):
                signature = tf.cond(has_value, lambda: _signature(data.get_value()), lambda: tf.constant(0, tf.int64))
        else:
            signature = _signature(data)
        return rows.record(requested, delivered, signature)


def _now() -> tf.Tensor:
    """A stamp in the graph being traced that keeps nothing of the user's waiting.

    TensorFlow runs ops with side effects in the order in which they were traced, and counts a
    clock's reading as one. A print or a Python function behind a batch's stamp would then wait for
    that batch, and not run at all where the data has ended.
    """
    with tf.device("CPU:0"):
        if deterministic():  # `tf.timestamp()` raises then
            stamp = tf.ensure_shape(tf.numpy_function(lambda: np.float64(time.time()), [], tf.float64), [])
        else:
            stamp = tf.timestamp()
    order: Any = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    if order is not None:
        clock = stamp.op if stamp.op.type != "EnsureShape" else stamp.op.inputs[0].op
        order.run_independently(clock)
    return stamp


def _after_row(data, written: tf.Operation):
    """The same batch once its row is written.

    Only what uses the batch waits, as it waits for the batch itself. All else is free to run as
    without us: at the end of the data, where a fetch fails, TensorFlow runs what does not need
    the batch, and Keras' optimizers count a step there.

    It waits for the row, not for the stamp alone: ops that become ready together go to one thread
    each, and waking those took twice as long as the ops.
    """

    def hold(tensor):
        with tf.device(tensor.device or "CPU:0"):
            return tf.identity(tensor)

    with tf.control_dependencies([written]):
        return tf.nest.map_structure(hold, data, expand_composites=True)


@uncounted
def _stamped_eagerly(fetch: Callable[[], Any], timing: InputTiming, optional: bool):
    """Return a batch that Python fetches, and note when it was requested and there (perf ns)."""
    if timing.stamps is None:
        return fetch()
    requested = time.perf_counter_ns()
    data = fetch()  # OutOfRangeError, StopIteration: no batch, no row
    delivered = time.perf_counter_ns()
    # Keras from 3.16 on asks for one batch before a compiled step, and raises where there is none.
    if timing.rows is not None or not optional or bool(data.has_value()):
        timing.stamps += (requested, delivered, 0.0, 0)
        if timing.rows is not None and timing.shapes_vary and optional:
            _sign_when_taken(data, timing.stamps)
    return data


@uncounted
def _sign_when_taken(optional: Any, stamps: list[float]) -> None:
    """Set the last stamp's signature once the batch is taken out of `optional`, without an op of ours."""
    itself, kind, at = weakref.ref(optional), type(optional), len(stamps) - 2

    def get_value(*args: object, **kwargs: object) -> object:
        batch = kind.get_value(itself(), *args, **kwargs)
        stamps[at] = shape_signature(batch)
        return batch

    with contextlib.suppress(AttributeError):  # a class without attributes of its own
        optional.get_value = get_value


def _varying(structure) -> list:
    """Return the parts of a batch, or of its spec, whose shape is not fixed."""
    return [
        part
        for part in tf.nest.flatten(structure, expand_composites=True)
        if hasattr(part, "shape") and not part.shape.is_fully_defined()
    ]


def _signature(data) -> tf.Tensor:
    """A number made of the dynamic dimensions, which for other shapes is almost always another; 0 without any.

    The sum is weighted, so that (2, 3) and (3, 2) differ.
    """
    tensors = _varying(data)
    if not tensors:
        return tf.constant(0, tf.int64)
    if all(_only_batch(tensor) for tensor in tensors):
        # Keras wants one batch size for all: any tensor tells it, by one cheap op.
        return tf.size(tensors[0], out_type=tf.int64)
    shapes = [tf.shape(tensor, out_type=tf.int64) for tensor in tensors]
    numbers = shapes[0] if len(shapes) == 1 else tf.concat(shapes, 0)
    if numbers.shape.rank == 1 and numbers.shape[0] is not None:
        # Odd, distinct and small: sums are exact as float64, too.
        weights = tf.constant([(i * 15838 + 1) % 104729 for i in range(numbers.shape[0])], tf.int64)
    else:  # a rank is unknown: as many weights as there turn out to be numbers
        numbers += 1  # a dimension of 0 counts, too: one more of them is another shape
        weights = tf.range(1, tf.size(numbers, out_type=tf.int64) * 2, 2, tf.int64)
    return tf.reduce_sum(numbers * weights)


def _only_batch(tensor) -> bool:
    """Return True if only the first dimension is unknown."""
    shape = tensor.shape
    return bool(shape.rank) and shape[0] is None and shape[1:].is_fully_defined()


def probe() -> str:
    """Return why batches cannot be timed inside a graph here; "" if they can.

    Runs the real thing once per process on a dataset of one number, so that a TensorFlow whose
    internals moved is found out before it meets a training run.
    """
    return _try_out(deterministic())


def deterministic() -> bool:
    """Return True if TensorFlow refuses to read its clock (`enable_op_determinism`)."""
    from tensorflow.python.framework.config import is_op_determinism_enabled  # private; trying logs a warning

    return bool(is_op_determinism_enabled())


@functools.cache
def _try_out(_determinism: bool) -> str:
    """Return why a trial fetch cannot be timed; "" if it can."""
    try:
        queue = RowQueue()
        current.timing = InputTiming(queue, hold=True)

        @tf.function(autograph=False)
        def fetch(iterator):
            return iterator.get_next()

        value = int(fetch(timed(iter(tf.data.Dataset.range(7, 8)))))
        rows = queue.drain()
        if value != 7 or len(rows) != 1 or not 0 <= rows[0, 1] - rows[0, 0] < 60:
            return f"a trial fetch was recorded as {rows.tolist()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        current.timing = None
    return ""
