"""Turns decoded XPlane events and their stats into columns of the event model.

Names and stats that events refer to by number are decoded on first use (`Metadata`): parsed into
objects, a file of empty entries would take fifty times its size; here an entry costs its place in a
few columns, and only names that events use become strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpu_util_callback.traces import wire
from gpu_util_callback.traces.limits import integer
from gpu_util_callback.traces.limits import number as number_of
from gpu_util_callback.traces.model import (
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    KernelShape,
    MemoryKind,
    Names,
    Shapes,
    groups,
    map_distinct,
    triple,
)
from gpu_util_callback.traces.naming import api_kind, copy_kind, device_kind, memory_kind, op_of

_DEVICE_STATS = (
    *("correlation_id", "cuda_graph_id"),
    *("kernel_details", "theoretical_occupancy_pct", "memcpy_details"),
    *("tf_op", "annotation", "name", "hlo_op"),  # any of which may tell the op
)
_HOST_STATS = ("step_num", "_r", "correlation_id", "id", "hlo_op")

_DROP = -1
# The kind of a host event by its name: that of the first pattern that it has.
_HOST_KINDS: tuple[tuple[int, re.Pattern[str]], ...] = (
    # Instants and bookkeeping: most of a trace's host events, but no activity.
    (
        _DROP,
        re.compile(
            r"^(ThreadpoolListener::|ExecutorPropagateOutputs|ExecutorState::ProcessAsync|RecordUsage$"
            r"|MemCpyAsync$|ThenExecuteCallback$|Memory(All|Deall)ocation$)"
        ),
    ),
    (
        HostKind.INPUT_WAIT,
        re.compile(
            r"^(IteratorGetNext\w*|MultiDeviceIteratorGetNext\w*|OneShotIteratorGetNext\w*)(::\w+)?$"
            r"|:(IteratorGetNext\w*|MultiDeviceIteratorGetNext\w*)$|^gpu_util:input_wait$"
        ),
    ),
    (HostKind.PIPELINE, re.compile(r"^(Iterator::|Prefetch|ParallelMap|ParallelInterleave|InstantiatedCaptured)")),
    (HostKind.PYTHON, re.compile(r"^\$")),
    (HostKind.RUN, re.compile(r"^(FunctionRun|SessionRun|PjitFunction\(|TfrtModelRunner|RunGraph$)")),
    # PJRT's threads make a batch in pageable memory ready for the DMA; a pageable copy of CUDA does so itself.
    (HostKind.STAGING, re.compile(r"^(H2D Dispatch$|BufferFromHostBuffer::H2D_staging_copy)")),
)
_OP = re.compile(r"^(?!.*::)[^\s:][^:]*:[A-Z_]\w*$")


@dataclass(slots=True)
class PlaneEvents:
    """A batch of decoded events of one plane: arrays of a value each, times from the trace's zero.

    `keep` is False for events that are left out: they have no place in time, or an impossible one.
    """

    plane: Metadata
    names: Names
    buffer: wire.Buffer
    line: np.ndarray  # int64[n], place of the line among those that are read
    line_id: np.ndarray  # int64[n]
    metadata: np.ndarray  # int64[n], metadata id
    start_ps: np.ndarray
    end_ps: np.ndarray
    keep: np.ndarray  # bool[n]
    stats: tuple[np.ndarray, np.ndarray, np.ndarray]  # owner, start, end of each stat's bytes

    def kinds(self, kind_of: Callable[[str], int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the kind, int8[n], and the name, int32[n], of each event."""
        unique, inverse = np.unique(self.metadata, return_inverse=True)
        names = self.names.ids(self.plane.event_name(key) for key in unique.tolist())
        kinds = np.array([kind_of(self.names[name]) for name in names.tolist()], np.int8)
        return kinds[inverse], names[inverse]

    def decode_stats(self, stat_names: tuple[str, ...], keep: np.ndarray) -> dict[str, _Stat]:
        """Decode the named stats (an event's keys and values) of the events in `keep`."""
        rows = np.flatnonzero(keep[self.stats[0]])
        return self.plane.decode_stats(self.buffer, self.stats, rows, stat_names, len(self.metadata))


def _may_have_ids(buffer: wire.Buffer, start: np.ndarray, end: np.ndarray, ids: np.ndarray):
    """Return a mask of the stats that may have one of the ids: all whose first field is not another id.

    Reads ids of one and two bytes, which nearly all are, so that other stats need not be decoded.
    """
    first = buffer.bytes[start]  # 8 = the tag of field 1, a varint: the id
    low, high = buffer.bytes[start + 1], buffer.bytes[start + 2]
    short = (first == 8) & (low < 128) & (end - start >= 2)
    two = (first == 8) & (low >= 128) & (high < 128) & (end - start >= 3)
    value = np.where(two, (low & 127).astype(np.int64) | (high.astype(np.int64) << 7), low)
    return np.isin(value, ids) | ~(short | two)


@dataclass(slots=True)
class _Stat:
    """One stat (a key and a value) of those owners that have it: events, entries of metadata, or the plane."""

    buffer: wire.Buffer
    stat_names: dict[int, str]  # which a value may refer to
    count: int  # of owners, with the stat or without
    owner: np.ndarray  # int64[m]
    rows: np.ndarray  # int64[m], row of the decoded table
    table: dict[int, wire.Fields]

    def numbers(self, absent: float = -1, dtype: type = np.int64) -> np.ndarray:
        """Return the stat as a number for each owner; `absent` where it has none, or one that is no number.

        Field 2 is a double, 3 and 4 are whole numbers.
        """
        result: np.ndarray = np.full(self.count, absent, dtype)
        whole = dtype is not np.float64
        for number in (2, 3, 4):
            column = self.table[number]
            has = column.present[self.rows]
            if has.any():
                raw = column.value[self.rows[has]]
                value = raw.view(np.float64) if number == 2 else raw.view(np.int64)
                if number == 2 and whole:
                    value = np.where(np.isfinite(value) & (np.abs(value) < 2**62), value, absent)
                result[self.owner[has]] = value.astype(dtype)
        for owners, text in self.texts():
            value = number_of(text)
            if value is not None:  # a text where a number belongs is absent
                result[owners] = integer(text) if whole else value
        return result

    def strings(self, names: Names, convert: Callable[[str], str] = str) -> np.ndarray:
        """Return the stat as an interned string for each owner: int32[n], -1 = absent."""
        result = np.full(self.count, -1, np.int32)
        for owners, text in self.texts():
            result[owners] = names.id(convert(text))
        return result

    def texts(self) -> Iterator[tuple[np.ndarray | int, str]]:
        """Yield the texts that the stat has, each with some of its owners, or one.

        Field 7 refers to a stat's name, which many owners share; 5 and 6 are texts of one owner.
        """
        references = self.table[7]
        at = np.flatnonzero(references.present[self.rows])
        for key, same in groups(references.value[self.rows[at]].view(np.int64)):
            yield self.owner[at[same]], self.stat_names.get(key, "")
        for number in STAT_TEXTS:
            column = self.table[number]
            has = column.present[self.rows]
            for owner, row in zip(self.owner[has].tolist(), self.rows[has].tolist(), strict=True):
                yield owner, self.buffer.text(column, row)


def device_columns(batch: PlaneEvents, shapes: Shapes) -> DeviceEvents:
    """Return the events of a GPU's streams, but for those that are not to be kept.

    Unknown ids and sizes are -1, a copy's bytes among them.

    Args:
        batch: the events; their lines are the streams.
        shapes: known launch shapes; extended.
    """
    n = len(batch.metadata)
    names = batch.names
    kind, name = batch.kinds(device_kind)
    stats = batch.decode_stats(_DEVICE_STATS, batch.keep)

    text = partial(_texts, batch, stats)
    size = np.full(n, -1, np.int64)
    memory = np.zeros(n, np.int8)
    details = text("memcpy_details")
    for key, rows in _pairs(name, details, details >= 0):
        copied, memory[rows], size[rows] = copy_details(names[key[1]], names[key[0]])
        # A kernel that carries copy details keeps the kind of its name.
        if device_kind(names[key[0]]) != DeviceKind.KERNEL:
            kind[rows] = copied

    shape = np.full(n, -1, np.int32)
    details = text("kernel_details")
    occupancy = stats["theoretical_occupancy_pct"].numbers(np.nan, np.float64)
    # In thousandths, so that equal ones are found; -1 = unknown, -2000 = a negative one.
    rounded = np.where(np.isnan(occupancy), -1, np.clip(occupancy, -2, 1e6) * 1000).astype(np.int64)
    for key, rows in _pairs(details, rounded, details >= 0):
        launch_shape = kernel_shape(names[key[0]], None if key[1] == -1 else key[1] / 1000)
        shape[rows] = shapes.id(launch_shape)

    # The op it came from: TensorFlow's, else XLA's metadata of the program, else its HLO.
    op = text("tf_op", lambda s: "" if s.startswith("XlaModule") else op_of(s))
    for other in ("annotation", "name", "hlo_op"):
        missing = (op < 0) | (op == names.id(""))
        if missing.any():
            op = np.where(missing, text(other, op_of), op)
    correlation = stats["correlation_id"].numbers()
    graph = stats["cuda_graph_id"]
    return DeviceEvents.build(
        start_ps=batch.start_ps,
        end_ps=batch.end_ps,
        kind=kind,
        stream=batch.line_id,
        correlation=np.where(correlation > 0, correlation, -1),
        name=name,
        op=np.where(op == names.id(""), -1, op),
        shape=shape,
        bytes=size,
        memory=memory,
        graph=np.where(graph.numbers(0) > 0, -1, 0) if len(graph.owner) else None,
    ).take(batch.keep)


def _texts(batch: PlaneEvents, stats: dict[str, _Stat], name: str, convert: Callable[[str], str] = str) -> np.ndarray:
    """Return the id of a stat's text for each event, by default that of its metadata; int32[n], -1 = none."""
    texts = stats[name].strings(batch.names, convert)
    defaults = batch.plane.texts(name)
    if not defaults:
        return texts

    def default(metadata: int) -> int:
        return batch.names.id(convert(defaults[metadata])) if metadata in defaults else -1

    return np.where(texts < 0, map_distinct(batch.metadata, default, np.int32), texts)


def _pairs(a: np.ndarray, b: np.ndarray, where: np.ndarray):
    """Yield the distinct pairs (a, b) among some rows, and the rows of each: ((a, b), indexes).

    Args:
        a, b: a whole number for each row; `a` from 0 on where `where`, bool[n], holds.
    """
    chosen = np.flatnonzero(where)
    _, codes = np.unique(b[chosen], return_inverse=True)
    keys = a[chosen].astype(np.int64) * (len(chosen) + 1) + codes
    for _, rows in groups(keys):
        mine = chosen[rows]
        yield (int(a[mine[0]]), int(b[mine[0]])), mine


def host_kind(name: str) -> int:
    """Return the HostKind of a host event by name; negative: no activity. One that nothing matches is FRAMEWORK."""
    for kind, pattern in _HOST_KINDS:
        if pattern.search(name):
            return kind
    api = api_kind(name)
    if api is not None:
        return api
    return HostKind.OP if _OP.match(name) else HostKind.FRAMEWORK


def host_columns(batch: PlaneEvents, first_thread: int) -> HostEvents:
    """Return the events of host threads, but for those without activity; unknown ids are -1.

    `value` is the step's number of a step, else the id of the call that an event works for.

    Args:
        first_thread: index of the thread of the process that the plane's first line is.
    """
    n = len(batch.metadata)
    kind, name = batch.kinds(host_kind)
    keep = batch.keep & (kind != _DROP)
    stats = batch.decode_stats(_HOST_STATS, keep)

    correlation = stats["correlation_id"].numbers()
    correlation = np.where(correlation > 0, correlation, -1)
    steps = np.zeros(n, bool)
    steps[stats["step_num"].owner] = True
    hlo = np.zeros(n, bool)
    hlo[stats["hlo_op"].owner] = True
    value = np.where(steps, stats["step_num"].numbers(), stats["id"].numbers())
    plain = (kind == HostKind.FRAMEWORK) | (kind == HostKind.OP)
    kind = np.where(plain & (correlation >= 0), HostKind.LAUNCH, kind)  # TF 2.4's naming
    kind = np.where((kind == HostKind.FRAMEWORK) & hlo, HostKind.OP, kind)
    kind = np.where(steps, HostKind.STEP, kind)

    return HostEvents.build(
        start_ps=batch.start_ps,
        end_ps=batch.end_ps,
        thread=batch.line + first_thread,
        kind=kind,
        name=name,
        correlation=correlation,
        value=value,
        root=(stats["_r"].numbers(0) > 0).astype(np.int8),
    ).take(keep)


def _key_values(text: str) -> dict[str, str]:
    words = (word.partition(":") for word in text.split())
    return {key: value for key, colon, value in words if colon}


def _count(text: str) -> int:
    """Return a number of details, -1 for none. ROCm and TF 2.4 write uninitialised memory: more digits, or signs."""
    value = int(text) if text.isdecimal() and len(text) < 20 else -1
    return value if value <= 1 << 62 else -1


def kernel_shape(details: str, occupancy_pct: float | None = None) -> KernelShape:
    """Return the launch of a kernel from `kernel_details`.

    Reads "regs:128 static_shared:16384 dynamic_shared:0 grid:1,2,1 block:256,1,1 occ_pct:50", and
    ROCm's "grid:… block:… private_mem:0 group_mem:0".
    """
    pairs = _key_values(details)
    return KernelShape(
        registers=_count(pairs["regs"]) if "regs" in pairs else None,
        grid=triple([_count(part) for part in pairs.get("grid", "").split(",")]),
        block=triple([_count(part) for part in pairs.get("block", "").split(",")]),
        # Drivers that do not compute it write 0 %; no kernel runs at 0 %.
        occupancy_pct=occupancy_pct or number_of(pairs.get("occ_pct", "")) or None,
    )


def copy_details(details: str, name: str) -> tuple[DeviceKind, MemoryKind, int]:
    """Return a copy from `memcpy_details`: its kind, that of the host's memory, its bytes (-1 = unknown).

    Reads "kind_src:pageable kind_dst:device size:4 dest:0 async:1", the older
    "size:4 dest:0 async:1" and ROCm's "kind:Unknown size:655360 dest:2 async:1".
    """
    pairs = _key_values(details)
    source, destination = pairs.get("kind_src", ""), pairs.get("kind_dst", "")
    return copy_kind(name, source, destination), memory_kind(source, destination), _count(pairs.get("size", ""))


# XStat: metadata_id, double, uint64, int64, str, bytes, ref
STAT_FIELDS = (1, 2, 3, 4, 5, 6, 7)
STAT_TEXTS = (5, 6)


class _Entries:
    """One map of a plane: names by id, and the stats of some.

    Args:
        data: the file.
        spans: positions of the entries, each of a key (field 1) and a message (field 2) with a name (its field 2).
        stats_field: of the message's stats; 0 = it has none.
    """

    def __init__(self, data: bytes, spans: wire.Spans, stats_field: int = 0) -> None:
        starts, ends = spans
        low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        self.buffer = wire.Buffer(memoryview(data)[low:high])
        entries, _ = wire.decode(self.buffer, starts - low, ends - low, (1, 2), payloads=(2,))
        keys, value = entries[1].value.view(np.int64), entries[2]
        self._row = {key: row for row, key in enumerate(keys.tolist())}  # of `_name`; of equal keys the last one's
        inner, (owner, start, end) = wire.decode(
            self.buffer, value.value.astype(np.int64), value.end, (2,), stats_field, payloads=(2,)
        )
        self._name = inner[2]
        self.stats = keys[owner], start, end  # the entry's id of each stat, and its position

    def __getitem__(self, key: int) -> str | None:
        row = self._row.get(key)
        return None if row is None else self.buffer.text(self._name, row)

    def items(self) -> dict[int, str]:
        is_present = self._name.present
        return {key: self.buffer.text(self._name, row) for key, row in self._row.items() if is_present[row]}


class Metadata:
    """The maps and the own stats of one plane.

    Args:
        data: the file.
        events, stats: positions of the entries of the two maps.
        plane_stats: positions of the plane's own stats.
    """

    def __init__(self, data: bytes, events: wire.Spans, stats: wire.Spans, plane_stats: wire.Spans) -> None:
        self.events = _Entries(data, events, stats_field=5)
        self.stat_names = _Entries(data, stats).items()
        self._stat_ids = {name: key for key, name in self.stat_names.items()}
        self._data, self._plane_stats = data, plane_stats
        self._texts: dict[str, dict[int, str]] = {}  # results of `texts`, by the stat's name

    def event_name(self, key: int) -> str:
        name = self.events[key]
        return "unknown" if name is None else name

    def decode_stats(
        self,
        buffer: wire.Buffer,
        stats: tuple[np.ndarray, np.ndarray, np.ndarray],
        rows: np.ndarray,
        stat_names: tuple[str, ...],
        count: int,
    ) -> dict[str, _Stat]:
        """Decode the named ones of some stats, by name; one that the plane does not have is empty.

        Args:
            buffer: the bytes that hold them.
            stats: owner, start, end: int64[m], whose each is and its position.
            rows: of the stats to look at.
            count: of owners, which are numbered from 0.
        """
        by_name = {name: self._stat_ids[name] for name in stat_names if name in self._stat_ids}
        owner, start, end = stats
        rows = rows[_may_have_ids(buffer, start[rows], end[rows], np.fromiter(by_name.values(), np.int64))]
        owner, start, end = owner[rows], start[rows], end[rows]
        table, _ = wire.decode(buffer, start, end, STAT_FIELDS, payloads=STAT_TEXTS)
        stat_id = table[1].value.view(np.int64)
        result = {}
        for name in stat_names:
            mine = np.flatnonzero(stat_id == by_name[name]) if name in by_name else np.empty(0, np.int64)
            result[name] = _Stat(buffer, self.stat_names, count, owner[mine], mine, table)
        return result

    def texts(self, name: str) -> dict[int, str]:
        """Return a text stat that metadata carries for all of its events, by the event's id."""
        if name not in self._texts:
            stats = self.events.stats
            stat = self.decode_stats(self.events.buffer, stats, np.arange(len(stats[0])), (name,), 0)[name]
            self._texts[name] = {int(owner): text for owners, text in stat.texts() for owner in np.atleast_1d(owners)}
        return self._texts[name]

    def facts(self, *names: str) -> dict[str, Any]:
        """Return some of the plane's own stats by name, texts or whole numbers; those that it lacks are absent."""
        starts, ends = self._plane_stats
        low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        buffer = wire.Buffer(memoryview(self._data)[low:high])
        positions = np.zeros_like(starts), starts - low, ends - low
        facts = {}
        # All are of one owner, number 0: the plane.
        for name, stat in self.decode_stats(buffer, positions, np.arange(len(starts)), names, 1).items():
            texts = [text for _, text in stat.texts()]
            if len(stat.owner):
                facts[name] = texts[-1] if texts else int(stat.numbers()[0])
        return facts
