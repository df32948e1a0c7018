"""The PyTorch backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_util_callback.frameworks import torch_facts
from gpu_util_callback.frameworks.base import Adapter, InputRows
from gpu_util_callback.frameworks.keras_fit import calling_fit
from gpu_util_callback.frameworks.python_functions import DeviceProbe, FunctionTimer, Stamp
from gpu_util_callback.frameworks.timeline import Timeline
from gpu_util_callback.frameworks.torch_compile import TorchCompileClock
from gpu_util_callback.frameworks.torch_loader import LoaderTimer

__all__ = ["TorchAdapter", "adapter"]

NOT_FOUND = (
    "input wait",
    "the data loader that Keras made could not be found",
    "call model.fit directly to see the input wait",
)


class TorchAdapter(Adapter):
    """Times the loader that Keras iterates over before each batch's begin hooks."""

    def __init__(self) -> None:
        super().__init__(name="torch", timing="loader")
        self._model: Any = None
        self._timeline: Timeline | None = None
        self._train: FunctionTimer | None = None
        self._test: FunctionTimer | None = None
        self._compile_clock = TorchCompileClock()
        self._train_loader: LoaderTimer | None = None
        self._test_loader: LoaderTimer | None = None

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._model, self._timeline = model, timeline
        timeline.steps_per_execution = 1
        try:
            self._compile_clock.start()
        except Exception as error:  # private to torch: it may move
            failed("compilation", error)

        def timer(
            name: str, stale: Callable | None, probe: DeviceProbe | None = None
        ) -> FunctionTimer:
            return FunctionTimer(
                model,
                name,
                self._compile_clock,
                called=timeline.called,
                no_batch=timeline.no_batch,
                stale=stale,
                fetches_inside=False,
                probe=probe,
                done=timeline.device_done if probe is not None else None,
            )

        self._train = timer("train_function", stale, torch_facts.probe())
        self._test = timer("test_function", None)
        self._train.wrap()
        frame = calling_fit()
        iterator = frame.f_locals.get("epoch_iterator") if frame is not None else None
        self._train_loader = self._time_loader(iterator, self._train, timeline.fetched)
        if self._train_loader is None:
            self.timing = "hooks"
            self.unavailable.append(NOT_FOUND)

    def _time_loader(
        self, iterator: Any, timer: FunctionTimer, fetched: Callable[[int], None]
    ) -> LoaderTimer | None:
        data_adapter = getattr(iterator, "data_adapter", None)
        if data_adapter is None or not hasattr(data_adapter, "get_torch_dataloader"):
            return None
        assert self._timeline is not None

        def came(stamp: Stamp) -> None:
            timer.pending = stamp
            fetched(stamp[0])

        loader = LoaderTimer(data_adapter, came, timer.probe, self._timeline.input_work)
        loader.attach()
        return loader

    def batch_begin(self) -> None:
        if self._train is not None:
            self._train.arm()

    def test_begin(self) -> None:
        if self._test is None or self._timeline is None:
            return
        self._test.wrap()
        iterator = getattr(self._model, "_eval_epoch_iterator", None)
        adapter = getattr(iterator, "data_adapter", None)
        if self._test_loader is None or self._test_loader.data_adapter is not adapter:
            self._test_loader = self._time_loader(iterator, self._test, self._timeline.fetched)

    def test_batch_begin(self) -> None:
        if self._test is not None:
            self._test.arm()

    def test_end(self) -> None:
        if self._test is not None:
            self._test.unwrap()

    def drain(self) -> Callable[[], InputRows] | None:
        if self._train is None or self._train_loader is None:
            return None
        return self._train.drain()

    def drain_test(self) -> Callable[[], InputRows] | None:
        return self._test.drain() if self._test is not None else None

    def end(self) -> None:
        self._compile_clock.stop()
        for timer in (self._train, self._test):
            if timer is not None:
                timer.unwrap()
        for loader in (self._train_loader, self._test_loader):
            if loader is not None:
                loader.detach()

    def facts(self) -> dict[str, Any]:
        return torch_facts.keras_facts(self._model, self.timing)

    def memory(self) -> dict[int, dict[str, float]]:
        return torch_facts.memory()

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        return torch_facts.rendezvous()

    def devices(self) -> list[dict[str, Any]] | None:
        return torch_facts.devices()


def adapter() -> TorchAdapter:
    """A fresh adapter for one fit."""
    return TorchAdapter()
