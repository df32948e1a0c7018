"""What holds of the JSON of any trace, however damaged the file: no number in it is nonsense."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.analysis import Analysis
from gpu_util_callback.traces.imported import analyse
from gpu_util_callback.traces.output import trace_json

_LENGTHS = (
    "_bytes",
    "duration_ms",
    "_us",
    "_bytes_per_s",
    "busy_ms",
    "span_ms",
    "total_ms",
    "count",
    "kernels",
    "copies",
    "registers",
    "samples",
    "self_ms",
    "gb_per_s",
    "lost_s",
)
_PERCENT = re.compile(r"(-?\d+(?:\.\d+)?) %")
_CLOSE = 1e-6


def explain(path: Any) -> dict[str, Any]:
    """A trace's JSON as a program reads it; every number in it makes sense."""
    return told(analyse(read_trace(path)))


def told(analysis: Analysis) -> dict[str, Any]:
    """The JSON of an analysis."""
    result = json.loads(json.dumps(trace_json(analysis), allow_nan=False))
    sane(result)
    return result


def causes(result: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in result["findings"]]


def sane(result: dict[str, Any]) -> None:
    """Check a trace's JSON, as parsed again.

    Raises: AssertionError, with the name of the field that makes no sense.
    """
    _numbers(result, "")
    ends = [0.0]
    for step in result["steps"]:
        length = step["duration_ms"]
        ends.append(step["start_ms"] + length)
        assert length > 0, "a step without a length"
        for name in ("host_input_ms", "input_wait_ms", "host_op_ms"):
            assert -_CLOSE <= step[name] <= _within(length), f"{name} outside of its step"
        for gpu in step["gpus"]:
            parts = [gpu[f"{name}_ms"] for name in CATEGORIES]
            assert min(parts) >= 0, "a negative part of a step"
            assert abs(sum(parts) - length) <= 1e-9 * length + _CLOSE, "parts are not the step"
            assert gpu["kernel_busy_ms"] <= _within(gpu["any_busy_ms"]) <= _within(length) * 1.001
    for before, after in zip(result["steps"], result["steps"][1:], strict=False):
        if before.get("process") == after.get("process"):
            assert before["start_ms"] + before["duration_ms"] <= _within(after["start_ms"]) + abs(
                after["start_ms"] * 1e-9
            ), "steps overlap"
    for device in result["devices"]:
        assert 0 <= device["index"] < 1 << 20, "device number"
        for name in ("any_busy_ms", "kernel_busy_ms", "collective_busy_ms", "memset_busy_ms"):
            assert device[name] <= _within(device["span_ms"]), f"{name} above the span"
    for kernel in result["kernels"]:
        assert kernel["min_us"] <= kernel["mean_us"] * (1 + 1e-9) + _CLOSE, "mean below the least"
        assert kernel["mean_us"] <= kernel["max_us"] * (1 + 1e-9) + _CLOSE, "mean above the most"
    for finding in result["findings"]:
        assert 0 <= finding["severity"] <= 1 + _CLOSE, "severity"
        for text in (finding["title"], finding["advice"]["text"]):
            assert all(0 <= float(number) <= 100 for number in _PERCENT.findall(text)), text


def _within(value: float) -> float:
    return value * (1 + 1e-9) + _CLOSE


def _numbers(value: Any, key: str) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            _numbers(inner, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        assert math.isfinite(value), f"{key} is infinite"
        assert abs(value) <= 1 << 80, f"{key} is beyond everything"
        if key.endswith("_pct"):
            assert 0 <= value <= 100 + _CLOSE, f"{key} is no share"
        if key.endswith(_LENGTHS):
            assert value >= 0, f"{key} is negative"
