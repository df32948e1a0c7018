"""Reads the Chrome traces of PyTorch's profiler (Kineto).

Streamed: memory grows with the number of events (some forty bytes each), not with the file.

`Document` reads a JSON document of any size in bounded memory: one value of its big array at a
time. The values themselves are parsed by the standard library's C scanner, which is fed from a
window over the file. Numbers with a fraction are returned as their text, so that a time in
microseconds keeps all of its digits.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from itertools import islice
from struct import Struct
from typing import Any, BinaryIO, ClassVar

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import foreign, limits
from gpu_util_callback.traces.limits import epoch, gpu_facts, integer, number
from gpu_util_callback.traces.model import (
    KERNELS,
    PS_PER_US,
    Device,
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    KernelShape,
    MemoryKind,
    Names,
    Process,
    Shapes,
    Trace,
    by_device,
    triple,
)
from gpu_util_callback.traces.naming import api_kind, copy_kind, device_kind, memory_kind, step_marker
from gpu_util_callback.traces.xplane_events import host_kind

_BLOCK = 64  # events whose times are read together
_BLOCK_BYTES = 1 << 16  # of rows that are put into columns together
_ENDS = re.compile(r"\((\w+) -> (\w+)\)")
_LAUNCH = "registers per thread", "est. achieved occupancy %"


def _kind_and_memory(category: str, name: str) -> tuple[DeviceKind, MemoryKind]:
    """Return the kind of an event of a GPU, and that of the host's memory which a copy touches."""
    if "memset" in category:
        return DeviceKind.MEMSET, MemoryKind.UNKNOWN
    if "memcpy" in category:
        ends = _ENDS.search(name)
        source, target = (e.lower() for e in ends.groups()) if ends else ("", "")
        return copy_kind(name, source, target), memory_kind(source, target)
    return device_kind(name), MemoryKind.UNKNOWN


# --- rows of events -------------------------------------------------------------------------------


class _Rows:
    """Rows of whole numbers in arrays, one for each column: `codes` has the array's type."""

    codes: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        self._columns = {name: array(code) for name, code in self.codes.items()}
        self._newest = bytearray()  # rows that are not in the columns yet
        self._pack = Struct("=" + "".join(self.codes.values())).pack

    def add(self, *row: int) -> None:
        """Append a row, in the columns' order."""
        self._newest += self._pack(*row)
        if len(self._newest) >= _BLOCK_BYTES:
            self.arrays()

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all rows by column; no row can be added while these arrays are in use."""
        rows = np.frombuffer(self._newest, list(self.codes.items()))
        for name, column in self._columns.items():
            column.frombytes(rows[name].tobytes())
        self._newest = bytearray()
        return {name: np.frombuffer(column, column.typecode) for name, column in self._columns.items()}


class HostRows(_Rows):
    """Host events, in ps from the trace's zero; -1 stands for an absent id. `finish` sorts them."""

    codes: ClassVar = {
        **{"start_ps": "q", "end_ps": "q", "thread": "i", "kind": "b", "name": "i"},
        **{"correlation": "q", "value": "q", "external": "q", "root": "b"},
    }

    def finish(self, window_end: int | None) -> tuple[HostEvents, tuple[np.ndarray, np.ndarray]]:
        """Return the events, but for calls after the recording's end, and the ops' external ids and names.

        The ids, int64[n], ascend; of those that are equal, the last one belongs to the op that began last.
        """
        columns = self.arrays()
        self._columns = {}  # sorted a column at a time, none is in memory twice
        external = columns.pop("external")
        events = HostEvents.build(**{name: columns.pop(name) for name in [*columns]})
        rows = np.flatnonzero((external >= 0) & events.of(HostKind.OP, HostKind.COLLECTIVE))
        rows = rows[np.lexsort((-events.end_ps[rows], events.start_ps[rows], external[rows]))]
        external, names = external[rows], events.name[rows]
        if window_end is not None:
            late = events.of(HostKind.LAUNCH, HostKind.CALL, HostKind.SYNC) & (events.start_ps > window_end)
            events = events.take(~late)
        return events.in_order(), (external, names)


class DeviceRows(_Rows):
    """GPU events of all devices; `finish` splits them."""

    codes: ClassVar = {
        **dict.fromkeys(("device", "start_ps", "end_ps", "stream", "correlation", "external", "bytes"), "q"),
        **{"kind": "b", "name": "i", "shape": "i", "memory": "b", "graph": "q"},
    }

    def __init__(self) -> None:
        super().__init__()
        self._shapes = Shapes()
        self._launched: dict[tuple, int] = {}  # launch parameters as written -> shape
        self.without_device = 0  # events of impossible ones
        self.group_sizes: set[int] = set()  # ranks that share a collective, where it is written

    def add_kineto(self, event: dict, arguments: dict, times: tuple[int, int], known: _Known) -> None:
        """Add a Kineto event of category kernel, gpu_memcpy or gpu_memset.

        Args:
            arguments: the event's `args`.
            times: start and end, ps from the trace's zero.
            known: what its category and name say.
        """
        kind, name, memory, _, _ = known
        shape = self._shape_of(arguments) if kind in KERNELS else -1
        if kind == DeviceKind.COLLECTIVE and "Group size" in arguments:
            self.group_sizes.add(integer(arguments["Group size"]))
        device = integer(arguments.get("device", event.get("pid")))
        stream = arguments.get("stream", event.get("tid"))
        external = arguments.get("External id", arguments.get("external id", -1))
        place = 0 if device == -1 else device, *times, integer(stream)  # -1 = not stated
        ids = integer(arguments.get("correlation", -1)), integer(external)
        size, graph = integer(arguments.get("bytes", -1)), max(integer(arguments.get("graph id", 0)), 0)
        self.add(*place, *ids, size, kind, name, shape, memory, graph)

    def _shape_of(self, arguments: dict) -> int:
        """Return the id, from 0, of how a kernel was launched: its grid, blocks, registers and occupancy."""
        registers, occupancy = map(arguments.get, _LAUNCH)
        grid, block = (tuple(size) if type(size) is list else () for size in map(arguments.get, ("grid", "block")))
        key = registers, occupancy, grid, block
        try:
            return self._launched[key]
        except (KeyError, TypeError):  # a new one, or odd values that are not hashable
            shape = KernelShape(
                registers=None if registers is None else integer(registers),
                grid=triple([integer(part) for part in grid]),
                block=triple([integer(part) for part in block]),
                occupancy_pct=number(occupancy),
            )
        index = self._shapes.id(shape)
        with contextlib.suppress(TypeError):
            self._launched[key] = index
        return index

    def finish(self, ops: tuple[np.ndarray, np.ndarray]) -> tuple[dict[int, DeviceEvents], list[KernelShape]]:
        """Return events by device, and the launch shapes.

        Args:
            ops: external ids of the framework's ops, and their names, as of `HostRows.finish`. An event is of the last
                op with its id, op -1 = none.
        """
        columns = self.arrays()
        device, external, correlation = (columns.pop(name) for name in ("device", "external", "correlation"))
        op, (ids, names) = np.full(len(device), -1, np.int32), ops
        at = np.searchsorted(ids, external, "right") - 1
        rows = np.flatnonzero((external >= 0) & (at >= 0))
        rows = rows[ids[at[rows]] == external[rows]]
        op[rows] = names[at[rows]]
        events = DeviceEvents.build(**columns, op=op, correlation=np.where(correlation > 0, correlation, -1))
        devices, self.without_device = by_device(events, device)
        return devices, self._shapes.all()


def device_facts(properties: object) -> dict[int, tuple[str, dict]]:
    """Return names ("" = unknown) and facts by device, from Kineto's deviceProperties; {} where these are missing."""
    devices: dict[int, tuple[str, dict]] = {}
    for entry in properties if isinstance(properties, list) else []:
        if not isinstance(entry, dict):
            continue
        index = integer(entry.get("id"))
        # In our names; `gpu_facts` leaves impossible ones out.
        numbers = {"sm_count": integer(entry.get("numSms")), "memory_bytes": integer(entry.get("totalGlobalMem"))}
        facts = gpu_facts(numbers, integer(entry.get("computeMajor")), integer(entry.get("computeMinor")))
        name = entry.get("name")
        if isinstance(name, str):
            facts["vendor"] = "AMD" if re.search(r"AMD|MI\d00|Radeon|Instinct", name) else "Nvidia"
        devices[index] = name if isinstance(name, str) else "", facts
    return devices


# --- the reader -----------------------------------------------------------------------------------

_MEMBERS = frozenset(("deviceProperties", "baseTimeNanoseconds", "distributedInfo", "$schema"))

# The loader's own range in all spellings so far; a Python frame where only stacks were recorded.
_LOADER = re.compile(
    r"^enumerate\((DataLoader|DataPipe|\w*Loader|\w*DataPipe)\)"
    r"|torch/utils/data/dataloader\.py\(\d+\): __next__$"
    r"|\.(train_dataloader_next|val_next|dataloader_next)$|^gpu_util:input_wait$"
)
_COMMUNICATION = re.compile(r"^(nccl|gloo|c10d|mpi|xccl):|^c10d::|^record_param_comms")
_DEVICE_CATEGORIES = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
_CALLS = ("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "xpu_runtime")
_NO_ACTIVITY = (  # copies of host ranges on GPU tracks, waits as the GPU saw them, flows, spans
    *("gpu_user_annotation", "cuda_sync", "cuda_event", "ac2g", "async", "fwdbwd", "trace", "cpu_instant_event"),
    *("cuda_profiler_range", "collective_comm", "async_cpu_to_gpu"),
)
_HOST_KINDS = {
    "cpu_op": HostKind.OP,
    "operator": HostKind.OP,
    "user_annotation": HostKind.RANGE,
    "python": HostKind.RANGE,
    "python_function": HostKind.PYTHON,
    "overhead": HostKind.FRAMEWORK,
    **dict.fromkeys(_CALLS, HostKind.CALL),
    **dict.fromkeys(_NO_ACTIVITY),
}
_CATEGORIES, _PHASES, _MOST_KNOWN = 64, 16, 65536  # the first two: listed of those that are not known
# Kind (None = no activity), name, memory that a GPU's copy touches, number of a step, whether it is a root.
_Known = tuple[Any, int, Any, int, bool]


def read_kineto(
    files: list[tuple[str, Callable[[], AbstractContextManager[BinaryIO]]]],
    progress: Callable[[], None] | None = None,
    most: int = limits.MAX_UNPACKED_JSON,
) -> Trace:
    """Read the files of one session, one per rank.

    Args:
        files: (path, function that opens the decompressed bytes) each; it names a file that cannot be read.
        progress: called about once per megabyte.
        most: maximum number of bytes that each may expand to.

    Raises: UnusableInput when a file is truncated, or no trace.
    """
    names = Names()
    trace = Trace("kineto", [path for path, _ in files], names, [])
    for path, open_file in files:
        try:
            with open_file() as file:
                reader = _TextReader(names)
                process = reader.read(Document(file, "traceEvents", _MEMBERS, progress, most))
        except BrokenJson as error:
            raise UnusableInput(
                f"{path}: damaged trace ({error}); record it again, or copy it again if it was cut"
            ) from None
        except _NoTrace as other:
            raise UnusableInput(f"{path}: {other}. {foreign.READABLE}") from None
        trace.processes.append(process)
        prefix = "" if len(files) == 1 else f"{process.host}: "
        trace.problems.extend(prefix + problem for problem in reader.problems)
    return trace


class _NoTrace(Exception):
    """Valid JSON, in which no profiler of a training wrote; its text says what it is."""


def _host_kind(category: str, name: str) -> HostKind | None:
    """Return the kind of a host's event by category and name; None = no activity."""
    kind = _HOST_KINDS[category]
    if kind is None:
        return None
    if kind == HostKind.CALL:  # of the driver or the runtime: a launch or a wait, by its name
        return api_kind(name) or HostKind.CALL
    if kind != HostKind.PYTHON and step_marker(name):  # a Python function may be called "step"
        return HostKind.STEP
    if _LOADER.search(name):
        return HostKind.INPUT_WAIT
    if kind != HostKind.PYTHON and _COMMUNICATION.search(name):
        return HostKind.COLLECTIVE
    return kind


# A stamp may be of the epoch, in microseconds; a larger number is not a time.
_MAX_US = limits.MAX_EPOCH_NS // 1000


def to_ps(value: object) -> int | None:
    """Return a time in microseconds, as written in JSON, in exact picoseconds; None if invalid.

    Args:
        value: a whole number, or the text of one with a fraction (see `Document`).
    """
    if type(value) is int:
        return value * PS_PER_US if -_MAX_US < value < _MAX_US else None
    if type(value) is not str:
        return None
    whole, _, fraction = value.partition(".")
    if fraction.isdecimal() and whole.isdecimal() and len(whole) < 18:  # the usual form
        return int(whole) * PS_PER_US + int(fraction[:6].ljust(6, "0"))
    try:  # with a sign or an exponent
        about = float(value)
        if not -_MAX_US < about < _MAX_US:
            return None
        # Decimals are exact, but unbounded in digits and in exponents.
        exact = len(value) <= 64 and (abs(about) > 1e-9 or not about)
        return int(Decimal(value) * PS_PER_US) if exact else int(about * PS_PER_US)
    except (ArithmeticError, ValueError):
        return None


_IN_NS = re.compile(r"(?:[0-9]{1,17}\.[0-9]{3} )*")


def _all_ps(values: list) -> list[int | None]:
    """Return `to_ps` of values; of many as PyTorch writes them, to three digits, at once."""
    texts = " ".join([*values, ""]) if set(map(type, values)) == {str} else "-"
    alike = _IN_NS.fullmatch(texts)
    return [int(ns) * 1000 for ns in texts.replace(".", "").split()] if alike else list(map(to_ps, values))


class _TextReader:
    """Collects one file's events; their relations are resolved at the end.

    Attributes:
        zero: start of the first activity, ps as in the file: the trace's zero; None before one.
        threads: (process, thread), as text -> index.
        process_names, thread_names: by the same ids.
        window_end: end of the recording, ps as in the file; None = not marked.
        unusable: events with impossible times.
        count: activities.
        marks: events that name processes and threads.
    """

    def __init__(self, names: Names):
        self.names = names
        self.problems: list[str] = []
        self.device = DeviceRows()
        self.host = HostRows()
        self.zero: int | None = None
        self.threads: dict[tuple[Any, Any], int] = {}
        self.process_names: dict[object, str] = {}
        self.thread_names: dict[tuple[object, object], str] = {}
        self.window_end: int | None = None
        self.unusable = 0
        self.count = 0
        self.marks = 0
        self.others: dict[str, int] = {}  # phase of events that hold no activity -> how many
        self.no_events: list[str] = []  # members of the first object in the list that is no event
        self.categories: set[str] = set()  # of events that none of the profilers read here writes
        self._known: dict[tuple[Any, Any], _Known] = {}  # by category and name

    def read(self, document: Document) -> Process:
        """Return the process of a document. Raises: BrokenJson; _NoTrace where it is a file of another kind."""
        values = document.values()
        while block := list(islice(values, _BLOCK)):
            events = [event for event in block if type(event) is dict]
            starts = _all_ps([event.get("ts") for event in events])
            durations = _all_ps([event.get("dur", "0.000") for event in events])
            for event, start, duration in zip(events, starts, durations, strict=True):
                self._event(event, start, duration)
        members = document.members
        if not self.count and self.unusable:  # it has activities, at no possible time
            raise BrokenJson(f"none of its {self.unusable:,} events has a possible time")
        labels = [*self.categories, *self.process_names.values()]
        if not self.count or foreign.by_labels(labels):  # no activity, or another tool's
            raise _NoTrace(foreign.by_labels(labels) or self._without_activity(document, labels))
        process = self._process(members)
        if not process.devices and (accelerator := foreign.accelerator(labels)):
            self.problems.append(f"the trace is of {accelerator}, whose work is not read: the host's side only")
        return process

    def _without_activity(self, document: Document, labels: list[str]) -> str:
        """Return what a document is in which no event has a beginning and an end.

        Args:
            labels: categories and processes' names, which may show another maker's accelerator.
        """
        accelerator = foreign.accelerator(labels)
        of = f" of {accelerator}" if accelerator else ""
        if self.others or self.marks:  # it is a Chrome trace, of other events; else another tool's JSON
            names = {"C": "counters", "B": "begin events", "E": "end events", "X": "events without a category"}
            counted = [f"{count:,} {names.get(phase, f'events {phase[:9]!r}')}" for phase, count in self.others.items()]
            return f"a Chrome trace{of} without activities: {', '.join(counted) or 'it holds names alone'}"
        texts = {name: value for name, value in document.members.items() if isinstance(value, str)}
        return foreign.by_members(document.names or self.no_events, texts)

    def _event(self, event: dict, start: int | None, duration: int | None) -> None:
        """Add one event, whichever its phase; one with an impossible time is counted as unusable.

        Args:
            start, duration: ps as in the file; None = not valid.

        Raises: BrokenJson for more events than are read.
        """
        phase = event.get("ph")
        # An activity, with a beginning and an end.
        if phase == "X" and type(event.get("cat")) is str:
            if start is None or duration is None or duration < 0:
                self.unusable += 1
                return
            self.zero = start if self.zero is None else self.zero
            start -= self.zero
            end = start + duration
            if not -(1 << 61) < start <= end < 1 << 61:
                self.unusable += 1
                return
            self.count += 1
            self._complete(event, start, end)
            if self.count > limits.MAX_EVENTS:
                raise BrokenJson(f"more than {self.count - 1:,} events; profile fewer steps")
        elif phase == "i" or phase == "I":  # an instant
            if event.get("name") == "Record Window End":
                self.window_end = start
        elif phase == "M":  # the name of a process or thread
            self._metadata(event)
        # Another phase is counted, of a few kinds, to say what the file is if it has no activity.
        elif isinstance(phase, str) and (phase in self.others or len(self.others) < _PHASES):
            self.others[phase] = self.others.get(phase, 0) + 1
        elif phase is None and not self.no_events:  # no event at all
            self.no_events = list(event)

    def _complete(self, event: dict, start: int, end: int) -> None:
        """Add an activity, its start and end in ps from the trace's zero, to the host's rows or a GPU's."""
        arguments, category, name = event.get("args"), event["cat"], event.get("name")
        if type(arguments) is not dict:
            arguments = {}
        try:
            known = self._known[category, name]
        except (KeyError, TypeError):  # a new one, or one that is no text
            known = self._learned(category, name)
        kind, name_id, memory, value, root = known
        if memory is not None:  # of a GPU
            self.device.add_kineto(event, arguments, (start, end), known)
        elif kind is not None:  # of the host; None = no activity
            correlation = integer(arguments.get("correlation", -1))
            external = integer(arguments.get("External id", arguments.get("external id", -1)))
            thread = self._thread(event.get("pid"), event.get("tid"))
            self.host.add(start, end, thread, kind, name_id, correlation, value, external, root)

    def _learned(self, category: str, name: object) -> _Known:
        """Return what all activities of a category and a name have in common (see `_Known`), and keep it."""
        text, of = name if type(name) is str else "unknown", category.lower()
        value, root, memory = -1, False, None
        kind: int | None
        if of in _DEVICE_CATEGORIES:
            kind, memory = _kind_and_memory(of, text)
        elif of in _HOST_KINDS:
            kind = _host_kind(of, text)
        else:  # a category of no profiler read here: by its name
            by_name = host_kind(text)
            kind = by_name if by_name >= 0 else None
            if len(self.categories) < _CATEGORIES:
                self.categories.add(of)
        if kind == HostKind.STEP and memory is None and (step := step_marker(text)):
            root = text.startswith("ProfilerStep")
            text, value = step
        known = kind, -1 if kind is None else self.names.id(text), memory, value, root
        if len(self._known) < _MOST_KNOWN and type(name) is str:
            self._known[category, name] = known
        return known

    def _thread(self, pid: object, tid: object) -> int:
        """Return the index of a thread, from 0 in the order of appearance."""
        key = (str(pid), str(tid))
        index = self.threads.get(key)
        if index is None:
            if len(self.threads) >= limits.MAX_THREADS:  # the rest share one
                return limits.MAX_THREADS - 1
            index = self.threads[key] = len(self.threads)
        return index

    def _metadata(self, event: dict) -> None:
        """Keep the name of a process or thread that an event of phase M gives."""
        self.marks += 1
        arguments = event.get("args")
        text = arguments.get("name") if type(arguments) is dict else None
        if type(text) is not str:
            return
        # Other names, such as of sort orders, are not needed.
        if event.get("name") == "process_name":
            self.process_names[str(event.get("pid"))] = text
        elif event.get("name") == "thread_name":
            self.thread_names[(str(event.get("pid")), str(event.get("tid")))] = text

    def _process(self, members: dict[str, object]) -> Process:
        """Return the process with its host's and GPUs' events, those of the GPUs linked to their operations.

        Args:
            members: of the document, but for the events.
        """
        zero = self.zero or 0
        distributed = members.get("distributedInfo")
        rank = integer(distributed.get("rank")) if isinstance(distributed, dict) else -1
        host_events, ops = self.host.finish(None if self.window_end is None else self.window_end - zero)
        events_by_device, shapes = self.device.finish(ops)
        gpus = device_facts(members.get("deviceProperties"))  # (name, facts) by number
        # If all GPUs are alike, their name and facts hold for one that is not listed, too.
        names = {name for name, _ in gpus.values() if name}
        unlisted: tuple[str, dict] = "GPU", {}
        if len(names) == 1:
            unlisted = names.pop(), next(iter(gpus.values()))[1]
        devices = []
        for index, events in events_by_device.items():
            name, facts = gpus.get(index, unlisted)
            devices.append(Device(index, name or unlisted[0], events, facts))
        if self.unusable:
            self.problems.append(f"{self.unusable} events with impossible times were left out")
        if wild := self.device.without_device:
            self.problems.append(f"{wild} events with impossible device numbers were left out")
        return Process(
            host=self._host_name(rank),
            devices=devices,
            threads=[self.thread_names.get(key, key[1]) for key in self.threads],
            events=host_events,
            shapes=shapes,
            rank=rank if 0 <= rank <= limits.MAX_FACT else None,
            epoch_ns=_epoch(members, zero),
            facts={"group_sizes": self.device.group_sizes},
        )

    def _host_name(self, rank: int) -> str:
        """Return the name of a process in the trace: its rank if it has one (-1 = none), else its own name."""
        for pid, _ in self.threads:
            name = self.process_names.get(pid)
            if name:
                return f"{name} {pid}" if rank < 0 else f"rank {rank}"
        return f"rank {rank}" if rank >= 0 else "host"


def _epoch(members: dict[str, object], zero_ps: int) -> int | None:
    """Return the epoch time of the trace's zero, ns: by Kineto's own base, or stamps of the epoch; None = unknown.

    Args:
        zero_ps: the trace's zero as in the file.
    """
    zero_ns = zero_ps // 1000
    base = integer(members.get("baseTimeNanoseconds"))
    if base > 0:
        return epoch(base + zero_ns)
    return epoch(zero_ns) if zero_ns > 10**18 else None


CHUNK = 1 << 20
# A single value larger than this is not an event; it would make the window as large as the file.
MAX_VALUE = 16 << 20

_GAP = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?={)")  # before an object
_MARK = re.compile(r'["{}\[\]]')
_TEXT = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_NAMED = 64
# Some profilers write a bare N/A for an unknown number.
_BARE = re.compile(r"(?<=[:\[,])(\s*)N/A(?=\s*[,}\]])")


class BrokenJson(Exception):
    """The document is truncated, or is not JSON."""


class Document:
    """A JSON object (or array) whose one large member is an array.

    Args:
        file: source of the (decompressed) bytes.
        big: the member to stream; a document that is an array itself is streamed whole.
        keep: the other members to keep; None = all. What is not kept may be of any size.
        progress: called after each chunk.
        limit: maximum number of bytes; longer documents are refused.
    """

    def __init__(
        self,
        file: BinaryIO,
        big: str,
        keep: frozenset[str] | None = None,
        progress: Callable[[], None] | None = None,
        limit: int = limits.MAX_UNPACKED_JSON,
    ) -> None:
        self._limit = limit
        self.members: dict[str, object] = {}  # known when `values` is exhausted
        self.names: list[str] = []  # of all members so far, at most `_NAMED`
        self._keep = keep
        self._read = 0  # bytes, decompressed
        self._file = file
        self._big = big
        self._progress = progress
        # Texts of bytes that may end within a character; what is no UTF-8 is replaced.
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._text = ""  # the window over the file
        self._at = 0  # current position in it; what is before is consumed
        self._at_end = False  # all of the file is read
        self._bare = False  # a bare N/A was met
        # Scans a value at a position of a text: the value, and the position behind it.
        decoder: Any = json.JSONDecoder(parse_float=str, strict=False)
        self._scan: Callable[[str, int], tuple[object, int]] = decoder.scan_once

    def _more(self) -> bool:
        """Drop the consumed text and append the next chunk; return False at the end of the file."""
        if self._at_end:
            return False
        # A value that does not fit yet: read as much again, so that retrying stays linear.
        data = self._file.read(max(CHUNK, len(self._text) - self._at))
        self._at_end = not data
        self._read += len(data)
        if self._read > self._limit:
            raise BrokenJson(f"it decompresses to more than {self._limit >> 20:,} MB")
        text = self._decode(data, self._at_end)
        if self._bare:
            text = _BARE.sub(r"\1null", text)
        self._text = self._text[self._at :] + text
        self._at = 0
        if len(self._text) > MAX_VALUE:
            raise BrokenJson(f"a value is larger than {MAX_VALUE >> 20} MB")
        if self._progress:
            self._progress()
        return True

    def _peek(self) -> str:
        """Return the next character that is not white space."""
        while True:
            self._at = _GAP.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            self._need_more()

    def _expect(self, character: str) -> None:
        """Move behind a character. Raises: BrokenJson if another one is there."""
        character_there = self._peek()
        if character_there != character:
            raise BrokenJson(f"{character!r} expected, {character_there!r} found")
        self._at += 1

    def _value(self) -> object:
        """Return the whole value at the current position, and move behind it; read on as far as it needs.

        Raises: BrokenJson.
        """
        self._peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (StopIteration, json.JSONDecodeError) as error:
                at = error.value if isinstance(error, StopIteration) else error.pos
                # From the first bare N/A on, all of them are replaced.
                if not self._bare and _BARE.search(self._text, self._at):
                    self._bare = True
                    head, tail = self._text[: self._at], self._text[self._at :]
                    self._text = head + _BARE.sub(r"\1null", tail)
                    continue
                # At the edge of the window the rest is not read yet; in its middle it is an error.
                edge = at >= len(self._text) - 16
                cut = "Unterminated" in str(error)
                if (edge or cut) and self._more():
                    continue
                raise BrokenJson("it ends in the middle" if edge or cut else f"not JSON: {error}") from None
            except RecursionError:
                raise BrokenJson("nested too deeply") from None
            except ValueError as error:  # an integer of thousands of digits
                raise BrokenJson(f"not JSON: {error}") from None
            # A number that touches the edge may continue behind it.
            if end >= len(self._text) and not isinstance(value, dict | list) and self._more():
                continue
            self._at = end
            return value

    def _skip(self) -> None:
        """Move behind the value at the current position; only its brackets are looked at, however large it is."""
        if self._peek() not in '{["':  # a number, true, false or null
            self._value()
            return
        depth = 0
        while True:
            mark = _MARK.search(self._text, self._at)
            if mark is None:  # nothing more in the window
                self._at = len(self._text)
                self._need_more()
                continue
            self._at = mark.end()
            if mark[0] == '"':
                self._skip_text()
            else:
                depth += 1 if mark[0] in "{[" else -1
            if depth <= 0:
                return

    def _skip_text(self) -> None:
        """Move behind the end of a text, however long it is."""
        while True:
            self._at = _TEXT.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._text.startswith('"', self._at):
                self._at += 1
                return
            self._need_more()

    def _need_more(self) -> None:
        if not self._more():
            raise BrokenJson("it ends in the middle")

    def values(self) -> Iterator[Any]:
        """Yield the big array's values, one by one; afterwards `members` is complete.

        Raises: BrokenJson.
        """
        if self._peek() == "[":  # the document is the array itself
            yield from self._array()
            return
        self._expect("{")
        if self._peek() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise BrokenJson("a name expected")
            self._expect(":")
            if len(self.names) < _NAMED:
                self.names.append(key)
            if key == self._big and self._peek() == "[":
                yield from self._array()
            elif self._keep is None or key in self._keep:
                self.members[key] = self._value()
            else:
                self._skip()
            if self._peek() == "}":
                return
            self._expect(",")

    def _array(self) -> Iterator[object]:
        """Yield the values of an array; events one by one. Raises: BrokenJson."""
        self._expect("[")
        while self._peek() != "]":  # Chrome allows a comma before it
            yield self._value()
            yield from self._objects()
            if self._peek() != "]":
                self._expect(",")
                if self._peek() == ",":
                    raise BrokenJson("a comma too many")
        self._at += 1

    def _objects(self) -> Iterator[object]:
        """Yield the objects that follow, each behind a comma, as far as they are whole in the window."""
        scan, text, at = self._scan, self._text, self._at
        with contextlib.suppress(StopIteration, ValueError, RecursionError):  # `_value` reads on, or says why not
            while comma := _COMMA.match(text, at):
                value, at = scan(text, comma.end())
                self._at = at
                yield value
