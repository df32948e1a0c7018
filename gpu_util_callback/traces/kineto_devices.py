"""Columns of a Chrome trace's events while they stream by."""

from __future__ import annotations

import math
import re
from array import array
from typing import Any

import numpy as np

from gpu_util_callback.traces.model import (
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    KernelShape,
    Names,
    groups,
)
from gpu_util_callback.traces.naming import copy_kind, device_kind, memory_kind, op_of
from gpu_util_callback.traces.xplane_details import copy_details, kernel_shape

__all__ = ["DeviceRows", "HostRows", "device_facts"]

_ENDS = re.compile(r"\((\w+) -> (\w+)\)")


def _number(value: Any) -> float | None:
    """A float of the trace (which come as text), None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _integer(value: Any) -> int:
    if type(value) is int:
        return value if -(2**62) < value < 2**62 else -1
    number = _number(value)
    return int(number) if number is not None and abs(number) < 2**62 else -1


def _triple(value: Any) -> tuple[int, int, int] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (_integer(v) for v in value)
    return (x, y, z) if min(x, y, z) > 0 else None


class HostRows:
    """Host events; `finish` sorts them."""

    def __init__(self) -> None:
        self._wide = [array("q") for _ in range(5)]  # start, end, correlation, value, external
        self._thread = array("i")
        self._kind = array("b")
        self._name = array("i")
        self._root = array("b")

    def add(
        self,
        start: int,
        end: int,
        thread: int,
        kind: int,
        name: int,
        correlation: int,
        value: int,
        external: int,
        root: bool = False,
    ) -> None:
        limit = 1 << 62
        start_, end_, correlation_, value_, external_ = self._wide
        start_.append(start)
        end_.append(end)
        correlation_.append(correlation if -limit < correlation < limit else -1)
        value_.append(value if -limit < value < limit else -1)
        external_.append(external if -limit < external < limit else -1)
        self._thread.append(thread)
        self._kind.append(kind)
        self._name.append(name)
        self._root.append(root)

    def finish(self, window_end: int | None) -> tuple[HostEvents, np.ndarray]:
        """The events and their external ids; calls after the recording's end do not count."""
        start, end, correlation, value, external = (np.frombuffer(c, np.int64) for c in self._wide)
        events = HostEvents.build(
            start_ps=start,
            end_ps=end,
            thread=np.frombuffer(self._thread, np.int32),
            kind=np.frombuffer(self._kind, np.int8),
            name=np.frombuffer(self._name, np.int32),
            correlation=correlation,
            value=value,
            root=np.frombuffer(self._root, np.int8),
        )
        rows = np.lexsort((-end, start))
        if window_end is not None:
            calls = np.isin(events.kind, (HostKind.LAUNCH, HostKind.CALL, HostKind.SYNC))
            late = calls & (start > window_end)
            rows = rows[~late[rows]]
        return events.take(rows), external[rows]


class DeviceRows:
    """GPU events of all devices; `finish` splits them."""

    def __init__(self, names: Names) -> None:
        self.names = names
        # device, start, end, stream, correlation, external, bytes
        self._wide = [array("q") for _ in range(7)]
        self._kind = array("b")
        self._name = array("i")
        self._op = array("i")
        self._shape = array("i")
        self._memory = array("b")
        self._graph = array("b")
        self._shapes: dict[KernelShape, int] = {}
        self._known: dict[tuple[str, str], tuple[int, int]] = {}
        self._launched: dict[tuple, int] = {}  # launch parameters as written -> shape

    def _append(
        self, wide: tuple[int, ...], kind: int, name: str, op: int, shape: int, memory: int,
        graph: int,
    ) -> None:  # fmt: skip
        for column, value in zip(self._wide, wide, strict=True):
            column.append(value)
        self._kind.append(kind)
        self._name.append(self.names.id(name))
        self._op.append(op)
        self._shape.append(shape)
        self._memory.append(memory)
        self._graph.append(graph)

    def add(self, event: dict, name: str, arguments: dict, start: int, end: int) -> None:
        """A Kineto event of category kernel, gpu_memcpy or gpu_memset."""
        category = event["cat"].lower()
        kind, memory = self._kind_of(category, name)
        shape = -1
        if kind in (DeviceKind.KERNEL, DeviceKind.COLLECTIVE):
            shape = self._shape_of(arguments)
        device = arguments.get("device", event.get("pid"))
        device = _integer(device)
        stream = arguments.get("stream", event.get("tid"))
        external = arguments.get("External id", arguments.get("external id"))
        self._append(
            (
                max(device, 0) if device < 1 << 20 else 0,
                start,
                end,
                _integer(stream),
                _integer(arguments.get("correlation")),
                _integer(external),
                _integer(arguments.get("bytes")),
            ),
            kind,
            name,
            -1,
            shape,
            memory,
            int(_integer(arguments.get("graph id", 0)) > 0),
        )

    def add_plain(
        self, device: int, stream: int, name: str, kept: dict, start: int, end: int
    ) -> None:
        """An event of the trace viewer: details as in XPlane, as texts."""
        kind, memory, size, shape = int(device_kind(name)), 0, -1, -1
        details = kept.get("memcpy_details")
        if isinstance(details, str) and kind != DeviceKind.KERNEL:
            copy = copy_details(details, name)
            kind, memory, size = int(copy.kind), int(copy.memory), copy.bytes
        details = kept.get("kernel_details")
        if isinstance(details, str):
            shape = self._shapes.setdefault(kernel_shape(details), len(self._shapes))
        op = kept.get("tf_op") or kept.get("hlo_op")
        self._append(
            (device, start, end, stream, _integer(kept.get("correlation_id")), -1, size),
            kind,
            name,
            self.names.id(op_of(op)) if isinstance(op, str) else -1,
            shape,
            memory,
            0,
        )

    def _kind_of(self, category: str, name: str) -> tuple[int, int]:
        known = self._known.get((category, name))
        if known is None:
            if "memset" in category:
                known = int(DeviceKind.MEMSET), 0
            elif "memcpy" in category:
                ends = _ENDS.search(name)
                source, target = (e.lower() for e in ends.groups()) if ends else ("", "")
                known = int(copy_kind(name, source, target)), int(memory_kind(source, target))
            else:
                known = int(device_kind(name)), 0
            self._known[(category, name)] = known
        return known

    def _shape_of(self, arguments: dict) -> int:
        get = arguments.get
        grid, block = get("grid"), get("block")
        occupancy, blocks = get("est. achieved occupancy %"), get("blocks per SM")
        registers, shared = get("registers per thread"), get("shared memory")
        key: tuple | None
        try:
            key = (
                registers, shared, occupancy, blocks,
                tuple(grid) if grid else None, tuple(block) if block else None,
            )  # fmt: skip
            known = self._launched.get(key)
        except TypeError:  # odd values, which are no keys
            key, known = None, None
        if known is not None:
            return known
        shape = KernelShape(
            registers=None if registers is None else _integer(registers),
            shared_bytes=None if shared is None else _integer(shared),
            grid=_triple(grid),
            block=_triple(block),
            occupancy_pct=_number(occupancy),
            blocks_per_sm=_number(blocks),
        )
        index = self._shapes.setdefault(shape, len(self._shapes))
        if key is not None:
            self._launched[key] = index
        return index

    def finish(self, ops: dict[int, int]) -> tuple[dict[int, DeviceEvents], list[KernelShape], int]:
        """Events by device, the launch shapes, and how many events have no correlation.

        Args:
            ops: external id -> name of the framework's op.
        """
        device, start, end, stream, correlation, external, size = (
            np.frombuffer(c, np.int64) for c in self._wide
        )
        op = np.frombuffer(self._op, np.int32).copy()
        for row in np.flatnonzero((op < 0) & (external >= 0)).tolist():
            op[row] = ops.get(int(external[row]), -1)
        events = DeviceEvents.build(
            start_ps=start,
            end_ps=end,
            kind=np.frombuffer(self._kind, np.int8),
            stream=stream,
            correlation=np.where(correlation > 0, correlation, -1),
            name=np.frombuffer(self._name, np.int32),
            op=op,
            shape=np.frombuffer(self._shape, np.int32),
            bytes=size,
            memory=np.frombuffer(self._memory, np.int8),
            graph=np.frombuffer(self._graph, np.int8),
        )
        events = events.take(order := np.lexsort((-end, start)))
        devices = {index: events.take(rows) for index, rows in groups(device[order])}
        return devices, list(self._shapes), int((correlation <= 0).sum())


def device_facts(properties: Any) -> tuple[dict[int, dict], dict[int, str]]:
    """Facts and names by device, from Kineto's deviceProperties (which may be missing)."""
    facts: dict[int, dict] = {}
    names: dict[int, str] = {}
    for entry in properties if isinstance(properties, list) else []:
        if not isinstance(entry, dict):
            continue
        index = _integer(entry.get("id"))
        found: dict = {}
        for ours, theirs in (("sm_count", "numSms"), ("memory_bytes", "totalGlobalMem")):
            if _integer(entry.get(theirs)) > 0:
                found[ours] = _integer(entry[theirs])
        major, minor = _integer(entry.get("computeMajor")), _integer(entry.get("computeMinor"))
        if major >= 0:
            found["compute_capability"] = [major, max(minor, 0)]
        name = entry.get("name")
        if isinstance(name, str):
            names[index] = name
            found["vendor"] = "AMD" if re.search(r"AMD|MI\d00|Radeon|Instinct", name) else "Nvidia"
        facts[index] = found
    return facts, names
