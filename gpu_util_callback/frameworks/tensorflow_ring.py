"""A ring of rows that a compiled TensorFlow function fills and Python drains in blocks."""

import collections
import itertools
import os
import weakref

import numpy as np
import tensorflow as tf

__all__ = ["Ring"]

_names = itertools.count()


class Ring:
    """The last `size` rows of (requested, delivered, shape signature, number), written in a graph.

    Two raw resources on the host instead of a `tf.Variable`: a distribution strategy would mirror
    a variable, and Keras would track it as a weight. Rows are float64: two wall-clock times in
    seconds since the epoch (`tf.timestamp`; the second is -1 where no batch came), a signature of
    the dynamic dimensions (0 where the shapes are static), and the row's number from 0.
    """

    WIDTH = 4

    def __init__(self, size: int):
        """
        Args:
            size: rows kept; rounded up to a power of two.
        """
        self.size = 1 << max(size - 1, 1).bit_length()
        self.traces = 0  # how often a function was traced with this ring: a free retrace counter
        self.failure = ""  # why a trace could not be given its stamps
        # Where steps' ends are written by a loop of several steps; None = they cannot be seen.
        self.ends: Ring | None = None
        self._taken = 0
        raw = tf.raw_ops
        name = f"gpu_util_ring_{os.getpid()}_{next(_names)}"
        with tf.init_scope(), tf.device("CPU:0"):
            _free_collected()
            self._rows = raw.VarHandleOp(
                dtype=tf.float64, shape=[self.size, self.WIDTH], shared_name=f"{name}_rows"
            )
            self._count = raw.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"{name}_count")
            raw.AssignVariableOp(
                resource=self._rows,
                value=tf.fill([self.size, self.WIDTH], tf.constant(-1.0, tf.float64)),
            )
            raw.AssignVariableOp(resource=self._count, value=tf.constant(0, tf.int64))
        # Only the traced functions that hold these handles use them, and they go together with the
        # function that this ring is kept on.
        weakref.finalize(self, _collected.append, (self._rows, self._count)).atexit = False

    def record(self, requested: tf.Tensor, delivered: tf.Tensor, signature: tf.Tensor) -> None:
        """Write a row, as ops of the graph being traced: scalars of float64."""
        raw = tf.raw_ops
        with tf.device("CPU:0"):
            count = raw.ReadVariableOp(resource=self._count, dtype=tf.int64)
            write = raw.ResourceScatterUpdate(
                resource=self._rows,
                indices=tf.bitwise.bitwise_and(count, tf.constant(self.size - 1, tf.int64)),
                updates=tf.stack([requested, delivered, signature, tf.cast(count, tf.float64)]),
            )
            # The counter moves after the row is there: a reader never sees a row half written.
            dependencies = [write] if write is not None else []
            with tf.control_dependencies(dependencies):
                raw.AssignAddVariableOp(resource=self._count, value=tf.constant(1, tf.int64))

    def drain(self) -> np.ndarray:
        """The rows written since the last drain, oldest first: float64 (rows, WIDTH).

        Rows overwritten meanwhile are gone; what is left is the newest `size`.
        """
        rows = tf.raw_ops.ReadVariableOp(resource=self._rows, dtype=tf.float64).numpy()
        end = int(rows[:, 3].max()) + 1
        first = max(self._taken, end - self.size)
        self._taken = end
        return rows[np.arange(first, end) & (self.size - 1)]


# Resources of rings that are gone. The garbage collector may come at any moment, also while
# TensorFlow builds a graph and holds its lock: an op there would wait for that lock for ever. So
# they are freed when the next ring is made.
_collected: collections.deque[tuple[tf.Tensor, tf.Tensor]] = collections.deque()


def _free_collected() -> None:
    while _collected:
        for handle in _collected.popleft():
            try:
                tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
            except Exception:  # the runtime frees the memory itself in the end
                pass
