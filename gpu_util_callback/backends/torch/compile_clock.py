"""Compile times reported by `torch.compile`."""

from __future__ import annotations

import sys
import time
from typing import Any

from gpu_util_callback.steps.compilations import CompileClock


class TorchCompileClock(CompileClock):
    """Compile times from TorchDynamo's callbacks, where this torch has them.

    They surround tracing and compiling, and run on the thread that calls the compiled function.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handler: Any = None
        self._since = 0

    def start(self) -> None:
        # Nothing compiles without it, and importing it takes seconds.
        if self._handler is not None or "torch._dynamo" not in sys.modules:
            return
        from torch._dynamo import callback

        handler = callback.callback_handler
        handler.register_start_callback(self._began)
        handler.register_end_callback(self._ended)
        self._handler = handler

    def stop(self) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        for remove, listener in (
            (handler.remove_start_callback, self._began),
            (handler.remove_end_callback, self._ended),
        ):
            try:
                remove(listener)
            except ValueError:  # all callbacks were cleared
                pass

    def _began(self, *_: object) -> None:
        self._since = time.perf_counter_ns()

    def _ended(self, *_: object) -> None:
        if self._since:
            self.add(time.perf_counter_ns() - self._since)
            self._since = 0


CLOCK = TorchCompileClock
