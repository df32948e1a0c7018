"""On the training thread a step is clock readings and an append, whatever the framework."""

from __future__ import annotations

import pytest
from packages import need
from processes import shared

# C functions that neither wait nor give up Python's lock.
HARMLESS = {
    "time.perf_counter_ns",
    "deque.append",
    "list.append",
    "dict.get",
    "dict.values",
    "dict.pop",
    *(
        f"builtins.{name}"
        for name in ("getattr", "hasattr", "hash", "isinstance", "iter", "len", "max", "min", "next", "sum")
    ),
}
# What Keras would call by itself: the callbacks' hooks, the model's function, the input's iterator.
KERAS_OWN = (
    "keras.src.",
    "__main__:",
    "torch.utils.data.",
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator.get_next",
)
# What a framework keeps in plain memory, read where nothing else says it: 0.1 µs each.
READ = {
    "tensorflow.python.eager.context:executing_eagerly",
    "tensorflow.python.eager.monitoring:CounterCell.value",
    "pybind11_detail_function_record_v1_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1._get_sequence_nr",
    "torch.distributed.distributed_c10d:_WorldMeta.WORLD",  # a property, of the first 200 steps
}
MOST_READINGS = 24  # of a clock, in a step with three callbacks


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_step_calls_no_framework_and_never_gives_up_the_lock(backend):
    need("keras", backend)
    found = shared("training_thread_program.py", KERAS_BACKEND=backend)
    assert len(found) == 5
    for name, calls in found.items():
        odd = {call for call in calls if call not in HARMLESS and not call.startswith(KERAS_OWN)}
        if name in ("fit-eager", "loop-batches", "loop-steps"):
            odd -= READ
        assert not odd, f"{name}: {sorted(odd)}"
        assert 3 <= calls["time.perf_counter_ns"] <= MOST_READINGS, name
        # The step, the duration for the windows' schedule, and the stamp of a batch in Python.
        assert 1 <= calls["deque.append"] + calls.get("list.append", 0) < 4, name
