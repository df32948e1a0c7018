"""Time spent compiling, as a framework itself reports it."""

from __future__ import annotations

import threading

__all__ = ["CompileClock"]


class CompileClock:
    """Time that the training thread has spent compiling.

    `start` and `stop` register with the framework; the reports of other threads are not counted.
    The base class is for frameworks that report nothing.
    """

    def __init__(self) -> None:
        self.ns = 0
        self._thread = threading.get_ident()

    def add(self, ns: int) -> None:
        """The framework has compiled for so long, on the calling thread."""
        if threading.get_ident() == self._thread:
            self.ns += ns

    def explains(self, compiled_ns: int, spent_ns: int) -> bool:
        """Whether a call that took `spent_ns`, `compiled_ns` of it compiling, was a compilation."""
        return 2 * compiled_ns > spent_ns

    def start(self) -> None:
        """Listen. On the training thread."""

    def stop(self) -> None:
        """Listen no more. May be called more than once."""
