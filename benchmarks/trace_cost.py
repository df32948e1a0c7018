"""What reading and explaining profiles costs: XPlane's million events, PyTorch's 1 GB, Nsight's million rows."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS, STEP_US = 1_000, 10_000
PER_STEP = 250  # kernels in a step; each with its launch, and two host events beside it
KINETO_BYTES = int(os.environ.get("BENCH_KINETO_MB", "1000")) * 10**6
NSYS_ROWS = 1_000_000
# json.load builds about this many bytes of objects for each byte of such a file.
JSON_BLOW_UP = 6

_OP = (
    '{"ph":"X","cat":"cpu_op","name":"aten::op_%d","pid":19392,"tid":19392,"ts":%d.%03d,'
    '"dur":8.510,"args":{"External id":%d,"Record function id":0,"Concrete Inputs":["","0","0",'
    '"9223372036854775807","1"],"Input type":["long int","Scalar","Scalar","Scalar","Scalar"],'
    '"Input Strides":[[512,1],[],[],[],[]],"Input Dims":[[1,512],[],[],[],[]],"Ev Idx":%d}}'
)
_LAUNCH = (
    '{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":19392,"tid":19392,"ts":%d.%03d,'
    '"dur":4.970,"args":{"cbid":211,"correlation":%d,"External id":%d}}'
)
_KERNEL = (
    '{"ph":"X","cat":"kernel","name":"ampere_bf16_s16816gemm_bf16_128x64_%d","pid":0,"tid":7,"ts":%d'
    '.%03d,"dur":12.125,"args":{"External id":%d,"queued":0,"device":0,"context":1,"stream":7,'
    '"correlation":%d,"registers per thread":32,"shared memory":0,"blocks per SM":4.272727,"warps '
    'per SM":17.09091,"grid":[564,1,1],"block":[128,1,1],"est. achieved occupancy %%":27}}'
)
_STEP = (
    '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#%d","pid":19392,"tid":19392,"ts":%d.000,'
    '"dur":20000.0,"args":{}}'
)


def write_xplane(path: Path) -> int:
    """A million events as TensorFlow writes them, four stats each; returns how many."""
    sys.path.insert(0, str(HERE.parent / "harness" / "support"))
    from xspace_builder import Space

    space = Space()
    space.steps(STEPS, STEP_US)
    launches, ops = space.host.line("tf_gpu", 2), space.host.line("tf_Compute", 3)
    stream = space.gpu(0).line("Stream #13(Compute)", 13)
    for number in range(STEPS * PER_STEP):
        at, spare, kind = number * STEP_US / PER_STEP, 1 << 40 | number % PER_STEP, number % 40
        layer = f"model/layer_{kind}/MatMul:MatMul"
        launches.event("cuLaunchKernel", at, 5, correlation_id=number + 1, device_id=0, x=spare, y=spare)
        details = f"regs:{kind} shm:0 grid:{kind + 1},2,1 block:256,1,1"
        stream.event(
            f"ampere_sgemm_{kind}_tn",
            at + 6,
            20,
            correlation_id=number + 1,
            kernel_details=details,
            tf_op=layer,
            x=spare,
        )
        for part in range(2):
            ops.event(layer, at + 9 * part, 8, id=number % PER_STEP, x=spare, y=spare, z=spare)
    space.write(path)
    return STEPS * (1 + 4 * PER_STEP)


def write_kineto(path: Path, size: int) -> int:
    """A Kineto trace of about `size` bytes; returns the number of events."""
    events = number = 0
    ts = 1_419_247_332_972
    with path.open("w") as file:
        file.write('{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA H100"}],')
        file.write('"baseTimeNanoseconds":1751410836000000000,"traceEvents":[\n')
        while file.tell() < size:
            rows = [_STEP % (number // 1000, ts)]
            for _ in range(1000):
                number += 1
                ts += 20
                rows.append(_OP % (number % 40, ts, number % 1000, number, number))
                rows.append(_LAUNCH % (ts + 2, number % 1000, number, number))
                rows.append(_KERNEL % (number % 20, ts + 7, number % 1000, number, number))
            events += len(rows)
            file.write(",\n".join(rows) + ",\n")
        file.write(_STEP % (number // 1000, ts) + "]}")
    return events


def write_nsys(path: Path, rows: int) -> None:
    """An export with `rows` rows: as many kernels as calls, and a tenth of them ranges."""
    kernels = rows * 10 // 21
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        names = [(i, f"kernel_{i}") for i in range(40)] + [(99, "cudaLaunchKernel_v7000")]
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, "
            "contextId INT, streamId INT, correlationId INT, globalPid INT, demangledName INT, "
            "shortName INT, gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT, "
            "registersPerThread INT, staticSharedMemory INT, dynamicSharedMemory INT)"
        )
        pid = 77 << 24
        launch = (8, 1, 1, 128, 1, 1, 40, 0, 0)
        connection.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 18)})",
            ((k * 900, k * 900 + 500, 0, 1, 7, k + 1, pid, k % 40, k % 40, *launch) for k in range(kernels)),
        )
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT, "
            "globalTid INT, correlationId INT, nameId INT)"
        )
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 99)",
            ((k * 900 - 300, k * 900 - 100, pid | 5, k + 1) for k in range(kernels)),
        )
        connection.execute(
            "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT)"
        )
        connection.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL, ?)",
            (
                (k * 9000, k * 9000 + 8900, f"step {k}" if k % 10 == 0 else "aten::mm", pid | 5)
                for k in range(kernels // 10)
            ),
        )
    connection.close()


def measure(path: str, how: str) -> None:
    """In a process of its own: read and analyse, or json.load; prints what it took."""
    if how == "ours":
        from gpu_util_callback.traces import read_trace
        from gpu_util_callback.traces.imported import analyse
    start = time.perf_counter()
    if how == "ours":
        trace = read_trace(path)
        read_s = time.perf_counter() - start
        analyse(trace)
    else:
        with Path(path).open() as file:
            json.load(file)
        read_s = time.perf_counter() - start
    held = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    figures = {
        "read_s": read_s,
        "s": time.perf_counter() - start,
        "cpu_s": time.process_time(),
        "peak_mb": int(held[1]) / 1024,
    }
    print(json.dumps(figures))


def run(path: Path, how: str = "ours") -> dict:
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import trace_cost as t"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; t.measure(sys.argv[1], sys.argv[2])", str(path), how],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _took(figures: dict) -> str:
    """Wall time, with processor time beside it (this machine may have other work), and memory."""
    return f"{figures['s']:.1f} s ({figures['cpu_s']:.1f} s of processor), {figures['peak_mb']:,.0f} MB"


def _available() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def xplane(path: Path) -> dict:
    """TensorFlow's and JAX's files."""
    events = write_xplane(path)
    figures = run(path)
    print(
        f"XPlane, {path.stat().st_size / 1e6:,.0f} MB, {events:,} events: {_took(figures)}, "
        f"of it read {figures['read_s']:.2f} s (budget 5 s, 700 MB)"
    )
    return {"events": events, "whole_s": round(figures["s"], 2), "peak_mb": round(figures["peak_mb"])}


def kineto(path: Path) -> None:
    """PyTorch's, beside what reads any JSON."""
    events = write_kineto(path, KINETO_BYTES)
    size = path.stat().st_size
    print(f"PyTorch trace, {size / 1e6:,.0f} MB, {events:,} events: {_took(run(path))}")
    if size * JSON_BLOW_UP > _available():
        write_kineto(path, min(size, _available() // JSON_BLOW_UP // 2))
        print(f"  too large for json.load here; {path.stat().st_size / 1e6:,.0f} MB of it instead:")
        print(f"  ours      {_took(run(path))}")
    print(f"  json.load {_took(run(path, 'json'))}, and nothing analysed")


def nsys(path: Path) -> None:
    """Those of Nsight Systems."""
    write_nsys(path, NSYS_ROWS)
    print(f"Nsight export, {NSYS_ROWS:,} rows: {_took(run(path))} (budget 5 s)")


def main() -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = xplane(folder / "host.xplane.pb")
        kineto(folder / "large.pt.trace.json")
        (folder / "large.pt.trace.json").unlink()
        nsys(folder / "large.sqlite")
    return figures


if __name__ == "__main__":
    main()
