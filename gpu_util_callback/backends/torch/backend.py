"""The PyTorch backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gpu_util_callback.backends.functions import FunctionTimer
from gpu_util_callback.backends.keras import PythonAdapter
from gpu_util_callback.backends.torch import facts as torch_facts
from gpu_util_callback.backends.torch.compile_clock import Clock
from gpu_util_callback.backends.torch.loader import LoaderTimer
from gpu_util_callback.steps.fit_frame import given_adapter
from gpu_util_callback.steps.rows import HandedOver, InputRows
from gpu_util_callback.steps.timeline import Timeline

__all__ = ["TorchAdapter", "adapter"]

NOT_FOUND = (
    "input wait",
    "the data loader that Keras made could not be found",
    "call model.fit directly to see the input wait",
)


class TorchAdapter(PythonAdapter):
    """Times the loader that Keras iterates over before each batch's begin hooks."""

    def __init__(self) -> None:
        super().__init__("torch", "loader", torch_facts, Clock())
        self._train_loader: LoaderTimer | None = None
        self._test_loader: LoaderTimer | None = None

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._begin(model, timeline, stale, failed, torch_facts.probe())
        self._train_loader = self._time_loader("train", given_adapter())
        if self._train_loader is None:
            self.timing = "hooks"
            self.unavailable.append(NOT_FOUND)

    def before_fetch(self, requested: Callable[[], None]) -> None:
        """Have each request for a training batch told, before it is made."""
        if self._train_loader is not None:
            self._train_loader.requesting = requested

    def _time_loader(self, which: str, data_adapter: Any) -> LoaderTimer | None:
        timer = self._train if which == "train" else self._test
        timeline = self._timeline
        if not hasattr(data_adapter, "get_torch_dataloader") or not timer or not timeline:
            return None
        self._watch(which, data_adapter)
        # Of a validation nobody asks.
        handed = timeline.handed if which == "train" else HandedOver()
        loader = LoaderTimer(data_adapter, timer, timeline, handed)
        loader.attach()
        return loader

    def test_begin(self) -> None:
        super().test_begin()
        iterator = getattr(self._model, "_eval_epoch_iterator", None)
        data_adapter = getattr(iterator, "data_adapter", None)
        if self._test_loader is None or self._test_loader.data_adapter is not data_adapter:
            self._test_loader = self._time_loader("validation", data_adapter)

    def drain(self) -> Callable[[], InputRows] | None:
        return super().drain() if self._train_loader is not None else None

    def end(self) -> None:
        super().end()
        for loader in (self._train_loader, self._test_loader):
            if loader is not None:
                loader.detach()

    def _fed(self, batches: Any, timer: FunctionTimer, timeline: Timeline) -> Any:
        owner = SimpleNamespace(get_torch_dataloader=lambda: batches)
        LoaderTimer(owner, timer, timeline, HandedOver()).attach()
        return iter(owner.get_torch_dataloader())

    def fit_facts(self) -> dict[str, Any]:
        parallel = torch_facts.rendezvous() is not None
        return {"strategy": "DistributedDataParallel" if parallel else None}


def adapter() -> TorchAdapter:
    """A fresh adapter for one fit."""
    return TorchAdapter()
