"""Reads XSpace files (`*.xplane.pb`: TensorFlow, JAX, any XLA) into the event model.

Both layouts are read: today's raw one, and that of TensorFlow 2.5 and before with derived lines
("Steps", "TensorFlow Ops", …) baked in, which would count every kernel again and are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import wire
from gpu_util_callback.traces.limits import (
    MAX_EVENTS,
    MAX_FIELDS,
    MAX_LINES,
    MAX_METADATA,
    MAX_PLANES,
    epoch,
    gpu_facts,
    ordinal,
)
from gpu_util_callback.traces.model import (
    PS_PER_NS,
    AllocatorEvents,
    Columns,
    Device,
    DeviceEvents,
    HostEvents,
    HostKind,
    Names,
    Process,
    Shapes,
    Trace,
    in_order,
)
from gpu_util_callback.traces.naming import DERIVED_LINES
from gpu_util_callback.traces.xplane_events import Metadata, PlaneEvents, device_columns, host_columns

# Events, and bytes of events, decoded at a time: bounds the temporary memory.
_CHUNK = 200_000
_CHUNK_BYTES = 16 << 20

_DEVICE_PLANE = re.compile(r"^/device:GPU:(\d+)")
_HOST_PLANES = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer")
# Those that TensorFlow derives from others, by id (int32 from 0xdeadbeef on).
_DERIVED_IDS = range(-559038737, -559038347)
# A line's timestamp counts from the session's start, or from the epoch; no session lasts a year.
_EPOCH_FROM_NS = 365 * 86400 * 10**9


@dataclass(slots=True)
class _Line:
    id: int
    name: str
    timestamp_ns: int
    starts: np.ndarray
    ends: np.ndarray


@dataclass(slots=True)
class _Plane:
    name: str
    lines: list[_Line]
    metadata: Metadata


def read_xplane(files: list[tuple[str, bytes]]) -> Trace:
    """Read the files of one profiling session, one per host.

    Args:
        files: (path, content) each.

    Returns: a trace with one process per file; times are aligned where the files state when they
        began.

    Raises: UnusableInput when a file is damaged, too large, or no XSpace.
    """
    names = Names()
    trace = Trace("xplane", [path for path, _ in files], names, [])
    for path, data in files:
        try:
            process, problems = _read_file(data, names)
        except wire.BadMessage as error:
            raise UnusableInput(
                f"{path}: damaged or not an XPlane file ({error}); record the window again or "
                "name a *.xplane.pb file that was written to its end"
            ) from None
        except wire.TooMany as error:
            raise UnusableInput(f"{path}: too large to read ({error}); profile fewer steps") from None
        trace.processes.append(process)
        trace.problems.extend(problems if len(files) == 1 else [f"{process.host}: {p}" for p in problems])
    _align(trace)
    return trace


def _align(trace: Trace) -> None:
    """Align several hosts on one time axis, by their wall clocks."""
    if len(trace.processes) < 2:
        return
    epochs_ns = [p.epoch_ns for p in trace.processes if p.epoch_ns is not None]
    if len(epochs_ns) != len(trace.processes):
        trace.problems.append("the hosts' clocks are not aligned: a file lacks its start time")
        return
    zero = min(epochs_ns)
    for process in trace.processes:
        shift = ((process.epoch_ns or 0) - zero) * PS_PER_NS
        if shift >= 1 << 61:
            trace.problems.append(f"{process.host}: recorded at another time; not aligned")
            continue
        for events in [d.events for d in process.devices] + [process.events]:
            events.start_ps += shift
            events.end_ps += shift
        process.allocator.time_ps += shift
        process.epoch_ns = zero


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _read_line(data: bytes, at: int, end: int) -> _Line:
    starts, ends, other_fields = wire.spans_of(data, at, end, 4, MAX_EVENTS)
    line = _Line(0, "", 0, starts, ends)
    for number, kind, a, b in other_fields:
        if kind == 0 and number == 1:
            line.id = a - (1 << 64) if a >> 63 else a
        elif kind == 0 and number == 3:
            line.timestamp_ns = a - (1 << 64) if a >> 63 else a
        elif kind == 2 and (number == 2 or (number == 11 and not line.name)):
            line.name = _text(data[a:b])
    return line


def _read_plane(data: bytes, at: int, end: int) -> _Plane:
    parts = wire.split(data, at, end, (2, 3, 4, 5, 6), MAX_METADATA)
    starts, ends = parts[3]
    if len(starts) > MAX_LINES:
        raise wire.TooMany(f"more than {MAX_LINES:,} lines")
    name = "".join(_text(data[a:b]) for a, b in zip(*(e[-1:] for e in parts[2]), strict=True))
    is_read = _DEVICE_PLANE.match(name) or name in _HOST_PLANES
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    lines = [_read_line(data, start, stop) for start, stop in spans] if is_read else []
    return _Plane(name, lines, Metadata(data, parts[4], parts[5], parts[6]))


def _read_file(data: bytes, names: Names) -> tuple[Process, list[str]]:
    planes, host, problems = _read_planes(data)
    stamps = [ln.timestamp_ns for p in planes for ln in p.lines if len(ln.starts)]
    absolute = bool(stamps) and max(stamps) >= _EPOCH_FROM_NS
    zero_ns = min(t for t in stamps if t >= _EPOCH_FROM_NS) if absolute else 0

    reader = _EventReader(data, names, zero_ns)
    process = Process(
        host or "host", [], [], HostEvents.concat([]), AllocatorEvents.concat([]), [], epoch_ns=epoch(zero_ns)
    )
    host_parts: list[tuple[HostEvents, AllocatorEvents]] = []
    for plane in planes:
        device = _DEVICE_PLANE.match(plane.name)
        index = ordinal(device[1]) if device else None
        if index is not None:
            process.devices.append(reader.device(plane, index))
        elif device:
            problems.append("the events of a GPU with an impossible number were left out")
        elif plane.name in _HOST_PLANES:
            host_parts += reader.host(plane, len(process.threads))
            process.threads.extend(ln.name for ln in plane.lines)
        elif plane.name == "Task Environment" and not absolute:
            start = plane.metadata.facts("profile_start_time").get("profile_start_time")
            process.epoch_ns = epoch(start)
    process.devices.sort(key=lambda d: d.index)
    process.facts["tpu"] = any(plane.name.startswith("/device:TPU:") for plane in planes)
    process.events = in_order(HostEvents.concat([events for events, _ in host_parts]))
    _leave_out_background_waits(process.events, names)
    allocator = AllocatorEvents.concat([allocations for _, allocations in host_parts])
    process.allocator = allocator.take(np.argsort(allocator.time_ps, kind="stable"))
    process.shapes = reader.shapes.all()
    if reader.implausible:
        problems.append(f"{reader.implausible} events with impossible times were left out")
    return process, problems


class _EventReader:
    """Reads the events of a file's planes.

    Attributes:
        shapes: of the kernels read so far.
        implausible: number of events left out so far, whose times are impossible.
    """

    def __init__(self, data: bytes, names: Names, zero_ns: int):
        self._data, self._names, self._zero_ns = data, names, zero_ns
        self.shapes = Shapes()
        self.implausible = 0

    def device(self, plane: _Plane, index: int) -> Device:
        lines = [ln for ln in plane.lines if not _derived(ln)]
        parts: list[Columns] = [device_columns(batch, self.shapes) for batch, _ in self._decoded(plane, lines)]
        stats = plane.metadata.facts(*_DEVICE_STATS)
        facts = _device_facts(stats)
        return Device(index, _device_name(facts, stats), in_order(DeviceEvents.concat(parts)), facts)

    def host(self, plane: _Plane, first_thread: int) -> Iterator[tuple[HostEvents, AllocatorEvents]]:
        """Yield the events of threads that are numbered from `first_thread` on."""
        numbers = {id(ln): first_thread + i for i, ln in enumerate(plane.lines)}
        for batch, lines in self._decoded(plane, plane.lines):
            yield host_columns(batch, np.array([numbers[id(ln)] for ln, _, _ in lines]))

    def _decoded(self, plane: _Plane, lines: list[_Line]) -> Iterator[tuple[PlaneEvents, list[tuple[_Line, int, int]]]]:
        for batch_of_lines in _batches(lines):
            batch, dropped = _decode(self._data, batch_of_lines, plane.metadata, self._zero_ns, self._names)
            self.implausible += dropped
            yield batch, batch_of_lines


def _read_planes(data: bytes) -> tuple[list[_Plane], str, list[str]]:
    """Return the planes of a file, its host's name and the profiler's errors and warnings.

    Raises: BadMessage, TooMany.
    """
    planes: list[_Plane] = []
    problems: list[str] = []
    host = ""
    for count, (number, kind, a, b) in enumerate(wire.fields(data, 0, len(data))):
        if count > MAX_FIELDS:
            raise wire.TooMany(f"more than {MAX_FIELDS:,} planes and messages")
        if kind != 2 or not 1 <= number <= 4:
            raise wire.BadMessage(f"unknown field {number}")
        if number == 1:
            planes.append(_read_plane(data, a, b))
            if len(planes) > MAX_PLANES:
                raise wire.TooMany(f"more than {MAX_PLANES:,} planes")
            if sum(len(plane.lines) for plane in planes) > MAX_LINES:
                raise wire.TooMany(f"more than {MAX_LINES:,} lines")
        elif number == 4:
            host = host or _text(data[a:b])
        else:
            problems.append(_text(data[a:b]))
    if not planes:
        raise wire.BadMessage("no planes")
    count = sum(len(line.starts) for plane in planes for line in plane.lines)
    if count > MAX_EVENTS:
        raise wire.TooMany(f"{count:,} events")
    return planes, host, problems


def _derived(line: _Line) -> bool:
    return line.id in _DERIVED_IDS or line.name in DERIVED_LINES


def _leave_out_background_waits(events: HostEvents, names: Names) -> None:
    """Drop waits of functions that the input pipeline itself runs: they are its own work."""
    inner = names.matching(lambda s: s.startswith("InstantiatedCapturedFunction::Run"))
    background = events.value[inner[events.name] & (events.value != -1)]
    if len(background):
        waits = np.flatnonzero(events.kind == HostKind.INPUT_WAIT)
        waits = waits[np.isin(events.value[waits], background)]
        events.kind[waits] = HostKind.PIPELINE


def _batches(lines: list[_Line]):
    """Yield runs of (line, first, last) with at most _CHUNK events, in the file's order."""
    batch: list[tuple[_Line, int, int]] = []
    room, bytes_left = _CHUNK, _CHUNK_BYTES
    for line in lines:
        first = 0
        while first < len(line.starts):
            # As many events as fit in the rest of the batch, and at least one.
            reach = np.searchsorted(line.ends, line.starts[first] + bytes_left, side="right")
            last = min(max(first + 1, int(reach)), len(line.starts), first + room)
            batch.append((line, first, last))
            room -= last - first
            bytes_left -= int(line.ends[last - 1] - line.starts[first])
            first = last
            if room == 0 or bytes_left <= 0 or first < len(line.starts):
                yield batch
                batch, room, bytes_left = [], _CHUNK, _CHUNK_BYTES
    if batch:
        yield batch


def _decode(
    data: bytes, lines: list[tuple[_Line, int, int]], plane: Metadata, zero_ns: int, names: Names
) -> tuple[PlaneEvents, int]:
    """Decode one batch of events; return it and the number of those with impossible times."""
    starts = np.concatenate([ln.starts[a:b] for ln, a, b in lines])
    ends = np.concatenate([ln.ends[a:b] for ln, a, b in lines])
    line_of = np.repeat(np.arange(len(lines)), [b - a for _, a, b in lines])
    # The zero of a line with a missing or invalid stamp is the trace's own.
    bases = [ln.timestamp_ns - zero_ns for ln, _, _ in lines]
    base_ns = np.array([b if abs(b) < 1 << 50 else 0 for b in bases], np.int64)
    low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
    buffer = wire.Buffer(memoryview(data)[low:high])
    starts, ends = starts - low, ends - low
    table, stats = wire.decode(buffer, starts, ends, (1, 2, 3, 5), repeated=4)
    metadata = table[1].value.astype(np.int64)
    offset = table[2].value.astype(np.int64)
    duration = table[3].value.astype(np.int64)
    # Aggregated events (num_occurrences) have no place in time; impossible ones are left out.
    limit = np.int64(1 << 60)
    sane = (offset > -limit) & (offset < limit) & (duration >= 0) & (duration < limit)
    timed = table[2].present | ~table[5].present
    start_ps = np.where(sane, offset, 0) + base_ns[line_of] * PS_PER_NS
    batch = PlaneEvents(
        plane=plane,
        names=names,
        buffer=buffer,
        line=line_of,
        line_id=np.array([ln.id for ln, _, _ in lines], np.int64)[line_of],
        metadata=metadata,
        start_ps=start_ps,
        end_ps=start_ps + np.where(sane, duration, 0),
        keep=sane & timed,
        stats=stats,
    )
    return batch, int((~sane).sum())


_DEVICE_STATS = (
    "core_count",
    "memory_size",
    "memory_bandwidth",
    "clock_rate",
    "compute_cap_major",
    "compute_cap_minor",
    "device_vendor",
    "gpu_device_name",
    "device_type_string",
)


def _device_facts(stats: dict[str, object]) -> dict:
    """Return a plane's facts about its GPU, in our names and units; unknown ones are absent."""
    numbers = {
        "sm_count": stats.get("core_count"),
        "memory_bytes": stats.get("memory_size"),
        "memory_bandwidth_bytes_per_s": stats.get("memory_bandwidth"),
        "clock_khz": stats.get("clock_rate"),
    }
    facts = gpu_facts(numbers, stats.get("compute_cap_major"), stats.get("compute_cap_minor"))
    if stats.get("device_vendor"):
        facts["vendor"] = str(stats["device_vendor"])
    return facts


def _device_name(facts: dict, stats: dict[str, object]) -> str:
    name = stats.get("gpu_device_name") or stats.get("device_type_string")
    if name:
        return str(name)
    vendor = facts.get("vendor", "")
    capability = facts.get("compute_capability")
    label = f"{vendor} GPU".strip()
    return f"{label} ({capability[0]}.{capability[1]})" if capability else label
