"""Profiler windows in bounded memory: GPU time by category, and kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["CATEGORIES", "Kernel", "Traced", "TracedGpu", "shows_no_steps"]

CATEGORIES = (
    "kernel", "copy_h2d", "copy_d2h", "copy_d2d", "collective",
    "idle_input", "idle_launch", "idle_sync", "idle_host", "other",
)  # fmt: skip
MAX_KERNELS = 4096


def shows_no_steps(facts: Mapping, steps: int) -> bool:
    """Whether this is an imported trace without steps: its idle time is not judged.

    Args:
        facts: of the recording.
        steps: how many it has.
    """
    basis = (facts.get("source") or {}).get("steps_from")
    return basis == "trace" or (basis == "call" and steps < 2)


@dataclass(slots=True)
class TracedGpu:
    """What the windows saw of one GPU: nanoseconds by category over `steps` steps."""

    steps: int = 0
    duration_ns: int = 0
    kernels: int = 0
    kernel_busy_ns: int = 0
    any_busy_ns: int = 0
    first_step: int = -1
    end_step: int = 0
    ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0))

    def share(self, *categories: str) -> float:
        """Share of the traced time in these categories, 0-1."""
        return sum(self.ns[name] for name in categories) / max(1, self.duration_ns)

    def per_step_ms(self, category: str) -> float:
        return self.ns[category] / max(1, self.steps) / 1e6


@dataclass(slots=True)
class Kernel:
    """All runs of one kernel on one GPU in all windows."""

    name: str
    op: str
    tensor_core: str
    count: int = 0
    total_ns: int = 0
    occupancy_ns: float = 0.0  # occupancy x time, where known
    occupancy_known_ns: int = 0
    blocks_ns: float = 0.0
    blocks_known_ns: int = 0


class Traced:
    """Sums over the `traced_steps` and `kernels` tables."""

    def __init__(self) -> None:
        self.gpus: dict[int, TracedGpu] = {}
        self.kernels: dict[tuple[int, str, str], Kernel] = {}
        self.windows: set[int] = set()

    def add_steps(self, table: Mapping[str, np.ndarray]) -> None:
        """New rows of `traced_steps`; rows of the host alone (gpu -1) are kept under -1."""
        for i in range(len(table["step"]) if "step" in table else 0):
            gpu = self.gpus.setdefault(int(table["gpu"][i]), TracedGpu())
            step = int(table["step"][i])
            gpu.steps += 1
            gpu.duration_ns += max(0, int(table["duration_ns"][i]))
            gpu.first_step = step if gpu.first_step < 0 else min(gpu.first_step, step)
            gpu.end_step = max(gpu.end_step, step + 1)
            for name in CATEGORIES:
                gpu.ns[name] += _positive(table, f"{name}_ns", i)
            gpu.kernels += _positive(table, "kernels", i)
            gpu.kernel_busy_ns += _positive(table, "kernel_busy_ns", i)
            gpu.any_busy_ns += _positive(table, "any_busy_ns", i)
            self.windows.add(_positive(table, "window", i))

    def add_kernels(self, table: Mapping[str, np.ndarray]) -> None:
        """New rows of `kernels`."""
        for i in range(len(table["name"]) if "name" in table else 0):
            gpu, name = int(table["gpu"][i]), str(table["name"][i])
            op = str(table["op"][i]) if "op" in table else ""
            key = (gpu, name, op)
            if key not in self.kernels and len(self.kernels) >= MAX_KERNELS:
                key = (gpu, "others", "")
            used = str(table["tensor_core"][i]) if "tensor_core" in table else ""
            kernel = self.kernels.setdefault(key, Kernel(key[1], key[2], used))
            spent = _positive(table, "total_ns", i)
            kernel.count += _positive(table, "count", i)
            kernel.total_ns += spent
            occupancy = float(table["occupancy_pct"][i]) if "occupancy_pct" in table else np.nan
            if occupancy >= 0:
                kernel.occupancy_ns += occupancy * spent
                kernel.occupancy_known_ns += spent
            blocks = float(table["blocks"][i]) if "blocks" in table else np.nan
            if blocks >= 0:
                kernel.blocks_ns += blocks * spent
                kernel.blocks_known_ns += spent


def _positive(table: Mapping[str, np.ndarray], name: str, row: int) -> int:
    return max(0, int(table[name][row])) if name in table else 0
