"""The arrays that a training is given, or those of its first batch: what they hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_LOOKED_AT_BYTES = 1 << 20  # of each array's first rows: a millisecond
_MOST = 64  # arrays; more are columns of a table


class FirstArrays:
    """The first batch, or the arrays given to `fit`, held until they were looked at.

    Arrays that are not in the host's memory are left out.
    """

    def __init__(self) -> None:
        self._leaves_held: list[Any] = []
        self._noted = False
        self._entries: list[dict[str, Any]] = []

    def note(self, batch: Any) -> None:
        """Hold a batch, unless one was noted; on the training thread."""
        if not self._noted:
            self._noted = True
            leaves = itertools.islice(_leaves(batch), _MOST)
            self._leaves_held = [leaf for leaf in leaves if _on_host(leaf)]

    def look(self) -> None:
        """Inspect the arrays that are held, and free them; on any other thread."""
        leaves, self._leaves_held = self._leaves_held, []
        if leaves:
            self._entries = [_described(array) for array in leaves]

    def facts(self) -> list[dict[str, Any]]:
        """Return the manifest's `input_first`; empty where nothing was seen."""
        return self._entries


def _leaves(nest: Any) -> Iterator[Any]:
    if isinstance(nest, Mapping):
        nest = tuple(nest.values())
    if isinstance(nest, (tuple, list)):
        for part in nest:
            yield from _leaves(part)
    elif nest is not None:
        yield nest


def _described(array: Any) -> dict[str, Any]:
    """Return an entry of `input_first`."""
    dtype = getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")
    entry: dict[str, Any] = {"dtype": dtype}
    try:
        shape = tuple(map(int, array.shape))
    except (AttributeError, TypeError, ValueError):  # ragged, or not known
        return entry
    entry["rank"] = len(shape)
    if shape:
        entry["rows"] = shape[0]
    size = getattr(array, "nbytes", None)
    if isinstance(size, int):
        entry["bytes"] = size
    try:
        values = array if isinstance(array, np.ndarray) else np.asarray(array)
    except Exception:  # a type that NumPy does not have, a layout that is not dense
        return entry
    entry.setdefault("bytes", values.nbytes)
    if not values.size or values.dtype.kind not in "buif":
        return entry
    if values.ndim:
        values = values[: max(1, _LOOKED_AT_BYTES // max(1, values.nbytes // len(values)))]
    lowest, highest = float(values.min()), float(values.max())
    if math.isfinite(lowest) and math.isfinite(highest):
        whole = values.dtype.kind != "f" or bool((values == np.floor(values)).all())
        entry |= {"min": lowest, "max": highest, "integers": whole}
    return entry


def _on_host(array: Any) -> bool:
    """Return whether an array's values can be read without waiting for a device."""
    if isinstance(array, np.ndarray):
        return True
    device: Any = getattr(array, "device", None)
    if type(array).__module__ == "torch":
        return device.type == "cpu" and not array.requires_grad
    return type(array).__name__ == "EagerTensor" and str(device).endswith("CPU:0")
