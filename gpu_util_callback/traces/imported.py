"""Explains a trace, and turns it into a recording, so that the tab shows it like any other run.

`analyse` makes the tables of a recording of each process, which the rules read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpu_util_callback.diagnosis import RULES, Evidence, Run, judge, judge_together, thresholds_in_force, thresholds_set
from gpu_util_callback.recording.storage import put
from gpu_util_callback.traces.analysis import Analysis, DeviceAnalysis, ProcessAnalysis, measure
from gpu_util_callback.traces.model import PS_PER_NS, Trace
from gpu_util_callback.traces.read import read_trace
from gpu_util_callback.traces.recorded import facts, kernel_rows, recording_tables, step_rows, traced_rows

logger = logging.getLogger("gpu_util_callback")

_TOOLS = {"xplane": "TensorFlow/JAX profiler", "kineto": "PyTorch profiler", "nsys": "Nsight Systems"}
_RECORD = "record the training with GpuUtilCallback"
_BUSY_BUCKETS = 512


def import_trace(
    path: str | os.PathLike[str], log_dir: str | os.PathLike[str], thresholds: Mapping | None = None
) -> list[str]:
    """Read a trace and write one recording per process of it.

    Args:
        path: a trace file, or a folder with one per host or rank.
        log_dir: the TensorBoard run to write into, or any fsspec URL.
        thresholds: other limits for the rules; see `analyse`.

    Returns: the paths of the recordings.

    Raises: UnusableInput when the trace cannot be read, or for a threshold that does not exist;
        OSError when `log_dir` cannot be written.
    """
    return write_recordings(analyse(read_trace(path), thresholds), log_dir)


def write_recordings(analysis: Analysis, log_dir: str | os.PathLike[str]) -> list[str]:
    """Write an analysed trace as recordings, with the event file that makes the tab appear.

    Returns: the paths of the recordings, one per process with steps.

    Raises: OSError.
    """
    from gpu_util_callback.recording.event_files import ScalarWriter

    written = []
    places = [place for place, p in enumerate(analysis.processes) if len(p.steps)]
    for number, place in enumerate(places):
        p = analysis.processes[place]
        written.append(_write(analysis, place, number, len(places), log_dir))
        events = ScalarWriter(log_dir, _rank(p, number))
        try:
            events.marker()
        finally:
            events.close()
    return written


def _rank(p: ProcessAnalysis, number: int) -> int:
    return number if p.process.rank is None else p.process.rank


def _zero_ns(analysis: Analysis, p: ProcessAnalysis) -> tuple[int, bool]:
    """Return the epoch time of the trace's time 0, ns, and whether the file states it; else its own date is taken.

    The first step then begins when the file was last written, or now where that is not known.
    """
    if p.process.epoch_ns is not None:
        return p.process.epoch_ns, True
    start = p.steps.extent[0] // PS_PER_NS
    try:
        written = Path(analysis.trace.paths[0]).stat().st_mtime_ns
    except OSError:
        written = time.time_ns()
    return written - start, False


def _write(analysis: Analysis, place: int, number: int, count: int, log_dir: str | os.PathLike[str]) -> str:
    """Write one process of a trace as a recording; return its folder.

    Args:
        place: the process's place in the analysis.
        number: its number among the `count` processes that are written.
    """
    from gpu_util_callback.recording.clock import Clock
    from gpu_util_callback.recording.writer import RecordingWriter

    p = analysis.processes[place]
    zero, has_time = _zero_ns(analysis, p)
    start, end = (zero + at // PS_PER_NS for at in p.steps.extent)
    manifest = _facts(analysis, p, number, count, start, end, has_time)
    steps = {"first_step": int(p.steps.label.min()), "stop_step": int(p.steps.label.max()) + 1}
    manifest["windows"] = [{"window": 0, **steps, "start_ns": start, "end_ns": end}]  # it is one itself
    tables = recording_tables(analysis, process=place, epoch_ns=zero)
    tables["steps"] = step_rows(p, zero)
    writer = RecordingWriter(log_dir, manifest, clock=Clock())
    for table, columns in tables.items():
        if columns and len(next(iter(columns.values()))):
            writer.append(table, columns)
    for d in p.devices:
        writer.append_samples(*_busy_curve(p, d, zero))
    evidence = Evidence(start)
    evidence.add(tables)
    writer.flush()
    limits = thresholds_in_force(analysis.thresholds_set)
    writer.update(
        diagnosis=judge(Run(manifest, evidence, end, ended=True), limits),
        source={**manifest["source"], "problems": analysis.problems},
    )
    writer.close("ended")
    return writer.path


def _facts(
    analysis: Analysis, p: ProcessAnalysis, number: int, count: int, start_ns: int, end_ns: int, has_time: bool
) -> dict[str, Any]:
    """Return a process's facts for the manifest; times in ns since the epoch.

    Args:
        number: of the process among the `count` that are written: its rank where the trace has none.
        has_time: the file says when it was recorded.
    """
    trace = analysis.trace
    tool = _TOOLS[trace.format]
    names = [Path(path).name for path in trace.paths]
    imported = f"imported from a {tool} trace"
    # (source, why it has nothing here, what to do about that): listed in the tab.
    cannot = [
        ("NVML", f"{imported}: a trace holds no power, clocks, temperature or memory of other processes", _RECORD),
        ("callbacks", f"{imported}: a trace has no callbacks or epochs", _RECORD),
    ]
    if not has_time:
        cannot.append(("clock", "the file does not say when it was recorded; its own date is shown instead", ""))
    if not p.process.has_host:
        unknown = "host threads were not traced: why the GPU was idle is unknown"
        cannot.append(("host", unknown, "trace the host as well"))
    process_facts = facts(p, trace.names, analysis.wording, lambda d: d.device.index)
    return {
        "host": p.process.host or socket.gethostname(),
        "pid": p.process.pid or 0,
        "rank": _rank(p, number),
        "world_size": count,
        "job": hashlib.sha256("\n".join(trace.paths).encode()).hexdigest()[:16],
        "job_source": "imported trace",
        "fit_index": 0,
        "framework": process_facts["framework"],
        "fit": process_facts["fit"],
        "source": {**process_facts["source"], "tool": tool, "format": trace.format, "files": names},
        "gpus": [
            {**of_rules, "name": d.device.name, "uuid": d.device.facts.get("uuid"), "label": f"GPU {d.device.index}"}
            for d, of_rules in zip(p.devices, process_facts["gpus"], strict=True)
        ],
        "unavailable": [{"source": source, "reason": reason, "cure": cure} for source, reason, cure in cannot],
        "started_ns": start_ns,
        "ended_ns": end_ns,
    }


def _busy_curve(p: ProcessAnalysis, d: DeviceAnalysis, zero_ns: int):
    """Return the share of time with work over equal parts of the steps, by each definition.

    Returns: the samples' group, columns, end of each of n parts (ns since the epoch), and float64 (n, 3), %: time
        with a kernel, with any work, and with copies alone.
    """
    edges = np.unique(np.linspace(*p.steps.extent, _BUSY_BUCKETS + 1).astype(np.int64))
    length = np.diff(edges)
    kernel = d.kernel_busy.measure(edges[:-1], edges[1:]) / length
    busy = d.any_busy.measure(edges[:-1], edges[1:]) / length
    copies = np.maximum(busy - kernel, 0.0)
    values = 100 * np.stack((kernel, busy, copies), axis=1)
    columns = ("kernel_busy_pct", "any_busy_pct", "exposed_copy_pct")
    return f"gpu{d.device.index}/trace", columns, edges[1:] // PS_PER_NS + zero_ns, values


class TorchProfile(Protocol):
    """A `torch.profiler.profile`."""

    def export_chrome_trace(self, path: str) -> object: ...


def trace_handler(
    log_dir: str | os.PathLike[str], *, keep_trace: bool = True, thresholds: Mapping | None = None
) -> Callable[[TorchProfile], None]:
    """Return a handler that shows your own PyTorch profile in the tab as a run.

    `GpuUtilCallback` and `GpuUtilMonitor` take short profiler windows by themselves; while yours is
    running they take none.

    Args:
        log_dir: the TensorBoard run to write into.
        keep_trace: keep each window's `*.pt.trace.json.gz` in `log_dir`, for Perfetto.
        thresholds: other limits for the rules over a trace, `{"input_bound.wait_pct": 10}`;
            `gpu-util trace --rules` lists them.

    Returns: a function for `on_trace_ready`. It never raises: a failure is logged.

    Raises: UnusableInput for a threshold that does not exist.

    Example:
        >>> with torch.profiler.profile(
        ...     schedule=torch.profiler.schedule(wait=5, warmup=1, active=5),
        ...     on_trace_ready=gpu_util_callback.trace_handler("logs/run1"),
        ... ) as profiler:
        ...     for batch in loader:
        ...         train(batch)
        ...         profiler.step()
    """
    thresholds_in_force(thresholds)
    lock = threading.Lock()

    def handle(profiler: TorchProfile) -> None:
        """Import the trace that the profiler has ready; an error is logged, and the training goes on."""
        try:
            with lock, tempfile.TemporaryDirectory(prefix="gpu-util-") as scratch:
                worker = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}"
                path = Path(scratch) / f"{worker}.pt.trace.json.gz"
                profiler.export_chrome_trace(str(path))
                if keep_trace:
                    put(log_dir, path.name, path.read_bytes())
                import_trace(path, log_dir, thresholds=thresholds)
        except Exception as error:  # profiling must not end a training
            logger.warning("the profiler's trace was not imported: %s", error)

    return handle


def analyse(trace: Trace, thresholds: Mapping | None = None) -> Analysis:
    """Explain a trace: `measure` it, and find the causes of GPU idle time.

    Args:
        thresholds: other limits for the rules, `{"input_bound": {"wait_pct": 10}}` or
            `{"input_bound.wait_pct": 10}`; `gpu-util trace --rules` lists them.

    Raises:
        UnusableInput: a threshold that does not exist or is not a number from 0 on.
    """
    limits = thresholds_in_force(thresholds)
    analysis = measure(trace)
    diagnosis = judge_together([_run(analysis, process) for process in analysis.processes], limits)
    analysis.verdict = diagnosis["verdict"]
    analysis.findings, analysis.silent = diagnosis["findings"], diagnosis["silent"]
    analysis.thresholds = {rule.cause: limits[rule.cause] for rule in RULES if rule.unknown_in_trace}
    analysis.thresholds_set = thresholds_set(limits)
    return analysis


def _run(analysis: Analysis, p: ProcessAnalysis) -> Run:
    """Return one process as the rules see a run, with times from the trace's own zero."""
    evidence = Evidence()
    evidence.add(
        {
            "steps": step_rows(p, 0),
            "traced_steps": traced_rows(p, 0, lambda d: d.index),
            "kernels": kernel_rows(p, lambda d: d.index),
        }
    )
    return Run(facts(p, analysis.trace.names, analysis.wording), evidence, ended=True)
