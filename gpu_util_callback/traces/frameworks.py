"""The framework that wrote a trace, and the trace's facts about the run, as in a manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_util_callback.traces.analysis import ProcessAnalysis
    from gpu_util_callback.traces.model import Trace

__all__ = ["Wording", "facts", "wording"]

_JAX = "PjitFunction("
_TENSORFLOW = ("ExecutorState::", "IteratorGetNext", "Iterator::")
# The function that Keras compiles, as TensorFlow names it.
_KERAS = re.compile(r"(multi|one)_step_on_(iterator|data)|__inference_train_function")
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


def facts(p: ProcessAnalysis, said: Wording) -> dict[str, Any]:
    """Return the facts of a run that advice depends on, as far as a trace shows them."""
    fit: dict[str, Any] = {"loop": "fit" if said.keras else "custom"}
    if said.framework == "jax":
        fit["jit_compile"] = True
    if said.framework == "tensorflow" and len(p.waits):
        fit["input_kind"] = "tf.data"
    if said.workers is not None:
        fit["input_kind"] = "DataLoader"
    if said.workers is False:
        fit["input_workers"] = 0
    # Tensor cores and their kernels' names: known only for NVIDIA's GPUs.
    able = {
        d.index: d.device.facts.get("compute_capability")
        for d in p.devices
        if str(d.device.facts.get("vendor", "Nvidia")).lower() == "nvidia"
    }
    down = [c for d in p.active for c in d.copies if c.direction == "h2d"]
    known = sum(c.total_ps for c in down if c.memory in ("pageable", "pinned"))
    if known:
        pinned = sum(c.total_ps for c in down if c.memory == "pinned")
        fit["input_pin_memory"] = 2 * pinned >= known
    return {
        "framework": {"name": said.framework},
        "fit": fit,
        "gpus": [
            {
                "index": d.index,
                "used_by_framework": True,
                "memory_total_bytes": d.device.facts.get("memory_bytes"),
                "compute_capability": able.get(d.index),
            }
            for d in p.devices
        ],
    }
