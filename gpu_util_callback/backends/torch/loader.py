"""Times the batches of the loader that Keras' data adapter hands to a torch training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gpu_util_callback.backends.functions import FunctionTimer
from gpu_util_callback.backends.torch.handed_over import finished_batches
from gpu_util_callback.steps import annotations as waits
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import DeviceProbe, HandedOver, Stamp, busy_until, shape_signature
from gpu_util_callback.steps.timeline import Timeline

__all__ = ["LoaderTimer", "TimedBatches", "TimedLoader"]

_GET = "get_torch_dataloader"
_clock = time.perf_counter_ns


class LoaderTimer:
    """Puts a `TimedLoader` around the loader of one data adapter.

    Args:
        data_adapter: the `EpochIterator`'s.
        timer: of the function that is given the batches.
        timeline: told when each step's batch was requested, and of the end of the input.
        handed: told which batches were finished when they were asked for.
    """

    def __init__(
        self, data_adapter: Any, timer: FunctionTimer, timeline: Timeline, handed: HandedOver
    ):
        self.data_adapter = data_adapter
        self._handed = handed
        self._timer = timer
        self._timeline: Timeline | None = timeline
        self.requesting: Callable[[], None] | None = None  # called before each batch's request

    @uncounted
    def attach(self) -> None:
        """Start timing the loaders that are asked for from now on."""
        get = getattr(self.data_adapter, _GET)
        self.data_adapter.__dict__[_GET] = lambda: TimedLoader(
            get(), self._stamp, self._ended, self._timer.probe, self._requesting, self._handed
        )

    def detach(self) -> None:
        """Put back what was there. Loaders that are in use no longer tell. Any thread."""
        self._timeline = self.requesting = None
        self.data_adapter.__dict__.pop(_GET, None)

    def _requesting(self) -> None:
        if self.requesting is not None:
            self.requesting()

    def _stamp(self, stamp: Stamp) -> None:
        timeline = self._timeline
        if timeline is not None:
            self._timer.pending = stamp
            timeline.fetched(stamp[0])

    def _ended(self, start: int, end: int) -> None:
        timeline = self._timeline
        if timeline is not None:
            timeline.input_work("end of data", start, end)


@uncounted
class TimedLoader:
    """A loader whose iterators tell when each batch was requested and when it came.

    Everything else is the loader's own.
    """

    def __init__(
        self,
        loader: Any,
        came: Callable[[Stamp], None],
        ended: Callable[[int, int], None],
        probe: DeviceProbe,
        requesting: Callable[[], None],
        handed: HandedOver,
    ):
        self._probe = probe
        self._handed = handed
        self._loader = loader
        self._stamp = came
        self._ended = ended
        self._requesting = requesting

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        return TimedBatches(
            batches, self._stamp, self._ended, self._probe, self._requesting, self._handed
        )


@uncounted
class TimedBatches:
    __slots__ = ("_ended", "_finished", "_iterator", "_probe", "_requesting", "_stamp")

    def __init__(
        self,
        iterator: Iterator[Any],
        stamp: Callable[[Stamp], None],
        ended: Callable[[int, int], None],
        probe: DeviceProbe,
        requesting: Callable[[], None],
        handed: HandedOver,
    ):
        self._probe = probe
        self._iterator = iterator
        self._finished = finished_batches(iterator, handed)
        self._stamp = stamp
        self._ended = ended
        self._requesting = requesting

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Any:
        self._requesting()
        probe = self._probe
        idle = probe.idle()
        finished = self._finished
        if finished is not None:
            finished.begin()
        requested = _clock()
        try:
            data = waits.fetch(self._iterator)
        except StopIteration:
            self._ended(requested, _clock())
            raise
        delivered = _clock()
        if finished is not None:
            finished.end(delivered - requested)
        busy = 0 if idle else busy_until(idle, probe, delivered)
        self._stamp((requested, delivered, shape_signature(data), busy))
        return data
