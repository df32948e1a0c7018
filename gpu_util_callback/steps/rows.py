"""Rows of when each batch was requested and delivered, read in Python."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

UNSEEN = -1  # time of a request that was not observed
ENDED_MEANWHILE = -1  # the device was busy when the batch was requested, idle when it came

# requested, delivered, shape signature, until when the device was busy (see `InputRows`)
Stamp = tuple[int, int, float, int]


@dataclass
class InputRows:
    """Times at which each batch was requested and delivered, in order, in `perf_counter_ns`.

    Args:
        requested_ns: int64 (n,).
        delivered_ns: int64 (n,); -1 where the input had ended and no batch came.
        signature: float64 (n,), differing for input shapes that differ; 0 = shapes are static.
        busy_until_ns: int64 (n,), until when the device was busy with the step before, where the
            host does not wait for it; 0 = it was idle or is not queried. None = 0 for all.
    """

    requested_ns: np.ndarray
    delivered_ns: np.ndarray
    signature: np.ndarray
    busy_until_ns: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.delivered_ns)

    def __getitem__(self, part: slice | np.ndarray) -> InputRows:
        """Return some of the rows."""
        return InputRows(*(None if of is None else of[part] for of in vars(self).values()))  # type: ignore[arg-type]

    def followed_by(self, more: InputRows) -> InputRows:
        """Return these rows and later ones of the same function's graph."""
        return InputRows(
            np.concatenate([self.requested_ns, more.requested_ns]),
            np.concatenate([self.delivered_ns, more.delivered_ns]),
            np.concatenate([self.signature, more.signature]),
        )


# ---- progress of the device ------------------------------------------------------------


class DeviceProbe:
    """Non-blocking query of whether the device has finished the last step.

    None is needed where a step is done when its call returns.
    """

    def mark(self, result: object) -> None:
        """Set the train function's `result`, which the device may still be working on."""

    def idle(self) -> bool:
        """Return whether the device has finished the last marked result."""
        return True


# ---- shapes of batches -----------------------------------------------------------------


def shape_signature(data: Any) -> float:
    """Return a number that differs for batches whose shapes differ; 0 where there are no shapes.

    It is a negative whole number: what TensorFlow's graph stamps, where one dimension varies, is a positive count.
    The shapes of the first `_MOST_SEEN` signatures are remembered.

    Args:
        data: arrays or tensors in any nest of tuples, lists and dictionaries.
    """
    plain = type(data) is tuple  # usually (x, y)
    try:
        if plain:  # usually the same shapes as before
            signature_before = _signatures.get(tuple(map(shape_of, data)))
            if signature_before is not None:
                return signature_before
    except Exception:  # a part without a shape: look at the leaves
        plain = False
    try:
        parts = data if plain else (part for part in leaves(data) if getattr(part, "shape", None) is not None)
        shapes = [tuple(part.shape) for part in parts]
        if not shapes:
            return 0.0
        signature = -float(1 + (hash(tuple(shapes)) & 0xFFFFFFFFFFFF))  # exact as a float64
        if signature not in _seen and len(_seen) < _MOST_SEEN:  # for `seen_dims` and `seen_batch_size`
            _seen[signature] = tuple(shapes) if _is_plain(data) else (), _common_size(shapes)
        if plain and len(_signatures) < _MOST_SEEN:
            _signatures[tuple(map(shape_of, data))] = signature
        return signature
    except Exception:  # a batch can be any object, and so can its shape
        return 0.0


def seen_dims(signatures: Iterable[float]) -> list[list[int | list[int]]] | None:
    """Return what differs between the batches that had these signatures.

    Returns: for each tensor of a batch the sizes of its axes, [smallest, largest] where they differ; None where
        the batches are no plain `(x, y, …)`, differ in more than sizes, or are not all known.
    """
    shapes = [_seen.get(signature, ((), None))[0] for signature in signatures]
    if not shapes or not shapes[0]:  # no batch, or the first one is not known
        return None
    ranks = [len(shape) for shape in shapes[0]]
    # other tensors, other ranks, or not known
    if any([len(shape) for shape in batch_shapes] != ranks for batch_shapes in shapes):
        return None
    try:
        return [
            [_size([int(batch_shapes[tensor][axis]) for batch_shapes in shapes]) for axis in range(rank)]
            for tensor, rank in enumerate(ranks)
        ]
    except (TypeError, ValueError):  # sizes that are no numbers
        return None


def seen_batch_size(signature: float) -> int | None:
    """Return how many samples a batch with this signature has.

    None where Python did not see it, or its arrays differ in their first dimension.
    """
    return _seen.get(signature, ((), None))[1]


def _common_size(shapes: list[tuple]) -> int | None:
    sizes = {int(shape[0]) for shape in shapes if shape}
    return sizes.pop() if len(sizes) == 1 else None


def _size(sizes: list[int]) -> int | list[int]:
    low, high = min(sizes), max(sizes)
    return low if low == high else [low, high]


def _is_plain(data: object) -> bool:
    parts = data if isinstance(data, (tuple, list)) else (data,)
    return all(hasattr(part, "shape") for part in parts)


# The shapes, and the batch size, behind the first signatures of this process. Advice for a training with more shapes
# rests on those that are known.
_MOST_SEEN = 1000
_seen: dict[float, tuple[tuple[tuple[int, ...], ...], int | None]] = {}
_signatures: dict[tuple[object, ...], float] = {}  # the same by the raw shapes, for speed
shape_of = operator.attrgetter("shape")


def leaves(nest: object, in_order: Callable[[Mapping], list] = list) -> Iterator[Any]:
    """Yield the leaves of a nest of mappings, tuples and lists, without None.

    Args:
        in_order: orders the keys of a mapping; TensorFlow's order is `sorted`.
    """
    if isinstance(nest, Mapping):
        nest = [nest[key] for key in in_order(nest)]
    if isinstance(nest, (tuple, list)):
        for part in nest:
            yield from leaves(part, in_order)
    elif nest is not None:
        yield nest


# ---- ready batches ---------------------------------------------------------------------


_LAST = 1000  # hand-overs that are remembered
_ENOUGH = 8  # of them give a typical duration


class HandedOver:
    """Share of batches that were ready when requested, and the time taking one took then."""

    def __init__(self) -> None:
        self.looked = 0  # batches whose readiness was queried
        self._ready = 0  # of these: ready
        self._handover_ns: deque[int] = deque(maxlen=_LAST)

    def came(self, ready: bool, ns: int) -> None:
        """Add a batch that came `ns` after it was requested."""
        self.looked += 1
        if ready:
            self._ready += 1
            self._handover_ns.append(ns)

    def facts(self) -> dict[str, float | None]:
        """Return facts for the manifest's `fit`; {} where readiness could not be queried.

        Returns: `input_ready_pct`: share of the batches that were ready when requested;
            `input_handover_ms`: median time to take such a batch; None where fewer than `_ENOUGH` were.
        """
        if not self.looked:
            return {}
        handover_ns = self._handover_ns.copy()
        ms = round(float(np.median(handover_ns)) / 1e6, 3) if len(handover_ns) >= _ENOUGH else None
        return {"input_ready_pct": round(100 * self._ready / self.looked, 1), "input_handover_ms": ms}
