"""The terminal view of a trace: time of the steps, kernels, and findings."""

from __future__ import annotations

import re
import shutil
import textwrap

import numpy as np

from gpu_util_callback.traces.analysis import (
    LONE_CALL,
    Analysis,
    DeviceAnalysis,
    ProcessAnalysis,
)
from gpu_util_callback.traces.breakdown import CATEGORIES
from gpu_util_callback.traces.findings import thresholds_set
from gpu_util_callback.traces.model import PS_PER_MS, PS_PER_US

__all__ = ["render"]

# category -> (label, SGR colour, character without colour)
_LOOK = {
    "kernel": ("kernels", "32", "█"),
    "copy_h2d": ("copy to GPU", "36", "▒"),
    "copy_d2h": ("copy from GPU", "36", "▒"),
    "copy_d2d": ("copy on GPU", "36", "▒"),
    "collective": ("communication", "34", "▓"),
    "idle_input": ("waits for input", "31", "i"),
    "idle_launch": ("waits for launches", "33", "l"),
    "idle_sync": ("waits after a sync", "35", "s"),
    "idle_host": ("waits for the host", "33", "h"),
    "other": ("other", "90", "·"),
    "idle": ("idle, not judged", "90", "-"),
}
_ASCII = str.maketrans({"█": "#", "▒": "=", "▓": "%", "■": "#", "●": "*", "·": ".", "µ": "u",
                        "…": "~", "←": "<", "–": "-", "×": "x"})  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_INDENT: dict = {"initial_indent": "    ", "subsequent_indent": "    "}
_STEPS_SHOWN = 12
_ROWS_SHOWN = 10


def render(
    analysis: Analysis, width: int | None = None, color: bool = False, unicode: bool = True
) -> str:
    """Render the analysis as text for a terminal.

    Args:
        width: columns to use; default: the terminal's.
        color: whether to use ANSI colours.
        unicode: False = ASCII characters only.
    """
    width = max(60, min(width or shutil.get_terminal_size((100, 24)).columns, 140))
    out: list[str] = []
    paint = _painter(color)
    trace = analysis.trace
    out.append(paint("1", _fit(_clean(", ".join(trace.paths)), width)))
    for p in analysis.processes:
        out.extend(_process(p, len(analysis.processes) > 1, width, paint))
    out.extend(_findings(analysis, width, paint))
    limits = ", ".join(f"{name}={value:g}" for name, value in thresholds_set(analysis).items())
    if limits:
        out.append(f"Thresholds set: {limits}.")
    for problem in analysis.problems:
        out.append(paint("33", f"note: {_clean(problem)}"))
    text = "\n".join(line.rstrip() for line in out) + "\n"
    return text if unicode else text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def _clean(text: str) -> str:
    """Remove control characters from a name that comes from a file."""
    return _CONTROL.sub("?", text)


def _painter(color: bool):
    return (lambda code, text: f"\x1b[{code}m{text}\x1b[0m") if color else (lambda code, text: text)


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _tail(text: str, width: int) -> str:
    """Return the end of a path that is too long: the layer matters more than the model's name."""
    return text if len(text) <= width else "…" + text[len(text) - max(width - 1, 1) :]


def _time(ps: float) -> str:
    ms = ps / PS_PER_MS
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.3g} ms" if ms >= 0.1 or ps == 0 else f"{ps / PS_PER_US:.3g} µs"


_BASIS = {
    "marker": "from step markers",
    "call": "no markers: one per call of the train function",
    "iteration": "no markers: one per batch fetched",
    "trace": "no steps in it: the whole trace as one",
}


def _process(p: ProcessAnalysis, several: bool, width: int, paint) -> list[str]:
    out = [""]
    duration = p.steps.end_ps - p.steps.start_ps
    if several:
        pid = f" pid {p.process.pid}" if p.process.pid is not None else ""
        out.append(paint("1", f"{_clean(p.process.host)}{pid}"))
    if len(p.steps):
        first, last = int(p.steps.label[0]), int(p.steps.label[-1])
        basis = _BASIS[p.steps.basis]
        if len(p.steps) == 1:
            named = "" if p.steps.basis == "trace" else f"step {first}; "
            line = f"1 step ({named}{basis}), {_time(float(duration[0]))}"
            if p.steps.basis == "trace":
                line = f"no steps in it: the whole trace as one, {_time(float(duration[0]))}"
            elif not p.has_steps:
                line = f"{LONE_CALL}: {_time(float(duration[0]))}"
        else:
            line = f"{len(p.steps)} steps (steps {first}–{last}; {basis}), "
            line += f"{_time(float(np.median(duration)))} each (median)"
        fetched = float(p.host_input_ps().mean())
        if fetched:
            line += f", input fetched {_time(fetched)}{_each(p)}"
        out.append(line)
    else:
        out.append("nothing was recorded: no GPU events, no host events")
    if not p.devices:
        ops = p.ops.measure(p.steps.start_ps, p.steps.end_ps)
        busy = f", ops at work {_time(float(ops.mean()))} a step" if len(ops) else ""
        out.append(f"no GPU in this trace: the host's side only{busy}")
    for d in p.devices:
        start, end = d.span
        out.append("")
        out.append(
            paint("1", _title(d))
            + f"   in all: kernels {_time(d.kernel_busy.total)}, any work"
            + f" {_time(d.any_busy.total)} of {_time(end - start)} from first to last event"
        )
        total = int(duration.sum())
        if total:
            shares = {c: int(d.account.steps[c].sum()) / total for c in CATEGORIES}
            if not p.idle_judged:
                idle = [c for c in shares if c.startswith("idle_")]
                shares["idle"] = sum(shares.pop(c) for c in idle)
            out.append("  " + _bar(shares, width - 4, paint))
            out.extend(_legend(shares, duration, _each(p), width, paint))
    if p.devices and len(p.steps) > 1:
        out.extend(_step_table(p, paint))
    out.extend(_kernel_table(p, width, paint))
    if not p.devices:
        out.extend(_op_table(p, width, paint))
    return out


def _each(p: ProcessAnalysis) -> str:
    return " a step" if len(p.steps) > 1 else ""


def _title(d: DeviceAnalysis) -> str:
    """Return the GPU's number, with its model if the trace knows it."""
    name = _clean(d.device.name)
    if name.startswith("GPU (") and name.endswith(")"):
        name = f"compute capability {name[5:-1]}"
    return f"GPU {d.index}" if name in ("", "GPU") else f"GPU {d.index}  {name}"


def _bar(shares: dict[str, float], width: int, paint) -> str:
    """Return a stacked bar of exactly `width` cells: the running sum is rounded, not the parts."""
    cells = []
    done = 0
    running = 0.0
    for category, share in shares.items():
        running += share
        upto = min(width, round(running * width))
        _, code, character = _LOOK[category]
        plain = paint("0", "") == ""
        cells.append(character * (upto - done) if plain else paint(code, "█" * (upto - done)))
        done = max(done, upto)
    return "".join(cells)


def _legend(
    shares: dict[str, float], duration: np.ndarray, each: str, width: int, paint
) -> list[str]:
    parts = []
    mean = float(duration.mean())
    for category, share in sorted(shares.items(), key=lambda kv: -kv[1]):
        if share < 0.0005:
            continue
        name, code, character = _LOOK[category]
        mark = paint(code, "■") if paint("0", "") else character
        parts.append((f"{mark} {name} {100 * share:.1f} % ({_time(share * mean)}{each})", name))
    lines, line, used = [], "  ", 2
    for text, _ in parts:
        visible = len(text) if not paint("0", "") else len(text) - 9
        if used + visible > width and line.strip():
            lines.append(line)
            line, used = "  ", 2
        line += text + "   "
        used += visible + 3
    return [*lines, line]


def _step_table(p: ProcessAnalysis, paint) -> list[str]:
    shown = p.active[0]
    others = f" (GPU {shown.index})" if len(p.devices) > 1 else ""
    rows = [
        c
        for c in CATEGORIES
        if shown.account.steps[c].sum() >= 0.005 * (p.steps.end_ps - p.steps.start_ps).sum()
    ]
    out = ["", paint("1", f"Steps{others}, ms")]
    out.append("  " + "step".rjust(8) + "total".rjust(10) + "".join(_short(c) for c in rows))
    count = len(p.steps)
    picked = list(range(min(count, _STEPS_SHOWN)))
    for i in picked:
        cells = "".join(f"{shown.account.steps[c][i] / PS_PER_MS:12.3f}" for c in rows)
        total = (p.steps.end_ps[i] - p.steps.start_ps[i]) / PS_PER_MS
        out.append(f"  {int(p.steps.label[i]):8d}{total:10.3f}{cells}")
    if count > len(picked):
        out.append(f"  … {count - len(picked)} more (--json has all)")
    return out


def _short(category: str) -> str:
    return category.replace("idle_", "").replace("copy_", "").rjust(12)


def _kernel_table(p: ProcessAnalysis, width: int, paint) -> list[str]:
    rows = [(k, d) for d in p.devices for k in d.kernels]
    if not rows:
        return []
    rows.sort(key=lambda row: -row[0].total_ps)
    total = sum(k.total_ps for k, _ in rows) or 1  # kernels without duration have no share
    several = len(p.devices) > 1
    out = ["", paint("1", "Kernels") + "  (TC = tensor cores)"]
    head = "  total   share   calls     mean   TC  "
    out.append("  " + head + ("GPU  " if several else "") + "kernel")
    for k, d in rows[:_ROWS_SHOWN]:
        mark = {"yes": "yes", "no": "no", "unknown": "?"}[k.tensor_core]
        gpu = f"{d.index:3d}  " if several else ""
        left = (
            f"{_time(k.total_ps):>9} {100 * k.total_ps / total:4.1f} % {k.count:7d} "
            f"{_time(k.total_ps / k.count):>8} {mark:>4}  {gpu}"
        )
        room = width - len(left) - 2
        origin = f"  ← {_tail(_clean(k.op), room // 2 - 4)}" if k.op else ""
        name = _clean(k.name.removeprefix("void "))
        out.append("  " + left + _fit(name, room - len(origin)) + origin)
    if len(rows) > _ROWS_SHOWN:
        out.append(f"  … {len(rows) - _ROWS_SHOWN} more (--json has all)")
    return out


def _op_table(p: ProcessAnalysis, width: int, paint) -> list[str]:
    if not p.host_ops:
        return []
    out = ["", paint("1", "Busiest ops on the host"), "       time   calls  op"]
    for op in p.host_ops[:_ROWS_SHOWN]:
        kind = f" ({op.kind})" if op.kind else ""
        left = f"  {_time(op.total_ps):>9} {op.count:7d}  "
        out.append(left + _fit(_clean(op.name + kind), width - len(left)))
    if p.stages:
        out += ["", paint("1", "Input pipeline"), "       self   calls  stage"]
        for stage in p.stages[:_ROWS_SHOWN]:
            out.append(f"  {_time(stage.self_ps):>9} {stage.count:7d}  {_clean(stage.path)}")
    return out


def _findings(analysis: Analysis, width: int, paint) -> list[str]:
    findings = analysis.findings
    several = len(analysis.devices) > 1
    if not findings and not all(p.idle_judged or not p.devices for p in analysis.processes):
        return ["", "No findings; what could not be judged is noted below."]
    if not findings and not analysis.devices:
        return ["", "No findings: what a GPU did is not in this trace."]
    if not findings:
        return [
            "",
            paint("32", "Nothing found that holds the GPU back."),
            *_silent(analysis, paint),
        ]
    out = ["", paint("1", "Findings")]
    steps = max(len(p.steps) for p in analysis.processes)
    for finding in findings:
        gpus = ", ".join(str(i) for i in finding["gpus"])
        said = not gpus or f"GPU {gpus}" in finding["title"]
        named = f"GPU {gpus}: " if several and not said else ""
        in_all = " in all" if steps > 1 else ""
        lost = f"  ({finding['lost_s'] * 1000:.3g} ms lost{in_all})" if finding["lost_s"] else ""
        out.append(
            paint("31", f"  ● {named}{finding['title']}")
            + lost
            + paint("90", f"  {finding['cause']}")
        )
        out.extend(textwrap.wrap(_clean(finding["advice"]["text"]), width, **_INDENT))
        out.extend(paint("36", f"    {line}") for line in finding["advice"]["code"].splitlines())
    return [*out, *_silent(analysis, paint)]


def _silent(analysis: Analysis, paint) -> list[str]:
    """List the causes that could not be judged; imbalance is omitted for a single GPU."""
    alone = len(analysis.devices) < 2
    causes = [one["cause"] for one in analysis.silent if one["cause"] != "imbalance" or not alone]
    if not causes or not analysis.devices:
        return []
    return [paint("90", f"Could not be judged: {', '.join(causes)} (--json says why).")]
