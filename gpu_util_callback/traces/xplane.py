"""Reads XSpace files (`*.xplane.pb`: TensorFlow, JAX, any XLA) into the event model.

Both layouts are read: today's raw one, and that of TensorFlow 2.5 and before with derived lines
("Steps", "TensorFlow Ops", …) baked in, which would count every kernel again and are skipped.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import foreign, limits, wire
from gpu_util_callback.traces.limits import epoch, gpu_facts, ordinal
from gpu_util_callback.traces.model import (
    PS_PER_NS,
    Device,
    DeviceEvents,
    HostEvents,
    HostKind,
    Names,
    Process,
    Shapes,
    Trace,
)
from gpu_util_callback.traces.naming import DERIVED_LINE
from gpu_util_callback.traces.xplane_events import Metadata, PlaneEvents, device_columns, host_columns

# Events, and bytes of events, decoded at a time: bounds the temporary memory.
_CHUNK = 50_000
_CHUNK_BYTES = 4 << 20

_DEVICE_PLANE = re.compile(r"^/device:GPU:(\d+)")
_NAMED = ("/", "Task Environment")  # begins the name of at least one plane of each file that XLA's profiler writes
_HOST_PLANES = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer")
# Those that TensorFlow derives from others, by id (int32 from 0xdeadbeef on).
_DERIVED_IDS = range(-559038737, -559038347)
# A line's timestamp counts from the session's start, or from the epoch; no session lasts a year.
_EPOCH_FROM_NS = 365 * 86400 * 10**9


@dataclass(slots=True)
class _Line:
    """A thread of the host, or a stream of a GPU."""

    id: int
    name: str
    timestamp_ns: int  # from which its events' offsets count
    starts: np.ndarray  # int64[n], position of each event's bytes in the file
    ends: np.ndarray  # int64[n]


@dataclass(slots=True)
class _Plane:
    """A GPU, a source of the host's events, or, without lines, facts of the session."""

    name: str
    lines: list[_Line]
    metadata: Metadata


def read_xplane(files: list[tuple[str, Callable[[], Any]]]) -> Trace:
    """Read the files of one profiling session, one per host.

    Args:
        files: (path, function that reads the content, as bytes or an anonymous `mmap`) each: one content is in
            memory at a time, and of a map no more than what is still to be read.

    Returns: a trace with one process per file; times are aligned where the files state when they
        began.

    Raises: UnusableInput when a file is damaged, too large, or no XSpace.
    """
    names = Names()
    trace = Trace("xplane", [path for path, _ in files], names, [])
    for path, load in files:
        try:
            process, problems = _read_file(load(), names)
        except wire.BadMessage as error:
            raise UnusableInput(
                f"{path}: a damaged XPlane file ({error}), which is to be recorded again, or "
                f"{foreign.PROTOBUF}. {foreign.READABLE}"
            ) from None
        except wire.TooMany as error:
            raise UnusableInput(f"{path}: too large to read ({error}); profile fewer steps") from None
        trace.processes.append(process)
        trace.problems.extend(problems if len(files) == 1 else [f"{process.host}: {p}" for p in problems])
    _align(trace)
    return trace


def _align(trace: Trace) -> None:
    """Align several hosts on one time axis, by their wall clocks: the earliest file's start becomes time 0 of all.

    What cannot be aligned is left as it is, and listed among the trace's problems.
    """
    if len(trace.processes) < 2:
        return
    epochs_ns = [p.epoch_ns for p in trace.processes if p.epoch_ns is not None]
    if len(epochs_ns) != len(trace.processes):
        trace.problems.append("the hosts' clocks are not aligned: a file lacks its start time")
        return
    zero = min(epochs_ns)
    for process in trace.processes:
        shift = ((process.epoch_ns or 0) - zero) * PS_PER_NS
        if shift >= 1 << 61:  # ps: 27 days, beyond which sums might overflow
            trace.problems.append(f"{process.host}: recorded at another time; not aligned")
            continue
        for events in process.all_events:
            events.start_ps += shift
            events.end_ps += shift
        process.epoch_ns = zero


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _read_line(data: bytes, at: int, end: int) -> _Line:
    """Return a line that lies at `at` to `end` of the data: its name, id, time in ns, and where its events lie.

    Fields of XLine: 1 id, 2 name, 3 timestamp_ns, 4 events, 11 display_name.
    """
    payloads, other_fields = wire.payloads_of(data, at, end, (4,), limits.MAX_EVENTS)
    line = _Line(0, "", 0, *payloads[4])
    for number, kind, a, b in other_fields:
        if kind == wire.VARINT and number == 1:
            line.id = a - (1 << 64) if a >> 63 else a  # the number is signed
        elif kind == wire.VARINT and number == 3:
            line.timestamp_ns = a - (1 << 64) if a >> 63 else a
        elif kind == wire.BYTES and (number == 2 or (number == 11 and not line.name)):
            line.name = _text(data[a:b])
    return line


def _read_plane(data: bytes, at: int, end: int) -> _Plane:
    """Return a plane with its lines, if it is the host's or a GPU's (else without any), and its metadata.

    Fields of XPlane: 2 name, 3 lines, 4 event metadata, 5 stat metadata, 6 stats.
    """
    parts, _ = wire.payloads_of(data, at, end, (2, 3, 4, 5, 6), limits.MAX_METADATA)
    starts, ends = parts[3]
    if len(starts) > limits.MAX_LINES:
        raise wire.TooMany(f"more than {limits.MAX_LINES:,} lines")
    name = "".join(_text(data[a:b]) for a, b in zip(*(e[-1:] for e in parts[2]), strict=True))
    is_read = _DEVICE_PLANE.match(name) or name in _HOST_PLANES
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    lines = [_read_line(data, start, stop) for start, stop in spans] if is_read else []
    return _Plane(name, lines, Metadata(data, parts[4], parts[5], parts[6]))


def _read_file(data: bytes, names: Names) -> tuple[Process, list[str]]:
    """Return the process of an XSpace file and the problems met; times are in ps from `zero_ns`.

    That is the earliest line's stamp where stamps are of the epoch, else 0, the session's start.
    """
    planes, host, problems = _read_planes(data)
    stamps = [ln.timestamp_ns for p in planes for ln in p.lines if len(ln.starts)]
    absolute = bool(stamps) and max(stamps) >= _EPOCH_FROM_NS
    zero_ns = min(t for t in stamps if t >= _EPOCH_FROM_NS) if absolute else 0

    threads: list[str] = []
    shapes = Shapes()
    devices: list[Device] = []
    host_parts: list[HostEvents] = []
    epoch_ns = epoch(zero_ns)
    implausible = 0

    def decoded(lines: list[_Line], metadata: Metadata) -> Iterator[PlaneEvents]:
        """Yield the events of lines in batches; impossible times are counted."""
        nonlocal implausible
        for batch_of_lines in _batches(lines):
            batch, dropped = _decode(data, batch_of_lines, metadata, zero_ns, names)
            implausible += dropped
            yield batch
            for _, line, first, last in batch_of_lines:
                _give_back(data, int(line.starts[first]), int(line.ends[last - 1]))

    for plane in planes:
        device = _DEVICE_PLANE.match(plane.name)
        if device and (index := ordinal(device[1])) is not None:  # a GPU
            lines = [ln for ln in plane.lines if ln.id not in _DERIVED_IDS and not DERIVED_LINE.fullmatch(ln.name)]
            parts = (device_columns(batch, shapes) for batch in decoded(lines, plane.metadata))
            work = DeviceEvents.concat(parts, sum(len(line.starts) for line in lines))
            name, facts = _name_and_facts(plane)
            devices.append(Device(index, name, work.in_order(), facts))
        elif device:  # a GPU by its name, with a number that none has
            problems.append("the events of a GPU with an impossible number were left out")
        elif plane.name in _HOST_PLANES:  # threads, one a line
            host_events = (host_columns(batch, len(threads)) for batch in decoded(plane.lines, plane.metadata))
            host_parts.append(HostEvents.concat(host_events, sum(len(line.starts) for line in plane.lines)))
            threads += [ln.name for ln in plane.lines]
        elif plane.name == "Task Environment" and not absolute:  # it alone says when the session began
            epoch_ns = epoch(plane.metadata.facts("profile_start_time").get("profile_start_time"))
        plane.lines.clear()  # memory for what was read
    events = HostEvents.concat(host_parts, sum(map(len, host_parts))).in_order()
    _leave_out_background_waits(events, names)
    if implausible:
        problems.append(f"{implausible} events with impossible times were left out")
    devices.sort(key=lambda d: d.index)
    facts = {"tpu": any(plane.name.startswith("/device:TPU:") for plane in planes)}
    return Process(host or "host", devices, threads, events, shapes.all(), epoch_ns=epoch_ns, facts=facts), problems


def _give_back(data: bytes | mmap.mmap, low: int, high: int) -> None:
    """Give the whole pages within a part of the file back to the system; what is in them is not read again."""
    first, behind = -(-low // mmap.PAGESIZE), high // mmap.PAGESIZE
    if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and first < behind:
        data.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (behind - first) * mmap.PAGESIZE)


def _read_planes(data: bytes) -> tuple[list[_Plane], str, list[str]]:
    """Return the planes of a file, its host's name ("" = not stated) and the profiler's errors and warnings.

    Fields of XSpace: 1 planes, 2 errors, 3 warnings, 4 hostnames.

    Raises: BadMessage, TooMany.
    """
    planes: list[_Plane] = []
    problems: list[str] = []
    host = ""
    for count, (number, kind, a, b) in enumerate(wire.fields(data, 0, len(data))):
        if count > limits.MAX_FIELDS:
            raise wire.TooMany(f"more than {limits.MAX_FIELDS:,} planes and messages")
        if kind != wire.BYTES or not 1 <= number <= 4:
            raise wire.BadMessage(f"unknown field {number}")
        if number == 1:  # a plane
            planes.append(_read_plane(data, a, b))
            if len(planes) > limits.MAX_PLANES:
                raise wire.TooMany(f"more than {limits.MAX_PLANES:,} planes")
            if sum(len(plane.lines) for plane in planes) > limits.MAX_LINES:
                raise wire.TooMany(f"more than {limits.MAX_LINES:,} lines")
        elif number == 4:  # a host's name; the first one counts
            host = host or _text(data[a:b])
        else:  # an error or a warning
            problems.append(_text(data[a:b]))
    if not any(plane.name.startswith(_NAMED) for plane in planes):
        raise wire.BadMessage("no planes")
    count = sum(len(line.starts) for plane in planes for line in plane.lines)
    if count > limits.MAX_EVENTS:
        raise wire.TooMany(f"{count:,} events")
    return planes, host, problems


def _leave_out_background_waits(events: HostEvents, names: Names) -> None:
    """Drop waits of functions that the input pipeline itself runs: they are its own work."""
    inner = names.matching(lambda s: s.startswith("InstantiatedCapturedFunction::Run"))
    background = events.value[inner[events.name] & (events.value != -1)]
    if len(background):
        waits = np.flatnonzero(events.kind == HostKind.INPUT_WAIT)
        waits = waits[np.isin(events.value[waits], background)]
        events.kind[waits] = HostKind.PIPELINE


_Part = tuple[int, _Line, int, int]  # a line's place among those that are read, the line, first event, behind the last


def _batches(lines: list[_Line]) -> Iterator[list[_Part]]:
    """Yield runs of parts of lines, of at most _CHUNK events and about _CHUNK_BYTES, in the file's order."""
    batch: list[_Part] = []
    # Events and bytes that still fit.
    room, bytes_left = _CHUNK, _CHUNK_BYTES
    for place, line in enumerate(lines):
        first = 0
        while first < len(line.starts):
            # As many events as fit in the rest of the batch, and at least one.
            reach = np.searchsorted(line.ends, line.starts[first] + bytes_left, side="right")
            last = min(max(first + 1, int(reach)), len(line.starts), first + room)
            batch.append((place, line, first, last))
            room -= last - first
            bytes_left -= int(line.ends[last - 1] - line.starts[first])
            first = last
            if room == 0 or bytes_left <= 0 or first < len(line.starts):
                yield batch
                batch, room, bytes_left = [], _CHUNK, _CHUNK_BYTES
    if batch:
        yield batch


def _decode(data: bytes, parts: list[_Part], plane: Metadata, zero_ns: int, names: Names) -> tuple[PlaneEvents, int]:
    """Decode one batch of events; return it and the number of those with impossible times.

    Fields of XEvent: 1 metadata_id, 2 offset_ps (from the line's stamp), 3 duration_ps, 4 stats, 5 num_occurrences.

    Args:
        parts: as of `_batches`.
        zero_ns: the trace's time 0, on the clock of the lines' stamps.
    """
    starts = np.concatenate([ln.starts[a:b] for _, ln, a, b in parts])
    ends = np.concatenate([ln.ends[a:b] for _, ln, a, b in parts])
    # The zero of a line with a missing or invalid stamp is the trace's own.
    bases_ns = [base if abs(base := ln.timestamp_ns - zero_ns) < 1 << 50 else 0 for _, ln, _, _ in parts]
    part = np.repeat(np.arange(len(parts)), [b - a for _, _, a, b in parts])  # of each event
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
    start_ps = np.where(sane, offset, 0) + np.array(bases_ns, np.int64)[part] * PS_PER_NS
    batch = PlaneEvents(
        plane=plane,
        names=names,
        buffer=buffer,
        line=np.array([place for place, _, _, _ in parts])[part],
        line_id=np.array([ln.id for _, ln, _, _ in parts], np.int64)[part],
        metadata=metadata,
        start_ps=start_ps,
        end_ps=start_ps + np.where(sane, duration, 0),
        keep=sane & timed,
        stats=stats,
    )
    return batch, int((~sane).sum())


def _name_and_facts(plane: _Plane) -> tuple[str, dict]:
    """Return a GPU's name, and its facts in our names and units; unknown ones are absent.

    The name is that of the device, else of its type, else "NVIDIA GPU (9.0)": the vendor and the compute capability.
    """
    sizes = plane.metadata.facts("core_count", "memory_size", "memory_bandwidth", "clock_rate")
    capabilities = plane.metadata.facts("compute_cap_major", "compute_cap_minor")
    texts = plane.metadata.facts("device_vendor", "gpu_device_name", "device_type_string")
    numbers = {
        "sm_count": sizes.get("core_count"),
        "memory_bytes": sizes.get("memory_size"),
        "memory_bandwidth_bytes_per_s": sizes.get("memory_bandwidth"),
        "clock_khz": sizes.get("clock_rate"),
    }
    major, minor = map(capabilities.get, ("compute_cap_major", "compute_cap_minor"))
    facts: dict[str, Any] = gpu_facts(numbers, major, minor)
    if texts.get("device_vendor"):
        facts["vendor"] = str(texts["device_vendor"])
    label = f"{facts.get('vendor', '')} GPU".strip()
    if capability := facts.get("compute_capability"):
        label += f" ({capability[0]}.{capability[1]})"
    return str(texts.get("gpu_device_name") or texts.get("device_type_string") or label), facts
