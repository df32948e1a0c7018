"""`python -m gpu_util_callback.profiling.reading_process`: read profiler windows in the background.

Runs as a process of the lowest priority, which its parent sets: inside the training's own process
the reading would hold Python's lock while the training thread wants it. It serves all
windows of a fit, since starting Python and importing numpy takes ten times longer than reading one.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import measure, read_trace
from gpu_util_callback.traces.recorded import recording_tables

MANY_EVENTS = 300_000
TABLES = ("traced_steps", "kernels", "step_kernels")


def run(path: str, out: str) -> int:
    """Analyse the trace at `path`; write its rows for the recording to `out`, a new .npz file.

    A Chrome trace is also compressed, into `<path>.gz`.

    Arrays are named `<table>/<column>`, and `allocator<i>/<column>` for the curves of the
    framework's allocators; "about" is a JSON text with `events`, `device_events`, `problems` (lines
    of the profiler or the reader) and `allocators` (the GPU of each).

    Returns: the number of events.

    Raises:
        UnusableInput: the file cannot be read.
    """
    trace = read_trace(path)
    analysis = measure(trace)
    tables = recording_tables(analysis)
    device_events = sum(len(d.events) for p in trace.processes for d in p.devices)
    arrays: dict[str, Any] = {
        f"{table}/{column}": _array(values) for table in TABLES for column, values in tables.get(table, {}).items()
    }
    allocators = [allocator for allocator in analysis.processes[0].allocators if allocator.device >= 0]
    for number, allocator in enumerate(allocators):
        epoch_ns = trace.processes[0].epoch_ns or 0
        arrays[f"allocator{number}/time_ns"] = allocator.time_ps // 1000 + epoch_ns
        arrays[f"allocator{number}/allocated_bytes"] = allocator.allocated_bytes
    events = device_events + sum(len(p.events) for p in trace.processes)
    about = {
        "events": events,
        "device_events": device_events,
        "problems": list(trace.problems),
        "allocators": [a.device for a in allocators],
    }
    with open(out, "xb") as file:  # noqa: PTH123 (numpy appends .npz to a mere path)
        np.savez(file, about=np.array(json.dumps(about)), **arrays)
    if path.endswith(".json"):
        with Path(path).open("rb") as text, gzip.open(f"{path}.gz", "wb", 4) as packed:
            shutil.copyfileobj(text, packed)
    return events


def _array(values) -> np.ndarray:
    array = np.asarray(values)
    return array.astype(str) if array.dtype == object else array


def load(out: str | os.PathLike) -> tuple[dict[str, dict[str, np.ndarray]], dict]:
    """Return what `run` wrote: the tables, and "about"."""
    tables: dict[str, dict[str, np.ndarray]] = {table: {} for table in TABLES}
    with np.load(out, allow_pickle=False) as arrays:
        for name in arrays.files:
            table, _, column = name.partition("/")
            if column:
                tables.setdefault(table, {})[column] = arrays[name]
        about: dict = json.loads(str(arrays["about"]))
    return tables, about


def main() -> int:
    """Do jobs as they come: a line of JSON on stdin each, `{"path", "out"}`; end with stdin.

    Each is answered by a line on stdout: `{"error"}`, null when the job is done.
    """
    for line in sys.stdin:
        job = json.loads(line)
        before = time.process_time()
        answer: dict[str, object] = {"error": None}
        events = 0
        try:
            events = run(job["path"], job["out"])
        except (UnusableInput, OSError) as error:
            answer["error"] = str(error)
        except MemoryError:
            answer["error"] = "too little memory"
        answer["cpu_s"] = time.process_time() - (before if _answered else 0.0)
        _answered.append(events)
        print(json.dumps(answer), flush=True)
        if events > MANY_EVENTS:  # its memory would not be returned to the system
            return 0
    return 0


_answered: list[int] = []  # events of each job


if __name__ == "__main__":
    sys.exit(main())
