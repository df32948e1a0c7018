"""Reads Nsight Systems exports (`.sqlite`) into the event model.

Tables come and go with versions and with what was recorded: each is read if it is there, with the
columns it has. Processes are told apart (a device number is the process's own).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces.model import (
    PS_PER_NS,
    AllocatorEvents,
    Counter,
    Device,
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    KernelShape,
    MemoryKind,
    Names,
    Process,
    Thread,
    Trace,
    groups,
)
from gpu_util_callback.traces.naming import api_kind, device_kind
from gpu_util_callback.traces.nsys_tables import Export
from gpu_util_callback.traces.nvtx import project, range_kind

__all__ = ["export", "read_nsys"]

MAX_PROCESSES = 1024

_COPY_KINDS = {
    1: DeviceKind.COPY_H2D,
    2: DeviceKind.COPY_D2H,
    3: DeviceKind.COPY_H2D,  # to an array, which lies on the device
    4: DeviceKind.COPY_D2H,
    5: DeviceKind.COPY_D2D,
    6: DeviceKind.COPY_D2D,
    7: DeviceKind.COPY_D2D,
    8: DeviceKind.COPY_D2D,
    10: DeviceKind.COPY_D2D,  # peer to peer
    11: DeviceKind.COPY_H2D,  # unified memory
    12: DeviceKind.COPY_D2H,
    13: DeviceKind.COPY_D2D,
}
_MEMORY = {
    0: MemoryKind.PAGEABLE,
    1: MemoryKind.PINNED,
    2: MemoryKind.DEVICE,
    3: MemoryKind.DEVICE,
    4: MemoryKind.MANAGED,
    5: MemoryKind.DEVICE,
    6: MemoryKind.MANAGED,
}
_GPU_EVENTS = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
)


@contextmanager
def export(path: Path) -> Iterator[Path]:
    """A `.nsys-rep` as a temporary `.sqlite`, where `nsys` is installed to do it."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise UnusableInput(
            f"{path}: a report needs Nsight Systems to be read; export it where that is installed: "
            "nsys export --type sqlite FILE"
        )
    with tempfile.TemporaryDirectory(prefix="gpu-util-") as folder:
        target = Path(folder) / "report.sqlite"
        command = [
            nsys,
            "export",
            "--type",
            "sqlite",
            "--output",
            os.fspath(target),
            os.fspath(path),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnusableInput(f"{path}: nsys export failed ({error})") from None
        if done.returncode or not target.exists():
            reason = " ".join((done.stderr or done.stdout).split())[-200:]
            raise UnusableInput(f"{path}: nsys export failed ({reason})")
        yield target


def read_nsys(path: Path) -> Trace:
    """Read one export.

    Raises: UnusableInput, when it is damaged, or holds no GPU work and no CUDA calls.
    """
    with Export(path) as file:
        return _Reader(file, path).read()


def _pid(global_id: np.ndarray) -> np.ndarray:
    """The process id inside a globalPid or globalTid; 0 where the column is absent."""
    return np.where(global_id >= 0, (global_id >> 24) & 0xFFFFFF, 0)


class _Reader:
    def __init__(self, file: Export, path: Path):
        self.file = file
        self.names = Names()
        self.trace = Trace("nsys", [str(path)], self.names, [])
        self.strings: dict[int, int] = {}  # id in the file -> our name
        self.shapes: dict[KernelShape, int] = {}

    def read(self) -> Trace:
        file = self.file
        known = [*_GPU_EVENTS, "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "GPU_METRICS"]
        if not any(table in file.tables for table in known):
            raise UnusableInput(
                f"{file.path}: no CUDA events in this database; is it an Nsight Systems export "
                "recorded with --trace=cuda,nvtx?"
            )
        for key, text in file.rows("StringIds", ("id", "value")):
            if isinstance(key, int) and isinstance(text, str):
                self.strings[key] = self.names.id(text)
        gpu = {table: self._gpu_table(table) for table in _GPU_EVENTS}
        calls, call_pid, call_tid = self._calls()
        ranges, range_pid, range_tid = self._ranges()
        pids: set[int] = set()
        for pid, _, _ in gpu.values():
            pids.update(np.unique(pid).tolist())
        pids.update(np.unique(call_pid).tolist())
        if not pids:
            pids.update(np.unique(range_pid).tolist())
        if len(pids) > MAX_PROCESSES:
            raise UnusableInput(
                f"{file.path}: {len(pids):,} processes; export those of the training alone"
            )
        epoch = self._epoch()
        for own in sorted(pids):
            mine = [events.take(np.flatnonzero(pid == own)) for pid, _, events in gpu.values()]
            device = np.concatenate([number[pid == own] for pid, number, _ in gpu.values()])
            host = HostEvents.concat(
                [
                    calls.take(np.flatnonzero(call_pid == own)),
                    ranges.take(np.flatnonzero(range_pid == own)),
                ]
            )
            tids = np.concatenate((call_tid[call_pid == own], range_tid[range_pid == own]))
            self._process(int(own), DeviceEvents.concat(mine), device, host, tids, epoch)
        # Processes that only set up or wait (launchers, workers) are no part of the picture.
        working = [p for p in self.trace.processes if p.devices]
        self.trace.processes = working or self.trace.processes[:1]
        if not self.trace.processes:
            raise UnusableInput(f"{file.path}: no GPU work and no CUDA calls were recorded in it")
        self._counters()
        return self.trace

    # --- tables -------------------------------------------------------------------------------

    def _times(self, table: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start and end in picoseconds, and which rows have both and make sense."""
        start, end = table["start"], table["end"]
        limit = 1 << 52
        good = (end >= start) & (np.abs(start) < limit) & (np.abs(end) < limit)
        return np.where(good, start, 0) * PS_PER_NS, np.where(good, end, 0) * PS_PER_NS, good

    def _name_ids(self, keys: np.ndarray, fallback: str) -> np.ndarray:
        unique, inverse = np.unique(keys, return_inverse=True)
        missing = self.names.id(fallback)
        found = np.array([self.strings.get(k, missing) for k in unique.tolist()], np.int32)
        return found[inverse] if len(keys) else np.empty(0, np.int32)

    def _classify(self, names: np.ndarray, kind_of) -> np.ndarray:
        unique, inverse = np.unique(names, return_inverse=True)
        found = np.array([int(kind_of(self.names[k])) for k in unique.tolist()], np.int8)
        return found[inverse] if len(names) else np.empty(0, np.int8)

    def _gpu_table(self, table: str) -> tuple[np.ndarray, np.ndarray, DeviceEvents]:
        """Process id, device number and events of one of the three GPU tables."""
        base = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
        if table.endswith("KERNEL"):
            extra: tuple[str, ...] = (
                "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY",
                "blockZ", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
            )  # fmt: skip
        elif table.endswith("MEMCPY"):
            extra = ("bytes", "copyKind", "srcKind", "dstKind")
        else:
            extra = ("bytes",)
        data = self.file.integers(table, base + extra)
        start, end, good = self._times(data)
        data = {key: column[good] for key, column in data.items()}
        start, end = start[good], end[good]
        n = len(start)
        memory = np.zeros(n, np.int8)
        shape = np.full(n, -1, np.int32)
        if table.endswith("KERNEL"):
            keys = np.where(data["demangledName"] >= 0, data["demangledName"], data["shortName"])
            name = self._name_ids(keys, "kernel")
            kind = self._classify(name, device_kind)
            shape = self._shapes_of(data)
        elif table.endswith("MEMCPY"):
            kind = np.full(n, int(DeviceKind.COPY_OTHER), np.int8)
            for code, meaning in _COPY_KINDS.items():
                kind[data["copyKind"] == code] = int(meaning)
            name = np.array([self.names.id(f"Memcpy {k.name[5:]}") for k in DeviceKind], np.int32)[
                kind
            ]
            # The host's end of the copy: the source going up, the target coming down.
            down = kind == DeviceKind.COPY_D2H
            ends = np.where(down, data["dstKind"], data["srcKind"])
            for code, where in _MEMORY.items():
                memory[ends == code] = int(where)
        else:
            kind = np.full(n, int(DeviceKind.MEMSET), np.int8)
            name = np.full(n, self.names.id("Memset"), np.int32)
        events = DeviceEvents.build(
            start_ps=start,
            end_ps=end,
            kind=kind,
            stream=data["streamId"],
            correlation=np.where(data["correlationId"] > 0, data["correlationId"], -1),
            name=name,
            shape=shape,
            bytes=data.get("bytes"),
            memory=memory,
            graph=(data["graphNodeId"] > 0).astype(np.int8),
        )
        return _pid(data["globalPid"]), np.maximum(data["deviceId"], 0), events

    def _shapes_of(self, data: dict[str, np.ndarray]) -> np.ndarray:
        columns = (
            "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread",
            "staticSharedMemory", "dynamicSharedMemory",
        )  # fmt: skip
        if not len(data["gridX"]):
            return np.empty(0, np.int32)
        # Rows are told apart by a hash of theirs: sorting nine columns takes seconds.
        mixed = np.zeros(len(data["gridX"]), np.uint64)
        for column in columns:
            mixed = (mixed ^ data[column].view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
        numbers = []
        for row in np.stack([data[c][first] for c in columns], axis=1).tolist():
            grid, block = tuple(row[0:3]), tuple(row[3:6])
            shape = KernelShape(
                registers=row[6] if row[6] >= 0 else None,
                shared_bytes=row[7] + row[8] if min(row[7:9]) >= 0 else None,
                grid=grid if min(grid) > 0 else None,
                block=block if min(block) > 0 else None,
            )
            numbers.append(self.shapes.setdefault(shape, len(self.shapes)))
        return np.array(numbers, np.int32)[inverse.reshape(-1)]

    def _calls(self) -> tuple[HostEvents, np.ndarray, np.ndarray]:
        data = self.file.integers(
            "CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId")
        )
        start, end, good = self._times(data)
        name = self._name_ids(data["nameId"], "CUDA call")
        kind = self._classify(name, lambda s: api_kind(s) or HostKind.CALL)
        events = HostEvents.build(
            start_ps=start,
            end_ps=end,
            kind=kind,
            name=name,
            correlation=np.where(data["correlationId"] > 0, data["correlationId"], -1),
        ).take(good)
        return events, _pid(data["globalTid"])[good], data["globalTid"][good]

    def _ranges(self) -> tuple[HostEvents, np.ndarray, np.ndarray]:
        """NVTX ranges: steps, ops, input waits, and what users call their code."""
        table = "NVTX_EVENTS"
        if not self.file.has(table, "start", "end"):
            empty = np.empty(0, np.int64)
            return HostEvents.concat([]), empty, empty
        where = 'WHERE "end" IS NOT NULL'
        data = self.file.integers(table, ("start", "end", "globalTid", "textId"), where)
        start, end, good = self._times(data)
        name = self._name_ids(data["textId"], "")
        if self.file.has(table, "text"):
            texts = self.file.rows(table, ("text",), where)
            for row, (text,) in enumerate(texts[: len(name)]):
                if isinstance(text, str):
                    name[row] = self.names.id(text)
        unique, inverse = np.unique(name, return_inverse=True)
        kinds, values, clean = [], [], []
        for key in unique.tolist():
            kind, value, label = range_kind(self.names[key])
            kinds.append(int(kind))
            values.append(value)
            clean.append(self.names.id(label))
        inverse = inverse.reshape(-1)
        events = HostEvents.build(
            start_ps=start,
            end_ps=end,
            kind=np.array(kinds, np.int8)[inverse],
            name=np.array(clean, np.int32)[inverse],
            value=np.array(values, np.int64)[inverse],
        )
        keep = good & (events.kind >= 0)
        return events.take(keep), _pid(data["globalTid"])[keep], data["globalTid"][keep]

    # --- one process --------------------------------------------------------------------------

    def _process(
        self,
        pid: int,
        events: DeviceEvents,
        device: np.ndarray,
        host: HostEvents,
        tids: np.ndarray,
        epoch: int | None,
    ) -> None:
        unique, thread = np.unique(tids, return_inverse=True)
        host.thread = thread.reshape(-1).astype(np.int32)
        order = np.lexsort((-host.end_ps, host.start_ps))
        host = host.take(order)
        facts, titles = self._gpu_facts(pid)
        devices = []
        for number, rows in groups(device):
            mine = events.take(rows)
            mine = mine.take(np.lexsort((-mine.end_ps, mine.start_ps)))
            mine.op = project(mine, host)
            devices.append(Device(number, titles.get(number, "GPU"), mine, facts.get(number, {})))
        labels = self._thread_names()
        self.trace.processes.append(
            Process(
                host=self._process_name(pid),
                devices=devices,
                threads=[
                    Thread(labels.get(t, f"thread {t & 0xFFFFFF}"), t) for t in unique.tolist()
                ],
                events=host,
                allocator=self._memory(pid),
                shapes=list(self.shapes),
                pid=pid or None,
                epoch_ns=epoch,
                has_host=bool(len(host)),
            )
        )

    def _epoch(self) -> int | None:
        rows = self.file.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
        value = rows[0][0] if rows else None
        return value if isinstance(value, int) and 0 < value < 1 << 62 else None

    def _process_name(self, pid: int) -> str:
        for found, name in self.file.rows("PROCESSES", ("pid", "name")):
            if found == pid and isinstance(name, str):
                return name
        return "process"

    def _thread_names(self) -> dict[int, str]:
        return {
            tid: self.names[self.strings[key]]
            for key, tid in self.file.rows("ThreadNames", ("nameId", "globalTid"))
            if key in self.strings and isinstance(tid, int)
        }

    def _gpu_facts(self, pid: int) -> tuple[dict[int, dict], dict[int, str]]:
        """Facts and names by the process's device number; {} where the export lacks them."""
        columns = ("id", "name", "smCount", "totalMemory", "memoryBandwidth", "computeMajor",
                   "computeMinor", "uuid", "busLocation")  # fmt: skip
        present = tuple(c for c in columns if self.file.has("TARGET_INFO_GPU", c))
        if "id" not in present:
            return {}, {}
        # A device number is the process's own (CUDA_VISIBLE_DEVICES); this table translates it.
        numbers = {
            gpu: own
            for gpu, own, owner in self.file.rows(
                "TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid")
            )
            if owner == pid
        }
        facts: dict[int, dict] = {}
        names: dict[int, str] = {}
        for row in self.file.rows("TARGET_INFO_GPU", present):
            gpu = dict(zip(present, row, strict=True))
            index = numbers.get(gpu["id"], gpu["id"])
            if not isinstance(index, int):
                continue
            found: dict = {"vendor": "Nvidia"}
            for ours, theirs in (
                ("sm_count", "smCount"),
                ("memory_bytes", "totalMemory"),
                ("memory_bandwidth_bytes_per_s", "memoryBandwidth"),
            ):
                if isinstance(gpu.get(theirs), int) and gpu[theirs] > 0:
                    found[ours] = gpu[theirs]
            if isinstance(gpu.get("computeMajor"), int):
                found["compute_capability"] = [gpu["computeMajor"], gpu.get("computeMinor") or 0]
            for key in ("uuid", "busLocation"):
                if isinstance(gpu.get(key), str):
                    found["pci_bus_id" if key == "busLocation" else key] = gpu[key]
            facts[index] = found
            if isinstance(gpu.get("name"), str):
                names[index] = gpu["name"]
        return facts, names

    def _memory(self, pid: int) -> AllocatorEvents:
        """What the process held on each device, from the driver's allocations."""
        data = self.file.integers(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"),
            'ORDER BY "start"' if self.file.has("CUDA_GPU_MEMORY_USAGE_EVENTS", "start") else "",
        )
        mine = (_pid(data["globalPid"]) == pid) & (data["memKind"] == 2) & (data["bytes"] >= 0)
        mine &= np.abs(data["start"]) < 1 << 52
        parts = []
        chosen = np.flatnonzero(mine)
        for device, of_chosen in groups(data["deviceId"][chosen]):
            rows = chosen[of_chosen]
            change = np.where(data["memoryOperationType"] == 0, 1, -1) * data["bytes"]
            held = np.maximum(np.cumsum(change[rows]), 0)
            n = len(held)
            parts.append(
                AllocatorEvents.build(
                    time_ps=data["start"][rows] * PS_PER_NS,
                    allocator=np.full(n, self.names.id(f"CUDA device {device}")),
                    device=np.full(n, device),
                    allocated_bytes=held,
                    peak_bytes=np.maximum.accumulate(held),
                )
            )
        return AllocatorEvents.concat(parts)

    def _counters(self) -> None:
        """GPU metrics samples; they belong to GPUs, not processes: the first process holds them."""
        data = self.file.integers("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"))
        titles = {
            (kind, metric): name
            for kind, metric, name in self.file.rows(
                "TARGET_INFO_GPU_METRICS", ("typeId", "metricId", "metricName")
            )
            if isinstance(name, str)
        }
        if not titles or not len(data["timestamp"]):
            return
        _, metrics = np.unique(data["metricId"], return_inverse=True)
        sane = np.flatnonzero(np.abs(data["timestamp"]) < 1 << 52)
        keys = data["typeId"] * (len(metrics) + 1) + metrics.reshape(-1)
        for _, of_sane in groups(keys[sane]):
            rows = sane[of_sane]
            kind, metric = int(data["typeId"][rows[0]]), int(data["metricId"][rows[0]])
            name = titles.get((kind, metric))
            if name is not None:
                self.trace.processes[0].counters.append(
                    Counter(
                        name=name,
                        device=kind & 0xFF,
                        time_ps=data["timestamp"][rows] * PS_PER_NS,
                        value=data["value"][rows].astype(np.float64),
                    )
                )
