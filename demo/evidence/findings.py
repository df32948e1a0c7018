"""What a recorded scenario says: its causes, and one activity by three instruments."""

from __future__ import annotations

from typing import Any

import numpy as np


def read(log_dir: str) -> dict[str, Any]:
    """The causes found in all recordings below `log_dir`, and the numbers behind the table.

    Returns: "causes" (sorted names), "verdict", "steps", "step_ms", "wall_s", "nvml_pct",
    "sm_active_pct", "kernel_busy_pct", "any_busy_pct" (kernels and copies; None = not measured), "windows",
    "gpu", "driver", "unavailable", "overhead", "backend", "framework".
    """
    from gpu_util_callback import read_recordings
    from gpu_util_callback.diagnosis import run_report

    recordings = list(read_recordings(log_dir))
    fits = [one for one in recordings if not one.facts.get("source")]
    if not fits:
        raise RuntimeError("no recording was written")
    fit = fits[-1]
    report = run_report(fit)
    causes: set[str] = set()
    for recording in recordings:
        one = run_report(recording)
        causes |= {thing["cause"] for thing in (*one["findings"], *one["spans"])}
    gpus = [gpu for gpu in report["gpus"] if gpu["used_by_framework"]]
    index = gpus[0]["index"] if gpus else 0
    traced = [_traced(recording, index) for recording in recordings]
    kernel_ns, busy_ns, of_ns, windows = (sum(numbers) for numbers in zip(*traced, strict=True))
    return {
        "causes": sorted(causes),
        "verdict": report["verdict"],
        "steps": report["steps"],
        "step_ms": report["step_ms"],
        "wall_s": report["wall_s"],
        "nvml_pct": _mean(fit, index, ("/utilization", ""), "utilization_pct"),
        "sm_active_pct": _mean(fit, index, ("/gpm",), "sm_active_pct"),
        "kernel_busy_pct": round(100 * kernel_ns / of_ns, 1) if of_ns else None,
        "any_busy_pct": round(100 * busy_ns / of_ns, 1) if of_ns else None,
        "windows": windows,
        "gpu": gpus[0]["name"] if gpus else None,
        "driver": (fit.facts.get("driver") or {}).get("driver_version"),
        "framework": report["framework"],
        "unavailable": report["unavailable"],
        "overhead": report["overhead"],
        "findings": [_short(thing) for thing in (*report["findings"], *report["spans"])],
        "recorded_ns": report["start_ns"],
    }


def _short(thing: dict[str, Any]) -> dict[str, Any]:
    return {name: thing[name] for name in ("cause", "title", "lost_s", "evidence", "threshold")}


def _mean(recording: Any, index: int, groups: tuple[str, ...], column: str) -> float | None:
    """Mean over the training steps, the first second left out: the mean of a state."""
    steps = recording.steps
    if not len(steps["start_ns"]):
        return None
    begin = int(steps["start_ns"][0]) + 1_000_000_000
    ends = steps["start_ns"] + steps["duration_ns"]
    for group in groups:
        block = recording.samples.get(f"gpu{index}{group}")
        if block is None or column not in block:
            continue
        times, values = block["time_ns"], block[column]
        at = np.searchsorted(steps["start_ns"], times, side="right") - 1
        inside = (at >= 0) & (times >= begin) & (times <= ends[np.maximum(at, 0)])
        inside &= np.isfinite(values)
        if inside.sum() >= 3:
            return round(float(values[inside].mean()), 1)
    return None


def _traced(recording: Any, index: int) -> tuple[int, int, int, int]:
    """(ns in kernels, ns in kernels or copies, ns of traced steps, windows) of one GPU.

    A copy that the host still makes ready is none yet: `copy_h2d_ns` would count it.
    """
    traced = recording.traced_steps
    if not len(traced.get("step", ())):
        return 0, 0, 0, 0
    mine = traced["gpu"] == index
    if not mine.any():
        return 0, 0, 0, 0
    kernels = np.maximum(traced["kernel_busy_ns"][mine], traced["kernel_ns"][mine])
    busy = np.maximum(kernels, traced["any_busy_ns"][mine])
    windows = np.unique(traced["window"][mine]) if "window" in traced else np.zeros(1)
    return int(kernels.sum()), int(busy.sum()), int(traced["duration_ns"][mine].sum()), len(windows)
