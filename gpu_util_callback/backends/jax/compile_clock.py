"""Compile times reported by JAX."""

from __future__ import annotations

from collections.abc import Callable

from jax import monitoring

from gpu_util_callback.steps.compilations import CompileClock

# Tracing, lowering and XLA, one after the other for each function that is compiled.
PREFIX = "/jax/core/compile/"
LAST = "backend_compile_duration"


class JaxCompileClock(CompileClock):
    """Compile times from `jax.monitoring`, which calls its listeners on the compiling thread."""

    def __init__(self) -> None:
        super().__init__()
        self._listening = False

    def start(self) -> None:
        if not self._listening:
            monitoring.register_event_duration_secs_listener(self._heard)
            self._listening = True

    def stop(self) -> None:
        if not self._listening:
            return
        self._listening = False
        unregister: Callable | None = getattr(monitoring, "unregister_event_duration_listener", None)
        if unregister is None:  # an older JAX: private there
            from jax._src import monitoring as internals

            unregister = getattr(internals, "_unregister_event_duration_listener_by_callback", None)
        if unregister is not None:
            unregister(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: object) -> None:
        if event.startswith(PREFIX):
            self.add(int(duration_secs * 1e9), event.endswith(LAST))


CLOCK = JaxCompileClock
