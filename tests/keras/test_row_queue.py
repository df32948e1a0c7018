"""The queue of rows that a graph fills."""

import threading

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from gpu_util_callback.backends.tensorflow import queue as tensorflow_rows  # noqa: E402
from gpu_util_callback.backends.tensorflow.queue import RowQueue  # noqa: E402


def test_rows_come_out_once_in_the_order_they_were_written():
    queue = RowQueue()

    @tf.function
    def write(first, count):
        for i in tf.range(count):
            at = tf.cast(first + i, tf.float64)
            queue.record(at, at + 0.5, -tf.cast(i, tf.int64))

    assert queue.drain().shape == (0, RowQueue.WIDTH)
    write(0, 700)
    rows = queue.drain()
    assert np.array_equal(rows, [(i, i + 0.5, -i) for i in range(700)])
    write(700, 2)
    assert queue.drain()[:, 0].tolist() == [700, 701]
    assert len(queue.drain()) == 0


def test_two_threads_may_drain_at_once():
    """The training thread does, and the recorder's where a fit was left by an exception."""
    queue, found = RowQueue(), []
    write = tf.function(lambda at: queue.record(at, at, tf.constant(0, tf.int64)))
    going = threading.Event()
    going.set()

    def drain():
        while going.is_set():
            found.append(queue.drain())

    threads = [threading.Thread(target=drain, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(200):
        write(tf.constant(float(i), tf.float64))
    going.clear()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    found.append(queue.drain())
    assert sorted(np.concatenate(found)[:, 0].tolist()) == list(range(200))


def test_a_queue_collected_inside_a_graph_under_construction_blocks_nothing():
    queues = [RowQueue()]
    handle = queues[0]._handle

    @tf.function
    def traced(x):
        lock = tf.compat.v1.get_default_graph()._mutation_lock()._lock
        with lock._ready:  # as for a moment while an op is being made
            queues.clear()
        return x + 1

    assert int(traced(tf.constant(1))) == 2
    assert len(tensorflow_rows._collected) == 1
    RowQueue()
    assert len(tensorflow_rows._collected) <= 1  # its own, once it is gone
    with pytest.raises(tf.errors.OpError):
        tf.raw_ops.QueueSizeV2(handle=handle)
