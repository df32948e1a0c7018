"""Timing of what a fit calls besides its train function: all callbacks' hooks, and work on the input."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import CO_VARARGS, CO_VARKEYWORDS, Parameter, signature
from pathlib import Path
from types import FrameType, MethodType
from typing import Protocol

from gpu_util_callback.steps.dispatch import is_library, path_of, place_of
from gpu_util_callback.steps.frames import epoch_iterator, uncounted
from gpu_util_callback.steps.timeline import Phase, Timeline

# Hooks that run once a batch: summed by name. All others get a row each.
BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin", "on_test_batch_end")
OTHER_HOOKS = ("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_test_begin", "on_test_end")
ALIASES = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}

LONG_NS = 10_000_000  # a batch hook this long gets a row of its own, so that its step is known
_POOLED = 4096  # calls of hooks on other threads that are remembered until the training thread waits for them
SHORT_NS = 20_000  # hooks outside batches shorter than this get no row: most do nothing

# Callbacks that write checkpoints, by class name anywhere in their ancestry.
CHECKPOINTS = {"ModelCheckpoint", "BackupAndRestore"}


class BatchHooks(Protocol):
    """The hooks of training batches, of Keras' list of callbacks or of one callback."""

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None: ...


class CallbackList(BatchHooks, Protocol):
    """Keras' list of the callbacks of a fit."""

    callbacks: list


def find_callback_list(callback: object, depth: int = 8) -> CallbackList | None:
    """Return the `CallbackList` that is calling `callback` right now, at most `depth` frames up; None if not found."""
    frame = sys._getframe(1)
    for _ in range(depth):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        callbacks = getattr(owner, "callbacks", None)
        if isinstance(callbacks, list) and any(c is callback for c in callbacks):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


# Names of arguments that set how often a callback works.
_RHYTHM = re.compile(r"(^|_)(every|freq|frequency|interval|period)(_|$)")


def describe_callbacks(callbacks: Iterable[object]) -> dict[str, dict[str, object]]:
    """Return how often the user's own callbacks work, and which of them need validation.

    Returns: class name -> `every`, the arguments of its class that set this, with their values;
        `names`, its hooks' own names for the epoch or the batch; `monitor`, the validation metric
        that it watches; `library`, the installed package that it comes from; `places`, where the program
        defines its hooks. Callbacks without any of these are left out.
    """
    described = {}
    for callback in callbacks:
        kind = type(callback)
        facts: dict[str, object] = {}
        watched = getattr(callback, "monitor", None)
        if isinstance(watched, str) and watched.startswith("val_"):
            facts["monitor"] = watched
        # not Keras' and not ours
        if kind.__module__.partition(".")[0] not in ("keras", "tf_keras", "gpu_util_callback"):
            facts |= {"every": _rhythms(callback), "names": _first_arguments(callback), "library": _library(kind)}
            facts["places"] = _places(kind)
        # Keras' own, which may be costly
        elif kind.__name__ == "TensorBoard" and (frequency := getattr(callback, "histogram_freq", None)):
            facts["every"] = {"histogram_freq": int(frequency)}
        if any(facts.values()):
            described[kind.__name__] = {name: value for name, value in facts.items() if value}
    return described


def _library(kind: type) -> str | None:
    """Return the installed package of a class; None for a program's own."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return kind.__module__.partition(".")[0] if {"site-packages", "dist-packages"} & set(Path(path).parts) else None


def _rhythms(callback: object) -> dict[str, int]:
    """Return name -> value of a callback's arguments that set how often it works, such as `save_freq`.

    Only positive whole numbers are returned; "batch" is 1. The value is the instance's attribute of that name, or the
    default.
    """
    try:
        arguments = signature(type(callback).__init__).parameters.values()
    except (TypeError, ValueError):  # no readable signature
        return {}
    rhythms = {}
    for argument in arguments:
        name = argument.name
        if not _RHYTHM.search(name) or argument.kind == Parameter.POSITIONAL_ONLY:
            continue
        value = vars(callback).get(name, vars(callback).get(f"_{name}", argument.default))
        if value == "batch":  # every one
            value = 1
        if type(value) is int and value > 0:
            rhythms[name] = value
    return rhythms


def _first_arguments(callback: object) -> dict[str, str]:
    """Return a callback's names for its epoch or batch where they differ from Keras' own."""
    hooks = dict.fromkeys(("on_epoch_begin", "on_epoch_end"), "epoch")
    hooks |= dict.fromkeys(("on_train_batch_begin", "on_train_batch_end"), "batch")
    codes = {hook: getattr(getattr(type(callback), hook, None), "__code__", None) for hook in hooks}
    names = {hook: code.co_varnames[1] for hook, code in codes.items() if code is not None and code.co_argcount > 1}
    return {hook: name for hook, name in names.items() if name != hooks[hook]}


def _places(kind: type) -> dict[str, str]:
    """Return where a program defines hooks of a callback: name -> "Plots.on_epoch_end (train.py, line 12)"."""
    codes = {name: getattr(getattr(kind, name), "__code__", None) for name in dir(kind) if name.startswith("on_")}
    own = {name: code for name, code in codes.items() if code is not None and not is_library(path_of(code))}
    return {name: place_of(code, code.co_firstlineno) for name, code in own.items()}


class HookSums:
    """Time spent in one batch hook of one callback, as part of the steps.

    Attributes:
        count, total: calls so far, and their time in ns.
        start, end: of the calls that were not taken yet, perf ns.
    """

    __slots__ = ("_taken_count", "_taken_ns", "count", "end", "kind", "name", "start", "total")

    def __init__(self, name: str, kind: str):
        self.name = name
        self.kind = kind
        self.count = self.total = self.start = self.end = 0
        self._taken_count = self._taken_ns = 0  # `count` and `total` at the last `take`

    def add(self, start: int, end: int) -> None:
        """Add a call of the hook."""
        if not self.count:
            self.start = start
        self.end = end
        self.total += end - start
        self.count += 1

    def take(self, calls: int) -> list[Phase]:
        """Return a row of what was added since the last call of `take`; [] for nothing. Callable on any thread.

        Args:
            calls: training calls before the row.
        """
        total, count = self.total, self.count
        if count == self._taken_count:
            return []
        spent_ns, new_count = total - self._taken_ns, count - self._taken_count
        self._taken_ns, self._taken_count = total, count
        row = Phase(self.kind, self.name, self.start, self.end, "", spent_ns, calls, new_count)
        self.start = self.end
        return [row]


class Wrappers:
    """Stand-ins for attributes of instances for the time of a fit.

    Args:
        timeline: receives the measurements.
        failed: called with an error of ours.
    """

    def __init__(self, timeline: Timeline, failed: Callable[[BaseException], None]):
        self._timeline = timeline
        self._failed = failed
        # owner, attribute, whether the instance had it, and its value
        self._undo: list[tuple[object, str, bool, object]] = []

    def _replace(self, owner: object, name: str, value: object) -> None:
        attributes = owner.__dict__
        self._undo.append((owner, name, name in attributes, attributes.get(name)))
        attributes[name] = value

    def detach(self) -> None:
        """Restore the original attributes, the last replaced first. May be called more than once."""
        while self._undo:
            owner, name, had, value = self._undo.pop()
            try:
                if had:
                    owner.__dict__[name] = value  # it had an attribute of its own
                else:
                    owner.__dict__.pop(name, None)  # the class's shows again
            except Exception as error:
                self._failed(error)


class CallbackTimer(Wrappers):
    """Timed wrappers around the hooks of a `CallbackList` and its callbacks, on the instances.

    The list's own hooks give the step boundaries; the callbacks' hooks give the names. Code that
    runs every step is written for speed, with as few calls as possible.

    Args:
        timeline, failed: as of `Wrappers`.
        ours: our own callback, which is not timed.
        begun: called as each training batch begins, with the time (perf ns); raises nothing.
        epoch_logs: called with an epoch's logs before any callback gets them; raises nothing.
    """

    def __init__(
        self,
        timeline: Timeline,
        ours: BatchHooks,
        failed: Callable[[BaseException], None],
        begun: Callable[[int], None] = lambda now: None,
        epoch_logs: Callable[[object], None] | None = None,
    ):
        super().__init__(timeline, failed)
        self._ours = ours
        self._begun = begun
        self._epoch_logs = epoch_logs
        self.sums: list[HookSums] = []
        # Calls of end hooks on Keras' other threads, the newest: (name, kind, start, end).
        self._pooled: deque[tuple[str, str, int, int]] = deque(maxlen=_POOLED)

    def attach(self, callback_list: CallbackList) -> None:
        """Start timing; on the training thread, inside `on_train_begin`."""
        self._time_callbacks(callback_list)
        self._time_edges(callback_list)

    def attach_alone(self) -> None:
        """Start timing where the list could not be found: our own hooks stand for the list's.

        They are among the other callbacks' hooks: when the first of those begins is not seen.
        """
        self._stamp(self._ours, "on_epoch_end", self._epoch_ends)
        self._time_edges(self._ours)

    def _time_callbacks(self, callback_list: CallbackList) -> None:
        """Time the hooks of all callbacks but ours, and note when Keras calls the end hooks of the first one."""
        timeline = self._timeline
        # JAX and torch: where all callbacks allow it, Keras calls the end hooks on other threads.
        threaded = [kind for kind in ("train", "test") if getattr(callback_list, f"_async_{kind}", False)]
        threaded_hooks = {f"on_{kind}_batch_end" for kind in threaded}
        callbacks = list(callback_list.callbacks)
        for callback in callbacks:
            if callback is not self._ours:
                self._time_callback(callback, threaded_hooks)
        if threaded_hooks and hasattr(callback_list, "_flush_futures"):
            self._time_wait(callback_list)
        if callbacks:  # Keras waits for the device before it calls the first one
            reached = timeline.device_reached if "train" in threaded else timeline.logs_ready
            self._stamp(callbacks[0], "on_train_batch_end", reached)
            self._stamp(callbacks[0], "on_epoch_end", self._epoch_ends)

    def _time_edges(self, owner: BatchHooks) -> None:
        """Time where steps, epochs and validations begin and end, by hooks of `owner`.

        The list, or our callback for it.
        """
        timeline = self._timeline
        begins = timeline.around_begin(owner.on_train_batch_begin, self._begun, self._failed)
        self._replace(owner, "on_train_batch_begin", begins)
        # On other threads nothing on this one waits for the logs.
        logs_are_ready = getattr(owner, "_async_train", False)
        ends = timeline.around_end(owner.on_train_batch_end, logs_are_ready)
        self._replace(owner, "on_train_batch_end", ends)
        # Hook -> what the timeline notes before it, and after it.
        moments: dict[str, tuple[Callable | None, Callable | None]] = {
            "on_epoch_begin": (None, timeline.epoch_begun),
            "on_epoch_end": (None, timeline.epoch_ended),
            "on_test_begin": (timeline.test_begin, None),
            "on_test_batch_begin": (timeline.test_batch_begin, None),
            "on_test_batch_end": (None, timeline.test_batch_end),
            "on_test_end": (timeline.test_end, timeline.test_ended),
        }
        for hook, (before, after) in moments.items():
            self._around(owner, hook, before, after)

    def _epoch_ends(self, epoch: int, logs: object = None) -> None:
        """Note that an epoch ends, before the callbacks are called, and pass on its logs."""
        try:
            self._timeline.epoch_end()
        except Exception as error:
            self._failed(error)
        if self._epoch_logs is not None:  # all callbacks get the same dictionary
            self._epoch_logs(logs)

    @uncounted
    def _around(self, owner: object, name: str, before: Callable | None, after: Callable | None) -> None:
        """Replace a hook of Keras' list so that `before` and `after` run around it; neither can break it.

        Args:
            name: of the hook; `on_epoch_begin` also announces the epoch's number to the timeline.
            before, after: None = nothing.
        """
        hook = getattr(owner, name)
        failed = self._failed
        epoch_begin: Callable | None = self._timeline.epoch_begin if name == "on_epoch_begin" else None

        def timed(*args: object, **kwargs: object) -> object:
            """Call the hook between `before` and `after`; an error of ours is only reported."""
            try:
                if before is not None:
                    before()
                elif epoch_begin is not None:
                    epoch_begin(args[0] if args else kwargs["epoch"])
            except Exception as error:
                failed(error)
            result = hook(*args, **kwargs)
            try:
                if after is not None:
                    after()
            except Exception as error:
                failed(error)
            return result

        self._replace(owner, name, timed)

    def _replace_hook(self, callback: object, name: str, function: Callable) -> None:
        """Replace a callback's hook by a function of the callback and the hook's arguments.

        The replacement is a method of that name, so that a callback copied or pickled in the middle
        of a fit keeps its own hook.
        """
        function.__name__ = name
        self._replace(callback, name, MethodType(function, callback))

    @uncounted
    def _stamp(self, callback: object, name: str, stamp: Callable[..., None]) -> None:
        # Before it calls the first callback, Keras has turned the logs into Python numbers, which
        # waits for the device.
        """Replace a hook of the list's first callback so that `stamp` gets its arguments before it."""
        hook = _function(callback, name)

        def timed(self: object, *args: object, **kwargs: object) -> object:
            stamp(*args)
            return hook(self, *args, **kwargs)

        def plain(self: object, batch: int, logs: object = None) -> object:  # faster: no packed arguments
            stamp(batch, logs)
            return hook(self, batch, logs)

        self._replace_hook(callback, name, plain if _is_plain(hook) else timed)

    def _time_callback(self, callback: object, pooled: set[str]) -> None:
        """Time the hooks that a callback overrides.

        Batch hooks are summed up, others get rows. Batch hooks of `pooled` run on other threads: their times are kept
        for `_waited`.
        """
        name = type(callback).__name__
        classes = {c.__name__ for c in type(callback).__mro__}  # with its ancestors
        kind = "checkpoint" if classes & CHECKPOINTS else "callback"
        for hook in BATCH_HOOKS:
            if not _overridden(callback, hook):
                continue
            if hook in pooled:  # only the wait for it costs the training thread time
                self._time_hook(callback, hook, lambda *at, who=f"{name}.{hook}": self._pooled.append((who, kind, *at)))
            else:
                self._sum_up(callback, hook, HookSums(f"{name}.{hook}", kind))
        for hook in OTHER_HOOKS:
            if _overridden(callback, hook):
                account = "" if hook.startswith("on_test") else "callbacks"  # a part of the validation
                self._time_hook(callback, hook, partial(self._write_down, f"{name}.{hook}", kind, account))

    def _write_down(self, title: str, kind: str, account: str, start: int, end: int) -> None:
        if end - start >= SHORT_NS:
            self._timeline.phase(kind, title, start, end, account)

    def _time_hook(self, callback: object, name: str, done: Callable[[int, int], None]) -> None:
        """Replace a hook so that `done` gets when each of its calls began and ended, ns."""
        self._replace_hook(callback, name, _timed(_function(callback, name), done))

    def _time_wait(self, callback_list: CallbackList) -> None:
        """Time Keras' wait for the hooks on other threads, at the ends of epochs and validations.

        Short ones are ignored.
        """

        def waited(start: int, end: int) -> None:
            try:
                if end - start >= SHORT_NS:
                    self._waited(start, end)
            except Exception as error:
                self._failed(error)

        self._replace(callback_list, "_flush_futures", _timed(callback_list._flush_futures, waited))  # type: ignore[attr-defined]

    def _waited(self, start: int, end: int) -> None:
        """Count a wait (perf ns) under the hooks that ran on other threads in it, by the share of each.

        The part of the wait in which no hook ran is the device's and is not counted. The hooks' parts are placed at the
        wait's end, one after the other.
        """
        spent_ns: Counter[tuple[str, str]] = Counter()
        calls: Counter[tuple[str, str]] = Counter()
        covered_ns, until = 0, start  # time in which at least one hook ran; up to where that is counted
        for title, kind, begun, ended in sorted(self._pooled, key=lambda call: call[2]):
            begun, ended = max(begun, start), min(ended, end)
            if ended <= begun:  # ran outside the wait
                continue
            spent_ns[title, kind] += ended - begun
            calls[title, kind] += 1
            covered_ns += max(0, ended - max(begun, until))
            until = max(until, ended)
        self._pooled.clear()
        begin, share = end - covered_ns, covered_ns / max(1, spent_ns.total())
        for hook, ns in spent_ns.most_common():
            self._timeline.waited(*hook, begin, begin + round(ns * share), calls[hook])
            begin += round(ns * share)

    @uncounted
    def _sum_up(self, callback: object, name: str, sums: HookSums) -> None:
        """Replace a hook of each batch: calls shorter than `LONG_NS` are summed up, long ones become phases."""
        self.sums.append(sums)
        hook = _function(callback, name)
        clock = time.perf_counter_ns
        timeline = self._timeline
        write = timeline.phase

        def add(start: int, end: int) -> None:
            """Add a call of the hook, perf ns."""
            if end - start < LONG_NS:
                sums.add(start, end)
            else:  # part of its step (or validation): a detail, not an account
                write(sums.kind, sums.name, start, end, "")

        def timed(self: object, *args: object, **kwargs: object) -> object:  # for hooks of any signature
            """Call the hook, of any signature, and add its time (perf ns)."""
            start = clock()
            try:
                return hook(self, *args, **kwargs)
            finally:
                end = clock()
                add(start, end)
                if timeline.sampled:
                    timeline.own_step_ns += clock() - end

        def plain(self: object, batch: int, logs: object = None) -> object:  # faster: no packed arguments
            """Call a hook that takes what Keras documents, and add its time (perf ns)."""
            start = clock()
            try:
                return hook(self, batch, logs)
            finally:
                end = clock()
                if end - start < LONG_NS and sums.count:  # as `add` does, without the call
                    sums.end = end
                    sums.total += end - start
                    sums.count += 1
                else:
                    add(start, end)
                if timeline.sampled:
                    timeline.own_step_ns += clock() - end

        self._replace_hook(callback, name, plain if _is_plain(hook) else timed)


@uncounted
def _timed(function: Callable, done: Callable[[int, int], object]) -> Callable:
    """Return a function that calls another one, and `done` with when that began and ended, ns."""
    clock = time.perf_counter_ns

    def timed(*args: object, **kwargs: object) -> object:
        start = clock()
        try:
            return function(*args, **kwargs)
        finally:
            done(start, clock())

    return timed


@uncounted
def _function(callback: object, name: str) -> Callable:
    """Return a callback's hook as a function of the callback and the hook's arguments."""
    hook = getattr(callback, name)
    if isinstance(hook, MethodType) and hook.__self__ is callback:
        return hook.__func__
    return lambda self, *args, **kwargs: hook(*args, **kwargs)


def _is_plain(hook: Callable) -> bool:
    """Return whether a batch hook takes `(self, batch, logs=None)` as Keras documents.

    Then no `*args, **kwargs` are needed: passing those on takes more time than all the rest of timing a hook.
    """
    code = getattr(hook, "__code__", None)
    if code is None or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS):
        return False
    takes = code.co_argcount, code.co_kwonlyargcount, *code.co_varnames[1:3]
    return takes == (3, 0, "batch", "logs") and hook.__defaults__ == (None,)


def _overridden(callback: object, hook: str) -> bool:
    """Return whether a callback does anything in this hook (or in its older name)."""
    # The default of the newer name calls the older one.
    methods = (getattr(callback, name, None) for name in (hook, ALIASES.get(hook, hook)))
    return any(method is not None and not getattr(method, "_is_default", False) for method in methods)


# ---- input work between epochs ---------------------------------------------------------


class InputTimer(Wrappers):
    """Timing of Keras' input work between epochs, on the `EpochIterator`'s instances."""

    @uncounted
    def attach(self, frame: FrameType | None) -> None:
        """Start timing the input of the fit in `frame`: its work at an epoch's end, and new iterators.

        None = no fit found.
        """
        iterator = epoch_iterator(frame)
        adapter = getattr(iterator, "data_adapter", None)
        if adapter is None:
            return
        timeline = self._timeline

        def ended(start: int, end: int) -> None:
            if end - start > SHORT_NS:
                timeline.input_work("input: end of epoch", start, end)

        end = getattr(adapter, "on_epoch_end", None)
        if end is not None and "on_epoch_end" not in vars(adapter):
            self._replace(adapter, "on_epoch_end", _timed(end, ended))
        get = getattr(iterator, "_get_iterator", None)
        if get is not None and "_get_iterator" not in vars(iterator):
            self._replace(iterator, "_get_iterator", lambda: _TimedIterable(get(), timeline))


@uncounted
class _TimedIterable:
    """A dataset whose `iter()` is timed; the iterator is the dataset's own."""

    def __init__(self, iterable: Iterable, timeline: Timeline):
        self._iter = _timed(partial(iter, iterable), partial(timeline.input_work, "new iterator"))

    def __iter__(self) -> Iterator:
        return self._iter()
