"""Work that no request waits for, or not for long."""

import ctypes
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["BackgroundJobs"]

logger = logging.getLogger("gpu_util_callback")


class BackgroundJobs:
    """Jobs done one after the other on a thread of their own, the newest first."""

    MOST = 16
    LINGER_S = 1.0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._current: tuple[str, _Job] | None = None
        self._runs = False

    def has(self, id: str) -> bool:
        """Return whether a job with this id waits or runs."""
        with self._changed:
            return self._known(id) is not None

    def do(self, id: str, work: Callable[[], None], pause_s: float = 0.0) -> threading.Event:
        """Do some work soon, unless a job with this id waits or runs already.

        Args:
            pause_s: how long it may wait, so that requests under way go first.

        Returns: an event that is set once it is done.
        """
        with self._changed:
            known = self._known(id)
            if known is not None:
                return known.done
            job = self._jobs[id] = _Job(work, pause_s)
            while len(self._jobs) > self.MOST:
                self._jobs.popitem(last=False)  # a view that still needs it asks again
            self._run()
            self._changed.notify()
            return job.done

    def tidy(self) -> None:
        """Return free memory to the system soon."""
        with self._changed:
            self._run()

    def _known(self, id: str) -> "_Job | None":
        if self._current is not None and self._current[0] == id:
            return self._current[1]
        return self._jobs.get(id)

    def _run(self) -> None:
        if not self._runs:
            self._runs = True
            threading.Thread(target=self._work, name="gpu-util-tiles", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._current = None
                self._current = self._next()
                if self._current is None:
                    self._runs = False
                    break
                _, job = self._current
            try:
                job.work()
            except Exception:
                logger.exception("reading a recording for its tiles failed")
            job.done.set()
        _return_free_memory()

    def _next(self) -> "tuple[str, _Job] | None":
        """Take the newest job that is due, waiting for one; None once there was none for long."""
        end = time.monotonic() + self.LINGER_S
        while True:
            now = time.monotonic()
            for id in reversed(self._jobs):
                if self._jobs[id].due <= now:
                    return id, self._jobs.pop(id)
            if not self._jobs and now >= end:
                return None
            self._changed.wait(min((job.due for job in self._jobs.values()), default=end) - now)


class _Job:
    def __init__(self, work: Callable[[], None], pause_s: float):
        self.work, self.due = work, time.monotonic() + pause_s
        self.done = threading.Event()


def _return_free_memory() -> None:
    """Return pages that reading hundreds of segments left scattered over the heap.

    Measured: half of what a long run's entries took remained with the allocator otherwise.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library: its allocator decides
