#!/usr/bin/env bash
# HolisticTraceAnalysis 0.5.0: `get_temporal_breakdown` of a step of 10 ms in which the GPU waits 8 ms for its first kernel.
# Guess: idle 92 %, of the step or of the trace. Seen: 53 %: its time runs from the first kernel to the end of the last, so that
# a wait before the first one, or after the last, is no idle time: the longer a step waits for its input, the less is seen.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check HolisticTraceAnalysis==0.5.0
cd "$folder"
"$folder/env/bin/python" -W ignore - 2>/dev/null <<'PY'
import gzip, importlib.metadata, json, os

def event(category, name, start, duration, pid, tid, **arguments):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": pid, "tid": tid, "args": arguments}

events = [event("user_annotation", "ProfilerStep#1", 1000, 10_000, 100, 100)]
events.append(event("cpu_op", "aten::index", 1000, 8000, 100, 100))
for number in range(4):
    start, both = 9000 + 500 * number, {"correlation": number + 1, "External id": number + 1}
    events.append(event("cpu_op", "aten::mm", start, 50, 100, 100, **{"External id": number + 1}))
    events.append(event("cuda_runtime", "cudaLaunchKernel", start + 10, 5, 100, 100, **both))
    events.append(event("kernel", "sgemm", start + 100, 200, 0, 7, device=0, stream=7, **both))
os.makedirs("traces")
trace = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
with gzip.open("traces/rank0.json.gz", "wt") as file:
    json.dump(trace, file)

from hta.trace_analysis import TraceAnalysis
row = TraceAnalysis(trace_dir="traces").get_temporal_breakdown(visualize=False).iloc[0]
print(importlib.metadata.version("HolisticTraceAnalysis"), "us idle", row["idle_time(us)"], "of", row["kernel_time(us)"])
assert (row["idle_time(us)"], row["kernel_time(us)"]) == (900, 1700)
PY
