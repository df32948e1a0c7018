"""A trace in the terminal: what holds the GPU back, time of the steps, kernels."""

from __future__ import annotations

import numpy as np

from gpu_util_callback.recording.schema import CATEGORIES, IDLE_CATEGORIES
from gpu_util_callback.report.screen import (
    COMPARING,
    SUMMARY,
    Detail,
    Pen,
    account_lines,
    finding_lines,
    grouped,
    not_checked_lines,
    strip_control,
    table,
    thresholds_lines,
)
from gpu_util_callback.traces.analysis import Analysis, DeviceAnalysis, ProcessAnalysis
from gpu_util_callback.words import duration, precise

_GPUS, _PROCESSES, _KERNELS, _NOTES = 2, 3, 5, 4  # shown in the summary
_ROWS_SHOWN = 10  # of the tables of `--all`
_APART = 0.1  # of the mean: a median as far from it as this is shown beside it
_LISTED_GPUS = 4


def render(
    analysis: Analysis, width: int = 100, color: bool = False, unicode: bool = True, detail: Detail = SUMMARY
) -> str:
    """Render the analysis as text for a terminal: a summary that fits one screen.

    Args:
        width: columns to use, 40 at least.
        color: ANSI colours.
        unicode: False = ASCII characters only.
        detail: what to show beyond the summary.
        analysis: of a trace.
    """
    pen = Pen(width, color, unicode)
    lines = [pen.bold(line) for line in pen.wrap(analysis.verdict)]
    lines += [pen.dim(pen.cut(strip_control(", ".join(analysis.trace.paths))))]
    lines += finding_lines(grouped(map(_gpus_before_title(analysis), analysis.findings)), pen, detail)
    shown = analysis.processes if detail.all else analysis.processes[:_PROCESSES]
    for p in shown:
        lines += _process(p, len(analysis.processes) > 1, pen, detail)
    if len(shown) < len(analysis.processes):
        more = len(analysis.processes) - len(shown)
        lines += ["", f"… and {more:,} more processes (--all)"]
    notes = _silent(analysis, pen, detail)
    notes += thresholds_lines(analysis.thresholds_set, pen)
    problems = [strip_control(problem) for problem in analysis.problems]
    most = len(problems) if detail.evidence or detail.all else _NOTES
    for problem in problems[:most]:
        notes += [pen.paint(line, "33") for line in pen.wrap(problem, "  ", "note: ")]
    if problems[most:]:
        notes.append(pen.dim(f"… and {len(problems) - most} more notes (--evidence)"))
    return pen.finish([*lines, *(["", *notes] if notes else [])])


def _gpus_before_title(analysis: Analysis):
    """Return a function that puts the GPUs of a finding in front of its title."""

    def named(finding: dict) -> dict:
        """Return a finding whose title begins with its GPUs, where several could be meant."""
        gpus = ", ".join(str(index) for index in finding["gpus"])
        if len(analysis.devices) < 2 or not gpus or f"GPU {gpus}" in finding["title"]:
            return finding
        if len(finding["gpus"]) > _LISTED_GPUS:
            return {**finding, "title": f"{len(finding['gpus'])} GPUs: {finding['title']}"}
        return {**finding, "title": f"GPU {gpus}: {finding['title']}"}

    return named


def _tail(text: str, width: int) -> str:
    """Return the end of a path that is too long: the layer matters more than the model's name."""
    return text if len(text) <= width else "…" + text[len(text) - max(width - 1, 1) :]


def _time(ps: float) -> str:
    return precise(ps / 1e12)


_BASIS = {
    "marker": "from step markers",
    "call": "no step markers: one per call of the train function",
    "iteration": "no step markers: one per batch fetched",
    "range": "no step markers: from a range that repeats",
    "graph": "no step markers: from CUDA graphs that repeat",
}


def _process(process: ProcessAnalysis, several: bool, pen: Pen, detail: Detail) -> list[str]:
    """Return the lines on one process of a trace: its steps, GPUs, kernels, or the host's operations.

    Args:
        several: the trace has more processes, so that it is named.
    """
    out = [""]
    if several:
        pid = f" pid {process.process.pid}" if process.process.pid is not None else ""
        out.append(pen.bold(f"{strip_control(process.process.host)}{pid}"))
    out += pen.wrap(_steps(process))
    if not process.devices:
        ops = process.ops.measure(process.steps.start_ps, process.steps.end_ps)
        busy = f", ops running {_time(float(ops.mean()))} a step" if len(ops) else ""
        subject = "a TPU's trace" if process.process.facts.get("tpu") else "no GPU in this trace"
        out.append(f"{subject}: the host's side only{busy}")
    shown = process.devices if detail.all else sorted(process.devices, key=_kernel_share)[:_GPUS]
    for device in shown:
        out += _device(device, process, pen)
    if len(shown) < len(process.devices):
        out.append(f"… and {len(process.devices) - len(shown):,} more GPUs, busier than these (--all)")
    out += _kernel_table(process, pen, detail)
    if not process.devices:
        out += _op_table(process, pen, detail)
    return out


def _steps(process: ProcessAnalysis) -> str:
    """Return how many steps there are, how they were found, and how long they took on average, as a line."""
    if not len(process.steps):
        return "nothing was recorded: no GPU events, no host events"
    durations_ps = process.steps.end_ps - process.steps.start_ps
    first, last = int(process.steps.label[0]), int(process.steps.label[-1])
    if len(process.steps) > 1:  # several steps
        line = f"{len(process.steps):,} steps (steps {first:,}–{last:,}; {_BASIS[process.steps.basis]}), "
        mean, median = float(durations_ps.mean()), float(np.median(durations_ps))
        line += f"{_time(mean)} each on average"
        line += f" (median {_time(median)})" if abs(median - mean) > _APART * mean else ""
    elif process.steps.basis == "trace":  # no steps: the trace as one
        extent = "from the first to the last GPU work" if process.idle_judged else "the whole trace"
        line = f"no steps found: {extent}, {_time(float(durations_ps[0]))}"
    else:
        line = f"1 step (step {first:,}; {_BASIS[process.steps.basis]}), {_time(float(durations_ps[0]))}"
    fetched = float(process.host_input_ps().mean())
    return line + (f", input fetched {_time(fetched)}{' a step' if len(process.steps) > 1 else ''}" if fetched else "")


def _kernel_share(d: DeviceAnalysis) -> float:
    start, end = d.span
    return d.kernel_busy.total / max(1, end - start)


def _device(d: DeviceAnalysis, p: ProcessAnalysis, pen: Pen) -> list[str]:
    """Return the lines on a GPU: its time in all, and in its steps by category."""
    start, end = d.span
    in_all = f"in all: kernels {_time(d.kernel_busy.total)}, any work {_time(d.any_busy.total)}"
    out = ["", *pen.wrap(f"{_title(d)}   {in_all} of {_time(end - start)}")]
    seconds = {c: int(d.account.steps[c].sum()) / 1e12 for c in CATEGORIES}
    if not p.idle_judged:
        seconds["idle"] = sum(seconds.pop(c) for c in IDLE_CATEGORIES)
    total = sum(seconds.values())
    return out + account_lines(f"Its steps, {duration(total)}", seconds, total, pen, gpu=True)


def _title(d: DeviceAnalysis) -> str:
    """Return the GPU's number, with its model if the trace knows it."""
    name = strip_control(d.device.name)
    if name.startswith("GPU (") and name.endswith(")"):
        name = f"compute capability {name[5:-1]}"
    return f"GPU {d.index}" if name in ("", "GPU") else f"GPU {d.index}  {name}"


def _kernel_table(p: ProcessAnalysis, pen: Pen, detail: Detail) -> list[str]:
    """Return the costliest kernels of all GPUs as a table; [] without kernels."""
    rows = [(k, d) for d in p.devices for k in d.kernels]
    if not rows:
        return []
    rows.sort(key=lambda row: -row[0].total_ps)
    total = sum(k.total_ps for k, _ in rows) or 1  # kernels without duration have no share
    most = _ROWS_SHOWN if detail.all else _KERNELS
    shown = rows[:most]
    columns = {
        "total": [_time(k.total_ps) for k, _ in shown],
        "share": [f"{100 * k.total_ps / total:.1f} %" for k, _ in shown],
        "calls": [str(k.count) for k, _ in shown],
        "mean": [_time(k.total_ps / k.count) for k, _ in shown],
        "TC": [{"yes": "yes", "no": "no", "unknown": "?"}[k.tensor_core] for k, _ in shown],
        "GPU": [str(d.index) if p.devices[1:] else "" for _, d in shown],
        "kernel": [strip_control(k.name.removeprefix("void ")) for k, _ in shown],
        "op": [_tail(strip_control(k.op), _op_room(pen)) if k.op else "" for k, _ in shown],
    }
    out = ["", pen.bold("Kernels") + "  (TC = tensor cores)", *_indented(columns, pen)]
    if len(rows) > most:
        out.append(f"  … {len(rows) - most:,} more (--json has all)")
    return out


def _op_room(pen: Pen) -> int:
    return max(8, (pen.width - 48) // 2)  # what the numbers leave, halved


def _indented(columns: dict[str, list[str]], pen: Pen) -> list[str]:
    return [f"  {line}" for line in table(columns, pen.width - 2, {"kernel": 12, "op": _op_room(pen), "stage": 12})]


def _op_table(p: ProcessAnalysis, pen: Pen, detail: Detail) -> list[str]:
    """Return the busiest operations of the host, and the stages of its input, as tables; [] without operations."""
    if not p.host_ops:
        return []
    most = _ROWS_SHOWN if detail.all else _KERNELS
    ops, stages = p.host_ops[:most], p.stages[:most]
    columns = {
        "time": [_time(op.total_ps) for op in ops],
        "calls": [str(op.count) for op in ops],
        "op": [strip_control(f"{op.name} ({op.type})" if op.type else op.name) for op in ops],
    }
    out = ["", pen.bold("Busiest ops on the host"), *_indented(columns, pen)]
    if stages:
        columns = {
            "self": [_time(stage.self_ps) for stage in stages],
            "calls": [str(stage.count) for stage in stages],
            "stage": [strip_control(stage.path) for stage in stages],
        }
        out += ["", pen.bold("Input pipeline"), *_indented(columns, pen)]
    return out


def _silent(analysis: Analysis, pen: Pen, detail: Detail) -> list[str]:
    """List the causes that could not be checked; imbalance is omitted for a single GPU."""
    alone = len(analysis.devices) < 2
    silent = [entry for entry in analysis.silent if entry["cause"] not in COMPARING or not alone]
    return not_checked_lines(silent, pen, detail) if analysis.devices else []
