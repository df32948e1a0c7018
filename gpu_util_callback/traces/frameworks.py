"""The framework that wrote a trace, and the trace's facts about the run, as in a manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_util_callback.traces.hostside import culprit
from gpu_util_callback.traces.model import PS_PER_MS, PS_PER_NS

if TYPE_CHECKING:
    from gpu_util_callback.traces.analysis import DeviceAnalysis, ProcessAnalysis
    from gpu_util_callback.traces.model import Names, Trace

__all__ = ["Wording", "facts", "wording"]

_JAX = "PjitFunction("
_TENSORFLOW = ("ExecutorState::", "IteratorGetNext", "Iterator::")
# The function that Keras compiles, as TensorFlow names it.
_KERAS = re.compile(r"(multi|one)_step_on_(iterator|data)|__inference_train_function")
# Of the steps: what the host did in less is not searched, which takes long in a long trace.
_SEARCHED = 0.01
_LOADER = re.compile(r"_(Single|Multi)Process\w{0,40}DataLoaderIter")


@dataclass(frozen=True, slots=True)
class Wording:
    """The framework for whose users advice is written.

    Attributes:
        framework: "torch", "jax", "tensorflow", or "" where the trace does not show it (Nsight).
        keras: True if `model.fit` ran the steps, as far as can be seen.
        workers: True if PyTorch's DataLoader has worker processes; None = no such loader is seen.
    """

    framework: str
    keras: bool = False
    workers: bool | None = None


def wording(trace: Trace) -> Wording:
    """Return the framework seen in the names of a trace, in one pass."""
    jax = tensorflow = keras = False
    workers = None
    for name in trace.names.strings:
        jax = jax or name.startswith(_JAX)
        tensorflow = tensorflow or name.startswith(_TENSORFLOW)
        keras = keras or _KERAS.search(name) is not None
        if "DataLoader" in name and (loader := _LOADER.search(name)):
            workers = workers or loader[1] == "Multi"
    if jax:  # first: it may take its input from tf.data
        return Wording("jax")
    if tensorflow:
        return Wording("tensorflow", keras)
    return Wording("torch" if trace.format == "kineto" else "", False, workers)


def facts(
    p: ProcessAnalysis,
    names: Names,
    said: Wording,
    index: Callable[[DeviceAnalysis], int] = lambda d: d.index,
) -> dict[str, Any]:
    """Return what a manifest says of a recording made of this process, as far as a trace shows it.

    Args:
        index: the number of a GPU in the recording.
    """
    fit: dict[str, Any] = {"loop": "fit" if said.keras else "custom"}
    if said.framework == "jax":
        fit["jit_compile"] = True
    if said.framework == "tensorflow" and len(p.waits):
        fit["input_kind"] = "tf.data"
    if said.workers is not None:
        fit["input_kind"] = "DataLoader"
    if said.workers is False:
        fit["input_workers"] = 0
    down = [c for d in p.active for c in d.copies if c.direction == "h2d"]
    known = sum(c.total_ps for c in down if c.memory in ("pageable", "pinned"))
    if known:
        pinned = sum(c.total_ps for c in down if c.memory == "pinned")
        fit["input_pin_memory"] = 2 * pinned >= known
    return {
        "host": p.process.host,
        "rank": p.process.rank,
        "framework": {"name": said.framework},
        "fit": fit,
        "gpus": [
            {
                "index": index(d),
                "used_by_framework": True,
                "memory_total_bytes": d.device.facts.get("memory_bytes"),
                "compute_capability": _capability(d),
            }
            for d in p.devices
        ],
        "source": _source(p, names, index),
    }


def _capability(d: DeviceAnalysis) -> Any:
    """Return it for NVIDIA's GPUs, whose tensor cores and kernels' names are known."""
    nvidia = str(d.device.facts.get("vendor", "Nvidia")).lower() == "nvidia"
    return d.device.facts.get("compute_capability") if nvidia else None


def _source(
    p: ProcessAnalysis, names: Names, index: Callable[[DeviceAnalysis], int]
) -> dict[str, Any]:
    """Return what rules ask about a trace besides its rows: how exact it is, copies, launches."""
    stage = next((one for one in p.stages if one.self_ps > 0 and one.name != "Root"), None)
    return {
        "steps_from": p.steps.basis,
        "steps_judged": p.has_steps,
        "idle_judged": p.idle_judged,
        "host_traced": p.process.has_host,
        "fetches": len(p.waits),
        "host_activity": _host_activity(p, names),
        "slowest_stage": stage and {
            "name": stage.name,
            "path": stage.path,
            "self_ms": stage.self_ps / PS_PER_MS,
        },
        "gpus": [
            {
                "index": index(d),
                "at_work": d in p.active,
                "linked_kernels": d.launches.linked,
                "short_kernels_pct": 100 * (d.launches.short_share or 0.0),
                "copies": [
                    {
                        "direction": c.direction,
                        "memory": c.memory,
                        "bytes": c.bytes,
                        "total_ns": c.total_ps / PS_PER_NS,
                    }
                    for c in d.copies
                    if c.direction in ("h2d", "d2h")
                ],
            }
            for d in p.devices
        ],
    }  # fmt: skip


def _host_activity(p: ProcessAnalysis, names: Names) -> str:
    """Return what the host does while it keeps the GPUs idle; "" where no name covers it."""
    if not (p.devices and p.idle_judged and p.process.has_host):
        return ""
    if p.share("idle_host") < _SEARCHED:
        return ""
    worst = max(p.active, key=lambda d: int(d.account.steps["idle_host"].sum()))
    within = int(p.steps.start_ps[0]), int(p.steps.end_ps[-1])
    return culprit(p.process, names, worst.account.sets["idle_host"].clip(*within))
