"""Marks the waits for batches that are fetched in Python, in the trace of an open window.

TensorFlow's own events tell them. JAX and PyTorch know of no input: without a mark such a wait
would look like a host that does something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpu_util_callback.steps.frames import uncounted

__all__ = ["INPUT_WAIT", "begin", "fetch"]

INPUT_WAIT = "gpu_util:input_wait"  # what our readers of traces look for

# Makes a mark, which begins with it; None while no window is open. A process has one profiler.
mark: Callable[[], Any] | None = None


@uncounted
def fetch(iterator: Iterator[Any]) -> Any:
    """`next(iterator)`, marked where a window is open."""
    marker = begin()
    if marker is None:
        return next(iterator)
    try:
        return next(iterator)
    finally:
        marker.close()


def begin() -> Any:
    """A mark to be closed when the batch is there; None where none is needed."""
    make = mark
    return make() if make is not None else None
