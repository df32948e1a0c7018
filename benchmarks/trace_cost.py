"""What reading and explaining a profiler trace costs: a million events, seconds and peak memory."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 1_000
PER_STEP = 250  # kernels in a step; each with its launch, and two host events beside it
STEP_PS = 10_000_000_000


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _event(metadata: int, offset_ps: int, duration_ps: int, *stats: bytes) -> bytes:
    body = b"\x08" + _varint(metadata) + b"\x10" + _varint(offset_ps) + b"\x18"
    return _field(4, body + _varint(duration_ps) + b"".join(_field(4, s) for s in stats))


def _integer(key: int, value: int) -> bytes:
    return b"\x08" + _varint(key) + b"\x20" + _varint(value)


def _text(key: int, reference: int) -> bytes:
    return b"\x08" + _varint(key) + b"\x38" + _varint(reference)


def _entry(number: int, key: int, name: str) -> bytes:
    value = b"\x08" + _varint(key) + _field(2, name.encode())
    return _field(number, b"\x08" + _varint(key) + _field(2, value))


def write_xplane(path: Path) -> int:
    """A million events as TensorFlow writes them, four stats each; returns how many."""
    stats = ["correlation_id", "device_id", "kernel_details", "tf_op", "step_num", "_r", "id", "x"]
    keys = {name: i + 1 for i, name in enumerate(stats)}
    names = {f"model/layer_{i}/MatMul:MatMul": 100 + i for i in range(40)}
    names |= {f"regs:{i} shm:0 grid:{i + 1},2,1 block:256,1,1": 200 + i for i in range(40)}
    metadata = b"".join(_entry(5, key, name) for name, key in (keys | names).items())
    kernels, launches, ops, steps = [], [], [], []
    correlation = 0
    for step in range(STEPS):
        at = step * STEP_PS
        marks = (_integer(keys["step_num"], step), _integer(keys["_r"], 1))
        steps.append(_event(1, at, STEP_PS - 1_000_000, *marks))
        for k in range(PER_STEP):
            correlation += 1
            t = at + k * (STEP_PS // PER_STEP)
            link = _integer(keys["correlation_id"], correlation)
            device = _integer(keys["device_id"], 0)
            spare = _integer(keys["x"], 1 << 40 | k)
            launches.append(_event(2, t, 5_000_000, link, device, spare, spare))
            texts = (_text(keys["kernel_details"], 200 + k % 40), _text(keys["tf_op"], 100 + k % 40))
            kernels.append(_event(10 + k % 40, t + 6_000_000, 20_000_000, link, *texts, spare))
            for part in range(2):
                ident = _integer(keys["id"], k)
                ops.append(_event(60 + k % 40, t + part * 9_000_000, 8_000_000, ident, *[spare] * 3))
    events = _entry(4, 1, "train") + _entry(4, 2, "cuLaunchKernel")
    events += b"".join(_entry(4, 10 + i, f"ampere_sgemm_{i}_tn") for i in range(40))
    events += b"".join(_entry(4, 60 + i, f"model/layer_{i}/MatMul:MatMul") for i in range(40))

    def line(key: int, name: str, parts: list[bytes]) -> bytes:
        return _field(3, b"\x08" + _varint(key) + _field(2, name.encode()) + b"".join(parts))

    host = [line(1, "python", steps), line(2, "tf_gpu", launches), line(3, "tf_Compute", ops)]
    gpu = [line(13, "Stream #13(Compute)", kernels)]
    with path.open("wb") as file:
        for name, lines in (("/host:CPU", host), ("/device:GPU:0", gpu)):
            file.write(_field(1, _field(2, name.encode()) + b"".join(lines) + events + metadata))
    return len(kernels) + len(launches) + len(ops) + len(steps)


def measure(path: str) -> None:
    """In a process of its own: read, analyse, write the JSON; prints what it took."""
    from gpu_util_callback.traces import read_trace
    from gpu_util_callback.traces.imported import analyse
    from gpu_util_callback.traces.output import trace_json

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    trace = read_trace(path)
    read = time.perf_counter()
    analysis = analyse(trace)
    done = time.perf_counter()
    result = trace_json(analysis)
    print(
        json.dumps(
            {
                "read_s": read - start,
                "analyse_s": done - read,
                "json_s": time.perf_counter() - done,
                "base_mb": base / 1024,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "steps": len(result["steps"]),
                "kernels": result["devices"][0]["kernels"],
            }
        )
    )


def run(path: Path) -> dict:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import trace_cost as t"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; t.measure(sys.argv[1])", str(path)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.xplane.pb"
        events = write_xplane(path)
        figures = run(path)
        size = path.stat().st_size / 1e6
        total = figures["read_s"] + figures["analyse_s"]
        print(
            f"XPlane, {events:,} events, {size:.0f} MB: read {figures['read_s']:.2f} s, "
            f"analysed {figures['analyse_s']:.2f} s, together {total:.2f} s (budget 5 s); "
            f"peak {figures['peak_mb']:.0f} MB (budget 700 MB)"
        )
    return {"events": events, "whole_s": round(total, 2), "peak_mb": round(figures["peak_mb"])}


if __name__ == "__main__":
    main()
