"""GPU sampling: NVML behind one guarded gate, sampled from its own thread."""

from gpu_util_callback.gpus._store import FrameworkGpu
from gpu_util_callback.gpus.sampler import Sampler

__all__ = ["FrameworkGpu", "Sampler"]
