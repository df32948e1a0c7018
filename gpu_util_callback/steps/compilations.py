"""Detection of calls of the train function that were compilations."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

ABSENT = -1
# A call on a first-seen input shape is a compilation if it takes this much longer than usual.
SLOW_FACTOR = 4.0
SLOW_NS = 15_000_000
SEVERAL_TRACES = 3  # of a function: the first ones may be of another kind of call
_LATEST = 1000  # compilations, or parts of them, whose moment is remembered


@dataclass
class Compilations:
    """Compilations as the framework reports them, or as slow calls on a first-seen shape.

    Args:
        shapes: shape signatures seen so far -> id; kept with the train function, so that a second
            fit knows what is compiled already.
        shapes_compile: whether a first-seen shape may compile again (XLA, GPU kernels).
        every_shape_compiles: whether it always does (the whole step is XLA's).
    """

    shapes: dict[float, int] = field(default_factory=dict)
    shapes_compile: bool = False
    every_shape_compiles: bool = False
    _usual: deque[int] = field(default_factory=lambda: deque(maxlen=255))  # bodies of plain calls

    def shape_ids(self, signatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the id of each input shape (int64[n]), and whether it is seen for the first time (bool[n]).

        New shapes are numbered in the order in which they come.

        Args:
            signatures: float64[n]; 0 = the shapes are static or unknown: the id is `ABSENT`, and not new.
        """
        ids = np.full(len(signatures), ABSENT, np.int64)
        new = np.zeros(len(signatures), bool)
        at = np.flatnonzero(signatures != 0)
        if len(at):
            distinct, first, inverse = np.unique(signatures[at], return_index=True, return_inverse=True)
            ids_of_distinct = np.empty(len(distinct), np.int64)
            for k in np.argsort(first):  # numbered as they come
                signature = float(distinct[k])
                new[at[first[k]]] = signature not in self.shapes
                ids_of_distinct[k] = self.shapes.setdefault(signature, len(self.shapes))
            ids[at] = ids_of_distinct[inverse]
        return ids, new

    def among(self, traced: np.ndarray, new_shape: np.ndarray, own_ns: np.ndarray) -> np.ndarray:
        """Return which calls were compilations, in order: bool[n].

        Where shapes compile, a call on a first-seen shape is one too if it takes much longer than usual.

        Args:
            traced: bool[n], whether the framework reported one.
            new_shape: bool[n], whether the input's shape was a first-seen one.
            own_ns: int64[n], duration of the calls without their waits.
        """
        compiles = traced.copy()
        if not self.shapes_compile or not new_shape.any():
            most = self._usual.maxlen or 0  # no shape can have compiled: the durations are only remembered
            self._usual.extend(own_ns[~traced][-most:].tolist())
            return compiles
        for i, value in enumerate(own_ns.tolist()):
            if traced[i]:  # known, and not usual
                continue
            if new_shape[i]:  # judged by its duration
                if not self._usual:
                    # This duration may be a compilation's: not representative of other calls.
                    compiles[i] = self.every_shape_compiles and value > SLOW_NS
                    continue
                usual = float(np.median(self._usual))
                factor = 1.0 if self.every_shape_compiles else SLOW_FACTOR
                compiles[i] = value > factor * usual and value > usual + SLOW_NS
            if not compiles[i]:
                self._usual.append(value)
        return compiles


# ---- compile times as the framework reports them ---------------------------------------


class CompileClock:
    """Time that the training thread has spent compiling.

    `start` and `stop` register with the framework; the reports of other threads are not counted.
    The base class is for frameworks that report nothing.

    Attributes:
        times: it has compiled, where the framework reports each.
    """

    def __init__(self) -> None:
        self.ns = 0
        self.times = 0
        self._thread = threading.get_ident()
        self._latest: deque[tuple[int, int]] = deque(maxlen=_LATEST)  # when one ended, its ns

    def add(self, ns: int, whole: bool = True) -> None:
        """Add a compilation of this duration on the calling thread, or a part of one."""
        if threading.get_ident() == self._thread:
            self.ns += ns
            self.times += whole
            self._latest.append((time.perf_counter_ns(), ns))

    def between(self, start: int, end: int) -> int:
        """Return how much of `ns` ended between two recent readings of `perf_counter_ns`."""
        return sum(ns for when, ns in self._latest if start <= when <= end)

    def counters(self) -> dict[str, int]:
        """Return the "compilations" so far; {} where none is reported."""
        return {"compilations": self.times} if self.times else {}

    def explains(self, compiled_ns: int, spent_ns: int) -> bool:
        """Return whether a call of `spent_ns`, of which `compiled_ns` were compiling, was a compilation."""
        return 2 * compiled_ns > spent_ns

    def start(self) -> None:
        """Start listening. On the training thread."""

    def stop(self) -> None:
        """Stop listening. May be called more than once."""
