"""The checked arguments of a callback or monitor."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, get_type_hints

from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.redaction import redact_messages


def _path(name: str, value: object) -> str:
    """Return a path that is given as text or `PathLike`. Raises: TypeError, ValueError."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path, got {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str) or not path:
        raise ValueError(f"{name} must name a directory, got {value!r}")
    return path


def _number(name: str, value: object, low: float, high: float, above: bool = False) -> float:
    """Return a number of at least `low` and at most `high`. Raises: TypeError, ValueError.

    Args:
        name: of the argument, for the error.
        above: `low` itself is not allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (low < value if above else low <= value) or not value <= high:
        lower = f"above {low}" if above else f"at least {low}"
        raise ValueError(f"{name} must be {lower} and at most {high}, got {value!r}")
    return value


def _flops(name: str, value: object) -> float | None:
    return None if value is None else float(_number(name, value, 0, 1e18, above=True))


def _scalar_freq(name: str, value: object) -> int | str:
    """Return a number of steps, or "auto". Raises: TypeError, ValueError."""
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f'{name} must be "auto" or a number of steps, got {value!r}')
    if value < 1:
        raise ValueError(f"{name} must be at least 1 step, got {value!r}")
    return value


def _thresholds(name: str, value: object) -> dict | None:
    """Return thresholds as they were given, None without any. Raises: TypeError, ValueError."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a dictionary, got {value!r}")
    from gpu_util_callback.diagnosis import thresholds_in_force
    from gpu_util_callback.errors import UnusableInput

    try:
        thresholds_in_force(value)
    except UnusableInput as error:
        raise ValueError(str(error)) from None
    return value


def _job(name: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise TypeError(f"{name} must be a name, got {value!r}")


def _trace(_: str, value: object) -> TraceSchedule | None:
    return TraceSchedule.of(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def _function(name: str, value: object) -> Callable[[dict], object] | None:
    if value is None or callable(value):
        return value
    raise TypeError(f"{name} must be a function of one dictionary, got {value!r}")


@dataclass
class Settings:
    """The user's settings, each with its check; see `GpuUtilCallback` for their meaning."""

    log_dir: Annotated[str, _path] = "logs"
    sample_hz: Annotated[float, partial(_number, low=0, high=100, above=True)] = 10
    scalar_freq: Annotated[int | str, _scalar_freq] = "auto"
    trace: Annotated[TraceSchedule | None, _trace] = field(default_factory=TraceSchedule)  # None = no windows
    overhead_budget: Annotated[float, partial(_number, low=0, high=1)] = 0.01
    thresholds: Annotated[dict | None, _thresholds] = None
    job: Annotated[str | None, _job] = None
    redact: Annotated[bool, _flag] = False
    report: Annotated[bool, _flag] = True
    logs: Annotated[bool, _flag] = False
    flops_per_sample: Annotated[float | None, _flops] = None
    memory_stacks: Annotated[bool, _flag] = False
    on_stuck: Annotated[Callable[[dict], object] | None, _function] = None
    on_finding: Annotated[Callable[[dict], object] | None, _function] = None


def checked_settings(**arguments: Any) -> Settings:
    """Return the settings for a user's arguments, those of the callback or of the monitor.

    Raises:
        TypeError, ValueError: with the argument and what it must be.
    """
    if _flag("redact", arguments["redact"]):
        redact_messages()
    hints = get_type_hints(Settings, include_extras=True)
    checked = {name: hints[name].__metadata__[0](name, value) for name, value in arguments.items()}
    return Settings(**checked)
