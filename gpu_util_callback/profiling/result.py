"""The result of one profiler window, for the recording and the scalars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_util_callback.profiling.reader import AllocatorCurve

__all__ = ["WindowResult"]


@dataclass
class WindowResult:
    """The result of one window, for the recording.

    Args:
        window: its index within the fit.
        first_step, stop_step: the steps it marked, half-open.
        profile: its name in the Profile tab; None = its file could not be put there.
        start_ns, end_ns: from before the profiler's start to after its stop, recording's clock.
        cost_s: its whole cost.
        traced_steps, kernels, step_kernels: rows as in the recording's schema.
        allocators: curves of the GPUs' allocators, recording's clock.
    """

    window: int
    first_step: int
    stop_step: int
    profile: str | None
    start_ns: int
    end_ns: int
    cost_s: float
    events: int
    traced_steps: dict[str, np.ndarray]
    kernels: dict[str, np.ndarray]
    step_kernels: dict[str, np.ndarray]
    allocators: list[AllocatorCurve]

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the rows for the recording: those of the window's tables and one of `phases`."""
        phases = {
            "kind": ["profiler_window"],
            "name": [f"window {self.window}"],
            "start_ns": [self.start_ns],
            "end_ns": [self.end_ns],
            "step": [self.first_step],
            "account": [""],
            "self_ns": [int(self.cost_s * 1e9)],
            "count": [1],
        }
        tables: dict[str, dict[str, Any]] = {"phases": phases}
        for name in ("traced_steps", "kernels", "step_kernels"):
            rows: dict[str, np.ndarray] = getattr(self, name)
            if rows and len(rows["window"]):
                tables[name] = rows
        return tables

    def kernel_times_ms(self) -> list[tuple[int, int, float]]:
        """Return (step, gpu, ms in which a kernel ran) of each traced step and GPU, by step.

        Where one call trains several batches it is their mean, at the first of them.
        """
        rows = self.traced_steps
        if not rows:
            return []
        busy = rows["kernel_busy_ns"]
        kernel = np.where(busy >= 0, busy, rows["kernel_ns"])
        found = [
            (int(step), int(gpu), float(ns) / 1e6 / int(batches))
            for step, gpu, ns, batches in zip(
                rows["step"], rows["gpu"], kernel, rows["batches"], strict=True
            )
            if gpu >= 0 and ns >= 0
        ]
        return sorted(found)

    def points(self) -> list[tuple[int, dict[str, float], int]]:
        """Return the scalars of its steps: (step, {tag: value}, time in ns), by step."""
        rows = self.traced_steps
        if not rows:
            return []
        ends = dict(zip(rows["step"].tolist(), (rows["start_ns"] + rows["duration_ns"]).tolist(),
                        strict=True))  # fmt: skip
        points: dict[int, dict[str, float]] = {}
        for step, gpu, ms in self.kernel_times_ms():
            points.setdefault(step, {})[f"gpu_util/gpu{gpu}/kernel_time_ms"] = ms
        return [(step, values, ends[step]) for step, values in points.items()]

    def add_to(self, tables: dict[str, dict[str, Any]], samples: list[Any]) -> None:
        """Add its rows to those about to be written, and its allocators' curves to the samples."""
        from gpu_util_callback.gpus import SampleBlock

        for name, rows in self.tables().items():
            known = tables.get(name)
            tables[name] = (
                {column: np.asarray(values) for column, values in rows.items()}
                if known is None
                else {c: np.concatenate([known[c], np.asarray(rows[c])]) for c in known}
            )
        for curve in self.allocators:
            samples.append(
                SampleBlock(
                    f"gpu{curve.gpu}/allocator_traced",  # the sampled one is "gpu<i>/allocator"
                    ("allocated_bytes",),
                    curve.time_ns,
                    curve.allocated_bytes.astype(np.float64).reshape(-1, 1),
                )
            )

    def facts(self) -> dict[str, Any]:
        """Return the window's facts for the manifest."""
        return {
            "window": self.window,
            "first_step": self.first_step,
            "stop_step": self.stop_step,
            "profile": self.profile,
            "events": self.events,
            "cost_s": round(self.cost_s, 4),
        }
