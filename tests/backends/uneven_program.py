"""A loop over two GPUs of one process; the framework's list of them is made up, NVML is not."""

from __future__ import annotations

import sys
import time

from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.backends.adapters import LoopAdapter
from gpu_util_callback.backends.base import Runtime

Runtime.devices = lambda self: [  # type: ignore[method-assign]
    {"index": 0, "name": "NVIDIA H100 80GB HBM3"},
    {"index": 1, "name": "NVIDIA H100 80GB HBM3"},
]

# As a strategy tells it that was given the GPUs the other way round.
REPLICAS = [{"replica": 0, "device": "GPU:1", "gpu": 1}, {"replica": 1, "device": "GPU:0", "gpu": 0}]
facts = LoopAdapter.facts
LoopAdapter.facts = lambda self: facts(self) | {"fit": {"replicas": REPLICAS}}  # type: ignore[method-assign]

if __name__ == "__main__":
    with GpuUtilMonitor(sys.argv[1], report=False) as monitor:
        for _ in monitor.batches(range(int(sys.argv[2]))):
            time.sleep(0.02)
