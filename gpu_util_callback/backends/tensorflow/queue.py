"""A queue of rows that a compiled TensorFlow function fills and Python empties in blocks."""

import collections
import itertools
import os
import threading
import weakref

import numpy as np
import tensorflow as tf

__all__ = ["RowQueue"]

_names = itertools.count()


class RowQueue:
    """Rows of (requested, delivered, shape signature), written in a graph, oldest first.

    A TensorFlow queue takes one op a row, where a ring buffer in a variable takes six: on a
    processor that also runs the step's ops, each of them counts. It grows until it is drained,
    every few hundred calls.

    Rows are two wall-clock times in seconds since the epoch (`tf.timestamp`; the second is -1 where
    no batch came), and a signature of the dynamic dimensions (0 where the shapes are static).
    """

    TYPES = (tf.float64, tf.float64, tf.int64)
    WIDTH = len(TYPES)

    def __init__(self) -> None:
        self.traces = 0  # traces of functions with this queue: a free retrace counter
        self.failure = ""  # why stamps could not be added to a trace
        # Written by a loop of several steps with the ends of its steps; None = they cannot be seen.
        self.ends: RowQueue | None = None
        self._taking = threading.Lock()
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

    def record(self, requested: tf.Tensor, delivered: tf.Tensor, signature: tf.Tensor) -> None:
        """Write a row, as an op of the graph being traced: scalars of `TYPES`."""
        with tf.device("CPU:0"):
            tf.raw_ops.QueueEnqueueV2(
                handle=self._handle, components=[requested, delivered, signature]
            )

    def take(self) -> list[tf.Tensor]:
        """Return the rows since the last call, oldest first, as columns of `TYPES`; [] = none.

        Each number that Python reads releases its lock, and may wait long to get it back: the
        columns' contents are read elsewhere (`table`).
        """
        # Taking more rows than there are would block: no other caller takes any in between.
        with self._taking:
            count = tf.raw_ops.QueueSizeV2(handle=self._handle)
            if not int(count):
                return []
            return tf.raw_ops.QueueDequeueManyV2(
                handle=self._handle, n=count, component_types=self.TYPES
            )

    @classmethod
    def table(cls, columns: list[tf.Tensor]) -> np.ndarray:
        """Return taken columns as float64 (rows, WIDTH); on any thread."""
        if not columns:
            return np.empty((0, cls.WIDTH))
        return np.stack([column.numpy() for column in columns], 1)

    def drain(self) -> np.ndarray:
        """Return the rows since the last call, oldest first: float64 (rows, WIDTH)."""
        return self.table(self.take())


# Resources of queues that are gone. The garbage collector may run at any moment, also while
# TensorFlow builds a graph and holds its lock: an op there would deadlock. So they are freed when
# the next queue is made.
_collected: collections.deque[tf.Tensor] = collections.deque()


def _free_collected() -> None:
    while _collected:
        handle = _collected.popleft()
        try:
            tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
        except Exception:  # the runtime frees the memory itself in the end
            pass
