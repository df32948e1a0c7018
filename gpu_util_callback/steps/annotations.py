"""Trace annotations for batches that are fetched in Python, while a profiler window is open.

TensorFlow's own events cover such waits. JAX and PyTorch do not trace the input: without an
annotation the wait would look like other work on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from gpu_util_callback.steps.frames import uncounted

INPUT_WAIT = "gpu_util:input_wait"  # the name that our trace readers look for

Batch = TypeVar("Batch")


class Annotation(Protocol):
    """A range in the trace of a window, entered when it is made."""

    def close(self) -> None: ...


# Creates an annotation, already entered; None while no window is open. A process has one profiler.
mark: Callable[[], Annotation | None] | None = None


@uncounted
def fetch(iterator: Iterator[Batch]) -> Batch:
    """Return `next(iterator)`, annotated while a window is open."""
    marker = begin()
    try:
        return next(iterator)
    finally:
        if marker is not None:
            marker.close()


def begin() -> Annotation | None:
    """Return an annotation to be closed when the batch is there; None where none is needed."""
    make = mark
    return make() if make is not None else None
