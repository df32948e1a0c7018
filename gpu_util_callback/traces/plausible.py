"""Impossible numbers: left out of a trace in one place, for all formats.

Readers convert their input into the columns of the model; `WILD` stands for a number that does not
even fit there. A value outside of its range becomes absent, and is counted by quantity.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np

from gpu_util_callback.traces import limits
from gpu_util_callback.traces.model import AllocatorEvents, Columns, HostKind, KernelShape, Process, Trace

WILD = -(1 << 63)
_MAX_DIGITS = 1_000


def integer(value: Any) -> int:
    """Return a number of a file as int64: -1 for no number, `WILD` for one that does not fit."""
    if type(value) is int:
        return value if -(1 << 62) < value < 1 << 62 else WILD
    if type(value) is str:
        value = number(value)
        if value is None:
            return -1
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        return WILD if isinstance(value, float) else -1
    return whole if -(1 << 62) < whole < 1 << 62 else WILD


def number(value: Any) -> float | None:
    """Return a number of a file: None for no number, infinite for too large or "NaN"."""
    if type(value) is str and len(value) > _MAX_DIGITS:
        return math.inf
    try:
        parsed = float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None
    return math.inf if math.isnan(parsed) else parsed


def ordinal(digits: str) -> int | None:
    """Return the number of a GPU as written in a name; None if no machine has so many."""
    if len(digits) > 6:
        return None
    index = int(digits)
    return index if index <= limits.MAX_ORDINAL else None


def drop_implausible(trace: Trace) -> None:
    """Make impossible values absent, and add one line that counts them to the trace's problems."""
    ignored = trace.ignored
    for process in trace.processes:
        for events in [process.events, *(d.events for d in process.devices)]:
            _ranges(events, ignored)
        process.events.value[
            (process.events.kind == HostKind.STEP)
            & ((process.events.value < -1) | (process.events.value > limits.MAX_STEP))
        ] = WILD
        _steps(process, ignored)
        _ranges(process.allocator, ignored)
        _allocators(process)
        _shapes(process, ignored)
        for device in process.devices:
            device.facts = _facts(device.facts, ignored)
            device.name = _text(device.name)
        _counters(process, ignored)
        if process.epoch_ns is not None and not 0 < process.epoch_ns < limits.MAX_EPOCH_NS:
            process.epoch_ns = None
            ignored["date"] += 1
        if process.rank is not None and process.rank > limits.MAX_FACT:
            process.rank = None
            ignored["rank"] += 1
        process.host = _text(process.host)
        process.threads = [_text(name) for name in process.threads]
        _durations(process, ignored)
    counted = [f"{quantity} ({count:,})" for quantity, count in sorted(ignored.items()) if count]
    if counted:
        trace.problems.append(f"impossible numbers were ignored: {', '.join(counted)}")
    trace.problems = _shortened(trace.problems)


def _text(text: str) -> str:
    return text if len(text) <= limits.MAX_TEXT else text[: limits.MAX_TEXT - 1] + "…"


def _shortened(problems: list[str]) -> list[str]:
    more = len(problems) - limits.MAX_PROBLEMS
    shown = problems if more <= 0 else problems[: limits.MAX_PROBLEMS]
    lines = [_text(" ".join(problem.split())) for problem in shown]
    return lines if more <= 0 else [*lines, f"and {more:,} more problems like these"]


def _ranges(columns: Columns, ignored: Counter[str]) -> None:
    """Make values outside of a column's declared range absent."""
    for f in fields(columns):
        most = f.metadata.get("most")
        if most is None or not len(columns):
            continue
        values = getattr(columns, f.name)
        absent = f.metadata["absent"]
        is_present = ~np.isnan(values) if values.dtype.kind == "f" else values != absent
        wild = is_present & ~((values >= 0) & (values <= most))
        if wild.any():
            ignored[f.metadata["called"]] += int(wild.sum())
            setattr(columns, f.name, np.where(wild, absent, values).astype(values.dtype))


def _steps(process: Process, ignored: Counter[str]) -> None:
    wild = process.events.value == WILD
    count = int((wild & (process.events.kind == HostKind.STEP)).sum())
    if wild.any():
        process.events.value = np.where(wild, -1, process.events.value)
        ignored["step number"] += count


def _in_time(time_ps: np.ndarray) -> np.ndarray:
    return (time_ps > -limits.MAX_TIME_PS) & (time_ps < limits.MAX_TIME_PS)


def _allocators(process: Process) -> None:
    """Drop readings outside the trace's time."""
    readings: AllocatorEvents = process.allocator
    sane = _in_time(readings.time_ps)
    if not sane.all():
        process.allocator = readings.take(np.flatnonzero(sane))


def _shapes(process: Process, ignored: Counter[str]) -> None:
    """Check the launch parameters, counted by kernel."""
    wild: list[tuple[int, list[str]]] = []
    shapes = []
    for index, shape in enumerate(process.shapes):
        sane, odd = _sane_shape(shape)
        shapes.append(sane)
        if odd:
            wild.append((index, odd))
    if not wild:
        return
    process.shapes = shapes
    uses = np.zeros(len(shapes) + 1, np.int64)
    for device in process.devices:
        uses += np.bincount(device.events.shape + 1, minlength=len(uses))
    for index, odd in wild:
        for quantity in odd:
            ignored[quantity] += int(uses[index + 1])


_SHAPE = (
    ("registers", "register count", limits.MAX_REGISTERS),
    ("shared_bytes", "size of shared memory", limits.MAX_SHARED),
    ("occupancy_pct", "occupancy", limits.MAX_OCCUPANCY),
)


def _sane_shape(shape: KernelShape) -> tuple[KernelShape, list[str]]:
    """Return the shape without impossible values, and the names of the removed values."""
    wild = {}
    for name, quantity, most in _SHAPE:
        value = getattr(shape, name)
        if value is not None and not 0 <= value <= most:
            wild[name] = quantity
    for name, most in (("grid", limits.MAX_GRID), ("block", limits.MAX_BLOCK)):
        size = getattr(shape, name)
        if size is not None and not (all(0 < part <= most for part in size) and math.prod(size) <= _MOST_OF[name]):
            wild[name] = f"{name} size"
    return (replace(shape, **dict.fromkeys(wild)) if wild else shape), list(wild.values())


_MOST_OF = {"grid": 1 << 62, "block": limits.MAX_BLOCK}


def _facts(facts: dict, ignored: Counter[str]) -> dict:
    sane = {}
    for name, value in facts.items():
        if isinstance(value, str):
            sane[name] = _text(value)
        elif name == "compute_capability":
            if all(0 <= part < 1000 for part in value):
                sane[name] = value
            else:
                ignored["compute capability"] += 1
        elif 0 <= value <= limits.MAX_FACT:
            sane[name] = value
        else:
            ignored["property of a GPU"] += 1
    return sane


def _counters(process: Process, ignored: Counter[str]) -> None:
    for counter in process.counters:
        sane = (counter.value >= 0) & (counter.value <= limits.MAX_COUNTER)
        sane &= _in_time(counter.time_ps)
        if not sane.all():
            ignored["sample of a counter"] += int((~sane).sum())
            counter.time_ps, counter.value = counter.time_ps[sane], counter.value[sane]


def _durations(process: Process, ignored: Counter[str]) -> None:
    """Drop the longest events where the sum of all exceeds what sums can hold.

    It takes more than fifty days of threads and GPUs at work, which is not profiled in practice.
    """
    every: list[Any] = [process.events, *(d.events for d in process.devices)]
    durations = [(e.end_ps - e.start_ps).astype(np.float64) for e in every]
    if sum(float(d.sum()) for d in durations) < limits.MAX_TOTAL_PS:
        return
    ordered = np.sort(np.concatenate(durations))
    fitting = int(np.searchsorted(np.cumsum(ordered), limits.MAX_TOTAL_PS))
    most = ordered[fitting - 1] if fitting else 0.0
    if fitting < len(ordered) and ordered[fitting] <= most:
        most = np.nextafter(most, 0)  # drop all of equal length
    ignored["duration"] += int((ordered > most).sum())
    process.events = process.events.take(np.flatnonzero(durations[0] <= most))
    for device, duration in zip(process.devices, durations[1:], strict=True):
        device.events = device.events.take(np.flatnonzero(duration <= most))
