"""Trace times reported by TensorFlow."""

from __future__ import annotations

from typing import Any

from gpu_util_callback.steps.compilations import CompileClock

__all__ = ["Clock"]


class Clock(CompileClock):
    """Time spent tracing `tf.function`s: TensorFlow keeps the sum itself, for all threads.

    XLA's own compilations are not included: TensorFlow does not report them to Python.
    """

    def __init__(self) -> None:
        self._cell: Any = None
        super().__init__()

    def start(self) -> None:
        from tensorflow.python.eager.polymorphic_function import tracing_compilation

        self._cell = tracing_compilation._graph_building_time_counter.get_cell()

    def explains(self, compiled_ns: int, spent_ns: int) -> bool:
        # A traced function is optimised and set up, and compiled by XLA if requested, in the same
        # call: that takes many times as long.
        return 30 * compiled_ns > spent_ns

    @property
    def ns(self) -> int:
        """Nanoseconds so far."""
        return 0 if self._cell is None else int(self._cell.value()) * 1000

    @ns.setter
    def ns(self, value: int) -> None:
        pass  # the sum is TensorFlow's
