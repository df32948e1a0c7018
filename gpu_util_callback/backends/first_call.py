"""A look at the first call of a model's train function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_util_callback.backends.functions import unwrapped
from gpu_util_callback.steps.frames import uncounted

_SEEN = "_gpu_util_seen"  # on the function: what was seen of it, for the next fit


class FirstCall:
    """Facts from the first call of a train function. From the second call on it costs nothing.

    Args:
        model: the Keras model.
        look: calls the function with the arguments, returns (its result, what was seen).

    Attributes:
        function: the model's own.
        seen: None before the first call.
    """

    def __init__(self, model: Any, look: Callable[[Callable, tuple[Any, ...]], tuple[Any, Any]]):
        self._model = model
        self._look = look
        self._wrapper: Any = None
        self.function = unwrapped(getattr(model, "train_function", None))
        self.seen: Any = getattr(self.function, "__dict__", {}).get(_SEEN)

    def attach(self) -> None:
        """Wait for the first call; before our own wrapper is put around the function."""
        if self.seen is None and hasattr(self.function, "__dict__"):
            self._wrapper = self._model.train_function = self._make(self.function)

    def detach(self) -> None:
        """Put the function back, if its first call has not come. May be called more than once."""
        if self._wrapper is not None and self._model.train_function is self._wrapper:
            self._model.train_function = self.function
        self._wrapper = None

    @uncounted
    def _make(self, inner: Callable) -> Callable:
        def first(*args: Any) -> Any:
            if self._wrapper is None:  # called again, by whoever kept it
                return inner(*args)
            self._wrapper = None
            self._model.train_function = inner  # ours is put around it before the next call
            result, self.seen = self._look(inner, args)
            inner.__dict__[_SEEN] = self.seen
            return result

        first.__name__ = getattr(inner, "__name__", "train_function")
        return first
