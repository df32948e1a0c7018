"""A Keras model's function under our wrapper, which is added and removed with the fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_util_callback.steps.timeline import Rows, Timeline

__all__ = ["WrappedFunction", "unwrapped"]

_WRAPPED = "_gpu_util_wrapped"  # on our wrapper: the function inside
_BATCHES = "_gpu_util_batches"  # on the function: how many batches a call takes


class WrappedFunction:
    """`train_function` or `test_function`, wrapped so that its calls and batches are timed.

    Args:
        model: the Keras model.
        name: "train_function" or "test_function".
        timeline: notified of every call.
        stale: called when the training turns out to be over; None = unexpected calls are normal.
        raised: called when the function raised; the error propagates.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        timeline: Timeline,
        *,
        stale: Callable[[], None] | None = None,
        raised: Callable[[], None] = lambda: None,
    ):
        self.model = model
        self.name = name
        self.armed = False
        self.rows: Rows | None = None  # of the wrapped function, where it writes them itself
        training = name == "train_function"
        self._timeline = timeline
        self._no_batch = timeline.no_batch if training else timeline.test_no_batch
        self._takes = timeline.takes if training else timeline.test_takes
        self._stale = stale
        self._raised = raised
        self._wrapper: Any = None

    def arm(self) -> None:
        """Expect the next call as ours. Wraps again where the function was rebuilt."""
        self.armed = True
        if getattr(self.model, self.name) is not self._wrapper:
            self.wrap()

    def wrap(self) -> None:
        """Replace the model's function by the wrapper, and any earlier wrapper of ours."""
        inner = unwrapped(getattr(self.model, self.name, None))
        if inner is None:
            return
        self._wrapper = self._make(inner)
        # It may have been rebuilt in the middle of a fit, with another number of batches.
        self._takes(self._batches(inner), self.rows)
        self._wrapper.__dict__[_WRAPPED] = inner
        self._wrapper.__name__ = getattr(inner, "__name__", self.name)
        setattr(self.model, self.name, self._wrapper)

    def _batches(self, inner: Any) -> int:
        """Return the batches per call, as the model had it when the function was first seen.

        A later change of the model's setting takes effect in the next function that is built.
        """
        batches = int(getattr(self.model, "steps_per_execution", 1) or 1)
        kept = getattr(inner, "__dict__", {})
        return kept.setdefault(_BATCHES, batches)

    def unwrap(self) -> None:
        """Restore the original, if our wrapper is still there."""
        self.armed = False
        if self._wrapper is not None and getattr(self.model, self.name, None) is self._wrapper:
            setattr(self.model, self.name, self._wrapper.__dict__[_WRAPPED])
        self._wrapper = None

    def _make(self, inner: Callable) -> Callable:
        """Return the wrapper around the model's own function."""
        raise NotImplementedError


def unwrapped(function: Any) -> Any:
    """Return the user's own function inside any wrapper of ours."""
    while function is not None and _WRAPPED in getattr(function, "__dict__", {}):
        function = function.__dict__[_WRAPPED]
    return function
