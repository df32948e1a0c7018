"""Whether three instruments agree about one GPU's activity."""

from __future__ import annotations

import math
from typing import Any

# NVML's utilization is a mean over up to a second and quantised; a window's steps are a handful.
TOLERANCE = 15.0


def agreement(found: dict[str, Any]) -> str:
    """Whether the three instruments agree: they measure different things, and these must hold.

    NVML's utilization and the trace's kernels and copies are the same share by two ways; an SM
    cannot be active where NVML saw neither.
    """
    nvml, sm, trace = (found.get(name) for name in ("nvml_pct", "sm_active_pct", "any_busy_pct"))
    said = []
    if nvml is not None and trace is not None:
        apart = trace - nvml
        said.append("yes" if abs(apart) <= TOLERANCE else f"no: trace {apart:+.0f}")
    if sm is not None and nvml is not None and sm > nvml + TOLERANCE:
        said.append(f"no: SM {sm - nvml:+.0f}")
    worst = [one for one in said if one != "yes"]
    return ", ".join(worst) or (said[0] if said else "-")


def shown(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.0f}"
