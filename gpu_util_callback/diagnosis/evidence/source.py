"""The trace that a recording was made of: its exactness, and what it shows besides rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_util_callback.diagnosis.evidence.traced import Traced, shows_no_steps
from gpu_util_callback.diagnosis.thresholds import Constant, Count

__all__ = ["Copies", "SlowestStage", "Source", "source_of"]

AT_WORK = Constant(0.05, "of the busiest GPU's kernel time: no step waits for one with less")
LEAST_KERNELS = Count(20, "on a GPU of an older import; fewer, in fewer steps, are a fragment")
LEAST_STEPS = Count(3, "see LEAST_KERNELS")


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies between host and GPU of one direction and kind of host memory."""

    memory: str  # "pageable", "pinned", "managed", "unknown"
    bytes: int | None
    total_ns: float

    @property
    def gb_per_s(self) -> float | None:
        """Mean rate while copying, in 10^9 bytes per second."""
        return self.bytes / self.total_ns if self.bytes and self.total_ns else None


@dataclass(frozen=True, slots=True)
class SlowestStage:
    """The stage of the input pipeline with most work of its own."""

    name: str  # "Map" of "Iterator::Root::Prefetch::Map"
    path: str
    self_ms: float | None


@dataclass(frozen=True, slots=True)
class Source:
    """A trace times each of its steps and every gap in them exactly, but holds few of them.

    Attributes:
        whole: the name of the base of shares: a step, or the trace as one.
        steps_from: the source of its steps: "marker", "call", "iteration" or "trace".
        steps_judged: its steps are certainly steps; else its idle time means nothing.
        idle_judged: and its GPUs did enough work in them.
        host_traced: it shows what the host did.
        fetches: it shows the fetching of batches.
        gpus: those that computed, or else all with any activity.
        linked_kernels: kernels whose launch was seen, on these GPUs.
        short_kernels_pct: kernels shorter than a launch, on the GPU with most of them.
        host_activity: what the host did while the GPUs waited for it; "" = not known.
    """

    whole: str
    steps_from: str
    steps_judged: bool
    idle_judged: bool
    host_traced: bool
    fetches: bool
    gpus: tuple[int, ...]
    linked_kernels: int
    short_kernels_pct: float
    copies: Sequence[Copies]
    slowest_stage: SlowestStage | None
    host_activity: str


def source_of(facts: Mapping[str, Any], traced: Traced, steps: int) -> Source | None:
    """Return the trace that a recording was made of; None for one that a training wrote.

    Args:
        steps: how many the recording has.
    """
    told = facts.get("source")
    if not told:
        return None
    told = {**_of_older_versions(facts, traced, steps), **told}
    judged = not shows_no_steps(facts, steps)
    gpus = [gpu for gpu in told["gpus"] if gpu.get("at_work")]
    stage = told.get("slowest_stage")
    return Source(
        whole="step" if judged else "trace",
        steps_from=str(told.get("steps_from") or ""),
        steps_judged=judged,
        idle_judged=judged and bool(told["idle_judged"]),
        host_traced=bool(told["host_traced"]),
        fetches=bool(told["fetches"]),
        gpus=tuple(int(gpu["index"]) for gpu in gpus),
        linked_kernels=sum(int(gpu.get("linked_kernels") or 0) for gpu in gpus),
        short_kernels_pct=max((gpu.get("short_kernels_pct") or 0.0 for gpu in gpus), default=0.0),
        copies=[
            Copies(str(one.get("memory") or "unknown"), one.get("bytes"), one.get("total_ns") or 0)
            for gpu in gpus for one in gpu.get("copies") or ()
        ],
        slowest_stage=stage and SlowestStage(stage["name"], stage["path"], stage.get("self_ms")),
        host_activity=told.get("host_activity") or "",
    )  # fmt: skip


def _of_older_versions(facts: Mapping[str, Any], traced: Traced, steps: int) -> dict[str, Any]:
    """Return what versions did not write that kept the findings of a trace instead."""
    found = {one["cause"]: one["evidence"] for one in facts.get("trace_findings") or ()}
    busy = {
        index: max(gpu.kernel_busy_ns, gpu.ns["kernel"])
        for index, gpu in sorted(traced.gpus.items()) if index >= 0
    }  # fmt: skip
    least = max(1, AT_WORK * max(busy.values(), default=0))
    at_work = [index for index, spent in busy.items() if spent >= least] or list(busy)
    path = found.get("input_bound", {}).get("slowest_stage")
    kernels = sum(one.count for (index, *_), one in traced.kernels.items() if index in at_work)
    launches = found.get("launch_bound", {})
    linked = (launches.get("linked_kernels_pct") or 0) / 100 * kernels
    return {
        "idle_judged": steps >= LEAST_STEPS or kernels >= LEAST_KERNELS,
        "host_traced": "host" not in ((facts.get("source") or {}).get("cannot_know") or ()),
        "fetches": True,
        "host_activity": found.get("host_stall", {}).get("host_activity"),
        "slowest_stage": path and {
            "name": str(path).rpartition("::")[2],
            "path": path,
            "self_ms": found["input_bound"].get("slowest_stage_self_ms"),
        },
        "gpus": [
            {
                "index": index,
                "at_work": index in at_work,
                "linked_kernels": linked if index == at_work[0] else 0,
                "short_kernels_pct": launches.get("short_kernels_pct"),
            }
            for index in busy
        ],
    }  # fmt: skip
