"""A ring that the garbage collector finds while TensorFlow builds a graph."""

import pytest

tf = pytest.importorskip("tensorflow")

from gpu_util_callback.frameworks import tensorflow_ring  # noqa: E402
from gpu_util_callback.frameworks.tensorflow_ring import Ring  # noqa: E402


def test_a_ring_collected_inside_a_graph_under_construction_blocks_nothing():
    rings = [Ring(8)]
    handle = rings[0]._rows

    @tf.function
    def traced(x):
        lock = tf.compat.v1.get_default_graph()._mutation_lock()._lock
        with lock._ready:  # as for a moment while an op is being made
            rings.clear()
        return x + 1

    assert int(traced(tf.constant(1))) == 2
    assert len(tensorflow_ring._collected) == 1
    Ring(8)
    assert len(tensorflow_ring._collected) <= 1  # its own, once it is gone
    with pytest.raises(tf.errors.OpError):
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
