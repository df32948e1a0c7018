"""Python functions that make a training's input: how often they are called, and their time."""

from __future__ import annotations

import functools
import inspect
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType, MethodType
from typing import Any

from gpu_util_callback.recording.manifest_facts import InputCall
from gpu_util_callback.steps.frames import uncounted

# Calls that are timed: the first ones, since slow ones may be few, then one in so many. A timed
# call costs 1.6 µs, another 0.2 µs. Whether it queued for a core costs 20 to 40 µs more to read, so
# that is read in one of four timed calls.
FIRST, EVERY, QUEUED_EVERY = 16, 16, 64
# Numbers of the timed calls, modulo `_CYCLE`: one at a random place in each `EVERY` calls, since each
# tenth call may be a slow one. They are drawn from a generator of its own, not from the user's.
_CYCLE = 256 * EVERY
_places = random.Random(56)
TIMED = frozenset((first + _places.randrange(EVERY)) % _CYCLE for first in range(1, _CYCLE + 1, EVERY))


def queued_ns() -> int | None:
    """Return how long this thread was ready to run and had no core, ns; None if not known."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:  # noqa: PTH123 (quicker)
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None


@uncounted
class CallTimer:
    """Timer of a function's calls, which may come from several threads.

    Args:
        name: the function's.
    """

    def __init__(self, name: str):
        self.name = name
        self.calls = 0
        self._numbers = itertools.count(1)  # `next` is one operation: no call is lost
        # The recorder takes these; bounded, since it may hang.
        self._took: deque[tuple[int, int, int, int | None]] = deque(maxlen=1 << 16)
        self._timed = self._stands_for = self._wall_ns = self._cpu_ns = 0
        self._queued_ns = self._queued_wall_ns = 0

    def around(self, function: Callable, first: Callable[[object], None] | None = None) -> Callable:
        """Return the function, counted and timed. A call that raises is counted only.

        Args:
            first: called with the result of the first call.
        """
        numbers, took, timed_numbers = self._numbers, self._took, TIMED
        clock, thread_clock = time.perf_counter_ns, time.thread_time_ns

        def timed(*args: object, **kwargs: object) -> object:
            self.calls = number = next(numbers)
            if number > FIRST and number % _CYCLE not in timed_numbers:
                return function(*args, **kwargs)
            look = number <= FIRST or (number - 1) % QUEUED_EVERY < EVERY
            queued = queued_ns() if look else None
            began, used = clock(), thread_clock()
            result = function(*args, **kwargs)
            cpu_ns, wall_ns = thread_clock() - used, clock() - began
            if queued is not None:
                queued = (queued_ns() or queued) - queued
            took.append((number, cpu_ns, wall_ns, queued))
            if number == 1 and first is not None:
                first(result)
            return result

        return timed

    def facts(self) -> InputCall:
        """Return an entry of the manifest's `input_calls`: means over all calls, per call."""
        while self._took:
            number, cpu_ns, wall_ns, queued_ns = self._took.popleft()
            calls = 1 if number <= FIRST else EVERY  # that this one stands for
            self._timed += 1
            self._stands_for += calls
            self._wall_ns += calls * wall_ns
            self._cpu_ns += calls * cpu_ns
            if queued_ns is not None:
                self._queued_ns += queued_ns
                self._queued_wall_ns += wall_ns
        entry: InputCall = {"name": self.name, "calls": self.calls, "timed": self._timed}
        if self._timed:
            entry["wall_ms"] = round(self._wall_ns / self._stands_for / 1e6, 6)
            entry["cpu_ms"] = round(self._cpu_ns / self._stands_for / 1e6, 6)
        if self._queued_wall_ns:
            share = min(1.0, self._queued_ns / self._queued_wall_ns)
            entry["queued_ms"] = round(share * entry["wall_ms"], 6)
        return entry


class InputCalls:
    """Timers of the functions that make a training's input, for the time of each fit."""

    def __init__(self) -> None:
        self._timers: dict[tuple[str, object], CallTimer] = {}
        self._undo: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # functions are replaced on either thread
        self._open = False

    def begin(self) -> None:
        self._open = True

    def timer(self, name: str, identity: object) -> CallTimer:
        """Return the timer of a function; the same one in each fit.

        Args:
            identity: tells functions of one name apart: the code, or the class.
        """
        return self._timers.setdefault((name, identity), CallTimer(name))

    def replace(self, install: Callable[[], None], back: Callable[[], None]) -> None:
        """Call `install`, and `back` when the fit ends; neither where it has ended."""
        with self._lock:
            if self._open:
                self._undo.append(back)
                install()

    def replace_attribute(self, owner: object, name: str, value: object) -> None:
        """Set an attribute for the time of the fit."""
        before = getattr(owner, name)

        def back() -> None:
            if getattr(owner, name) is value:
                setattr(owner, name, before)

        self.replace(lambda: setattr(owner, name, value), back)

    def end(self) -> None:
        """End a fit: put all functions back. May be called more than once."""
        with self._lock:
            self._open = False
            while self._undo:
                self._undo.pop()()

    def facts(self) -> list[InputCall]:
        """Return the manifest's `input_calls`."""
        return [timer.facts() for timer in list(self._timers.values()) if timer.calls]


def called(function: Any) -> tuple[str, object]:
    """Return a function's name, and an object that distinguishes it from others of that name."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", type(function))
    name = getattr(function, "__name__", f"{type(function).__name__}.__call__")
    if inspect.ismethod(function) and not inspect.isclass(function.__self__):
        name = f"{type(function.__self__).__name__}.{name}"
    return name.replace("<lambda>", "lambda"), code


# ---- what stands in for the user's objects, where only the framework sees it ---------------------


@uncounted
class StandIn:
    """An object in a dataset's place; what it does not define is the dataset's own."""

    def __init__(self, dataset: Iterable):
        self._stands_for: Any = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_stands_for"], name)

    def __len__(self) -> int:
        return len(self._stands_for)


@uncounted
class WatchedIterable(StandIn):
    """A dataset whose iterators are passed through a function."""

    def __init__(self, dataset: Iterable, through: Callable[[Iterator], Iterator]):
        super().__init__(dataset)
        self._through = through

    def __iter__(self) -> Iterator:
        return self._through(iter(self._stands_for))


@uncounted
class _TimedDataset(StandIn):
    """A dataset whose items are timed."""

    def __init__(self, dataset: Iterable, calls: InputCalls, first: Callable[[object], None] | None = None):
        super().__init__(dataset)
        kind = type(dataset)
        self._get = _method(calls, dataset, "__getitem__", first)
        if callable(getattr(kind, "__getitems__", None)):  # torch calls it for a whole batch
            self.__getitems__ = _method(calls, dataset, "__getitems__")

    def __getitem__(self, index: object) -> object:
        return self._get(index)


@uncounted
class _TimedIterator:
    """An iterator whose `next` is timed.

    Args:
        untimed: items at its begin that are there already.
    """

    def __init__(self, iterator: Iterator[object], timer: CallTimer, untimed: int = 0):
        self._iterator = iterator
        self._untimed = untimed
        self._next = timer.around(iterator.__next__)

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> object:
        if self._untimed:
            self._untimed -= 1
            return next(self._iterator)
        return self._next()


def _method(calls: InputCalls, owner: object, name: str, first: Callable[[object], None] | None = None) -> Callable:
    kind = type(owner)
    timer = calls.timer(f"{kind.__name__}.{name}", kind)
    return timer.around(MethodType(getattr(kind, name), owner), first)


# ---- inputs of a fit and of a loop ---------------------------------------------------------------


def time_fit(calls: InputCalls, data_adapter: Any, generator_input: object, first: Callable[[object], None]) -> None:
    """Time the Python functions behind Keras' data adapter; on the training thread.

    Those that run in worker processes are left alone: what stands in would be sent to them.

    Args:
        generator_input: `x` of the fit.
        first: called with the first batch, where a Python function makes it.
    """
    kind = type(data_adapter).__name__
    if kind == "PyDatasetAdapter":
        dataset, threads = data_adapter.py_dataset, data_adapter.enqueuer
        if threads is not None and dataset.use_multiprocessing:
            return
        timed = _TimedDataset(dataset, calls, first)
        for owner in (data_adapter, threads):
            if owner is not None:
                calls.replace_attribute(owner, "py_dataset", timed)
    elif kind == "GeneratorDataAdapter":
        batches, batches_made = data_adapter.generator, len(data_adapter._first_batches)
        timer = calls.timer(*_next_of(generator_input))
        first(data_adapter._first_batches[0])
        calls.replace_attribute(data_adapter, "generator", lambda: _TimedIterator(batches(), timer, batches_made))
    elif kind == "TorchDataLoaderAdapter" and data_adapter._dataloader.num_workers == 0:
        calls.replace_attribute(
            data_adapter,
            "_dataloader",
            WatchedIterable(data_adapter._dataloader, lambda loader: timed_iterator(calls, None, loader)),
        )


def timed_iterator(calls: InputCalls, dataset: Any, iterator: Iterator) -> Iterator:
    """Return an iterator over a dataset whose Python functions are timed; on the training thread.

    The same iterator where it is a DataLoader's own: what stands in for its dataset is within.
    """
    fetcher = getattr(iterator, "_dataset_fetcher", None)  # of a DataLoader without workers
    if fetcher is not None:
        if hasattr(fetcher, "dataset_iter"):
            kind = type(fetcher.dataset)
            timer = calls.timer(f"{kind.__name__}.__iter__", kind)
            fetcher.dataset_iter = _TimedIterator(fetcher.dataset_iter, timer)
        else:
            fetcher.dataset = _TimedDataset(fetcher.dataset, calls)
        return iterator
    kind = type(dataset)
    if isinstance(dataset, GeneratorType):
        return _TimedIterator(iterator, calls.timer(*_next_of(dataset)))
    if type(iterator) is type(iter(_Sequence())) and inspect.isfunction(kind.__getitem__):
        return _TimedIterator(iterator, calls.timer(f"{kind.__name__}.__getitem__", kind))
    return iterator


class _Sequence:
    """An object that Python iterates over by `__getitem__`, as over a PyDataset."""

    def __getitem__(self, index: int) -> int:
        raise IndexError


def _next_of(iterator: object) -> tuple[str, object]:
    """Return the name of what makes an iterator's items: a generator function, or `__next__`."""
    code = getattr(iterator, "gi_code", None)
    if code is None:
        return f"{type(iterator).__name__}.__next__", type(iterator)
    return code.co_name.replace("<genexpr>", "generator expression"), code
