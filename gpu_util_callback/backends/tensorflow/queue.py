"""A queue of rows that a compiled TensorFlow function fills and Python empties in blocks."""

import collections
import contextlib
import itertools
import os
import threading
import weakref

import numpy as np
import tensorflow as tf

_names = itertools.count()


class RowQueue:
    """Rows of (requested, delivered, shape signature), written in a graph, oldest first.

    A TensorFlow queue takes one op a row, where a ring buffer in a variable takes six: on a
    processor that also runs the step's ops, each of them counts. It grows until it is drained, at
    every flush, by the recorder's thread.

    Rows are two wall-clock times in seconds since the epoch (`tf.timestamp`; the second is -1 where
    no batch came), and a signature of the dynamic dimensions (0 where the shapes are static).
    """

    TYPES = (tf.float64, tf.float64, tf.int64)
    WIDTH = len(TYPES)

    def __init__(self) -> None:
        self.traces = 0  # traces of functions with this queue: a free retrace counter
        self.failure = ""  # why stamps could not be added to a trace
        self._taking = threading.Lock()
        self._reader: weakref.ref | None = None
        # By reader: rows that were still in the queue when the next one came.
        self._unread_by_reader: weakref.WeakKeyDictionary[object, list] = weakref.WeakKeyDictionary()
        with tf.init_scope(), tf.device("CPU:0"):
            _free_collected()
            self._handle = tf.raw_ops.FIFOQueueV2(
                component_types=self.TYPES,
                shapes=[[]] * self.WIDTH,
                capacity=-1,  # unbounded: a full queue would hold up the step
                shared_name=f"gpu_util_rows_{os.getpid()}_{next(_names)}",
            )
        # Only the traced functions that hold this handle use it, and they are freed together with
        # the function that keeps this queue.
        weakref.finalize(self, _collected.append, self._handle).atexit = False

    def record(self, requested: tf.Tensor, delivered: tf.Tensor, signature: tf.Tensor) -> object:
        """Write a row of scalars of `TYPES`; return the op of the graph being traced."""
        with tf.device("CPU:0"):
            return tf.raw_ops.QueueEnqueueV2(handle=self._handle, components=[requested, delivered, signature])

    def read_by(self, reader: object) -> None:
        """Make `reader` the one whose calls write the rows from now on.

        Rows of the reader before are kept for it: it may not have taken its last ones yet.
        """
        with self._taking:
            before = self.reader
            if before is not None:
                self._unread_by_reader.setdefault(before, []).append(self.drain())
            else:
                self.drain()  # rows of a fit that nobody asks for any more
            self._reader = weakref.ref(reader)

    @property
    def reader(self) -> object:
        """Return who reads the queue now; None = nobody."""
        return self._reader() if self._reader is not None else None

    def take(self, reader: object) -> np.ndarray:
        """Return the rows written for `reader` since its last call, oldest first: float64[rows, WIDTH].

        Those that waited in the queue when the next reader came are among them.
        """
        with self._taking:
            parts = self._unread_by_reader.pop(reader, [])
            if self.reader is reader:
                parts.append(self.drain())
        return np.concatenate([np.empty((0, self.WIDTH)), *parts])

    def drain(self) -> np.ndarray:
        """Return the rows since the last call, oldest first: float64 (rows, WIDTH).

        Taking more rows than there are would block: one caller at a time.
        """
        count = int(tf.raw_ops.QueueSizeV2(handle=self._handle))
        parts = [np.empty((0, self.WIDTH))]
        while count > 0:
            row_count = min(count, _AT_ONCE)
            columns = tf.raw_ops.QueueDequeueManyV2(handle=self._handle, n=row_count, component_types=self.TYPES)
            parts.append(np.stack([column.numpy() for column in columns], 1))
            count -= row_count
        return np.concatenate(parts)


# Rows taken at once: a step that writes a row waits until they are taken.
_AT_ONCE = 64

# Resources of queues that are gone. The garbage collector may run at any moment, also while
# TensorFlow builds a graph and holds its lock: an op there would deadlock. So they are freed when
# the next queue is made.
_collected: collections.deque[tf.Tensor] = collections.deque()


def _free_collected() -> None:
    """Free the queues whose owners are gone."""
    while _collected:
        handle = _collected.popleft()
        with contextlib.suppress(Exception):  # the runtime frees the memory itself in the end
            tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
