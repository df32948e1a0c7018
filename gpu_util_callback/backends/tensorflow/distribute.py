"""Distributed datasets: iterators that stamp their batches, and what a strategy looks like."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from gpu_util_callback.backends.tensorflow.iterator import KEY, deterministic, stamped
from gpu_util_callback.steps.frames import uncounted

# (class of iterator, op determinism) -> our subclass of it, made once: each has its own traces
_twins: dict[tuple[type, bool], type] = {}


def is_distributed(iterator: object) -> bool:
    """Return True if an iterator delivers a value for each replica."""
    return isinstance(iterator, tf.distribute.DistributedIterator)


class LocalFetch:
    """When a distributed iterator's own process had its part of the last batch, called eagerly.

    Over several workers the request for a batch also asks the others whether they have one, and so
    waits for the slowest. That is no wait for this process' input.
    """

    def __init__(self, iterator: tf.distribute.DistributedIterator):
        self.ended = 0  # `time.perf_counter_ns`
        for part in iterator._iterators:
            for name in ("get_next_as_optional_list", "get_next_as_list"):
                self._time_fetch(part, name)

    @uncounted
    def _time_fetch(self, part: object, name: str) -> None:
        """Wrap a worker's fetch, to note when the batch was there (perf ns)."""
        fetch = getattr(part, name)

        def stamped(*args: object, **kwargs: object) -> object:
            """Fetch, and note when the part of this process was there."""
            fetched = fetch(*args, **kwargs)
            if tf.executing_eagerly():
                for batch in fetched:
                    if isinstance(batch, tf.experimental.Optional):
                        batch.has_value().numpy()  # what is asked of all workers next
                self.ended = time.perf_counter_ns()
            return fetched

        part.__dict__[name] = stamped


def timed_distributed(iterator: tf.distribute.DistributedIterator) -> object:
    """The timed twin of a distributed dataset's iterator; made once and kept on the iterator.

    One row stands for all replicas: a batch is delivered when every local replica's part of it is.
    """
    twin = iterator.__dict__.get(KEY)
    if twin is None:
        kind = type(iterator), deterministic()
        if kind not in _twins:
            _twins[kind] = _timed_classes(kind[0], type(iterator._type_spec))
        twin = _twins[kind](iterator)
        iterator.__dict__[KEY] = twin
    return twin


@uncounted
def _timed_classes(kind: type, spec_kind: type) -> type:
    """Return a class of distributed iterators that stamp fetches; its own type spec replaces no traces."""

    class TimedDistributedIterator(kind):
        def __init__(self, inner):
            self.__dict__.update(inner.__dict__)
            self.__dict__.pop(KEY, None)

        @property
        def _type_spec(self):
            return _spec_as(super()._type_spec, TimedDistributedIteratorSpec)

        def get_next(self, name=None):
            return stamped(super().get_next, self, optional=False)

        def get_next_as_optional(self):
            return stamped(super().get_next_as_optional, self, optional=True)

    class TimedDistributedIteratorSpec(spec_kind):
        @property
        def value_type(self):
            return TimedDistributedIterator

        def _from_components(self, components):
            return TimedDistributedIterator(super()._from_components(components))

    return TimedDistributedIterator


def _spec_as(spec: tf.TypeSpec, kind: Any) -> tf.TypeSpec:
    """Return the same type spec as a class of our own, so that its traces replace no others."""
    copy = kind.__new__(kind)
    for base in type(spec).__mro__:
        for name in getattr(base, "__slots__", ()):
            if hasattr(spec, name):
                object.__setattr__(copy, name, getattr(spec, name))
    copy.__dict__.update(getattr(spec, "__dict__", {}))
    return copy


def replicas(model: object) -> list[dict[str, object]] | None:
    """Which device each local replica of a model is on; None where there is only one.

    Returns: [{"replica", "device", "gpu"}]; gpu is the framework's ordinal, None on a CPU.
    """
    strategy = getattr(model, "_distribute_strategy", None)
    extended = getattr(strategy, "extended", None)
    devices = list(getattr(extended, "worker_devices", ()))
    if len(devices) < 2:
        return None
    specs = map(tf.DeviceSpec.from_string, devices)
    return [
        {
            "replica": number,
            "device": f"{spec.device_type}:{spec.device_index}",
            "gpu": spec.device_index if spec.device_type == "GPU" else None,
        }
        for number, spec in enumerate(specs)
    ]
