"""The PyTorch backend: timing of Keras' batches and steps, and the adapter's facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu_util_callback.backends.adapters import PythonAdapter
from gpu_util_callback.backends.base import CountedWork, Failed, NotCounted
from gpu_util_callback.backends.functions import FirstCall, KerasModel, PythonBatches, TimedBatches
from gpu_util_callback.backends.input_calls import WatchedIterable
from gpu_util_callback.backends.input_watch import finished_batches
from gpu_util_callback.backends.torch.flops import counted, is_compiled
from gpu_util_callback.backends.torch.runtime import RUNTIME, probe
from gpu_util_callback.recording.manifest_facts import Unavailable
from gpu_util_callback.steps.frames import given_adapter, uncounted
from gpu_util_callback.steps.rows import Stamp
from gpu_util_callback.steps.timeline import Timeline

_GET = "get_torch_dataloader"


class LoaderTimer:
    """A timed loader installed around the loader of one data adapter.

    Args:
        data_adapter: the `EpochIterator`'s.
        batches: of the function that is given the batches.
        timeline: notified of each step's request for a batch, and of the end of the input.
        training: whether to look which batches are ready when requested.

    Attributes:
        requesting: called before each batch's request; None = nothing.
    """

    def __init__(self, data_adapter: object, batches: PythonBatches, timeline: Timeline, training: bool):
        self.data_adapter = data_adapter
        self._handed = timeline.handed if training else None
        self._batches = batches
        self._timeline: Timeline | None = timeline
        self.requesting: Callable[[], None] | None = None  # called before each batch's request

    @uncounted
    def attach(self) -> None:
        """Start timing the loaders that are created from now on."""
        get = getattr(self.data_adapter, _GET)
        self.data_adapter.__dict__[_GET] = lambda: WatchedIterable(get(), self._timed)

    def detach(self) -> None:
        """Restore the original. Loaders in use stop reporting. Callable on any thread.

        An iterator that is held here would keep its workers beyond the fit.
        """
        self._timeline = self.requesting = self._batches.fetches = None
        self.data_adapter.__dict__.pop(_GET, None)

    def _timed(self, iterator: Iterator) -> TimedBatches:
        """Return a loader's iterator with its fetches timed."""
        self._batches.fetches = timed = TimedBatches(
            iterator,
            self._note_batch,
            ended=self._ended,
            requesting=self._requesting if self.requesting is not None else None,
            probe=self._batches.probe,
            finished=None if self._handed is None else finished_batches(iterator, self._handed),
            first=self._batches.first,
        )
        return timed

    def _requesting(self) -> None:
        if self.requesting is not None:
            self.requesting()

    def _note_batch(self, stamp: Stamp, batch: object) -> None:
        """Keep the stamp of a batch that Keras fetched for the call that it is given to."""
        timeline = self._timeline
        if timeline is not None:
            self._batches.pending = stamp
            timeline.fetch = stamp[0]

    def _ended(self, start: int, end: int) -> None:
        timeline = self._timeline
        if timeline is not None:
            timeline.input_work("end of data", start, end)


NOT_FOUND: Unavailable = {
    "source": "input wait",
    "reason": "the data loader that Keras made could not be found",
    "cure": "call model.fit directly to see the input wait",
}


class TorchAdapter(PythonAdapter):
    """Adapter that times the loader that Keras iterates over before each batch's begin hooks."""

    def __init__(self) -> None:
        super().__init__("torch", "loader", RUNTIME)
        self._train_loader: LoaderTimer | None = None
        self._test_loader: LoaderTimer | None = None
        self._compiled = False
        self._batches: dict[str, PythonBatches] = {}

    def begin(self, model: KerasModel, timeline: Timeline, stale: Callable[[], None], failed: Failed) -> None:
        """Time a fit: its loader, and its train and test functions, which are given batches."""
        self._compiled = is_compiled(model)
        clock = self.compile_clock
        self._batches = {
            "train": PythonBatches(clock, inside=False, probe=probe(), first=self.first_batch.note),
            "validation": PythonBatches(clock, inside=False),
        }
        first = None if self._compiled else FirstCall(counted)
        self._begin(model, timeline, stale, failed, first, *self._batches.values())
        self._train_loader = self._time_loader("train", given_adapter())
        if self._train_loader is None:
            self.timing = "hooks"
            self.unavailable.append(NOT_FOUND)

    def before_fetch(self, requested: Callable[[], None]) -> None:
        if self._train_loader is not None:
            self._train_loader.requesting = requested

    def _time_loader(self, phase: str, data_adapter: object) -> LoaderTimer | None:
        """Time Keras' fetches in a phase, "train" or "validation"; None where that is not possible."""
        timeline = self._timeline
        if not hasattr(data_adapter, _GET) or not timeline:
            return None
        loader = LoaderTimer(data_adapter, self._batches[phase], timeline, phase == "train")
        loader.attach()
        return loader

    def test_begin(self) -> None:
        super().test_begin()
        data_adapter = self._test_adapter()
        if self._test_loader is None or self._test_loader.data_adapter is not data_adapter:
            self._test_loader = self._time_loader("validation", data_adapter)

    def end(self) -> None:
        super().end()
        for loader in (self._train_loader, self._test_loader):
            if loader is not None:
                loader.detach()

    def work(self, batch: int | None) -> CountedWork | None:
        if self._compiled:
            raise NotCounted("torch.compile runs the step, or may run a part of it")
        return self._first.observed if self._first is not None else None

    def fit_facts(self) -> dict[str, object]:
        return {"strategy": "DistributedDataParallel" if self.runtime.processes() > 1 else None}


ADAPTER = TorchAdapter
