"""When a batch was requested and when it came, read in Python."""

from __future__ import annotations

import operator
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "ENDED_MEANWHILE",
    "UNSEEN",
    "DeviceProbe",
    "HandedOver",
    "InputRows",
    "Stamp",
    "busy_until",
    "input_rows",
    "seen_dims",
    "shape_signature",
]

UNSEEN = -1  # when a batch was requested, where nobody saw it
ENDED_MEANWHILE = -1  # the device was busy when the batch was requested, and idle when it came

# requested, delivered, shape signature, until when the device was busy (see `InputRows`)
Stamp = tuple[int, int, float, int]


@dataclass
class InputRows:
    """When each batch was requested and delivered, in order, on `time.perf_counter_ns`' clock.

    Args:
        requested_ns: int64 (n,).
        delivered_ns: int64 (n,); -1 where the input had ended and no batch came.
        signature: float64 (n,), differing for input shapes that differ; 0 = shapes are static.
        busy_until_ns: int64 (n,), until when the device was busy with the step before, where the
            host does not wait for it; 0 = it was idle or is not asked. None = 0 for all.
        ended_ns: int64 (batches that came,), when each batch's step was over; None where calls
            have one step, or the ends of several cannot be seen.
    """

    requested_ns: np.ndarray
    delivered_ns: np.ndarray
    signature: np.ndarray
    busy_until_ns: np.ndarray | None = None
    ended_ns: np.ndarray | None = None

    def first(self, n: int) -> InputRows:
        """The first n rows."""
        busy = self.busy_until_ns
        return InputRows(
            self.requested_ns[:n],
            self.delivered_ns[:n],
            self.signature[:n],
            None if busy is None else busy[:n],
        )

    @classmethod
    def from_stamps(cls, stamps: list[tuple[int, int]]) -> InputRows:
        """Rows from (requested, delivered) pairs read in Python."""
        times = np.array(stamps, np.int64).reshape(-1, 2)
        return cls(times[:, 0], times[:, 1], np.zeros(len(times)))


class DeviceProbe:
    """Whether the device has done the last step, asked without waiting for it.

    The base class is for frameworks and devices where a step is done when its call returns.
    """

    def mark(self, result: Any) -> None:
        """The train function has returned `result`, which the device may still be working on."""

    def idle(self) -> bool:
        """Whether the device has done what was marked last."""
        return True


def busy_until(idle: bool, probe: DeviceProbe, delivered: int) -> int:
    """A stamp's last part.

    Args:
        idle: whether the device was idle when the batch was requested.
        probe: asked again, now that the batch is there.
        delivered: when it came.
    """
    if idle:
        return 0
    return ENDED_MEANWHILE if probe.idle() else delivered


def input_rows(stamps: list[Stamp]) -> InputRows:
    """Rows from stamps."""
    times = np.array([(s[0], s[1], s[3]) for s in stamps], np.int64).reshape(-1, 3)
    signatures = np.array([s[2] for s in stamps], np.float64)
    return InputRows(times[:, 0], times[:, 1], signatures, times[:, 2])


def shape_signature(data: Any) -> float:
    """A number that differs for batches whose shapes differ; 0 where there are no shapes.

    Args:
        data: arrays or tensors in any nest of tuples, lists and dictionaries.
    """
    plain = type(data) is tuple  # (x, y) as a rule
    try:
        if plain:  # the same as before, as a rule
            known = _signatures.get(tuple(map(_shape_of, data)))
            if known is not None:
                return known
    except Exception:
        plain = False
    try:
        shapes: list[Any] = []
        if plain:
            shapes += [tuple(part.shape) for part in data]
        else:
            _collect(data, shapes)
        if not shapes:
            return 0.0
        signature = float(1 + (hash(tuple(shapes)) & 0xFFFFFFFFFFFF))  # exact as a float64
        if signature not in _seen and len(_seen) < _MOST_SEEN:
            _seen[signature] = tuple(shapes) if _is_plain(data) else ()
        if plain and len(_signatures) < _MOST_SEEN:
            _signatures[tuple(map(_shape_of, data))] = signature
        return signature
    except Exception:  # a batch may be anything, and what it calls its shape, too
        return 0.0


def seen_dims(signatures: Iterable[float]) -> list[list[int | list[int]]] | None:
    """What differs between the batches that had these signatures.

    Returns: for each tensor of a batch its sizes, [smallest, largest] where they differ; None where
        the batches are no plain `(x, y, …)`, differ in more than sizes, or are not all known.
    """
    shapes = [_seen.get(signature, ()) for signature in signatures]
    if not shapes or not shapes[0]:
        return None
    ranks = [len(shape) for shape in shapes[0]]
    if any([len(shape) for shape in one] != ranks for one in shapes):
        return None
    try:
        return [
            [_size([int(one[tensor][axis]) for one in shapes]) for axis in range(rank)]
            for tensor, rank in enumerate(ranks)
        ]
    except (TypeError, ValueError):  # sizes that are no numbers
        return None


def _size(sizes: list[int]) -> int | list[int]:
    low, high = min(sizes), max(sizes)
    return low if low == high else [low, high]


def _is_plain(data: Any) -> bool:
    parts = data if isinstance(data, _SEQUENCES) else (data,)
    return all(hasattr(part, "shape") for part in parts)


_SEQUENCES = (tuple, list)
# The shapes behind the first signatures of this process: a training with more is to be mended for
# those that are known.
_MOST_SEEN = 1000
_seen: dict[float, tuple[tuple[int, ...], ...]] = {}
_signatures: dict[tuple[Any, ...], float] = {}  # the same from shapes as they are, for speed
_shape_of = operator.attrgetter("shape")


def _collect(data: Any, shapes: list[Any]) -> None:
    if isinstance(data, _SEQUENCES):
        for part in data:
            _collect(part, shapes)
    elif isinstance(data, dict):
        for part in data.values():
            _collect(part, shapes)
    else:
        shape = getattr(data, "shape", None)
        if shape is not None:
            shapes.append(tuple(shape))


_LAST = 1000  # hand-overs that are remembered
_ENOUGH = 8  # of them say what one takes


class HandedOver:
    """How many batches were finished when they were asked for, and what taking one took then."""

    def __init__(self) -> None:
        self.looked = 0
        self._ready = 0
        self._taken: deque[int] = deque(maxlen=_LAST)

    def came(self, ready: bool, ns: int) -> None:
        """A batch came, `ns` after it was asked for."""
        self.looked += 1
        if ready:
            self._ready += 1
            self._taken.append(ns)

    def facts(self) -> dict[str, float | None]:
        """For the manifest's `fit`; empty where nobody could look.

        Returns: `input_ready_pct`: batches that were finished when asked for;
            `input_handover_ms`: what taking such a one took as a rule; None for too few.
        """
        if not self.looked:
            return {}
        taken = self._taken.copy()
        ms = round(statistics.median(taken) / 1e6, 3) if len(taken) >= _ENOUGH else None
        return {
            "input_ready_pct": round(100 * self._ready / self.looked, 1),
            "input_handover_ms": ms,
        }
