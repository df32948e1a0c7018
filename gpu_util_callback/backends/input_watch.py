"""An adapter that watches the training's input while it trains."""

from __future__ import annotations

from typing import Any

from gpu_util_callback.backends.base import About, Adapter, part_of
from gpu_util_callback.backends.first_arrays import FirstArrays
from gpu_util_callback.backends.input_calls import InputCalls
from gpu_util_callback.backends.pipelines import TfDataPipelines


class WatchingAdapter(Adapter):
    """Common base of the adapters of fits and of loops. Takes the arguments of `Adapter`."""

    def __init__(self, name: str, timing: str, about: About | None = None, **more: Any):
        super().__init__(name=name, timing=timing, about=about, **more)
        self._pipelines = TfDataPipelines(self.unavailable)
        self.first_batch = FirstArrays()
        self._calls = InputCalls()

    def look_at_input(self) -> None:
        self.first_batch.look()
        functions = self._pipelines.look()
        if functions:
            part_of("tensorflow", "py_funcs").time_functions(functions, self._calls)

    def input_facts(self) -> dict[str, Any]:
        maps = self._pipelines.functions()
        facts: dict[str, Any] = {} if maps is None else {"input_maps": maps}
        entries_by_name = {
            "input_calls": self._calls.facts(),
            "input_first": self.first_batch.facts(),
            "input_shuffle_bytes": self._pipelines.shuffle_bytes(),
        }
        return facts | {name: entries for name, entries in entries_by_name.items() if entries}

    def pipeline(self) -> list[dict[str, Any]]:
        return self._pipelines.read()
