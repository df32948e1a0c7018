"""Work beside requests, for when it takes longer than a person should wait."""

import ctypes
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["FIRST_PAUSE_S", "Beside"]

logger = logging.getLogger("gpu_util_callback")

# Work beside requests begins after this, so that the requests of a view are through; of a first
# view, there are more.
PAUSE_S, FIRST_PAUSE_S = 0.02, 0.1


class Beside:
    """Jobs done one after the other on a thread of their own, the newest first."""

    MOST = 16
    TIDY_S = 1.0

    def __init__(self) -> None:
        self._tidied = 0.0
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, tuple[Callable[[], None], float]] = OrderedDict()
        self._current: str | None = None
        self._runs = False

    def has(self, id: str) -> bool:
        """Whether a job with this id waits or runs."""
        with self._lock:
            return id in self._jobs or id == self._current

    def do(self, id: str, job: Callable[[], None], pause_s: float = PAUSE_S) -> None:
        """Run `job` soon, unless one with this id waits or runs already."""
        with self._lock:
            if id in self._jobs or id == self._current:
                return
            self._jobs[id] = (job, pause_s)
            while len(self._jobs) > self.MOST:
                self._jobs.popitem(last=False)  # whoever still wants it asks again
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._work, name="gpu-util-tiles", daemon=True).start()

    def tidy(self) -> None:
        """Give free memory back soon, unless that was done just now."""
        if time.monotonic() - self._tidied > self.TIDY_S:
            self.do("tidy", lambda: None)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._current = None
                if not self._jobs:
                    self._runs = False
                    break
                self._current, (job, pause_s) = self._jobs.popitem()
            time.sleep(pause_s)
            try:
                job()
            except Exception:
                logger.exception("reading a recording for its tiles failed")
        self._tidied = time.monotonic()
        _return_free_memory()


def _return_free_memory() -> None:
    """Give pages back that reading hundreds of segments left scattered over the heap.

    Seen: half of what a long run's pyramids took remained with the allocator otherwise.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library: its allocator decides
