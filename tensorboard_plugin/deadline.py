"""Deadlines for requests that wait for a store, so that a silent store blocks nobody for long."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["Deadline", "NoAnswer"]

# Libraries of object stores retry for minutes; a browser has six connections to TensorBoard,
# which its other tabs need, too.
ANSWER_S = 15.0
# Overdue requests that may wait for the same work; further ones are refused at once.
MOST_OVERDUE = 2

T = TypeVar("T")


class NoAnswer(Exception):
    """No answer in time; the message says in one line what to do."""


class Deadline:
    """Work on threads of its own, awaited up to a time limit; thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._overdue: Counter[str] = Counter()

    def ask(self, what: str, work: Callable[[], T]) -> T:
        """Return or raise what `work` does. `what`: names what it waits for.

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
            except BaseException as error:  # raised where it was requested
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
        """Yield the lines of a download; where one takes too long, a last line that says so.

        Raises: NoAnswer after that, so that the partial download does not look complete.
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
