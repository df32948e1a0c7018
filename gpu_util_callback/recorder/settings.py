"""The arguments of a callback or monitor, once they are checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_util_callback.profiling.schedule import TraceSchedule

__all__ = ["Settings"]


@dataclass
class Settings:
    """What the user wants; see `GpuUtilCallback` for what each means."""

    log_dir: str = "logs"
    sample_hz: float = 10
    scalar_freq: int | str = "auto"
    trace: TraceSchedule | None = field(default_factory=TraceSchedule)  # None = no windows
    overhead_budget: float = 0.01
    thresholds: dict | None = None
    job: str | None = None
    redact: bool = False
    report: bool = True
