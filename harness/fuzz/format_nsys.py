"""Nsight Systems exports: other schemas and rows, and pages whose bytes say something else."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from functools import cache, partial
from random import Random
from typing import Any

from harness.fuzz import mutate, traces
from harness.fuzz.fuzzer import Format

_ROWS = 12  # of each table of a public export, in a seed
_PAGE = 512  # bytes: a small file then has many pages

Tables = dict[str, dict[str, Any]]  # name -> {"columns": [...], "rows": [[...]]}


# Columns of each table, in order.
_COLUMNS = {
    "StringIds": "id value",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start end deviceId streamId correlationId globalPid graphNodeId demangledName shortName "
        "gridX gridY gridZ blockX blockY blockZ registersPerThread staticSharedMemory dynamicSharedMemory"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start end deviceId streamId correlationId globalPid bytes copyKind srcKind dstKind"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId",
    "NVTX_EVENTS": "start end globalTid textId text",
    "TARGET_INFO_GPU": ("id name smCount totalMemory memoryBandwidth computeMajor computeMinor uuid busLocation"),
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "PROCESSES": "pid name",
    "ThreadNames": "nameId globalTid",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start globalPid deviceId bytes memKind memoryOperationType",
}


def _made() -> Tables:
    """Two kernels and a copy in each of three steps, with all that is read of an export."""
    pid, tid = 77 << 24, 77 << 24 | 5
    kernels, calls, copies, ranges = [], [], [], []
    for step in range(3):
        at = 1_000_000 * step
        ranges.append([at, at + 900_000, tid, None, f"step {step}"])
        ranges.append([at + 1000, at + 300_000, tid, 4, None])
        for number in range(2):
            key = 10 * step + number + 1
            begin = at + 400_000 + 100_000 * number
            calls.append([begin, begin + 5000, tid, key, 2])
            kernels.append([begin + 9000, begin + 90_000, 0, 7, key, pid, None, 1, 1, 8, 1, 1, 128, 1, 1, 40, 1024, 0])
        calls.append([at + 700_000, at + 800_000, tid, 10 * step + 9, 3])
        copies.append([at + 650_000, at + 660_000, 0, 7, 10 * step + 8, pid, 4096, 1, 0, 2])
    rows_by_table: dict[str, list] = {
        "StringIds": [
            [1, "ampere_sgemm_128x64_tn"],
            [2, "cuLaunchKernel"],
            [3, "cuStreamSynchronize"],
            [4, "next batch"],
            [5, "main"],
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "NVTX_EVENTS": ranges,
        "TARGET_INFO_GPU": [[0, "H100", 132, 80 << 30, 3 << 40, 9, 0, "GPU-1", "0000:01:00.0"]],
        "TARGET_INFO_CUDA_DEVICE": [[0, 0, 77]],
        "TARGET_INFO_SESSION_START_TIME": [[1_800_000_000_000_000_000]],
        "PROCESSES": [[77, "python"]],
        "ThreadNames": [[5, tid]],
        "CUDA_GPU_MEMORY_USAGE_EVENTS": [[1000, pid, 0, 4096, 2, 0], [9000, pid, 0, 4096, 2, 1]],
    }
    return {name: {"columns": _COLUMNS[name].split(), "rows": rows} for name, rows in rows_by_table.items()}


@cache
def _seeds() -> list[str]:
    """Exports as JSON, so that each input begins with a copy of its own."""
    seeds = [_made()]
    for path in traces.references("nsys/*.sqlite"):
        tables: Tables = {}
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
            listed = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in listed:
                cursor = file.execute(f'SELECT * FROM "{name}" LIMIT {_ROWS}')
                columns = [column[0] for column in cursor.description]
                rows = [[v if not isinstance(v, bytes) else None for v in row] for row in cursor]
                tables[name] = {"columns": columns, "rows": rows}
        wanted = {name: table for name, table in tables.items() if name in seeds[0]}
        used = {v for t in wanted.values() for row in t["rows"] for v in row if isinstance(v, int)}
        strings = wanted.get("StringIds")
        if strings:
            strings["rows"] = [row for row in strings["rows"] if row[0] in used]
        seeds.append(wanted)
    return [json.dumps(seed) for seed in seeds]


def build(tables: Tables, random: Random | None = None) -> bytes:
    """The bytes of a database; odd schemas now and then, where a source of chance is given."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as file:
        file.execute(f"PRAGMA page_size = {_PAGE}")
        file.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
        for name, table in tables.items():
            if not isinstance(table, dict):
                continue
            columns, rows = table.get("columns"), table.get("rows")
            if not isinstance(columns, list) or not isinstance(rows, list):
                continue
            columns = list(dict.fromkeys(str(c)[:60] for c in columns))[:60] or ["a"]
            with contextlib.suppress(sqlite3.Error, ValueError, UnicodeError):
                _table(file, name[:60], columns, rows, random)
        return file.serialize()


def _table(file: sqlite3.Connection, name: str, columns: list, rows: list, random) -> None:
    quoted = [f'"{column}"' for column in columns]
    declared = list(quoted)
    chance = random.random() if random else 1.0
    if chance < 0.03:
        declared[0] += " PRIMARY KEY"
    elif chance < 0.06:
        declared.append('"extra" AS (length(zeroblob(100000))) VIRTUAL')
    elif chance < 0.09:
        declared = [f"{column} TEXT" for column in declared]
    tail = " WITHOUT ROWID" if chance < 0.015 else ""
    if 0.09 < chance < 0.11:  # a view that never ends, in the place of a table
        file.execute(
            f'CREATE VIEW "{name}" AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 '
            f"FROM n) SELECT {', '.join(f'x AS {column}' for column in quoted)} FROM n"
        )
        return
    file.execute(f'CREATE TABLE "{name}" ({", ".join(declared)}){tail}')
    places = ", ".join("?" for _ in columns)
    for row in rows:
        if isinstance(row, list):
            values = [_storable(value) for value in (row + [None] * len(columns))[: len(columns)]]
            insert = f'INSERT OR IGNORE INTO "{name}" ({", ".join(quoted)}) VALUES ({places})'
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError):
                file.execute(insert, values)


def _storable(value: Any) -> Any:
    if isinstance(value, mutate.Literal):
        return value[:200]
    if isinstance(value, dict | list):
        return json.dumps(value).encode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return float(value)
    return value


def make(random: Random) -> bytes:
    seeds = _seeds()
    tables = json.loads(seeds[0] if random.random() < 0.5 else random.choice(seeds))
    if random.random() < 0.6:
        mutate.tree(random, tables, random.choice((1, 2, 4, 10, 30)))
        data = build(tables, random)
    else:
        data = _sound(seeds.index(json.dumps(tables)))
    return _pages(random, data) if random.random() < 0.5 else data


@cache
def _sound(number: int) -> bytes:
    return build(json.loads(_seeds()[number]))


def _pages(random: Random, data: bytes) -> bytes:
    """Change what pages say: their kind, their cells, their children, the lengths of records."""
    changed = bytearray(data)
    pages = len(data) // _PAGE
    for _ in range(random.choice((1, 1, 2, 4, 10))):
        page = random.randrange(max(1, pages))
        at = page * _PAGE + (100 if page == 0 else 0)
        if at + 16 > len(changed):
            break
        cells = min(int.from_bytes(changed[at + 3 : at + 5], "big"), 200)
        header = 12 if changed[at] in (2, 5) else 8
        match random.randrange(9):
            case 0:
                changed[at] = random.choice((2, 5, 10, 13, 0, 255))
            case 1:
                changed[at + 3 : at + 5] = random.choice((0, 1, cells + 1, 200, 65535)).to_bytes(2)
            case 2:
                changed[at + 5 : at + 7] = random.choice((0, 8, _PAGE - 1, 65535)).to_bytes(2)
            case 3 if header == 12:
                changed[at + 8 : at + 12] = random.randrange(pages + 2).to_bytes(4)
            case 4 | 5 if cells:  # a cell: its place, or its first bytes (a child, or a length)
                pointer = at + header + 2 * random.randrange(cells)
                place = page * _PAGE + int.from_bytes(changed[pointer : pointer + 2], "big")
                if random.random() < 0.3:
                    changed[pointer : pointer + 2] = random.randrange(_PAGE).to_bytes(2)
                elif header == 12 and place + 4 <= len(changed):
                    changed[place : place + 4] = random.randrange(1, pages + 2).to_bytes(4)
                elif place + 4 <= len(changed):
                    changed[place : place + 3] = bytes(
                        (random.choice((0x7F, 0x81, 0xFF)), random.choice((0, 0x7F, 0xFF)), 0x7F)
                    )
            case 6:  # the file's own header
                field = random.choice(((16, 2), (18, 2), (20, 1), (24, 4), (28, 4), (36, 4), (56, 4)))
                value = random.choice((0, 1, 2, 3, _PAGE, 4096, 65535, 0xFFFFFFFF))
                size = field[1]
                changed[field[0] : field[0] + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size)
            case 7:  # a page in the place of another
                other = random.randrange(max(1, pages)) * _PAGE
                changed[page * _PAGE : (page + 1) * _PAGE] = changed[other : other + _PAGE]
            case _:
                part = bytes(changed[at : at + _PAGE])
                less = mutate.of_bytes(random, part, 1)[: len(part)]
                changed[at : at + len(less)] = less
    return mutate.of_bytes(random, bytes(changed)) if random.random() < 0.1 else bytes(changed)


def _prepare() -> None:
    traces.prepare()
    _seeds()


FORMAT = Format(
    "nsys",
    make,
    partial(traces.check, suffix=".sqlite"),
    judge=partial(traces.judge, suffix=".sqlite"),
    prepare=_prepare,
)
