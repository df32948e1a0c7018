"""Counts how often arrays are read or waited for, which waits for the device (JAX, torch)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras


@contextlib.contextmanager
def counted_reads() -> Iterator[dict[str, int]]:
    """While active: "<what>, training thread" or "<what>, other thread" -> how often so far."""
    counts: dict[str, int] = {}
    undo: list[tuple[Any, str, Any]] = []

    def count(owner: Any, name: str, wrap: Callable[[Callable], Any] = lambda f: f) -> None:
        original = vars(owner)[name]
        function = original.fget if isinstance(original, property) else original

        def counted(*args: Any, **kwargs: Any) -> Any:
            here = threading.current_thread() is threading.main_thread()
            key = f"{name}, {'training' if here else 'other'} thread"
            counts[key] = counts.get(key, 0) + 1
            return function(*args, **kwargs)

        undo.append((owner, name, original))
        setattr(owner, name, property(counted) if isinstance(original, property) else counted)

    from keras.src import backend

    count(backend, "convert_to_numpy")
    if keras.backend.backend() == "jax":
        from jax._src.array import ArrayImpl

        for name in ("_value", "__array__", "block_until_ready"):
            count(ArrayImpl, name)
    else:
        import torch

        for name in ("item", "cpu", "numpy", "tolist", "__float__", "__bool__"):
            _count_inherited(torch.Tensor, name, count, undo)
        count(torch.cuda, "synchronize")
    try:
        yield counts
    finally:
        for owner, name, original in reversed(undo):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _count_inherited(owner: Any, name: str, count: Callable, undo: list) -> None:
    """Methods of torch's C base class are given to the Python class first."""
    inherited = name not in vars(owner)
    if inherited:
        setattr(owner, name, getattr(owner, name))
    count(owner, name)
    if inherited:
        undo[-1] = (owner, name, None)
