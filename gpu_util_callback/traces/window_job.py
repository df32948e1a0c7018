"""`python -m gpu_util_callback.traces.window_job XPLANE OUT.npz`: read one profiler window.

Runs beside a training as a process of the lowest priority: inside the training's own process the
reading would hold Python's lock while the training thread wants it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import analyse, read_trace

__all__ = ["TABLES", "load", "main", "run"]

TABLES = ("traced_steps", "kernels")


def run(path: str, out: str) -> None:
    """Analyse the trace at `path`; write its rows for the recording to `out`, a new .npz file.

    Arrays are named `<table>/<column>`, and `allocator<i>/<column>` for the curves of the
    framework's allocators; "about" is a JSON text with `events`, `device_events`, `problems` (lines
    of the profiler or the reader), `allocators` (`name`, and `gpu`, -1 = the host) and `cpu_s`, the
    processor time spent so far.

    Raises:
        UnusableInput: the file cannot be read.
    """
    trace = read_trace(path)
    analysis = analyse(trace)
    tables = analysis.tables()
    device_events = sum(len(d.events) for p in trace.processes for d in p.devices)
    arrays: dict[str, Any] = {
        f"{table}/{column}": _array(values)
        for table in TABLES
        for column, values in tables.get(table, {}).items()
    }
    allocators = analysis.processes[0].allocators
    for number, allocator in enumerate(allocators):
        epoch_ns = trace.processes[0].epoch_ns or 0
        arrays[f"allocator{number}/time_ns"] = allocator.time_ps // 1000 + epoch_ns
        arrays[f"allocator{number}/allocated_bytes"] = allocator.allocated_bytes
    about = {
        "events": device_events + sum(len(p.events) for p in trace.processes),
        "device_events": device_events,
        "problems": list(trace.problems),
        "allocators": [{"name": a.allocator, "gpu": a.device} for a in allocators],
        "cpu_s": time.process_time(),
    }
    with open(out, "xb") as file:  # noqa: PTH123 (numpy appends .npz to a mere path)
        np.savez(file, about=np.array(json.dumps(about)), **arrays)


def _array(values) -> np.ndarray:
    array = np.asarray(values)
    return array.astype(str) if array.dtype == object else array


def load(out: str | os.PathLike) -> tuple[dict[str, dict[str, np.ndarray]], dict]:
    """What `run` wrote: the tables, and "about"."""
    tables: dict[str, dict[str, np.ndarray]] = {table: {} for table in TABLES}
    with np.load(out, allow_pickle=False) as arrays:
        for name in arrays.files:
            table, _, column = name.partition("/")
            if column:
                tables.setdefault(table, {})[column] = arrays[name]
        about: dict = json.loads(str(arrays["about"]))
    return tables, about


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or 2 with one line on stderr."""
    path, out = sys.argv[1:] if argv is None else argv
    if hasattr(os, "nice"):
        os.nice(19)
    try:
        run(path, out)
    except (UnusableInput, MemoryError, OSError) as error:
        print(error or type(error).__name__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
