"""Trace times reported by TensorFlow."""

from __future__ import annotations

from typing import Any

from gpu_util_callback.steps.compilations import CompileClock


class TensorFlowCompileClock(CompileClock):
    """Time spent tracing `tf.function`s: TensorFlow keeps the sum itself, for all threads.

    XLA's own compilations are not included: TensorFlow does not report them to Python. The
    functions of a tf.data pipeline are traced as well, whenever one is built: `model.predict` of
    an array builds one in each call. That compiles no step.
    """

    def __init__(self) -> None:
        self._cell: Any = None
        self._created: Any = None  # counts `tf.function`s at their first call
        self._context: Any = None
        self._before: tuple[int, set[str]] = (0, set())  # functions created; registered names
        super().__init__()

    def start(self) -> None:
        from tensorflow.python.eager import context
        from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation

        self._cell = tracing_compilation._graph_building_time_counter.get_cell()
        self._created = polymorphic_function._tf_function_counter
        self._context = context.context()
        self._before = self._functions()

    def _functions(self) -> tuple[int, set[str]]:
        created = sum(int(self._created.get_cell(xla).value()) for xla in ("0", "1"))
        return created, set(self._context.list_function_names())

    def explains(self, compiled_ns: int, spent_ns: int) -> bool:
        # A traced function is optimised and set up, and compiled by XLA if requested, in the same
        # call: that takes many times as long.
        if 30 * compiled_ns <= spent_ns:
            return False
        (created, names), self._before = self._before, self._functions()
        return self._before[0] > created or any(
            name.startswith("__inference_") and not self._context.get_function_def(name).attr["_tf_data_function"].b
            for name in self._before[1] - names
        )

    @property
    def ns(self) -> int:
        """Nanoseconds so far."""
        return 0 if self._cell is None else int(self._cell.value()) * 1000

    @ns.setter
    def ns(self, value: int) -> None:
        pass  # the sum is TensorFlow's


CLOCK = TensorFlowCompileClock
