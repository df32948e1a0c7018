"""The steps of a fit to profile: the callback's argument `trace`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TraceSchedule"]


@dataclass(frozen=True)
class TraceSchedule:
    """The steps of a fit to profile.

    Steps are counted from 0 over all epochs of the fit. With no argument this is `trace="auto"`:
    windows of a few steps, as often as the callback's `overhead_budget` allows.

    Args:
        ranges: Half-open step ranges, e.g. `[(100, 105)]`. They are profiled whatever the cost.
        first: The first step of the first window.
        every: Steps from the start of one window to the start of the next; None = one window.
        steps: The most steps a window covers.
        count: The most windows of one fit; None = any number.
        max_events: Events a window may hold. The cost of a window grows with its events, so
            a model with many small operations gets windows of fewer steps. PyTorch's hold up
            the training while they are stopped and written: the default there is 10,000.
        within_budget: Whether windows at `first`/`every` wait until the budget allows them.
        beside_server: Whether to open windows although a profiler server runs in this process.
            A remote capture asked for during a window fails, hence False.

    Example:

    ```python
    GpuUtilCallback(trace=TraceSchedule(first=100, every=5000, steps=3))
    ```
    """

    ranges: tuple[tuple[int, int], ...] = ()
    first: int | None = None
    every: int | None = None
    steps: int = 8
    count: int | None = None
    max_events: int = 40_000
    within_budget: bool = True
    beside_server: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", _ranges(self.ranges))
        if self.ranges and not (self.first is None and self.every is None):
            raise ValueError("TraceSchedule takes either ranges or first/every, not both")
        for name in ("first", "every", "count"):
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or value < (name != "first")):
                raise ValueError(f"TraceSchedule({name}={value!r}): must be a positive number")
        for name in ("steps", "max_events"):
            value = getattr(self, name)
            if not _is_int(value) or value < 1:
                raise ValueError(f"TraceSchedule({name}={value!r}): must be a positive number")
        if self.every is not None and self.every <= self.steps:
            raise ValueError(
                f"TraceSchedule(every={self.every}, steps={self.steps}): windows would overlap"
            )

    @property
    def explicit(self) -> bool:
        """Return whether the user named the steps, so that no budget applies."""
        return bool(self.ranges) or (self.first is not None and not self.within_budget)

    @classmethod
    def of(cls, trace: Any) -> TraceSchedule | None:
        """Return the schedule for the callback's argument `trace`; None = no windows.

        Args:
            trace: "auto", "off" (or None, False), step ranges, or a TraceSchedule.

        Raises:
            ValueError: for anything else, with the possible values.
        """
        if isinstance(trace, cls):
            return trace
        if trace == "auto" or trace is True:
            return cls()
        if trace == "off" or trace is None or trace is False:
            return None
        if isinstance(trace, range | Iterable) and not isinstance(trace, str | bytes | dict):
            items = [trace] if isinstance(trace, range) else list(trace)
            if len(items) == 2 and all(_is_int(item) for item in items):
                items = [tuple(items)]  # one range without its list
            return cls(ranges=_ranges(items)) if items else None
        raise ValueError(
            f'trace={trace!r}: use "auto", "off", a list of step ranges such as [(100, 105)], '
            "or a TraceSchedule"
        )


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _ranges(ranges: Iterable) -> tuple[tuple[int, int], ...]:
    """Return sorted, disjoint, non-adjacent ranges from pairs or `range` objects."""
    pairs = []
    for item in ranges:
        if isinstance(item, range):
            pair: Sequence = (item.start, item.stop)
        else:
            pair = tuple(item) if isinstance(item, Iterable) else ()
        if len(pair) != 2 or not all(_is_int(v) for v in pair) or not 0 <= pair[0] < pair[1]:
            raise ValueError(
                f"trace: {item!r} is not a step range; use (first, stop) with 0 <= first < stop"
            )
        pairs.append((int(pair[0]), int(pair[1])))
    merged: list[tuple[int, int]] = []
    for first, stop in sorted(pairs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return tuple(merged)
