"""Work that may never end, on a thread of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Begin some work on a thread of this name; `result(seconds)` waits for it, or raises TimeoutError.

    The thread is a daemon: a library that keeps waiting must not keep the program from ending, as
    the threads of an executor would.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised where the result is taken
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
