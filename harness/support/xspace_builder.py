"""Writes small XSpace files as profilers do, with the message classes of the demo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2] / "demo"))

from evidence.xspace_messages import message_class

PS_PER_US = 1_000_000
# A batch is fetched, as TensorFlow writes it: the line and the event.
FETCH = "tf_data_iterator_get_next/1"
NEXT = "IteratorGetNextOp::DoCompute"


class Plane:
    def __init__(self, message, default_timestamp_ns: int):
        self.message = message
        self.timestamp_ns = default_timestamp_ns
        self._events: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def _event_id(self, name: str) -> int:
        if name not in self._events:
            key = self._events[name] = len(self._events) + 1
            entry = self.message.event_metadata.add(key=key)
            entry.value.id, entry.value.name = key, name.encode()
        return self._events[name]

    def _stat_id(self, name: str) -> int:
        if name not in self._stats:
            key = self._stats[name] = len(self._stats) + 1
            entry = self.message.stat_metadata.add(key=key)
            entry.value.id, entry.value.name = key, name.encode()
        return self._stats[name]

    def stat(self, message, name: str, value) -> None:
        stat = message.stats.add(metadata_id=self._stat_id(name))
        if isinstance(value, float):
            stat.double_value = value
        elif isinstance(value, int):
            stat.int64_value = value
        elif isinstance(value, bytes):
            stat.bytes_value = value
        else:  # texts are references to a stat's name, as the profiler writes them
            stat.ref_value = self._stat_id(value)

    def line(self, name: str, id: int = 0, timestamp_ns: int | None = None) -> Line:
        message = self.message.lines.add(id=id, name=name.encode())
        message.timestamp_ns = self.timestamp_ns if timestamp_ns is None else timestamp_ns
        return Line(self, message)


class Line:
    def __init__(self, plane: Plane, message):
        self.plane = plane
        self.message = message

    def event(self, name: str, start_us: float, duration_us: float, **stats):
        event = self.message.events.add(metadata_id=self.plane._event_id(name))
        event.offset_ps = round(start_us * PS_PER_US)
        event.duration_ps = round(duration_us * PS_PER_US)
        for key, value in stats.items():
            self.plane.stat(event, key, value)
        return event


class Space:
    """An XSpace under construction. Times of events are microseconds since the session start."""

    def __init__(self, host: str = "host-a", start_ns: int | None = 1_800_000_000_000_000_000):
        self.message = message_class("XSpace")()
        self.message.hostnames.append(host.encode())
        if start_ns is not None:
            environment = self.plane("Task Environment")
            environment.stat(environment.message, "profile_start_time", start_ns)
        self.host = self.plane("/host:CPU")

    def plane(self, name: str, timestamp_ns: int = 0, **stats) -> Plane:
        plane = Plane(self.message.planes.add(name=name.encode()), timestamp_ns)
        for key, value in stats.items():
            plane.stat(plane.message, key, value)
        return plane

    def gpu(self, index: int, **stats) -> Plane:
        facts = {
            "device_vendor": "Nvidia",
            "compute_cap_major": 9,
            "compute_cap_minor": 0,
            "core_count": 132,
            "memory_size": 80 << 30,
        }
        return self.plane(f"/device:GPU:{index}", **(facts | stats))

    def steps(self, count: int, length_us: float) -> Line:
        """Step markers from number 100 on, as our own callback sets them; returns Python's line."""
        python = self.host.line("python", 1)
        for step in range(count):
            python.event("train", step * length_us, length_us - 1, step_num=100 + step, _r=1)
        return python

    def bytes(self) -> bytes:
        return self.message.SerializeToString()

    def write(self, path: Path) -> Path:
        """Write the file, and return where."""
        path.write_bytes(self.bytes())
        return path


class Gpu:
    """Launches work from a host thread to a stream, with correlation ids as CUPTI gives them."""

    def __init__(self, space: Space, index: int, host: Line, **facts):
        self.plane = space.gpu(index, **facts)
        self.host = host
        self.index = index
        self.streams: dict[int, Line] = {}
        self.correlation = 1000 * (index + 1)

    def stream(self, id: int) -> Line:
        if id not in self.streams:
            self.streams[id] = self.plane.line(f"Stream #{id}(Compute)", id)
        return self.streams[id]

    def launch(
        self,
        name: str,
        call_us: float,
        start_us: float,
        duration_us: float,
        *,
        stream: int = 13,
        call_duration_us: float = 5.0,
        call: str = "cuLaunchKernel",
        details: str = "regs:64 static_shared:1024 dynamic_shared:0 grid:132,1,1 block:256,1,1 occ_pct:75",
        tf_op: str = "",
        **stats,
    ) -> None:
        self.correlation += 1
        self.host.event(call, call_us, call_duration_us, correlation_id=self.correlation, device_id=self.index)
        if details:
            stats["kernel_details"] = details
        if tf_op:
            stats["tf_op"] = tf_op
        self.stream(stream).event(name, start_us, duration_us, correlation_id=self.correlation, **stats)

    def copy(
        self,
        direction: str,
        call_us: float,
        start_us: float,
        duration_us: float,
        *,
        size: int,
        memory: str = "pinned",
        call_duration_us: float = 5.0,
        stream: int = 14,
    ) -> None:
        source, destination = {
            "H2D": (memory, "device"),
            "D2H": ("device", memory),
            "D2D": ("device", "device"),
            "P2P": ("device", "device"),
        }[direction]
        self.launch(
            f"Memcpy{direction}",
            call_us,
            start_us,
            duration_us,
            stream=stream,
            call="cuMemcpyAsync",
            call_duration_us=call_duration_us,
            details="",
            memcpy_details=f"kind_src:{source} kind_dst:{destination} size:{size} dest:0 async:1",
        )


class On(NamedTuple):
    """In each step: an event of a line of the host, µs from the step's start; `id` counts on from step to step."""

    line: str
    event: str
    at: float
    took: float
    stats: dict[str, int] = {}  # noqa: RUF012


class Kernel(NamedTuple):
    """In each step: a kernel, and the call that launches it 10 µs before."""

    name: str
    at: float
    took: float
    gpu: int = 0
    op: str = ""


class Copy(NamedTuple):
    """In each step: a copy, and its call."""

    direction: str
    call: float
    at: float
    took: float
    size: int
    memory: str = "pinned"
    call_took: float = 5
    gpu: int = 0


def repeated(count: int, length_us: float, *parts: On | Kernel | Copy, marked=True, capability=9, **about) -> Space:
    """A space of steps, marked with numbers from 100 on, in each of which the same happens."""
    space = Space(**about)
    lines = {"python": space.steps(count, length_us) if marked else space.host.line("python", 1)}
    gpus: dict[int, Gpu] = {}

    def line(name: str) -> Line:
        if name not in lines:
            lines[name] = space.host.line(name, 1 + len(lines))
        return lines[name]

    for number in range(count):
        at = number * length_us
        for part in parts:
            if isinstance(part, On):
                stats = {key: value + number * (key == "id") for key, value in part.stats.items()}
                line(part.line).event(part.event, at + part.at, part.took, **stats)
                continue
            if part.gpu not in gpus:
                host = line(f"tf_Compute/{part.gpu}")
                gpus[part.gpu] = Gpu(space, part.gpu, host, compute_cap_major=capability)
            gpu = gpus[part.gpu]
            if isinstance(part, Kernel):
                gpu.launch(part.name, at + part.at - 10, at + part.at, part.took, tf_op=part.op)
            else:
                options = {"size": part.size, "memory": part.memory, "call_duration_us": part.call_took}
                gpu.copy(part.direction, at + part.call, at + part.at, part.took, **options)
    return space
