"""Points of the scalars: each the time-weighted mean since the last point."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

__all__ = ["ScalarPoints"]

# "auto": every step at first, then increasingly rare, so that a curve of n steps has about
# DENSE x log2(n / DENSE) points.
DENSE = 200


class ScalarPoints:
    """Points (step, {tag: value}, time_ns) made of step rows and GPU samples.

    Args:
        freq: steps a point, or "auto".
    """

    def __init__(self, freq: int | str):
        self._freq = freq
        self._next = 0  # the step that completes the next point
        self._steps = 0
        self._duration = self._wait = 0
        self._waited = 0
        self._begin: int | None = None
        self._samples: dict[str, deque[tuple[int, float, float]]] = {}

    def add_samples(
        self, group: str, columns: Sequence[str], time_ns: np.ndarray, values: np.ndarray
    ) -> None:
        """Add samples of one GPU; others are ignored. Call before the steps they belong to."""
        gpu, _, part = group.partition("/")
        if not gpu.startswith("gpu") or part not in ("", "utilization"):
            return
        at = {name: i for i, name in enumerate(columns)}
        used = at.get("utilization_pct")
        memory = at.get("memory_used_bytes")
        kept = self._samples.setdefault(group, deque(maxlen=100_000))
        for i, when in enumerate(time_ns.tolist()):
            kept.append(
                (
                    when,
                    float(values[i, used]) if used is not None else float("nan"),
                    float(values[i, memory]) if memory is not None else float("nan"),
                )
            )

    def add_steps(self, steps: dict[str, np.ndarray]) -> list[tuple[int, dict[str, float], int]]:
        """Return the points that these rows of the `steps` table complete."""
        points = []
        for step, start, duration, wait in zip(
            steps["step"].tolist(),
            steps["start_ns"].tolist(),
            steps["duration_ns"].tolist(),
            steps["input_wait_ns"].tolist(),
            strict=True,
        ):
            if self._begin is None:
                self._begin = start
            self._steps += 1
            self._duration += duration
            if wait >= 0:
                self._wait += wait
                self._waited += 1
            if step >= self._next:
                points.append(self._point(step, start + duration))
                self._next = step + self._stride(step + 1)
        return points

    def rest(self, step: int, end_ns: int) -> list[tuple[int, dict[str, float], int]]:
        """Return the point of the steps not yet covered, at the end of a run."""
        return [self._point(step, end_ns)] if self._steps else []

    def gpu_means(self, begin: int, end: int) -> dict[str, tuple[float | None, float | None]]:
        """Return each GPU's mean utilization in percent and memory in bytes over [begin, end).

        Samples from before `begin` are dropped.
        """
        means = {group: _means(kept, begin, end) for group, kept in self._samples.items()}
        found = {}
        for gpu in dict.fromkeys(group.partition("/")[0] for group in means):
            used, memory = means.get(gpu, (None, None))
            if used is None:  # a driver that should not be polled for it: its own buffer
                used, _ = means.get(f"{gpu}/utilization", (None, None))
            found[gpu] = (used, memory)
        return found

    def _stride(self, step: int) -> int:
        if isinstance(self._freq, int):
            return self._freq
        return 1 << max(step // DENSE, 1).bit_length() - 1

    def _point(self, step: int, end: int) -> tuple[int, dict[str, float], int]:
        begin = self._begin if self._begin is not None else end
        step_ms = self._duration / self._steps / 1e6
        values = {"gpu_util/step_time_ms": step_ms}
        if self._waited:
            values["gpu_util/input_wait_ms"] = self._wait / self._waited / 1e6
        for gpu, (used, memory) in self.gpu_means(begin, end).items():
            if used is not None:
                values[f"gpu_util/{gpu}/utilization_pct"] = used
                values[f"gpu_util/{gpu}/kernel_time_est_ms"] = used / 100 * step_ms
            if memory is not None:
                values[f"gpu_util/{gpu}/memory_used_mib"] = memory / 2**20
        self._begin = end
        self._steps = self._duration = self._wait = self._waited = 0
        return step, values, end


def _means(
    kept: deque[tuple[int, float, float]], begin: int, end: int
) -> tuple[float | None, float | None]:
    """Return the time-weighted means over [begin, end); a sample holds until the next one.

    A step shorter than the sampling interval has no sample of its own: the one that holds then is
    used only where it is at most half a second old.
    """
    while len(kept) > 1 and kept[1][0] <= begin:
        kept.popleft()
    totals = [0.0, 0.0]
    weights = [0.0, 0.0]
    for i, (when, *numbers) in enumerate(kept):
        if when >= end:
            break
        until = kept[i + 1][0] if i + 1 < len(kept) else when + 500_000_000
        held = min(until, end, when + 500_000_000) - max(when, begin)
        if held <= 0:
            continue
        for k, number in enumerate(numbers):
            if number == number:
                totals[k] += number * held
                weights[k] += held
    used, memory = (t / w if w else None for t, w in zip(totals, weights, strict=True))
    return used, memory
