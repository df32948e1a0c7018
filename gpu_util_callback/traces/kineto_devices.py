"""Columns of a Chrome trace's events while they stream by."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from typing import Any

import numpy as np

from gpu_util_callback.traces import limits
from gpu_util_callback.traces.model import (
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    KernelShape,
    Names,
    Shapes,
    groups,
)
from gpu_util_callback.traces.naming import copy_kind, device_kind, memory_kind, op_of
from gpu_util_callback.traces.plausible import integer, number
from gpu_util_callback.traces.xplane_details import copy_details, kernel_shape

__all__ = ["DeviceRows", "HostRows", "device_facts"]

_LIMIT = 1 << 63
_ENDS = re.compile(r"\((\w+) -> (\w+)\)")


def _triple(value: Any) -> tuple[int, int, int] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (integer(v) for v in value)
    return (x, y, z) if (x, y, z) != (0, 0, 0) else None


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
        start_, end_, correlation_, value_, external_ = self._wide
        start_.append(start)
        end_.append(end)
        correlation_.append(correlation if -_LIMIT < correlation < _LIMIT else -1)
        value_.append(value if -_LIMIT <= value < _LIMIT else -1)
        external_.append(external if -_LIMIT < external < _LIMIT else -1)
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
        self._shapes = Shapes()
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
        device = integer(arguments.get("device", event.get("pid")))
        stream = arguments.get("stream", event.get("tid"))
        external = arguments.get("External id", arguments.get("external id"))
        self._append(
            (
                0 if device == -1 else device,
                start,
                end,
                integer(stream),
                integer(arguments.get("correlation")),
                integer(external),
                integer(arguments.get("bytes")),
            ),
            kind,
            name,
            -1,
            shape,
            memory,
            int(integer(arguments.get("graph id", 0)) > 0),
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
            shape = self._shapes.id(kernel_shape(details))
        op = kept.get("tf_op") or kept.get("hlo_op")
        self._append(
            (device, start, end, stream, integer(kept.get("correlation_id")), -1, size),
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
            registers=None if registers is None else integer(registers),
            shared_bytes=None if shared is None else integer(shared),
            grid=_triple(grid),
            block=_triple(block),
            occupancy_pct=number(occupancy),
            blocks_per_sm=number(blocks),
        )
        index = self._shapes.id(shape)
        if key is not None and index >= 0:
            self._launched[key] = index
        return index

    def finish(
        self, ops: dict[int, int], ignored: Counter[str]
    ) -> tuple[dict[int, DeviceEvents], list[KernelShape], int]:
        """Events by device, the launch shapes, and how many events have no correlation.

        Args:
            ops: external id -> name of the framework's op.
            ignored: counts numbers that cannot be.
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
        order = np.lexsort((-end, start))
        sane = (device >= 0) & (device <= limits.MAX_ORDINAL)
        ignored["device number"] += int((~sane).sum())
        order = order[sane[order]]
        events = events.take(order)
        devices = {index: events.take(rows) for index, rows in groups(device[order])}
        return devices, self._shapes.known(), int((correlation <= 0).sum())


def device_facts(properties: Any) -> tuple[dict[int, dict], dict[int, str]]:
    """Facts and names by device, from Kineto's deviceProperties (which may be missing)."""
    facts: dict[int, dict] = {}
    names: dict[int, str] = {}
    for entry in properties if isinstance(properties, list) else []:
        if not isinstance(entry, dict):
            continue
        index = integer(entry.get("id"))
        found: dict = {}
        for ours, theirs in (("sm_count", "numSms"), ("memory_bytes", "totalGlobalMem")):
            if integer(entry.get(theirs)) not in (0, -1):
                found[ours] = integer(entry[theirs])
        major, minor = integer(entry.get("computeMajor")), integer(entry.get("computeMinor"))
        if major != -1:
            found["compute_capability"] = [major, 0 if minor == -1 else minor]
        name = entry.get("name")
        if isinstance(name, str):
            names[index] = name
            found["vendor"] = "AMD" if re.search(r"AMD|MI\d00|Radeon|Instinct", name) else "Nvidia"
        facts[index] = found
    return facts, names
