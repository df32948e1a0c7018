"""How long each call to the driver takes that the sampler makes, idle and beside a training."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np


class TimedBinding:
    """The NVML binding with every call's duration kept: `seconds` is symbol -> list."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self.seconds: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._binding, name)
        if not name.startswith("nvml") or not callable(value):
            return value
        kept = self.seconds.setdefault(name, [])

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return value(*args)
            finally:
                kept.append(time.perf_counter() - began)

        return timed


def call_latencies(stop: threading.Event | None = None, ticks: int = 60) -> dict[str, Any]:
    """Symbol -> {"count", "p50_us", "p99_us", "max_us"} of the calls of so many whole ticks.

    Everything is read in every tick, also what the sampler reads less often; 0.12 s lie between
    ticks, so that GPM has a new value for each. `stop` ends it early.
    """
    import pynvml

    from gpu_util_callback.gpus._devices import list_gpus
    from gpu_util_callback.gpus._gate import Gate, Memory
    from gpu_util_callback.gpus._reader import GpuReader, XidWatch
    from gpu_util_callback.gpus._store import Store
    from gpu_util_callback.recording.clock import Clock

    pynvml.nvmlInit()
    timed = TimedBinding(pynvml)
    gate = Gate(timed, Memory())
    gpu = list_gpus(gate)[0]
    reader = GpuReader(gate, gpu, 0, Store(), Clock(), expected=False)
    xid = XidWatch(gate, {"gpu0": gpu}, Store(), Clock())
    timed.seconds.clear()
    gate._functions.clear()  # they hold the lists that were just cleared
    took = []
    for _ in range(ticks):
        began = time.perf_counter()
        reader._due = [0.0] * len(reader._due)
        reader.read(began)
        took.append(time.perf_counter() - began)
        xid.read()  # waits for an event for a millisecond; once a second in the sampler
        if (stop or threading.Event()).wait(0.12):
            break
    reader.close()
    xid.close()
    named = {name: values for name, values in timed.seconds.items() if values}
    return {name: _spread(values) for name, values in {**named, "a whole tick": took}.items()}


def _spread(seconds: list[float]) -> dict[str, float]:
    values = np.array(seconds) * 1e6
    return {
        "count": len(values),
        "p50_us": round(float(np.percentile(values, 50)), 1),
        "p99_us": round(float(np.percentile(values, 99)), 1),
        "max_us": round(float(values.max()), 1),
    }
