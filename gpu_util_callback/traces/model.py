"""The common event model: the target of the XPlane, Kineto and Nsight readers.

Times are int64 picoseconds since the trace's own zero (fine enough for every format, with room for
a hundred days); `Process.epoch_ns` is the time of that zero, where the file has it. Names are
indexes into `Names`, shared by everything in a trace. A negative number means absent in integer
columns, NaN in float columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Literal

import numpy as np

from gpu_util_callback.traces import limits
from gpu_util_callback.traces.intervals import Intervals, union

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000


def groups(keys: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows of each distinct key: (key, indexes in rising order), by rising key.

    One sort, for any number of keys: a mask per key would be quadratic in odd files.
    """
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate((np.ones(1, bool), ordered[1:] != ordered[:-1])))
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(keys)], strict=True):
        yield int(ordered[low]), order[low:high]


def map_distinct(values: np.ndarray, function: Callable, dtype: type) -> np.ndarray:
    """Return a function of each value, which is called once for each distinct one."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in distinct.tolist()], dtype)[inverse.reshape(-1)]


class DeviceKind(IntEnum):
    """Kinds of GPU work."""

    KERNEL = 0
    COLLECTIVE = 1  # a kernel that communicates (NCCL, RCCL, …)
    COPY_H2D = 2
    COPY_D2H = 3
    COPY_D2D = 4  # on one device, or between two (peer to peer)
    COPY_OTHER = 5  # host to host, or an unknown direction
    MEMSET = 6


KERNELS = DeviceKind.KERNEL, DeviceKind.COLLECTIVE


class HostKind(IntEnum):
    """Kinds of activity of a host thread."""

    OP = 0  # a framework's operation, or any range without a better name
    LAUNCH = 1  # a driver or runtime call that submitted work; `correlation` links them
    SYNC = 2  # waiting for a device
    INPUT_WAIT = 3  # waiting for the next batch
    STEP = 4  # an explicit step marker; `value` is the training step
    CALL = 5  # any other driver or runtime call (allocation, module load, …)
    PIPELINE = 6  # a stage of the input pipeline at work
    RUN = 7  # one call of a compiled function: FunctionRun, PjitFunction
    COLLECTIVE = 8  # a communication call of the framework
    PYTHON = 9  # a Python function, from a Python tracer
    RANGE = 10  # an annotation of the user (NVTX, record_function)
    FRAMEWORK = 11  # the framework's own machinery: executors, eager layers
    STAGING = 12  # making a copy to the GPU ready: into pinned memory, into its layout


class MemoryKind(IntEnum):
    """Memory of a copy's host side: pageable memory makes an asynchronous copy synchronous."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    MANAGED = 4


class Names:
    """Interned strings: equal strings have equal numbers."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self._index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.strings)

    def __getitem__(self, index: int) -> str:
        return self.strings[index] if index >= 0 else ""

    def id(self, string: str) -> int:
        """Return the number of a string, new or known."""
        index = self._index.get(string)
        if index is None:
            stored = _storable(string)
            index = self._index.get(stored)
            if index is None:
                index = self._index[stored] = len(self.strings)
                self.strings.append(stored)
            if len(string) <= limits.MAX_NAME:
                self._index[string] = index
        return index

    def ids(self, strings: Iterable[str]) -> np.ndarray:
        return np.fromiter((self.id(s) for s in strings), np.int32)

    def matching(self, predicate) -> np.ndarray:
        """Return bool[len(names)]: the strings for which `predicate(string)` holds."""
        return np.fromiter((bool(predicate(s)) for s in self.strings), bool, len(self.strings))


def _storable(text: str) -> str:
    """Return a name of bounded length that can be written as UTF-8 (JSON may hold surrogates)."""
    if len(text) > limits.MAX_NAME:
        text = text[: limits.MAX_NAME - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


@dataclass(slots=True)
class Columns:
    """Equal-length numpy columns, one attribute each."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self, rows: np.ndarray):
        """Return the given rows (indexes or a mask) as a new set of columns."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def build(cls, **columns):
        """Build columns from array-likes, cast to the declared types; missing ones are absent."""
        size = len(next(iter(columns.values())))
        built = {}
        for f in fields(cls):
            dtype = np.dtype(f.metadata["dtype"])
            values = columns.pop(f.name, None)  # None = absent in every row
            if values is None:
                built[f.name] = np.full(size, f.metadata["absent"], dtype)
            else:
                built[f.name] = np.asarray(values, dtype)
        if columns:
            raise TypeError(f"unknown columns {sorted(columns)}")
        return cls(**built)

    @classmethod
    def concat(cls, parts: Iterable, most: int):
        """Return parts of at most so many rows as one.

        Their columns are taken away: of 10⁷ events, all twice are a gigabyte.
        """
        whole = {f.name: np.empty(most, f.metadata["dtype"]) for f in fields(cls)}
        size = 0
        for part in parts:
            first, size = size, size + len(part)
            for name, column in whole.items():
                column[first:size] = getattr(part, name)
                delattr(part, name)
        return cls(**{name: column[:size] for name, column in whole.items()})


_INT64 = {"dtype": np.int64, "absent": -1}
_INT32 = {"dtype": np.int32, "absent": -1}
_GRAPH = {"dtype": np.int64, "absent": 0}
_KIND = {"dtype": np.int8, "absent": -1}
_FLAG = {"dtype": np.int8, "absent": 0}


@dataclass(slots=True)
class Events(Columns):
    """Activity of a GPU or of a host's threads: start, end and kind of each event."""

    start_ps: np.ndarray = field(metadata=_INT64)
    end_ps: np.ndarray = field(metadata=_INT64)
    kind: np.ndarray = field(metadata=_KIND)  # DeviceKind or HostKind

    @property
    def duration_ps(self) -> np.ndarray:
        return self.end_ps - self.start_ps

    def of(self, *kinds: IntEnum) -> np.ndarray:
        """Return a mask of the events of some kinds."""
        return np.logical_or.reduce([self.kind == kind for kind in kinds])  # `np.isin` takes 10 to 20 times as long

    def times(self, rows: np.ndarray | None = None) -> Intervals:
        """Return the union of some events (indexes or a mask), by default of all."""
        return union(self.start_ps, self.end_ps) if rows is None else union(self.start_ps[rows], self.end_ps[rows])

    def in_order(self):
        """Sort the events by their start, of those that start together the longest first; return them.

        A column at a time: of 10⁷ events, all columns twice are a gigabyte.
        """
        order = np.lexsort((-self.end_ps, self.start_ps))
        for column in fields(self):
            setattr(self, column.name, getattr(self, column.name)[order])
        return self


@dataclass(slots=True)
class DeviceEvents(Events):
    """The work that ran on one device, sorted by start."""

    stream: np.ndarray = field(metadata=_INT64)
    correlation: np.ndarray = field(metadata=_INT64)  # of the launch, within the process
    name: np.ndarray = field(metadata=_INT32)
    op: np.ndarray = field(metadata=_INT32)  # the framework's op or layer it came from
    shape: np.ndarray = field(metadata=_INT32)  # index into Process.shapes
    bytes: np.ndarray = field(metadata=_INT64)
    memory: np.ndarray = field(metadata=_FLAG)  # MemoryKind of a copy's host side
    graph: np.ndarray = field(metadata=_GRAPH)  # id of the CUDA graph, 0 = none, -1 = unknown


def by_device(events: DeviceEvents, device: np.ndarray) -> tuple[dict[int, DeviceEvents], int]:
    """Return each device's events in their order, and how many are left out: of impossible devices."""
    sane = (device >= 0) & (device <= limits.MAX_ORDINAL)
    rows_of = groups(np.where(sane, device, -1))
    # Of one device's events there is no second copy in memory.
    parts = {index: events if len(rows) == len(sane) else events.take(rows) for index, rows in rows_of if index >= 0}
    return {index: part.in_order() for index, part in parts.items()}, int((~sane).sum())


@dataclass(slots=True)
class HostEvents(Events):
    """The activity of the threads of one process, sorted by start."""

    thread: np.ndarray = field(metadata=_INT32)  # index into Process.threads
    name: np.ndarray = field(metadata=_INT32)
    correlation: np.ndarray = field(metadata=_INT64)
    value: np.ndarray = field(metadata=_INT64)  # STEP: training step; RUN: function id
    root: np.ndarray = field(metadata=_FLAG)  # 1: the profiler calls it the root of a step

    def around(self, row: int) -> np.ndarray:
        """Return the events (rows) of an event's thread in which it lies, itself among them."""
        around = (self.start_ps <= self.start_ps[row]) & (self.end_ps >= self.end_ps[row])
        return np.flatnonzero(around & (self.thread == self.thread[row]))


@dataclass(frozen=True, slots=True)
class KernelShape:
    """The launch parameters of a kernel; None = not in the file."""

    registers: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    occupancy_pct: float | None = None

    @property
    def blocks(self) -> int | None:
        return None if self.grid is None else self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads_per_block(self) -> int | None:
        return None if self.block is None else self.block[0] * self.block[1] * self.block[2]


_MOST_OF_LAUNCH = {"registers": limits.MAX_REGISTERS, "occupancy_pct": limits.MAX_OCCUPANCY}
# The most of a dimension, and of all together.
_MOST_OF_SIZE = {"grid": (limits.MAX_GRID, 1 << 62), "block": (limits.MAX_BLOCK, limits.MAX_BLOCK)}


def _possible(shape: KernelShape) -> KernelShape:
    """Return a shape without impossible values."""
    wild = [name for name, most in _MOST_OF_LAUNCH.items() if not 0 <= (getattr(shape, name) or 0) <= most]
    for name, (most, together) in _MOST_OF_SIZE.items():
        size = getattr(shape, name) or (1,)
        if not all(0 < part <= most for part in size) or math.prod(size) > together:
            wild.append(name)
    return replace(shape, **dict.fromkeys(wild)) if wild else shape


def triple(parts: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the three parts of a size; None if there are not three."""
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None


class Shapes:
    """Interned launch shapes: index by shape, up to a limit that no real trace reaches."""

    def __init__(self) -> None:
        self._index: dict[KernelShape, int] = {}

    def id(self, shape: KernelShape) -> int:
        """Return the index of a shape, new or known; -1 = absent, where there are too many."""
        shape = _possible(shape)
        index = self._index.get(shape)
        if index is None:
            if len(self._index) >= limits.MAX_SHAPES:
                return -1
            index = self._index[shape] = len(self._index)
        return index

    def all(self) -> list[KernelShape]:
        return list(self._index)


@dataclass(slots=True)
class Device:
    """One GPU as one process saw it."""

    index: int  # the process's own ordinal
    name: str
    events: DeviceEvents
    facts: dict = field(default_factory=dict)  # sm_count, memory_bytes, compute_capability, …

    def busy(self, *kinds: DeviceKind) -> Intervals:
        """Return the union of the events of some kinds (none given: of all)."""
        return self.events.times(self.events.of(*kinds) if kinds else None)


# Of the busiest GPU's kernel time: below, a GPU does not take part in the steps.
_AT_WORK = 0.05


@dataclass
class Process:
    """One process of the job: its devices and its threads. A trace has one per file, or more.

    What all GPUs' accounts share is computed once, when the trace is complete.
    """

    host: str
    devices: list[Device]
    threads: list[str]  # their names
    events: HostEvents
    shapes: list[KernelShape]
    pid: int | None = None
    rank: int | None = None
    epoch_ns: int | None = None  # time 0, in nanoseconds since the epoch
    facts: dict = field(default_factory=dict)

    @property
    def has_host(self) -> bool:
        """True if host threads were traced at all."""
        return bool(len(self.events))

    def of_pipeline(self, rows: np.ndarray) -> np.ndarray:
        """Return a mask of the host events that threads of the input pipeline ran."""
        pipeline = np.array([name.startswith(("tf_data", "tf.data")) for name in self.threads], bool)
        return pipeline[self.events.thread[rows]]

    @cached_property
    def active_devices(self) -> list[Device]:
        """The GPUs that computed, or else all with any work.

        One that ran a few kernels, while others ran for long, is not what steps wait for.
        """
        worked = [d for d in self.devices if len(d.events)]
        busy = [d.busy(*KERNELS).total for d in worked]
        least = max(1, _AT_WORK * max(busy, default=0))
        return [d for d, spent in zip(worked, busy, strict=True) if spent >= least] or worked

    @cached_property
    def calls_by_correlation(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of calls that submitted GPU work, by correlation, and the correlations."""
        calls = self.events
        rows = np.flatnonzero((calls.correlation >= 0) & calls.of(HostKind.LAUNCH, HostKind.CALL))
        order = rows[np.argsort(calls.correlation[rows], kind="stable")]  # earliest first
        return order, calls.correlation[order]

    @property
    def all_events(self) -> list[Events]:
        """The events of each GPU, and those of the host."""
        return [*(device.events for device in self.devices), self.events]

    @property
    def total_ps(self) -> float:
        """Duration of all events together."""
        return sum(float(events.duration_ps.sum(dtype=np.float64)) for events in self.all_events)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """First and last time of any event (0, 0 where nothing was recorded)."""
        events = [e for e in self.all_events if len(e)]
        if not events:
            return 0, 0
        return min(int(e.start_ps.min()) for e in events), max(int(e.end_ps.max()) for e in events)


TraceFormat = Literal["xplane", "kineto", "nsys"]


@dataclass(slots=True)
class Trace:
    """A trace: one or more processes, and the problems of the file."""

    format: TraceFormat
    paths: list[str]
    names: Names
    processes: list[Process]
    problems: list[str] = field(default_factory=list)  # for the user, one line each
