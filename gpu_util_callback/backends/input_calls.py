"""Python functions that make a training's input: how often they are called, and their time."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import json
import numbers
import os
import random
import re
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import astuple, dataclass
from types import CodeType, GeneratorType, MethodType
from typing import Any

from gpu_util_callback.backends.inputs import called, digest
from gpu_util_callback.processes import core_s
from gpu_util_callback.recording.manifest_facts import MOST_COUNT, InputCall, LongCall
from gpu_util_callback.steps.dispatch import callee, is_library, library_of, package_of, path_of, place_of, tree_of
from gpu_util_callback.steps.frames import all_stacks, per_code, stacks_in, uncounted

# Calls that are timed: the first ones, since slow ones may be few, then one in so many. A timed
# call costs 1.6 µs, another 0.2 µs. Whether it queued for a core costs 20 to 40 µs more to read, so
# that is read in one of four timed calls.
FIRST, EVERY, QUEUED_EVERY = 16, 16, 64
# Numbers of the timed calls, modulo `_CYCLE`: one at a random place in each `EVERY` calls, since each
# tenth call may be a slow one. They are drawn from a generator of its own, not from the user's.
_CYCLE = 256 * EVERY
# A call is long that takes so many times the mean of the others, and this long at least. All calls are timed for that,
# by the clock alone: 0.1 µs more. If they are rare, the longest are remembered one by one.
LONG, LEAST_LONG_NS, MOST_LONG, RARELY = 10, 50_000_000, 64, 0.05
_Long = tuple[int, int, LongCall]  # its ns and number
_places = random.Random(56)
TIMED = frozenset((first + _places.randrange(EVERY)) % _CYCLE for first in range(1, _CYCLE + 1, EVERY))


@dataclass
class CallSums:
    """Sums over timed calls, ns; each counts as often as it represents calls.

    Attributes:
        timed: number of timed calls.
        stands_for: calls that they represent.
        queued_ns: waits for a core, of the calls of which that is known.
        queued_wall_ns: duration of those.
    """

    timed: int = 0
    stands_for: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0
    queued_wall_ns: int = 0

    def add(self, number: int, cpu_ns: int, wall_ns: int, queued_ns: int | None) -> None:
        """Add a timed call, the `number`-th, which stands for `EVERY` calls after the first ones.

        Args:
            queued_ns: None = unknown.
        """
        calls = 1 if number <= FIRST else EVERY
        self.timed += 1
        self.stands_for += calls
        self.wall_ns += calls * wall_ns
        self.cpu_ns += calls * cpu_ns
        if queued_ns is not None:
            self.queued_ns += queued_ns
            self.queued_wall_ns += wall_ns

    def __add__(self, other: CallSums) -> CallSums:
        return CallSums(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))


@uncounted
class CallTimer:
    """Timer of a function's calls, which may come from several threads.

    Args:
        name: the function's.
    """

    def __init__(self, name: str):
        self.name = name
        self.part: Any = ""  # of a DataLoader, beside its dataset: such a function is sampled, not timed
        self.calls = 0
        self.samples = 0  # of the stack inside a call
        self._lines: Counter[str] = Counter()  # of the program
        self._libraries: Counter[str] = Counter()  # that such a line has called
        self._called: Counter[str] = Counter()  # what such a line calls
        self._slow: Counter[str] = Counter()  # why such a line is slow
        self._numbers = itertools.count(1)  # `next` is one operation: no call is lost
        # The recorder takes these; bounded, since it may hang.
        # number, CPU ns, wall ns, ns queued for a core (None = unknown)
        self._new_timed: deque[tuple[int, int, int, int | None]] = deque(maxlen=1 << 16)
        self._timed: list[tuple[int, int, int, int | None]] = []
        # of the timed calls that were not long, and that were
        self._usual_sums, self._long_sums = CallSums(), CallSums()
        self._new_long: deque[_Long] = deque(maxlen=1 << 12)
        self._long: list[_Long] = []
        self._longest: list[_Long] = []
        self._long_calls = self._long_total_ns = 0
        self._long_from_ns = LEAST_LONG_NS  # a call this long is a long one

    def around(self, function: Callable, first: Callable[[object], object] | None = None) -> Callable:
        """Return the function, counted and timed. A call that raises is counted only.

        Args:
            first: called with the result of the first call; None = nothing.
        """
        count, took, timed_numbers, took_long = self._numbers, self._new_timed, TIMED, self._new_long
        clock, thread_clock, native_id = time.perf_counter_ns, time.thread_time_ns, threading.get_native_id

        def timed(*args: object, **kwargs: object) -> object:
            """Call the function and keep the call's times in ns, if it is one that is timed or if it was long."""
            self.calls = number = next(count)
            if number > FIRST and number % _CYCLE not in timed_numbers:  # most calls: only the clock, to find long ones
                began = clock()
                result = function(*args, **kwargs)
                if (wall_ns := clock() - began) >= self._long_from_ns:
                    took_long.append(_long_call(wall_ns, number, args))
                return result
            look = number <= FIRST or (number - 1) % QUEUED_EVERY < EVERY
            had_s, waited_s = core_s("self", [native_id()]) if look else (0.0, 0.0)
            began, used = clock(), thread_clock()
            result = function(*args, **kwargs)
            cpu_ns, wall_ns = thread_clock() - used, clock() - began
            queued = round(1e9 * (core_s("self", [native_id()])[1] - waited_s)) if had_s else None
            if wall_ns >= self._long_from_ns:
                took_long.append(_long_call(wall_ns, number, args))
            took.append((number, cpu_ns, wall_ns, queued))
            if number == 1 and first is not None:
                first(result)
            return result

        return timed

    def facts(self) -> InputCall:
        """Return an entry of the manifest's `input_calls`: means per call, in ms, and what most stack samples showed.

        A few long calls are left out of the means and listed one by one, in their order.
        """
        self._timed += [self._new_timed.popleft() for _ in range(len(self._new_timed))]
        self._long += [self._new_long.popleft() for _ in range(len(self._new_long))]
        self._sort_new_calls()
        usual, timed_long = self._usual_sums, self._long_sums
        entry: InputCall = {"name": self.name}
        if self.calls:  # else it is sampled alone
            entry |= {"calls": self.calls, "timed": usual.timed + timed_long.timed}
        has_few_long = 0 < self._long_calls <= RARELY * self.calls
        sums = usual if has_few_long else usual + timed_long
        if sums.timed:
            entry["wall_ms"] = round(sums.wall_ns / sums.stands_for / 1e6, 6)
            entry["cpu_ms"] = round(sums.cpu_ns / sums.stands_for / 1e6, 6)
        if sums.queued_wall_ns:
            share = min(1.0, sums.queued_ns / sums.queued_wall_ns)
            entry["queued_ms"] = round(share * entry["wall_ms"], 6)
        if self.part:
            entry["part"] = self.part
        if self.samples:
            entry["samples"] = self.samples
        for line, count in self._lines.most_common(1):
            entry |= {"line": line, "in_line": count}
        for library, count in self._libraries.most_common(1):
            if library:
                entry |= {"library": library, "in_library": count}
        packages = Counter(f"{name.partition('.')[0]}." for name in self._called.elements())
        for names in (self._called, packages):  # where lines call several functions, their package, if it is one
            if (called := _met_by_most(names, self.samples)) is not None:
                entry.setdefault("called", called)
        if slow := _met_by_most(self._slow, self.samples):
            entry["slow"] = slow
        if has_few_long and sums.timed:
            entry["long_ms"] = round(self._long_total_ns / 1e6, 3)
            entry["long"] = [call for *_, call in sorted(self._longest, key=lambda call: call[1])]
        return entry

    def sample(self, stack: list[tuple[CodeType, int]]) -> None:
        """Count the line of the program that a call is in, and the library that this has called.

        Args:
            stack: (code, line) from the innermost frame to the function's own.
        """
        self.samples += 1
        model_frames = _model_depth(stack)
        at = next((at for at in range(model_frames, len(stack)) if not is_library(path_of(stack[at][0]))), None)
        if at is None:  # a library's own dataset: the package that it calls
            own = {"", library_of(stack[-1][0])}
            others = [code for code, _ in reversed(stack) if library_of(code) not in own]
            self._called.update(f"{library_of(code)}.{callee(others)}" for code in others[:1])
            return
        in_function = (frame for frame in stack[at:] if not frame[0].co_name.startswith("<"))
        slow, called = read_statement(*next(in_function, stack[at]))
        if calls := _past_autograph([code for code, _ in stack[:at]]):
            self._libraries[library_of(calls[-1])] += 1
            called = f"{package_of(calls[-1])}.{callee(reversed(calls))}"
        place = stack[at]
        if called.startswith(_TABLES) and (read := table_read_by(*place)) is not None:
            # Its reader keeps Python's lock: samples meet what comes after it.
            called, place = f"{called.partition('.')[0]}.{read[0]}", (place[0], read[1])
        self._lines[place_of(*place)] += 1
        self._slow["model" if model_frames else slow] += 1
        self._called[called] += 1

    def _sort_new_calls(self) -> None:
        """Add the new calls to the sums of long or of usual ones, and set from what time on a call is long."""
        if not self._usual_sums.timed and self._timed:
            usual_ns = sorted(call[2] for call in self._timed)[len(self._timed) // 2]
            self._long_from_ns = max(LEAST_LONG_NS, LONG * usual_ns)
        for call in self._timed:
            (self._long_sums if call[2] >= self._long_from_ns else self._usual_sums).add(*call)
        long = [call for call in self._long if call[0] >= self._long_from_ns]
        self._long_calls += len(long)
        self._long_total_ns += sum(call[0] for call in long)
        self._longest = sorted([*self._longest, *long], reverse=True)[:MOST_LONG]
        self._timed, self._long = [], []
        if self._usual_sums.timed:
            self._long_from_ns = max(LEAST_LONG_NS, LONG * self._usual_sums.wall_ns // self._usual_sums.stands_for)


def _met_by_most(counts: Counter[str], samples: int) -> str | None:
    """Return what more than half of the samples met; None = nothing."""
    return next((name for name, count in counts.most_common(1) if 2 * count > samples), None)


# ---- what a line of the program does, by its source and by what it calls ------------------------

_LOCK = re.compile("lock|mutex|semaphore|condition", re.IGNORECASE)  # in the name of what a `with` holds
_JOINS = frozenset({"append", "concatenate", "concat", "cat", "hstack", "vstack"})
_COLLECTS = frozenset({"append", "extend", "asarray", "array", "tensor", "as_tensor", "from_numpy", "stack", "list"})
_TABLES = ("pandas.", "polars.")
_READ = re.compile("_?(read|load|open|parse)")  # in the name of a function that makes a table of a file
_TRANSFORMS = frozenset({"torchvision", "torchaudio", "kornia", "albumentations", "torch_audiomentations"})


def _past_autograph(calls: list[CodeType]) -> list[CodeType]:
    """Return what a line calls, the innermost first, without AutoGraph's frames, through which it does so.

    These stay where nothing else has a frame: AutoGraph itself is at work, or a function in C.
    """
    return [code for code in calls if "tensorflow/python/autograph/" not in path_of(code)] or calls


def _model_depth(stack: list[tuple[CodeType, int]]) -> int:
    """Return the number of frames inside the outermost call of a model; 0 without any."""
    depth = modules = 0
    for at, (code, _) in enumerate(stack, 1):
        path, name = path_of(code), code.co_name
        of_torch = path.endswith("torch/nn/modules/module.py")
        modules += of_torch and name == "_call_impl"
        of_keras = "keras/src/" in path and (name.startswith("predict") or "/src/models/" in path)
        depth = at if of_keras or (of_torch and modules > 1) else depth
    return 0 if _TRANSFORMS & {library_of(code) for code, _ in stack[:depth]} else depth


def _statements(code: CodeType, line: int) -> tuple[list[ast.stmt], list[ast.stmt], int]:
    """Return a function's statements, those that a line of its file is in (the innermost last), and the lines above it.

    Lines of statements count from the function's first one.
    """
    body, above = tree_of(code)
    statements = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.stmt)]
    around = [node for node in statements if node.lineno <= line - above <= (node.end_lineno or node.lineno)]
    return statements, around, above


@per_code
def read_statement(code: CodeType, line: int) -> tuple[str, str]:
    """Return why a statement of a function is slow, and what it calls as written, from its source; "" = not known.

    Slow are "lock": it waits for one; "draw": it puts rows in a random order; "rows": it takes elements of an array
    one by one; "grow": it copies an array to make it longer.

    Args:
        line: of the statement, in the file.
    """
    _, around, _ = _statements(code, line)
    children = list(ast.iter_child_nodes(around[-1])) if around else []
    parts = [part for child in children if not isinstance(child, ast.stmt) for part in ast.walk(child)]
    calls = {_dotted(part.func): part for part in parts if isinstance(part, ast.Call)}
    return _why_slow(around, parts, calls) if around else "", " ".join(filter(None, calls))[:200]


@per_code
def table_read_by(code: CodeType, line: int) -> tuple[str, int] | None:
    """Return the call, and its line, that reads in the same function the table that a statement uses; None = none does.

    By the source: the statement calls such as `read_csv`, or uses a name that is assigned from it.
    """
    statements, around, above = _statements(code, line)
    used = {part.id for part in ast.walk(around[-1]) if isinstance(part, ast.Name)} if around else set()
    reads = (
        (_dotted(part.func).rpartition(".")[2], node.lineno + above)
        for node in [*around[-1:], *statements]
        if node in around[-1:] or (isinstance(node, ast.Assign) and used & set(map(ast.unparse, node.targets)))
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
    )
    return next((read for read in reads if _READ.match(read[0])), None)


def _dotted(function: ast.expr) -> str:
    """Return a called function as written, "np.append"; of what is computed its last name alone."""
    if isinstance(function, ast.Attribute):
        return ".".join(filter(None, (_dotted(function.value), function.attr)))
    return function.id if isinstance(function, ast.Name) else ""


def _why_slow(around: list[ast.stmt], parts: list[ast.AST], calls: dict[str, ast.Call]) -> str:
    """Return why a statement is slow, as `read_statement` does; "" = no reason is seen.

    Args:
        around: the statements that it is in, itself the last.
        parts: nodes of its own.
        calls: those of them by what they call.
    """
    functions = {name.rpartition(".")[2]: call for name, call in calls.items()}
    held = [part for part in parts if isinstance(part, ast.withitem)]
    if "acquire" in functions or any(_LOCK.search(ast.unparse(item)) for item in held):
        return "lock"
    words = {word.arg: ast.unparse(word.value) for word in getattr(functions.get("choice"), "keywords", ())}
    no_repeats = "p" not in words and words.get("replace") == "False"
    if {"permutation", "randperm", "shuffle"} & functions.keys() or no_repeats:
        return "draw"
    loops = [node for node in around[:-1] if isinstance(node, ast.For)]
    collects = isinstance(around[-1], ast.AugAssign) or "append" in functions
    targets = [loop.target for loop in loops if collects]
    targets += [part.target for part in parts if isinstance(part, ast.comprehension)]
    variables = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    argument_ids = {id(value) for name, call in functions.items() if name not in _COLLECTS for value in call.args}
    elements = [part for part in parts if isinstance(part, ast.Subscript) and id(part) not in argument_ids]
    counters = {loop.target.id for loop in loops if isinstance(loop.target, ast.Name)}
    if any(_is_single(part.slice, variables, counters) for part in elements):
        return "rows"
    joins = [node for name in _JOINS & functions.keys() for arg in functions[name].args for node in ast.walk(arg)]
    stored = around[-1].targets if loops and isinstance(around[-1], ast.Assign) else []
    return "grow" if {ast.unparse(node) for node in stored} & {ast.unparse(node) for node in joins} else ""


def _is_single(index: ast.expr, variables: set[str], counters: set[str]) -> bool:
    """Return whether an index is one variable of a loop, or has the counters of two: x[row, column]."""
    names = {name.id for name in ast.walk(index) if isinstance(name, ast.Name)}
    return (isinstance(index, ast.Name) and index.id in variables) or len(names & counters) > 1


def _long_call(wall_ns: int, number: int, args: tuple[object, ...]) -> _Long:
    """Return (ns, number, entry of the manifest) of a long call.

    With the index that it asks for, as `__getitem__` does.
    """
    entry: LongCall = {"call": number, "ms": round(wall_ns / 1e6, 3)}
    index = int(args[0]) if len(args) == 1 and isinstance(args[0], numbers.Integral) else -1
    if 0 <= index < MOST_COUNT:
        entry["at"] = index
    return wall_ns, number, entry


class InputCalls:
    """Timers of the functions that make a training's input, for the time of each fit."""

    def __init__(self) -> None:
        self._timers: dict[tuple[str, object], CallTimer] = {}
        self._codes: dict[CodeType, CallTimer] = {}  # code of a function -> its timer
        self.repetition = Repetition()
        self._undo: list[Callable[[], None]] = []  # put the originals back, at the fit's end
        self._lock = threading.Lock()  # functions are replaced on either thread
        self._open = False  # a fit is under way
        self._worker_stacks: deque[list[tuple[CodeType, int]]] | None = None  # last stacks of worker processes

    def begin(self) -> None:
        self._open = True

    def timer(self, name: str, identity: object) -> CallTimer:
        """Return the timer of a function; the same one in each fit.

        Args:
            identity: tells functions of one name apart: the code, or the class.
        """
        timer = self._timers.setdefault((name, identity), CallTimer(name))
        method = getattr(identity, name.rpartition(".")[2], None)
        code = identity if method is None else getattr(inspect.unwrap(method), "__code__", None)
        if isinstance(code, CodeType):
            self._codes.setdefault(code, timer)
        return timer

    def sample_loader(self, dataset: object, loader: Any) -> None:
        """Sample the functions of a DataLoader from now on, those too that are not timed.

        Args:
            dataset: what is iterated over: `loader`, or the program's own object around it.
            loader: the DataLoader.
        """
        kind, collate = type(loader.dataset), loader.collate_fn
        for method in ("__getitem__", "__getitems__", "__iter__"):
            self.timer(f"{kind.__name__}.{method}", kind)
        owners = {"batch_sampler": loader.batch_sampler, "sampler": loader.sampler, "wrapper": dataset}
        for part, owner in owners.items():  # their `__iter__`, if it is the program's (a sampler's in any case)
            own = None if part == "wrapper" and dataset is loader else _own_iterable(owner)
            if (own := own or (type(owner) if part == "sampler" else None)) is not None:  # a library's own, too
                self.timer(f"{own.__name__}.__iter__", own).part = part
        if not str(getattr(collate, "__module__", "")).startswith("torch."):  # the program's own function
            self.timer(*called(collate)).part = "collate_fn"
        iterator = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        self.timer("DataLoader.__next__", iterator).part = "loader"
        if loader.num_workers:
            self.sample_workers(loader, "worker_init_fn")

    def sample_workers(self, owner: Any, name: str) -> None:
        """Sample the worker processes that start from now on, each of which calls this attribute of `owner` first."""
        if sys.platform == "linux":  # others have no sockets without a file
            address, self._worker_stacks = _stack_socket(os.getpid()).getsockname(), deque(maxlen=64)
            self.replace_attribute(owner, name, functools.partial(begin_worker, getattr(owner, name), address))

    def sample(self) -> None:
        """Sample the line that each of these functions is in now; on any other thread than theirs.

        Where the loader waits for its workers, one of their stacks stands for its own.
        """
        if self._codes and self._open:
            if self._worker_stacks is not None:
                self._worker_stacks.extend(_sent_stacks(self._codes))
            for stack in stacks_in(self._codes):
                met = (at for at, (code, _) in enumerate(stack) if code in self._codes)
                # What a sampler asks of a dataset is the sampler's.
                at = min(met, key=lambda at: "sampler" not in self._codes[stack[at][0]].part)
                stack = stack[: at + 1]
                if self._codes[stack[at][0]].part == "loader" and self._worker_stacks:  # it waits for what these do
                    stack = _places.choice(self._worker_stacks)
                self._codes[stack[-1][0]].sample(stack)

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
        return [timer.facts() for timer in list(self._timers.values()) if timer.calls or timer.samples]


def _own_iterable(owner: object) -> type | None:
    """Return the program's class whose `__iter__` this object, or what a library's sampler draws from, has.

    Else None.
    """
    for _ in range(4):  # samplers of samplers
        code = getattr(getattr(type(owner), "__iter__", None), "__code__", None)
        if code is not None and not is_library(code.co_filename):
            return type(owner)
        owner = getattr(owner, "batch_sampler", getattr(owner, "sampler", None))
    return None


# ---- worker processes, which send stacks of theirs from a thread of their own ---------------------


@uncounted
def begin_worker(function: Callable | None, address: str, *args: object) -> None:
    """Call what a worker process of the program calls as it begins, if anything; sample its thread from then on.

    Args:
        address: of the socket that gets its stacks.
    """
    if function is not None:
        function(*args)
    with contextlib.suppress(Exception):  # no more threads may start
        given = address, threading.get_ident(), sys._getframe(1).f_code
        threading.Thread(target=_send_stacks, args=given, daemon=True).start()


def _send_stacks(address: str, thread: int, until: CodeType) -> None:
    """Send a worker thread's stack, at random moments at the pace of the recorder's own, while it runs.

    Args:
        address: of the socket that gets them.
        thread: its identifier.
        until: the stack ends after the first frame of this code.
    """
    pause_s = 0.02
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with sender, contextlib.suppress(Exception):
        while stack := all_stacks(only_thread=thread, until=until).get(thread):
            frames = [(path_of(code), code.co_qualname, code.co_firstlineno, line) for _, code, line in stack]
            with contextlib.suppress(BlockingIOError):  # nobody has read the last ones yet
                sender.sendto(json.dumps(frames).encode(), address)
            time.sleep(pause_s * _places.uniform(0.5, 1.5))
            pause_s = min(0.25, 1.1 * pause_s)


@functools.lru_cache(1)
def _stack_socket(process: int) -> socket.socket:
    """Return the socket to which worker processes of this process send their stacks."""
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    inbox.bind(f"\0gpu-util-{process}-{os.urandom(8).hex()}")
    return inbox


def _sent_stacks(functions: Iterable[CodeType]) -> Iterator[list[tuple[CodeType, int]]]:
    """Yield the stacks that worker processes have sent, up to the innermost of these functions."""
    code_of_key = {(path_of(code), code.co_qualname, code.co_firstlineno): code for code in functions}
    with contextlib.suppress(BlockingIOError):
        while frames := json.loads(_stack_socket(os.getpid()).recv(1 << 16)):
            depth = next((at for at, frame in enumerate(frames, 1) if tuple(frame[:3]) in code_of_key), 0)
            if depth:
                yield [(code_of_key.get(tuple(place)) or _code(*place), line) for *place, line in frames[:depth]]


@functools.lru_cache(1024)
def _code(path: str, name: str, line: int) -> CodeType:
    """Return code of this file, qualified name and first line; what it does is not that of the function."""
    own_code, last = sys._getframe().f_code, name.rpartition(".")[2]
    return own_code.replace(co_filename=path, co_name=last, co_qualname=name, co_firstlineno=line)


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


class Repetition:
    """Comparison of what a dataset makes of an index with what it made before, by digests of the first few."""

    MOST = 16

    def __init__(self) -> None:
        self._seen: dict[object, bytes | None] = {}
        self._same: list[bool] = []
        self.open = True

    def note(self, index: object, item: object) -> None:
        """Compare an item with what its index gave before; on the training thread, some 10 µs for `MOST` of them.

        Items that cannot be compared end the comparison.
        """
        if isinstance(index, Hashable) and (index in self._seen or len(self._seen) < self.MOST):
            numbers = digest(item)
            before = self._seen.setdefault(index, numbers)
            if numbers is None:
                self.open, self._same = False, []
            elif before is not numbers:
                self._same.append(before == numbers)
                self.open = len(self._same) < self.MOST

    @property
    def repeats(self) -> bool | None:
        """True if all were the same again; None = too few were asked for twice, or they cannot be compared."""
        return None if not self._same or (all(self._same) and len(self._same) < 2) else all(self._same)


@uncounted
class _TimedDataset(StandIn):
    """A dataset whose items are timed, and compared where they are asked for again."""

    def __init__(self, dataset: Iterable, calls: InputCalls, first: Callable[[object], object] | None = None):
        super().__init__(dataset)
        kind = type(dataset)
        self._repetition = calls.repetition
        self._get = _method(calls, dataset, "__getitem__", first)
        if callable(getattr(kind, "__getitems__", None)):  # torch calls it for a whole batch
            self.__getitems__ = _method(calls, dataset, "__getitems__")

    def __getitem__(self, index: object) -> object:
        item = self._get(index)
        if self._repetition.open:
            self._repetition.note(index, item)
        return item


def _timed(iterator: Iterator, timer: CallTimer) -> Iterator:
    """Return an iterator whose `next` is timed."""
    return map(timer.around(next), itertools.repeat(iterator))


def _method(calls: InputCalls, owner: object, name: str, first: Callable[[object], object] | None = None) -> Callable:
    timer = calls.timer(f"{type(owner).__name__}.{name}", type(owner))
    return timer.around(MethodType(getattr(type(owner), name), owner), first)


# ---- inputs of a fit and of a loop ---------------------------------------------------------------


def time_fit(calls: InputCalls, data_adapter: Any, generator_input: object, first: Callable[[object], object]) -> None:
    """Time the Python functions behind Keras' data adapter; on the training thread.

    Those that run in worker processes are left alone: what stands in would be sent to them.

    Args:
        data_adapter: Keras' own.
        generator_input: `x` of the fit.
        first: called with the first batch, where a Python function makes it.
    """
    kind = type(data_adapter).__name__
    if kind == "PyDatasetAdapter":  # a PyDataset: its `__getitem__`, made here or by threads
        dataset, threads = data_adapter.py_dataset, data_adapter.enqueuer
        owner = type(dataset)
        code = getattr(inspect.unwrap(owner.on_epoch_end), "__code__", None)
        if code is not None and not is_library(code.co_filename):
            calls.timer(f"{owner.__name__}.on_epoch_end", owner).part = "epoch_end"
        if threads is not None and dataset.use_multiprocessing:  # made in processes: sampled there
            calls.timer(f"{owner.__name__}.__getitem__", owner)
            calls.timer(f"{type(threads).__name__}.get", type(threads)).part = "loader"
            calls.sample_workers(sys.modules[type(threads).__module__], "init_pool_generator")
            return
        timed = _TimedDataset(dataset, calls, first)
        for owner in (data_adapter, threads):
            if owner is not None:
                calls.replace_attribute(owner, "py_dataset", timed)
    elif kind == "GeneratorDataAdapter":  # a generator, whose first batches Keras has fetched already
        begin, made = data_adapter.generator, data_adapter._first_batches
        timer = calls.timer(*_next_of(generator_input))
        first(made[0])

        def generator() -> Iterator:
            batches = begin() if callable(begin) else begin
            return itertools.chain(itertools.islice(batches, len(made)), _timed(batches, timer))

        # Keras 3.6 keeps the iterator itself.
        calls.replace_attribute(data_adapter, "generator", generator if callable(begin) else generator())
    elif kind == "TorchDataLoaderAdapter":  # a DataLoader: timed without workers, sampled in any case
        loader = data_adapter._dataloader
        calls.sample_loader(loader, loader)
        if loader.num_workers == 0:
            watched = WatchedIterable(loader, lambda batches: timed_iterator(calls, None, batches))
            calls.replace_attribute(data_adapter, "_dataloader", watched)


def timed_iterator(calls: InputCalls, dataset: Any, iterator: Iterator) -> Iterator:
    """Return an iterator over a dataset whose Python functions are timed; on the training thread.

    The same iterator where it is a DataLoader's own (what stands in for its dataset is within), or where
    none of the program's functions is found.
    """
    fetcher = getattr(iterator, "_dataset_fetcher", None)  # of a DataLoader without workers
    if fetcher is not None:
        if hasattr(fetcher, "dataset_iter"):  # an IterableDataset
            kind = type(fetcher.dataset)
            timer = calls.timer(f"{kind.__name__}.__iter__", kind)
            fetcher.dataset_iter = _timed(fetcher.dataset_iter, timer)
        else:  # a dataset that is asked for items
            fetcher.dataset = _TimedDataset(fetcher.dataset, calls)
        return iterator
    kind = type(dataset)
    if isinstance(dataset, GeneratorType):  # a generator itself
        return _timed(iterator, calls.timer(*_next_of(dataset)))
    # the program's `__iter__`, which is a generator
    if isinstance(iterator, GeneratorType) and not is_library(iterator.gi_code.co_filename):
        return _timed(iterator, calls.timer(f"{kind.__name__}.__iter__", kind))
    if type(iterator) is _OF_INDEXES and inspect.isfunction(kind.__getitem__):  # an object with `__getitem__` alone
        return _timed(iterator, calls.timer(f"{kind.__name__}.__getitem__", kind))
    return iterator


# The type of iterators over what has no `__iter__`, such as a PyDataset.
_OF_INDEXES = type(iter(type("", (), {"__getitem__": None})()))


def _next_of(iterator: object) -> tuple[str, object]:
    """Return the name of what makes an iterator's items: a generator function, or `__next__`."""
    code = getattr(iterator, "gi_code", None)
    if code is None:
        return f"{type(iterator).__name__}.__next__", type(iterator)
    return code.co_name.replace("<genexpr>", "generator expression"), code
