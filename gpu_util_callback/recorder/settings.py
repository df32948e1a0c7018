"""The checked arguments of a callback or monitor."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.redaction import redact_messages

CEILINGS_S = 10.0  # with `ceilings=True`


@dataclass
class Settings:
    """The user's settings; see `GpuUtilCallback` for their meaning."""

    log_dir: str = "logs"
    sample_hz: float = 10
    scalar_freq: int | str = "auto"
    trace: TraceSchedule | None = field(default_factory=TraceSchedule)  # None = no windows
    overhead_budget: float = 0.01
    thresholds: dict | None = None
    job: str | None = None
    redact: bool = False
    report: bool = True
    logs: bool = False
    flops_per_sample: float | None = None
    ceilings_s: float = 0.0  # to measure for before training; 0 = not at all
    ceilings: dict | None = None  # what was measured
    memory_stacks: bool = False


def checked_settings(
    *,
    log_dir: Any,
    sample_hz: Any,
    scalar_freq: Any,
    trace: Any,
    overhead_budget: Any,
    thresholds: Any,
    job: Any,
    redact: Any,
    report: Any,
    logs: Any = False,
    flops_per_sample: Any = None,
    ceilings: Any = False,
    memory_stacks: Any = False,
) -> Settings:
    """Return the settings for a user's arguments.

    Raises:
        TypeError, ValueError: with the argument and what it must be.
    """
    if _flag("redact", redact):
        redact_messages()
    return Settings(
        log_dir=_path(log_dir),
        sample_hz=_number("sample_hz", sample_hz, 0, 100, above=True),
        scalar_freq=_scalar_freq(scalar_freq),
        trace=TraceSchedule.of(trace),
        overhead_budget=_number("overhead_budget", overhead_budget, 0, 1),
        thresholds=_thresholds(thresholds),
        job=_job(job),
        redact=redact,
        report=_flag("report", report),
        logs=_flag("logs", logs),
        flops_per_sample=_flops(flops_per_sample),
        memory_stacks=_flag("memory_stacks", memory_stacks),
        **_ceilings(ceilings),
    )


def _ceilings(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"ceilings_s": CEILINGS_S if value else 0.0}
    if hasattr(value, "to_dict") and hasattr(value, "input_per_s"):
        return {"ceilings": value.to_dict()}
    if not isinstance(value, int | float):
        raise TypeError(f"ceilings must be True, seconds or what ceilings() returned, got {value!r}")
    return {"ceilings_s": _number("ceilings", value, 0, 3600, above=True)}


def _path(log_dir: Any) -> str:
    if not isinstance(log_dir, str | os.PathLike):
        raise TypeError(f"log_dir must be a path, got {log_dir!r}")
    path = os.fspath(log_dir)
    if not isinstance(path, str) or not path:
        raise ValueError(f"log_dir must name a directory, got {log_dir!r}")
    return path


def _number(name: str, value: Any, low: float, high: float, above: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (low < value if above else low <= value) or not value <= high:
        lower = f"above {low}" if above else f"at least {low}"
        raise ValueError(f"{name} must be {lower} and at most {high}, got {value!r}")
    return value


def _flops(value: Any) -> float | None:
    if value is None:
        return None
    return float(_number("flops_per_sample", value, 0, 1e18, above=True))


def _scalar_freq(value: Any) -> int | str:
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f'scalar_freq must be "auto" or a number of steps, got {value!r}')
    if value < 1:
        raise ValueError(f"scalar_freq must be at least 1 step, got {value!r}")
    return value


def _thresholds(value: Any) -> dict | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"thresholds must be a dictionary, got {value!r}")
    from gpu_util_callback.diagnosis import Diagnosis
    from gpu_util_callback.errors import UnusableInput

    try:
        Diagnosis({}, value)
    except UnusableInput as error:
        raise ValueError(str(error)) from None
    return value


def _job(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise TypeError(f"job must be a name, got {value!r}")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value
