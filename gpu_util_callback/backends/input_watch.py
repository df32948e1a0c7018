"""An adapter that watches the training's input while it trains."""

from __future__ import annotations

from typing import Any

from gpu_util_callback.backends.base import About, Adapter
from gpu_util_callback.backends.pipelines import TfDataPipelines

__all__ = ["WatchingAdapter"]


class WatchingAdapter(Adapter):
    """Common base of the adapters of fits and of loops. Takes the arguments of `Adapter`."""

    def __init__(self, name: str, timing: str, about: About | None = None, **more: Any):
        super().__init__(name=name, timing=timing, about=about, **more)
        self._pipelines = TfDataPipelines(self.unavailable)

    def look_at_input(self) -> None:
        self._pipelines.look()

    def input_facts(self) -> dict[str, Any]:
        maps = self._pipelines.functions()
        return {} if maps is None else {"input_maps": maps}

    def pipeline(self) -> list[dict[str, Any]]:
        return self._pipelines.read()
