"""Requests that may wait for a store: one that does not answer keeps nobody waiting for long."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["Deadline", "NoAnswer"]

# Libraries of object stores try again for minutes; a browser has six connections to TensorBoard,
# which its other tabs need, too.
ANSWER_S = 15.0
# So many requests may be waiting overdue for the same thing; further ones are refused at once.
MOST_OVERDUE = 2

T = TypeVar("T")


class NoAnswer(Exception):
    """It took too long; the message says in one line what to do."""


class Deadline:
    """Does work on threads of its own, and waits for it only so long; thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._overdue: Counter[str] = Counter()

    def ask(self, what: str, work: Callable[[], T]) -> T:
        """What `work` returns or raises. `what`: names what it waits for.

        Raises: NoAnswer.
        """
        if self._overdue[what] >= MOST_OVERDUE:
            raise NoAnswer(_MESSAGE)
        found: list[tuple[Any, BaseException | None]] = []
        done = threading.Event()
        overdue = False

        def run() -> None:
            try:
                found.append((work(), None))
            except BaseException as error:  # raised where it was asked for
                found.append((None, error))
            with self._lock:
                done.set()
                self._overdue[what] -= overdue

        # A daemon: TensorBoard may end while a library still waits.
        threading.Thread(target=run, name="gpu-util-request", daemon=True).start()
        if not done.wait(ANSWER_S):
            with self._lock:
                if not done.is_set():
                    overdue = True
                    self._overdue[what] += 1
                    raise NoAnswer(_MESSAGE)
        value, error = found[0]
        if error is not None:
            raise error
        return value

    def stream(self, what: str, lines: Iterator[str]) -> Iterator[str]:
        """The lines of a download; where one takes too long, a last one that says so.

        Raises: NoAnswer after that, so that what was begun does not look complete.
        """
        while True:
            try:
                line = self.ask(what, lambda: next(lines, None))
            except NoAnswer as late:
                yield f"# incomplete: {late}\n"
                raise
            if line is None:
                return
            yield line


_MESSAGE = (
    "the store that holds this recording does not answer: see that the machine TensorBoard runs on "
    "is online and logged in there"
)
