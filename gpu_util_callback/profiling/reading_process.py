"""The process that reads a profiler window in the background.

It has the lowest priority, which its parent sets: inside the training's own process the reading would hold
Python's lock while the training thread wants it.
"""

from __future__ import annotations

import gzip
import pickle
import shutil
import sys
import time
from pathlib import Path

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.profiling.window_reader import WindowRows
from gpu_util_callback.traces import measure, read_trace
from gpu_util_callback.traces.recorded import recording_tables


def run(path: str) -> WindowRows:
    """Analyse the trace at `path`. A Chrome trace is also compressed, into `<path>.gz`.

    Raises:
        UnusableInput: the file cannot be read.
    """
    trace = read_trace(path)
    analysis = measure(trace)
    device_events = sum(len(d.events) for p in trace.processes for d in p.devices)
    events = device_events + sum(len(p.events) for p in trace.processes)
    if path.endswith(".json"):
        with Path(path).open("rb") as text, gzip.open(f"{path}.gz", "wb", 4) as packed:
            shutil.copyfileobj(text, packed)
    return WindowRows(recording_tables(analysis), events, device_events, trace.problems)


def main(path: str, out: str) -> None:
    """Read the trace at `path`, and leave the pickled `WindowRows` at `out`; ends the process by an error's message."""
    try:
        rows = run(path)
    except (UnusableInput, OSError) as problem:
        sys.exit(str(problem))
    except MemoryError:
        sys.exit("too little memory")
    rows.cpu_s = time.process_time()
    Path(out).write_bytes(pickle.dumps(rows))
