"""Reads Nsight Systems exports (`.sqlite`) into the event model.

Tables vary with versions and with the recorded data: each is read if present, with the columns it
has. Processes are kept apart (a device number is valid only within its process).
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import limits
from gpu_util_callback.traces.foreign import READABLE, ROCPD
from gpu_util_callback.traces.limits import epoch, gpu_facts
from gpu_util_callback.traces.model import (
    PS_PER_NS,
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
    groups,
    map_distinct,
)
from gpu_util_callback.traces.naming import api_kind, device_kind, step_marker
from gpu_util_callback.traces.xplane_events import host_kind

# Columns of a kernel's launch shape.
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
_ROWS = 5_000  # fetched at a time
MAX_ROWS = 10_000_000
# The capacity of a file: a row takes a pointer of two bytes and a record of three or more. Pages
# that list one page repeatedly, as no writer does, would hold unlimited rows.
_ROW_BYTES = 5
# SQLite counts its own instructions: a made-up file may hold an endless query. An honest one
# needs about one for each byte of the file.
_STEPS_PER_CHECK = 50_000
_MIN_STEPS = 20_000_000
_STEPS_PER_BYTE = 30
_MAX_VALUE = 64 << 20  # bytes of one text


# --- the SQLite export ----------------------------------------------------------------------------


class Export:
    """An opened `.sqlite` export. All reads are of plain tables, read-only, and bounded by the file's size.

    Attributes:
        tables: name -> its columns, of plain tables.

    Raises: UnusableInput, from every method, when the file is damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self.tables: dict[str, list[str]] = {}
        self._steps = 0
        size = path.stat().st_size
        self._max_steps = _MIN_STEPS + _STEPS_PER_BYTE * size
        self._max_rows = min(MAX_ROWS, size // _ROW_BYTES)
        self._max_text = size  # of one query: a page's content is in it once
        try:
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(_MAX_VALUE, size))
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.set_progress_handler(self._check, _STEPS_PER_CHECK)
            query = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            for name, sql in self._fetched(query):
                if not isinstance(sql, str) or "VIRTUAL" in sql[:40].upper():
                    continue
                with closing(self._connection.execute(f"PRAGMA table_info({_quote(name)})")) as c:
                    self.tables[name] = [row[1] for row in c]
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def close(self) -> None:
        self._connection.close()

    def _check(self) -> int:
        self._steps += _STEPS_PER_CHECK
        return int(self._steps > self._max_steps)

    def _damaged(self, error: Exception) -> UnusableInput:
        """Return the error for an export that cannot be read, and why."""
        if self._steps > self._max_steps:
            why = "it takes longer to read than a file of its size can"
        elif isinstance(error, MemoryError):  # SQLite allocated what its pages claim
            why = "it asks for more memory than a file of its size needs"
        elif isinstance(error, sqlite3.Error | _Overfull):
            why = " ".join(str(error).split())[:200]
        else:
            why = "its tables' definitions are garbled"
        return UnusableInput(
            f"{self.path}: damaged Nsight Systems export ({why}); export it again with `nsys export --type sqlite`"
        )

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and all(c in self.tables[table] for c in columns)

    def integers(self, table: str, columns: tuple[str, ...], where: str = "") -> dict[str, np.ndarray]:
        """Return columns as int64; absent columns and NULL are -1. Empty without the table."""
        present = [c for c in columns if self.has(table, c)]
        chosen = ", ".join(f"CAST(COALESCE({_quote(c)}, -1) AS INTEGER)" for c in present)
        parts = [np.empty((0, len(present)), np.int64)]
        try:
            for rows in self._chunks(f"SELECT {chosen} FROM {_quote(table)} {where}") if present else ():
                parts.append(np.array(rows, np.int64))
        except (OverflowError, ValueError):
            raise UnusableInput(f"{self.path}: {table} holds what are no numbers") from None
        except _DAMAGE as error:
            raise self._damaged(error) from None
        read = dict(zip(present, np.concatenate([part.T for part in parts], axis=1), strict=True))
        absent = np.full(sum(map(len, parts)), -1, np.int64)
        return {column: read.get(column, absent) for column in columns}

    def rows(self, table: str, columns: tuple[str, ...], where: str = "") -> Iterator[tuple]:
        """Yield rows of a table, unconverted; none unless it has all the columns."""
        if not self.has(table, *columns):
            return
        chosen = ", ".join(_quote(c) for c in columns)
        try:
            yield from self._fetched(f"SELECT {chosen} FROM {_quote(table)} {where}")
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def records(self, table: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Yield rows of a table by column, unconverted; None in the columns that it lacks."""
        present = tuple(c for c in columns if self.has(table, c))
        for row in self.rows(table, present) if present else ():
            yield dict.fromkeys(columns) | dict(zip(present, row, strict=True))

    def _fetched(self, query: str) -> Iterator[tuple]:
        """Yield rows of a query, up to the amount of text that the file can hold."""
        text_left = self._max_text
        for rows in self._chunks(query):
            for row in rows:
                text_left -= sum(len(value) for value in row if isinstance(value, str | bytes))
                if text_left < 0:
                    raise _Overfull("its pages hold more text than they can")
                yield row

    def _chunks(self, query: str) -> Iterator[list[tuple]]:
        """Yield rows of a query in chunks, up to the number that the file can hold."""
        rows_left = self._max_rows
        with closing(self._connection.execute(query)) as cursor:
            while rows := cursor.fetchmany(_ROWS):
                rows_left -= len(rows)
                if rows_left < 0 and self._max_rows == MAX_ROWS:
                    raise UnusableInput(f"{self.path}: more than {MAX_ROWS:,} rows in a table; export a shorter range")
                if rows_left < 0:
                    raise _Overfull("its pages hold more rows than they can")
                yield rows


class _Overfull(Exception):
    """A table that holds more than its pages can."""


# UnicodeDecodeError: SQLite's message quotes the damaged text.
_DAMAGE = (sqlite3.Error, UnicodeDecodeError, MemoryError, _Overfull)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- NVTX ranges ----------------------------------------------------------------------------------

_TRACE_ME = re.compile(r"^(?:TSL:)?([^#]*)#(.*)#$", re.DOTALL)
_STEP_NUM = re.compile(r"(?:^|,)step_num=(\d{1,17})(?:,|$)")
_TORCH_OP = re.compile(r"^(.*?),\s*(?:seq = \d+,\s*)?op_id = \d+")
_LOADER = re.compile(r"^enumerate\(|dataloader.{0,80}next|^next batch$|^(load|fetch)[ _]batch", re.I)


def range_kind(text: str) -> tuple[int, int, str]:
    """Return what an NVTX range is, by its text.

    Returns:
        Its `HostKind` (-1 = noise), the number of the training step it marks (-1 = none), and the name to keep.
    """
    trace_me = _TRACE_ME.match(text)  # TensorFlow and JAX: "train#step_num=12,_r=1#"
    if trace_me:
        number = _STEP_NUM.search(trace_me[2])
        if number:  # a step of TensorFlow or JAX
            return HostKind.STEP, int(number[1]), trace_me[1]
        text = trace_me[1]
    text = text.removeprefix("TSL:")
    op = _TORCH_OP.match(text)  # PyTorch: "aten::add, seq = 12, op_id = 34"
    if op:
        name = op[1]
        loader = name.startswith("enumerate(")
        return (HostKind.INPUT_WAIT if loader else HostKind.OP), -1, name
    if step := step_marker(text):
        return HostKind.STEP, step[1], step[0]
    if _LOADER.search(text):
        return HostKind.INPUT_WAIT, -1, text
    if re.match(r"^nccl[A-Z]", text):  # a call of NCCL
        return HostKind.COLLECTIVE, -1, text
    kind = host_kind(text)
    return (HostKind.RANGE if kind == HostKind.FRAMEWORK else kind), -1, text


def project(events: DeviceEvents, host: HostEvents, rounds: int = 64) -> np.ndarray:
    """Return for each GPU event the op in whose range it was launched, the innermost on the launching thread.

    Args:
        rounds: how many ranges that ended before a launch are skipped at most.

    Returns:
        int32[events], indices of names; -1 = none.
    """
    result = np.full(len(events), -1, np.int32)
    calls = np.flatnonzero((host.kind == HostKind.LAUNCH) & (host.correlation >= 0))
    ops = np.flatnonzero(host.kind == HostKind.OP)
    if not len(calls) or not len(ops) or not len(events):
        return result
    order = calls[np.argsort(host.correlation[calls], kind="stable")]
    at = np.minimum(np.searchsorted(host.correlation[order], events.correlation), len(order) - 1)
    # Events whose launch is known.
    linked = np.flatnonzero((host.correlation[order[at]] == events.correlation) & (events.correlation >= 0))
    call = order[at[linked]]
    by_thread = dict(groups(host.thread[ops]))
    for thread, mine in groups(host.thread[call]):
        if thread not in by_thread:
            continue
        ranges = ops[by_thread[thread]]  # sorted by start
        when = host.start_ps[call[mine]]
        candidate = np.searchsorted(host.start_ps[ranges], when, side="right") - 1
        # Step back over ranges that were already closed; siblings are few, and so are rounds.
        for _ in range(rounds):
            closed = (candidate >= 0) & (host.end_ps[ranges[np.maximum(candidate, 0)]] <= when)
            if not closed.any():
                break
            candidate = candidate - closed
        inside = (candidate >= 0) & (host.end_ps[ranges[np.maximum(candidate, 0)]] > when)
        result[linked[mine[inside]]] = host.name[ranges[candidate[inside]]]
    return result


# --- the reader -----------------------------------------------------------------------------------

_MAX_NS = limits.MAX_TIME_PS // PS_PER_NS

_COPY_KINDS = {
    **dict.fromkeys((1, 3, 11), DeviceKind.COPY_H2D),  # plain, to an array on the device, of unified memory
    **dict.fromkeys((2, 4, 12), DeviceKind.COPY_D2H),
    **dict.fromkeys((5, 6, 7, 8, 10, 13), DeviceKind.COPY_D2D),  # 10: peer to peer
}
_MEMORY = {
    **{0: MemoryKind.PAGEABLE, 1: MemoryKind.PINNED},
    **dict.fromkeys((2, 3, 5), MemoryKind.DEVICE),
    **dict.fromkeys((4, 6), MemoryKind.MANAGED),
}
_GPU_COLUMNS = (
    *("id", "name", "smCount", "totalMemory", "memoryBandwidth"),
    *("computeMajor", "computeMinor", "uuid", "busLocation"),
)
# A graph is one row of the last table, unless `--cuda-graph-trace=node` was asked for: its kernels are in no other one.
_GPU_EVENTS = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))


@contextmanager
def export(path: Path) -> Iterator[Path]:
    """Yield a `.nsys-rep` as a temporary `.sqlite`, where `nsys` is installed."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise UnusableInput(
            f"{path}: a report needs Nsight Systems to be read; export it where that is installed: "
            "nsys export --type sqlite FILE"
        )
    with tempfile.TemporaryDirectory(prefix="gpu-util-") as folder:
        target = Path(folder) / "report.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", os.fspath(target), os.fspath(path)]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnusableInput(f"{path}: nsys export failed ({error})") from None
        if process.returncode or not target.exists():
            reason = " ".join((process.stderr or process.stdout).split())[-200:]
            raise UnusableInput(f"{path}: nsys export failed ({reason})")
        yield target


def read_nsys(path: Path, is_report: bool = False) -> Trace:
    """Read one export, or a report (`.nsys-rep`) where it can be exported.

    Raises: UnusableInput when it is damaged, or holds no GPU work and no CUDA calls.
    """
    with export(path) if is_report else nullcontext(path) as sqlite, closing(Export(sqlite)) as file:
        return _TableReader(file, path).read()


def _pid(global_id: np.ndarray) -> np.ndarray:
    """Return the process id inside a globalPid or globalTid; 0 where the column is absent."""
    return np.where(global_id >= 0, (global_id >> 24) & 0xFFFFFF, 0)


class _TableReader:
    def __init__(self, file: Export, path: Path):
        self.file = file
        self.names = Names()
        self.trace = Trace("nsys", [str(path)], self.names, [])
        self.strings: dict[int, int] = {}  # id in the file -> our name
        self.shapes = Shapes()

    def read(self) -> Trace:
        file = self.file
        has_cuda = not file.tables.keys().isdisjoint((*_GPU_EVENTS, "CUPTI_ACTIVITY_KIND_RUNTIME"))
        if not has_cuda and "NVTX_EVENTS" not in file.tables:
            if any(table.startswith("rocpd_") for table in file.tables):
                raise UnusableInput(f"{file.path}: {ROCPD}. {READABLE}")
            raise UnusableInput(
                f"{file.path}: no CUDA events in this database; an Nsight Systems export must be "
                "recorded with --trace=cuda,nvtx"
            )
        for key, text in file.rows("StringIds", ("id", "value")):
            if isinstance(key, int) and isinstance(text, str):
                self.strings[key] = self.names.id(text)
        work_pids, devices, works = zip(*map(self._gpu_table, _GPU_EVENTS), strict=True)
        work_pid, device = np.concatenate(work_pids), np.concatenate(devices)
        work = DeviceEvents.concat(works, len(device))
        calls, call_tid = self._calls()
        ranges, range_tid = self._ranges()
        pids = {*np.unique(work_pid).tolist(), *np.unique(_pid(call_tid)).tolist()}
        pids = pids or set(np.unique(_pid(range_tid)).tolist())
        if len(pids) > limits.MAX_PROCESSES:
            raise UnusableInput(f"{file.path}: {len(pids):,} processes; export those of the training alone")
        process_names, thread_names = self._process_names(), self._thread_names()
        epoch_ns = epoch(next(file.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)), (None,))[0])
        tids = np.concatenate((call_tid, range_tid))
        calls = HostEvents.concat([calls, ranges], len(tids))
        work_of, calls_of = dict(groups(work_pid)), dict(groups(_pid(tids)))
        none = np.empty(0, np.int64)
        for pid in sorted(pids):
            mine, of_host = work_of.get(pid, none), calls_of.get(pid, none)
            host = calls.take(of_host)
            threads, thread = np.unique(tids[of_host], return_inverse=True)
            host.thread = thread.reshape(-1).astype(np.int32)
            host = host.in_order()
            self.trace.processes.append(
                Process(
                    host=process_names.get(pid, "process"),
                    devices=self._devices(pid, work.take(mine), device[mine], host),
                    threads=[thread_names.get(t, f"thread {t & 0xFFFFFF}") for t in threads.tolist()],
                    events=host,
                    shapes=self.shapes.all(),
                    pid=pid or None,
                    epoch_ns=epoch_ns,
                )
            )
        # Processes that only set up or wait (launchers, workers) are left out.
        working = [p for p in self.trace.processes if p.devices]
        self.trace.processes = working or self.trace.processes[:1]
        if not has_cuda:
            self.trace.problems.append(
                "recorded without --trace=cuda: what a GPU did is not in it; record again with "
                "nsys profile --trace=cuda,nvtx"
            )
        if not self.trace.processes:
            raise UnusableInput(f"{file.path}: no GPU work and no CUDA calls were recorded in it")
        return self.trace

    # --- tables -------------------------------------------------------------------------------

    def _rows(self, table: str, columns: tuple[str, ...], where: str = "") -> dict[str, np.ndarray]:
        """Return the rows of a table with valid times: `start_ps`, `end_ps`, more columns, and `row`, their places."""
        data = self.file.integers(table, ("start", "end", *columns), where)
        start, end = data.pop("start"), data.pop("end")
        rows = np.flatnonzero((end >= start) & (start > -_MAX_NS) & (end < _MAX_NS))
        times = {"start_ps": start[rows] * PS_PER_NS, "end_ps": end[rows] * PS_PER_NS}
        return {**{name: column[rows] for name, column in data.items()}, **times, "row": rows}

    def _name_ids(self, keys: np.ndarray, fallback: str) -> np.ndarray:
        missing = self.names.id(fallback)
        return map_distinct(keys, lambda key: self.strings.get(key, missing), np.int32)

    def _classify(self, names: np.ndarray, kind_of: Callable[[str], int]) -> np.ndarray:
        return map_distinct(names, lambda name: kind_of(self.names[name]), np.int8)

    def _gpu_table(self, table: str) -> tuple[np.ndarray, np.ndarray, DeviceEvents]:
        """Return process id, device number and events of one of the GPU tables."""
        base = ("deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "graphId")
        if table.endswith("KERNEL"):
            extra: tuple[str, ...] = ("demangledName", "shortName", *_SHAPE)
        elif table.endswith("MEMCPY"):
            extra = ("bytes", "copyKind", "srcKind", "dstKind")
        else:
            extra = ("bytes",)
        is_graph = table.endswith("GRAPH_TRACE")
        # Both of a graph's times are 0 where CUPTI has none.
        data = self._rows(table, base + extra, 'WHERE "end" > start' if is_graph else "")
        n = len(data["row"])
        memory = shape = None
        if table.endswith("KERNEL"):
            keys = np.where(data["demangledName"] >= 0, data["demangledName"], data["shortName"])
            name = self._name_ids(keys, "kernel")
            kind = self._classify(name, device_kind)
            shape = self._shapes_of(data)
        elif table.endswith("MEMCPY"):
            kind = map_distinct(data["copyKind"], lambda code: _COPY_KINDS.get(code, DeviceKind.COPY_OTHER), np.int8)
            name = np.array([self.names.id(f"Memcpy {k.name[5:]}") for k in DeviceKind], np.int32)[kind]
            # The host's end of the copy: the source of an upload, the target of a download.
            down = kind == DeviceKind.COPY_D2H
            ends = np.where(down, data["dstKind"], data["srcKind"])
            memory = map_distinct(ends, lambda code: _MEMORY.get(code, MemoryKind.UNKNOWN), np.int8)
        else:
            kind = np.full(n, int(DeviceKind.KERNEL if is_graph else DeviceKind.MEMSET), np.int8)
            name = np.full(n, self.names.id("CUDA graph, recorded as a whole" if is_graph else "Memset"), np.int32)
        in_graph = is_graph | (data["graphNodeId"] > 0)
        events = DeviceEvents.build(
            start_ps=data["start_ps"],
            end_ps=data["end_ps"],
            kind=kind,
            stream=data["streamId"],
            correlation=np.where(data["correlationId"] > 0, data["correlationId"], -1),
            name=name,
            shape=shape,
            bytes=data.get("bytes"),
            memory=memory,
            graph=np.where(in_graph, np.where(data["graphId"] > 0, data["graphId"], -1), 0),
        )
        device = data["deviceId"]
        return _pid(data["globalPid"]), np.where(device == -1, 0, device), events

    def _shapes_of(self, data: dict[str, np.ndarray]) -> np.ndarray:
        """Return the id of each kernel's launch: int32[rows]."""
        if not len(data["gridX"]):
            return np.empty(0, np.int32)
        # Rows are grouped by their hash: sorting nine columns takes seconds.
        mixed = np.zeros(len(data["gridX"]), np.uint64)
        for column in _SHAPE:
            mixed = (mixed ^ data[column].view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
        numbers = []
        for row in np.stack([data[c][first] for c in _SHAPE], axis=1).tolist():
            numbers.append(self.shapes.id(KernelShape(row[6], grid=tuple(row[0:3]), block=tuple(row[3:6]))))
        return np.array(numbers, np.int32)[inverse.reshape(-1)]

    def _calls(self) -> tuple[HostEvents, np.ndarray]:
        """Return the driver's and runtime's calls, and the global id of each one's thread."""
        data = self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", ("globalTid", "correlationId", "nameId"))
        name = self._name_ids(data["nameId"], "CUDA call")
        events = HostEvents.build(
            start_ps=data["start_ps"],
            end_ps=data["end_ps"],
            kind=self._classify(name, lambda s: api_kind(s) or HostKind.CALL),
            name=name,
            correlation=np.where(data["correlationId"] > 0, data["correlationId"], -1),
        )
        return events, data["globalTid"]

    def _ranges(self) -> tuple[HostEvents, np.ndarray]:
        """Return NVTX ranges (steps, ops, input waits, the user's annotations), and the global ids of their threads."""
        table, where = "NVTX_EVENTS", 'WHERE "end" IS NOT NULL'
        if not self.file.has(table, "start", "end"):
            return HostEvents.concat([], 0), np.empty(0, np.int64)
        data = self._rows(table, ("globalTid", "textId"), where)
        name = self._name_ids(data["textId"], "")
        if self.file.has(table, "text"):
            texts = (text for (text,) in self.file.rows(table, ("text",), where))
            own = np.fromiter((self.names.id(text) if isinstance(text, str) else -1 for text in texts), np.int32)
            name = np.where(own[data["row"]] >= 0, own[data["row"]], name)

        def kind_value_name(key: int) -> tuple[int, int, int]:
            kind, value, label = range_kind(self.names[key])
            return kind, value, self.names.id(label)

        kind, value, name = map_distinct(name, kind_value_name, np.int64).reshape(-1, 3).T
        times = {"start_ps": data["start_ps"], "end_ps": data["end_ps"]}
        events = HostEvents.build(**times, kind=kind, name=name, value=value)
        keep = events.kind >= 0
        return events.take(keep), data["globalTid"][keep]

    # --- one process --------------------------------------------------------------------------

    def _devices(self, pid: int, events: DeviceEvents, device: np.ndarray, host: HostEvents) -> list[Device]:
        """Return a process's GPUs with their events, whose device numbers are in `device`."""
        events.op = project(events, host)
        events_by_device, wild = by_device(events, device)
        if wild:
            self.trace.problems.append(f"{wild} events with impossible device numbers were left out")
        gpus = self._gpu_facts(pid)
        names_and_facts = {number: gpus.get(number, ("GPU", {})) for number in events_by_device}
        return [
            Device(number, name, events_by_device[number], facts) for number, (name, facts) in names_and_facts.items()
        ]

    def _process_names(self) -> dict[int, str]:
        """Return process id -> its first name."""
        names: dict[int, str] = {}
        for pid, name in self.file.rows("PROCESSES", ("pid", "name")):
            if isinstance(pid, int) and isinstance(name, str):
                names.setdefault(pid, name)
        return names

    def _thread_names(self) -> dict[int, str]:
        """Return global thread id -> its name."""
        return {
            tid: self.names[self.strings[key]]
            for key, tid in self.file.rows("ThreadNames", ("nameId", "globalTid"))
            if key in self.strings and isinstance(tid, int)
        }

    def _gpu_facts(self, pid: int) -> dict[int, tuple[str, dict]]:
        """Return names and facts by the process's device number; {} where the export lacks them."""
        # Device numbers are per process (CUDA_VISIBLE_DEVICES); this table maps them.
        ordinals = {
            gpu: device_number
            for gpu, device_number, owner in self.file.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
            if owner == pid
        }
        gpus: dict[int, tuple[str, dict]] = {}
        for gpu in self.file.records("TARGET_INFO_GPU", _GPU_COLUMNS):
            index = ordinals.get(gpu["id"], gpu["id"])
            if not isinstance(index, int):
                continue
            numbers = {
                "sm_count": gpu["smCount"],
                "memory_bytes": gpu["totalMemory"],
                "memory_bandwidth_bytes_per_s": gpu["memoryBandwidth"],
            }
            texts = {"uuid": gpu["uuid"], "pci_bus_id": gpu["busLocation"]}
            facts = {
                "vendor": "Nvidia",
                **gpu_facts(numbers, gpu["computeMajor"], gpu["computeMinor"]),
                **{name: text for name, text in texts.items() if isinstance(text, str)},
            }
            gpus[index] = gpu["name"] if isinstance(gpu["name"], str) else "GPU", facts
        return gpus
