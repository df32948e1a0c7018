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


def writing_into(queue):
    @tf.function
    def write(at):
        queue.record(at, at, tf.constant(0, tf.int64))

    return write


class Reader:
    """A fit that reads a function's queue."""


def test_each_fit_gets_its_own_rows_from_another_thread():
    """The next fit begins while the recorder's thread still reads the last one's rows."""
    queue, readers = RowQueue(), [Reader() for _ in range(20)]
    write = writing_into(queue)
    found: dict[Reader, list] = {reader: [] for reader in readers}
    going = threading.Event()
    going.set()

    def read():
        while going.is_set():
            for reader in readers:
                found[reader].append(queue.take(reader))

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number, reader in enumerate(readers):
            queue.read_by(reader)
            for i in range(10):
                write(tf.constant(float(10 * number + i), tf.float64))
    finally:  # else they would fill the memory
        going.clear()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for number, reader in enumerate(readers):
        rows = np.concatenate([*found[reader], queue.take(reader)])[:, 0]
        assert sorted(rows.tolist()) == [10 * number + i for i in range(10)]


def test_rows_of_a_fit_that_nobody_reads_any_more_are_dropped():
    queue, gone = RowQueue(), Reader()
    write = writing_into(queue)
    queue.read_by(gone)
    write(tf.constant(1.0, tf.float64))
    del gone
    later = Reader()
    queue.read_by(later)
    write(tf.constant(2.0, tf.float64))
    rows = queue.take(later)
    assert rows[:, 0].tolist() == [2.0]


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
