"""Readiness of a DataLoader's next batch at the moment the loop requests it.

A wait for a ready batch is the hand-over between processes: more workers do not shorten it. The
attributes read are private to torch: where they have moved, nothing is known.
"""

from __future__ import annotations

import ctypes
import select
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING

from gpu_util_callback.steps.rows import HandedOver

if TYPE_CHECKING:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

# A look takes 5 µs, or 50 where the processor has slept. Each of the first batches is looked at;
# then batches are skipped in an aperiodic sequence, to avoid aliasing with the workers.
_EACH = 32
_LEFT_OUT = (4, 6, 5, 7, 8)
_NEVER = 1 << 62


class FinishedBatches:
    """A look for the batch that a DataLoader's iterator will return next.

    It is among those already taken out of order, or the first in the queue. That the first in the
    queue is out of order is known only when it has been taken.
    """

    __slots__ = ("_handed_over", "_iterator", "_left_out", "_out_of_turn_before", "_queued", "_ready", "_until")

    def __init__(self, iterator: _MultiProcessingDataLoaderIter, queued: Callable[[], object], handed_over: HandedOver):
        self._iterator = iterator
        self._queued = queued
        self._handed_over = handed_over
        self._until = 0  # batches before the next look
        self._left_out = cycle(_LEFT_OUT)
        self._ready = False
        self._out_of_turn_before = -1

    def begin(self) -> None:
        """Poll the next batch as it is about to be requested."""
        if self._until > 0:
            return
        try:
            self._look()
        except Exception:  # changed since the start
            self._until = _NEVER

    def end(self, ns: int) -> None:
        """Add the batch that came `ns` after it was requested."""
        if self._until > 0:
            self._until -= 1
            return
        ready = self._ready and (self._out_of_turn_before < 0 or self._out_of_turn() <= self._out_of_turn_before)
        self._handed_over.came(ready, ns)
        if self._handed_over.looked >= _EACH:
            self._until = next(self._left_out)

    def _look(self) -> None:
        tasks = self._iterator._task_info
        task = tasks.get(self._iterator._rcvd_idx)
        self._out_of_turn_before = -1
        self._ready = task is not None and len(task) == 2
        if not self._ready and self._queued():
            self._ready = True
            self._out_of_turn_before = self._out_of_turn()

    def _out_of_turn(self) -> int:
        return sum(len(task) == 2 for task in self._iterator._task_info.values())


class _PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def _readable(file: int) -> Callable[[], bool]:
    """Return a look whether a file can be read, which keeps Python's lock.

    `select.poll` gives it up: where other threads want it, getting it back takes 5 ms.
    """
    poll = ctypes.PyDLL(None).poll
    poll_file = _PollFd(file, select.POLLIN, 0)
    poll_argument = ctypes.byref(poll_file)
    return lambda: poll(poll_argument, 1, 0) > 0


def finished_batches(iterator: Iterator[object], handed_over: HandedOver) -> FinishedBatches | None:
    """Return a look into an iterator; None = it is not a DataLoader's with workers."""
    if type(iterator).__name__ != "_MultiProcessingDataLoaderIter":
        return None
    private: _MultiProcessingDataLoaderIter = iterator
    try:
        results, data = private._worker_result_queue, private._data_queue
        readable = _readable(results._reader.fileno())
        queued: Callable[[], object] = readable
        if data is not results:  # a thread takes them over, pins their memory and queues them again
            pinned = data.queue
            queued = lambda: pinned or readable()  # noqa: E731
        look = FinishedBatches(private, queued, handed_over)
        look._look()  # raises where another attribute has moved
    except Exception:  # another version of torch, or a system without `poll`
        return None
    return look
