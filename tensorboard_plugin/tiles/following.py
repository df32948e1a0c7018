"""Incremental reading of a growing recording: one request reads, the others continue."""

import threading

__all__ = ["IncrementalReader"]


class IncrementalReader:
    """Base of data made of a recording's rows and brought up to date on demand.

    `_revision` is the recording's when it was last brought up to date, None before.
    """

    def __init__(self) -> None:
        self._updating = threading.Lock()  # held while reading what is new, and only then
        self._revision: str | None = None

    @property
    def ready(self) -> bool:
        """Return whether `update` has been completed once."""
        return self._revision is not None

    def update(self, revision: str, wait: bool = True) -> bool:
        """Read what was recorded since the last update.

        Args:
            revision: of the recording, to skip updates without changes.
            wait: wait for another thread that is already updating.

        Returns: whether there is anything complete to show.
        """
        if revision == self._revision:
            return True
        if not self._updating.acquire(blocking=wait):
            return False
        try:
            if revision != self._revision:
                self._take_in(revision)
                self._revision = revision
        finally:
            self._updating.release()
        return True

    def _take_in(self, revision: str) -> None:
        """Read what is new; one thread at a time."""
        raise NotImplementedError
