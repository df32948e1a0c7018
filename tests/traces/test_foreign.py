"""Whole files of other tools are named as what they are, and no pickle is opened."""

import cProfile
import csv
import gzip
import json
import pickle
import sqlite3
import zipfile

import pytest
from test_kineto_layouts import event, mark, plain, write

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse
from gpu_util_callback.traces.read import find_traces


class Opened:
    """Raises where it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was opened')",))


def refused(path) -> str:
    with pytest.raises(UnusableInput) as caught:
        read_trace(path)
    said = str(caught.value)
    assert "gpu-util reads traces of" in said
    return said


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def record(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


PERFETTO = b"".join(
    record(1, packet)
    for packet in (
        record(6, record(1, record(1, 6) + record(2, 10**15))) + record(10, 1),
        record(8, 10**15) + record(11, record(9, 1)) + record(10, 1),
    )
)
# First packets that have a plane's field numbers alone: clocks, processes, the kernel's events, of which 4 kB are seen.
CLOCK = record(1, record(6, record(1, record(1, 6) + record(2, 10)) + record(2, 6)))
PROCESSES = record(1, record(2, record(1, record(1, 4) + record(3, b"train"))))
KERNEL_EVENTS = record(1, record(1, record(1, 0) + record(2, record(1, 5)) * 2000) + record(10, 1))
MODULE = record(1, record(1, b"jit_step") + record(2, b"main.5"))
PPROF = record(1, record(1, 1) + record(2, 2)) + record(1, record(1, 3) + record(2, 4)) + record(6, b"space")


@pytest.mark.parametrize(
    ("name", "content", "tool"),
    [
        ("trace.pftrace", PERFETTO, "Perfetto"),
        ("clock.perfetto-trace", CLOCK, "Perfetto"),
        ("processes.pftrace", PROCESSES, "Perfetto"),
        ("perfetto-trace-4.proto", KERNEL_EVENTS, "Perfetto"),
        ("module.hlo_proto.pb", MODULE, "an HLO module"),
        ("perfetto", PERFETTO, "such as a Perfetto trace"),
        ("packets.proto", PROCESSES, "such as a Perfetto trace"),
        ("memory.prof", gzip.compress(PPROF, mtime=0), "pprof"),
        ("snapshot.pickle", pickle.dumps(Opened()), "a pickle can run any code"),
        ("snapshot.pkl", pickle.dumps({"segments": [Opened()]}, 2), "a pickle can run any code"),
        ("k.ncu-rep", b"NVR\0\1\2", "Nsight Compute"),
        ("old.qdrep", b"\1\2\3", "older Nsight Systems"),
        ("flame.svg", b'<?xml version="1.0"?><svg></svg>', "flame graph"),
        ("stacks.txt", b"MainThread;main (t.py:3);load (t.py:9) 12\nMainThread;main 3\n", "py-spy"),
        ("perf.data", b"PERFILE2" + bytes(64), "perf, memray"),
        ("table.parquet", b"PAR1" + bytes(64), "nsys export"),
        ("stream.arrows", b"\xff\xff\xff\xff\x78\1\0\0" + bytes(64), "nsys export"),
        ("traces.otf2", b"\x03BOTF2\0\3" + bytes(64), "OTF2"),
        ("signposts.xml", b'<?xml version="1.0"?>\n<trace-query-result>\n<node/>', "torch.mps.profiler"),
        ("kernels.csv", b"Time (%),Total Time (ns),Instances,Name\n90.1,5,1,gemm\n", "CSV"),
        ("nvprof.csv", b'==7== NVPROF is profiling\n==7== Result:\n"Start","Duration","Name"\n', "CSV"),
        ("events.out.tfevents.1.host", bytes(40), "log directory"),
    ],
)
def test_files_that_are_no_json(tmp_path, name, content, tool):
    path = tmp_path / name
    path.write_bytes(content)
    assert tool in refused(path)


def test_files_that_libraries_write(tmp_path):
    profile = tmp_path / "run.prof"
    profiler = cProfile.Profile()
    for _ in range(2):  # empty, then with a call
        profiler.dump_stats(profile)
        assert "cProfile" in refused(profile)
        profiler.runcall(sorted, [])
    archive = tmp_path / "model.pt"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data.pkl", pickle.dumps(Opened()))
    assert "zip archive" in refused(archive)
    table = tmp_path / "7_kernel_trace.csv"
    with table.open("w") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("Kind", "Agent_Id", "Kernel_Name"), ("K", 1, "gemm")])
    assert "CSV" in refused(table)
    database = tmp_path / "7_results.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE rocpd_kernel_dispatch_0001 (id INTEGER, start INTEGER, end INTEGER)")
    assert "rocpd" in refused(database)


@pytest.mark.parametrize(
    ("document", "tool"),
    [
        ({"rocprofiler-sdk-tool": [{"metadata": {}, "buffer_records": {"kernel_dispatch": []}}]}, "rocprofv3"),
        ({"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}, "speedscope"),
        ({"shared": {"frames": []}, "profiles": [], "exporter": "py-spy"}, "speedscope"),
        ({"nodes": [], "startTime": 1, "samples": [1], "timeDeltas": [5]}, "its members: nodes, startTime"),
        ({"segments": [], "device_traces": [[]]}, "memory snapshot"),
        ({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}, "execution trace"),
        ({"summary": [], "neuroncore_utilization": []}, "Neuron"),
        ({"rows": [1, 2], "columns": ["a"]}, "its members: rows, columns"),
        ({"in\x85two": 1, "n" * 5_000: 2}, f"its members: in two, {'n' * 40})"),
        ({"traceEvents": []}, "holds no trace events"),
        ([{"count": 100}, {"name": "conv", "timeMs": 1.2}], "its members: count"),  # trtexec --exportProfile
        ([[1690000000.0, 1, 0.5]], "holds no trace events"),
    ],
)
def test_json_of_another_tool(tmp_path, document, tool):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    assert tool in refused(path)


@pytest.mark.parametrize(
    "large",
    [
        {"rocprofiler-sdk-tool": [{"buffer_records": [{"start": i, "note": 'a "brace" {['} for i in range(450_000)]}]},
        {"traceEvents": [], "systemTraceEvents": "# tracer: \\ nop\n" * 1_400_000},
    ],
)
def test_a_large_member_is_passed_over(tmp_path, large):
    path = tmp_path / "large.json"
    path.write_text(json.dumps(large))
    assert path.stat().st_size > 17 << 20
    refused(path)


def test_a_trace_beside_a_large_member_is_read(tmp_path):
    path = write(tmp_path, [event("cpu_op", "aten::mm", 0, 5)], other={"counters": ['\\"]}' * 10] * 600_000})
    assert path.stat().st_size > 17 << 20
    assert len(read_trace(path).processes[0].events) == 1


COUNTER = {"ph": "C", "name": "GPU clock", "pid": 1, "ts": 5, "args": {"value": 3}}


@pytest.mark.parametrize(
    ("events", "tool"),
    [
        ([COUNTER] * 3 + [mark(1, "gpu")], "without activities: 3 counters"),
        ([{"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 1}, {"ph": "E", "pid": 1, "tid": 1, "ts": 2}], "1 begin"),
        ([plain("f", 0, 5, 1)], "1 events without a category"),
        ([COUNTER | {"ph": "a" * 5_000}], "1 events 'aaaaaaaaa'. Not read"),
        ([mark(1, "/device:GPU:0"), plain("fusion.1", 0, 9, 1)], "give the *.xplane.pb in its folder"),
        ([mark(2, "/host:CPU"), plain("PjitFunction(f)", 0, 9, 2)], "give the *.xplane.pb in its folder"),
        ([COUNTER, mark(1, "Ascend Hardware")], "Ascend NPU"),
        ([event("FEE", "main (t.py:3)", 0, 5)], "VizTracer"),
        ([event("task::train", "task::train", 0, 5)], "Ray's timeline"),
        ([event("Session", "model_loading_uri", 0, 5), event("Node", "Conv_kernel_time", 5, 9)], "ONNX Runtime"),
    ],
)
def test_chrome_traces_of_others(tmp_path, events, tool):
    assert tool in refused(write(tmp_path, events))


def test_the_host_beside_an_accelerator_is_read_and_the_rest_said(tmp_path):
    events = [event("cpu_op", "aten::mm", 0, 5), plain("MatMul", 2, 3, 9), mark(9, "Ascend Hardware")]
    analysis = analyse(read_trace(write(tmp_path, events)))
    assert any("Ascend NPU, whose work is not read" in problem for problem in analysis.problems)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL.parquet", b"PAR1\x15\x00", "nsys export -t sqlite"),
        ("NVTX_EVENTS.arrow", b"\xff\xff\xff\xff\x10\x00", "nsys export -t sqlite"),
        ("rank0/trace.pftrace", PERFETTO, "a Perfetto trace"),
        ("old/snapshot.pickle", b"\x80\x04\x95", "a pickle"),
        ("host/7_kernel_trace.csv", b'"Kind","Agent_Id","Start_Timestamp"\n', "CSV"),
        ("host/7_results.json", b'{"rocprofiler-sdk-tool": []}', "rocprofv3"),
        ("7_results/traces.otf2", b"\x03BOTF2", "OTF2"),
        ("run.trace/form.template", b"bplist00", "Instruments"),
        ("run.gputrace/capture", b"MTSP", "Metal"),
    ],
)
def test_a_folder_of_another_tool_s_files_is_named(tmp_path, name, content, said):
    """Nsight Systems exports folders of tables; what is beside a trace hides none."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "notes.txt").write_text("Remember the milk.")
    assert said in refused(tmp_path)
    trace = write(tmp_path, [])
    assert find_traces(tmp_path) == ([trace], 0)
