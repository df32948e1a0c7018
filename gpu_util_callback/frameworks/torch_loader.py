"""Times the batches of the loader that Keras' data adapter hands to a torch training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gpu_util_callback.frameworks.python_functions import (
    DeviceProbe,
    Stamp,
    busy_until,
    shape_signature,
)

__all__ = ["LoaderTimer", "TimedLoader"]

_GET = "get_torch_dataloader"


class LoaderTimer:
    """Puts a `TimedLoader` around the loader of one data adapter.

    Args:
        data_adapter: the `EpochIterator`'s.
        came: given the stamp of each batch that came.
        probe: asked whether the device is still at work.
        input_work: told (name, start_ns, end_ns) of a request that found the input ended.
    """

    def __init__(
        self,
        data_adapter: Any,
        came: Callable[[Stamp], None],
        probe: DeviceProbe,
        input_work: Callable[[str, int, int], None],
    ):
        self.data_adapter = data_adapter
        self._came: Callable[[Stamp], None] | None = came
        self._probe = probe
        self._input_work = input_work

    def attach(self) -> None:
        """Start timing the loaders that are asked for from now on."""
        get = getattr(self.data_adapter, _GET)
        self.data_adapter.__dict__[_GET] = lambda: TimedLoader(
            get(), self._stamp, self._ended, self._probe
        )

    def detach(self) -> None:
        """Put back what was there. Loaders that are in use no longer tell. Any thread."""
        self._came = None
        self.data_adapter.__dict__.pop(_GET, None)

    def _stamp(self, stamp: Stamp) -> None:
        if self._came is not None:
            self._came(stamp)

    def _ended(self, start: int, end: int) -> None:
        if self._came is not None:
            self._input_work("end of data", start, end)


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
    ):
        self._probe = probe
        self._loader = loader
        self._stamp = came
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return _TimedBatches(iter(self._loader), self._stamp, self._ended, self._probe)


class _TimedBatches:
    __slots__ = ("_ended", "_iterator", "_probe", "_stamp")

    def __init__(
        self,
        iterator: Iterator[Any],
        stamp: Callable[[Stamp], None],
        ended: Callable[[int, int], None],
        probe: DeviceProbe,
    ):
        self._probe = probe
        self._iterator = iterator
        self._stamp = stamp
        self._ended = ended

    def __iter__(self) -> _TimedBatches:
        return self

    def __next__(self) -> Any:
        idle = self._probe.idle()
        requested = time.perf_counter_ns()
        try:
            data = next(self._iterator)
        except StopIteration:
            self._ended(requested, time.perf_counter_ns())
            raise
        delivered = time.perf_counter_ns()
        busy = busy_until(idle, self._probe, delivered)
        self._stamp((requested, delivered, shape_signature(data), busy))
        return data
