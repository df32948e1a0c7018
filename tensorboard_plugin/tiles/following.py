"""Following a recording: what it gained is taken in by one request, and the others go on."""

import threading

__all__ = ["IncrementalReader"]


class IncrementalReader:
    """Base of what is made of a recording's rows and brought up to date on demand.

    `_revision` is the recording's when it was last brought up to date, None before.
    """

    def __init__(self) -> None:
        self._updating = threading.Lock()  # held while reading what is new, and by nobody else
        self._revision: str | None = None

    @property
    def ready(self) -> bool:
        """Return whether `update` has been through once."""
        return self._revision is not None

    def update(self, revision: str, wait: bool = True) -> bool:
        """Take in what was recorded since.

        Args:
            revision: says whether there can be anything.
            wait: until another thread that does so already is done.

        Returns: whether what there is can be shown.
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
