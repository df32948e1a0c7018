"""`python -m gpu_util_callback.profiling.reading_process`: read profiler windows in the background.

Runs as a process of the lowest priority, which its parent sets: inside the training's own process
the reading would hold Python's lock while the training thread wants it. It serves all
windows of a fit, since starting Python and importing numpy takes ten times longer than reading one.
"""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import sys
import time
from pathlib import Path

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.profiling.window_reader import WindowRows, allocator_curve
from gpu_util_callback.traces import measure, read_trace
from gpu_util_callback.traces.model import PS_PER_NS
from gpu_util_callback.traces.recorded import recording_tables

MANY_EVENTS = 300_000


def run(path: str) -> WindowRows:
    """Analyse the trace at `path`. A Chrome trace is also compressed, into `<path>.gz`.

    Raises:
        UnusableInput: the file cannot be read.
    """
    trace = read_trace(path)
    analysis = measure(trace)
    epoch_ns = trace.processes[0].epoch_ns or 0
    curves = [
        allocator_curve(allocator.device, allocator.time_ps // PS_PER_NS + epoch_ns, allocator.allocated_bytes)
        for allocator in analysis.processes[0].allocators
        if allocator.device >= 0
    ]
    device_events = sum(len(d.events) for p in trace.processes for d in p.devices)
    events = device_events + sum(len(p.events) for p in trace.processes)
    if path.endswith(".json"):
        with Path(path).open("rb") as text, gzip.open(f"{path}.gz", "wb", 4) as packed:
            shutil.copyfileobj(text, packed)
    return WindowRows(recording_tables(analysis), events, device_events, trace.problems, allocators=curves)


def main() -> int:
    """Do jobs as they come: a line of JSON on stdin each, `{"path", "out"}`; end with stdin.

    Each is answered by a line on stdout: `{"error"}`, null when `out` has the pickled `WindowRows`.
    """
    cpu_s = 0.0  # until the job before was done; the first one's includes the imports
    for line in sys.stdin:
        job = json.loads(line)
        error, events = None, 0
        try:
            rows = run(job["path"])
            events, rows.cpu_s = rows.events, time.process_time() - cpu_s
            Path(job["out"]).write_bytes(pickle.dumps(rows))
        except (UnusableInput, OSError) as problem:
            error = str(problem)
        except MemoryError:
            error = "too little memory"
        cpu_s = time.process_time()
        print(json.dumps({"error": error}), flush=True)
        if events > MANY_EVENTS:  # its memory would not be returned to the system
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
