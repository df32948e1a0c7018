"""Nsight Systems exports: tables that come and go."""

import sqlite3

import pytest
from trace_oracle import causes, explain

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import read_trace

KERNEL = {
    "start": 0,
    "end": 0,
    "deviceId": 0,
    "streamId": 7,
    "correlationId": 0,
    "globalPid": 77 << 24,
    "demangledName": 1,
    "shortName": 1,
    "gridX": 8,
    "gridY": 1,
    "gridZ": 1,
    "blockX": 128,
    "blockY": 1,
    "blockZ": 1,
    "registersPerThread": 40,
}
CALL = {"start": 0, "end": 0, "globalTid": 77 << 24 | 5, "correlationId": 0, "nameId": 2}


class Export:
    """An export under construction: tables have the columns of their first row."""

    def __init__(self, path):
        self.path = path
        self.tables: dict[str, list[dict]] = {}
        self.strings = {1: "ampere_sgemm_128x64_tn", 2: "cuLaunchKernel", 3: "cuStreamSynchronize"}

    def add(self, table: str, row: dict, **values) -> None:
        self.tables.setdefault(table, []).append(row | values)

    def kernel(self, start, end, correlation, **values):
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, start=start, end=end, correlationId=correlation, **values)

    def call(self, start, end, correlation, name=2, **values):
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", CALL, start=start, end=end, correlationId=correlation, nameId=name, **values
        )

    def range(self, start, end, text, thread=5, **values):
        row = {
            "start": start,
            "end": end,
            "eventType": 59,
            "text": text,
            "textId": None,
            "globalTid": 77 << 24 | thread,
        }
        self.add("NVTX_EVENTS", row, **values)

    def write(self):
        for key, value in self.strings.items():
            self.add("StringIds", {"id": key, "value": value})
        with sqlite3.connect(self.path) as connection:
            for table, rows in self.tables.items():
                columns = ", ".join(f'"{c}"' for c in rows[0])
                connection.execute(f"CREATE TABLE {table} ({columns})")
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", [tuple(r.values()) for r in rows])
        connection.close()
        return self.path


@pytest.fixture
def export(tmp_path) -> Export:
    return Export(tmp_path / "report.sqlite")


US = 1_000


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["step 40", "step 41", "step 42"], [40, 41, 42]),
        (["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"], [1, 2, 3]),
        (["train_step", "train_step", "train_step"], [0, 1, 2]),
        (["TSL:train#step_num=7,_r=1#", "TSL:train#step_num=8,_r=1#", "TSL:train#step_num=9,_r=1#"], [7, 8, 9]),
        (["iteration_3", "iteration_4", "iteration_5"], [3, 4, 5]),
    ],
)
def test_steps_from_ranges(export, texts, labels):
    for number, text in enumerate(texts):
        at = number * 1000 * US
        export.range(at, at + 990 * US, text)
        export.range(at + 1, at + 500 * US, "aten::mm, seq = 3, op_id = 12")
        export.range(at + 2, at + 3, "optimizer.step 1 of 2")
        export.call(at + 10 * US, at + 15 * US, number + 1)
        export.kernel(at + 20 * US, at + 900 * US, number + 1)
    result = explain(export.write())
    assert [s["step"] for s in result["steps"]] == labels
    assert [s["duration_ms"] for s in result["steps"]] == pytest.approx([1, 1, 0.99])
    assert result["kernels"][0]["op"] == "aten::mm"
    assert result["launches"][0]["linked"] == 3


def test_processes_and_their_own_device_numbers(export):
    for pid in (77, 78):  # both see their GPU as number 0
        for k in range(3):
            at = k * 1000 * US
            export.kernel(at, at + 500 * US, k + 1, globalPid=pid << 24)
            export.call(at - 9, at - 2, k + 1, globalTid=pid << 24 | 5)
    export.add("PROCESSES", {"globalPid": 78 << 24, "pid": 78, "name": "rank1"})
    result = explain(export.write())
    assert [p["pid"] for p in result["processes"]] == [77, 78]
    assert [d["index"] for d in result["devices"]] == [0, 1]
    assert [d["kernels"] for d in result["devices"]] == [3, 3]
    assert result["processes"][1]["host"] == "rank1"
    assert {s["process"] for s in result["steps"]} == {0, 1}


def test_copies_pageable_and_pinned(export):
    export.kernel(0, 100 * US, 1)
    for code, source, target, size in ((1, 0, 2, 100), (1, 1, 2, 200), (2, 2, 1, 30), (8, 2, 2, 4)):
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {
                "start": 200 * US,
                "end": 210 * US,
                "deviceId": 0,
                "streamId": 1,
                "correlationId": 9,
                "globalPid": 77 << 24,
                "bytes": size,
                "copyKind": code,
                "srcKind": source,
                "dstKind": target,
            },
        )
    result = explain(export.write())
    copies = {(c["direction"], c["memory"]): c["bytes"] for c in result["copies"]}
    assert copies == {("h2d", "pageable"): 100, ("h2d", "pinned"): 200, ("d2h", "pinned"): 30, ("d2d", "device"): 4}


def test_driver_synchronization_is_seen(export):
    for k in range(20):
        at = k * 1000 * US
        export.range(at, at + 1000 * US, f"step {k}")
        export.call(at + 300 * US, at + 305 * US, k + 1)
        export.kernel(at + 310 * US, at + 810 * US, k + 1)
        export.call(at + 320 * US, at + 815 * US, 900 + k, name=3)
    assert causes(explain(export.write()))[0] == "sync_bound"


def test_old_and_thin_exports_are_tolerated(tmp_path):
    path = tmp_path / "thin.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, shortName)")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 10, NULL)")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', NULL, 3)")
    connection.close()
    result = explain(path)
    assert result["devices"][0]["kernels"] == 1
    assert result["devices"][0]["index"] == 0


def test_a_report_without_nsys_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVTX\x00 something binary")
    with pytest.raises(UnusableInput, match="nsys export --type sqlite"):
        read_trace(path)


def test_a_report_is_exported_where_nsys_is(tmp_path, monkeypatch, export):
    export.kernel(0, 10, 1)
    exported = export.write()
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "nsys"
    tool.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3 $4" = "export --type sqlite --output" ] || exit 3\nexec /bin/cp "{exported}" "$5"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVTX\x00 something binary")
    result = explain(path)
    assert result["devices"][0]["kernels"] == 1
    assert result["paths"] == [str(path)]
    tool.write_text("#!/bin/sh\necho no such report >&2\nexit 1\n")
    with pytest.raises(UnusableInput, match="no such report"):
        read_trace(path)


@pytest.mark.parametrize("graph, basis", [(5, "graph"), (None, "trace")])
def test_steps_from_graphs_with_ids(export, graph, basis):
    for number in range(1, 7):
        export.call(number * 1_000 * US, number * 1_000 * US + 5 * US, number)
        for k in range(10):
            at = (number * 1_000 + 10 + 20 * k) * US
            export.kernel(at, at + 15 * US, number, graphNodeId=k + 1, graphId=graph)
    result = explain(export.write())
    assert result["processes"][0]["steps_from"] == basis
    assert result["launches"][0]["graph_kernels"] == 60


def test_graphs_recorded_as_a_whole_are_work_of_the_gpu(export):
    """`nsys profile` records a graph as one piece, unless asked for its nodes: the kernels' table has none of them."""
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    graph = {column: KERNEL[column] for column in columns} | {"graphId": 5}
    for number in range(1, 7):
        at = number * 1_000 * US
        export.call(at, at + 5 * US, number)
        export.add(table, graph, start=at + 10 * US, end=at + 990 * US, correlationId=number)
    export.add(table, graph, correlationId=7)  # from 0 to 0: CUPTI has no times of this one
    result = explain(export.write())
    assert result["processes"][0]["steps_from"] == "graph"
    (device,) = result["devices"]
    assert device["any_busy_ms"] == device["kernel_busy_ms"] == pytest.approx(6 * 0.98)
    assert device["span_ms"] < 6
    assert result["launches"][0]["graph_kernels"] == device["kernels"] == 6
    assert result["kernels"][0]["name"] == "CUDA graph, recorded as a whole"
    assert not causes(result)


def test_a_report_without_cuda_tables_says_so(export):
    for step in range(3):
        export.range(step * 1000 * US, step * 1000 * US + 900 * US, f"step {step}")
    result = explain(export.write())
    assert result["verdict"] == "No findings: what a GPU did is not in this trace."
    assert any("recorded without --trace=cuda" in problem for problem in result["problems"])
