"""Facts of PyTorch, its GPUs, their memory and the other processes of the job."""

from __future__ import annotations

import os
import pickle
import platform

import torch

from gpu_util_callback.backends.base import ListedGpu
from gpu_util_callback.steps.rows import DeviceProbe


def framework() -> dict[str, object]:
    """Return the manifest's `framework`, without Keras."""
    return {
        "name": "torch",
        "version": torch.__version__,
        "backend": "torch",
        "python": platform.python_version(),
        "device": _device(),
        "cuda": torch.version.cuda,
        "cuda_build": torch.version.cuda is not None,
        "cudnn": _cudnn(),
        "collectives": _collectives(),
    }


def _device() -> str | None:
    """Return "cpu" where there is nothing else to compute on; None = not known."""
    accelerator = getattr(torch, "accelerator", None)  # from PyTorch 2.6 on
    return "cpu" if accelerator is not None and not accelerator.is_available() else None


def _collectives() -> str | None:
    """Return the backend of the job's collectives: "nccl", "gloo"; None for a lone process."""
    distributed = torch.distributed
    try:
        if not distributed.is_initialized():
            return None
        config = str(distributed.get_backend_config()).lower()  # "cpu:gloo,cuda:nccl"
    except Exception:  # a build without it, or one too old to be asked
        return None
    by_device = dict(part.split(":", 1) for part in config.split(",") if ":" in part)
    return by_device.get("cuda" if torch.cuda.is_available() else "cpu") or config


def _cudnn() -> str | None:
    try:
        number = torch.backends.cudnn.version()
    except Exception:  # a library that cannot be loaded is the user's concern
        return None
    return str(number) if number else None


def step_threads() -> int:
    """Return the number of threads that a step may use on the CPU."""
    return torch.get_num_threads()


def devices() -> list[ListedGpu] | None:
    """Return this process's GPUs in PyTorch's order; None where it has none.

    CUDA is never initialised for this: workers forked later could no longer use it.
    """
    if not torch.cuda.is_available():
        return None
    gpus: list[ListedGpu] = []
    is_initialized = torch.cuda.is_initialized()
    for index in range(torch.cuda.device_count()):
        if not is_initialized:
            gpus.append({"index": index, "name": ""})
            continue
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        gpus.append(
            {
                "index": index,
                "name": properties.name,
                "uuid": f"GPU-{uuid}" if uuid is not None else None,
                "pci_bus_id": _bus_id(properties),
                "compute_capability": f"{properties.major}.{properties.minor}",
            }
        )
    return gpus or None


def _bus_id(properties: object) -> str | None:
    try:
        domain, bus, device = (
            int(getattr(properties, name)) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")
        )
    except (AttributeError, TypeError, ValueError):
        return None
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


class CudaProbe(DeviceProbe):
    """Probe of whether a CUDA event recorded after the step has been reached."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None

    def mark(self, result: object) -> None:
        # On the current stream, where the step's kernels are queued; recording waits for nothing.
        self._event = torch.cuda.Event()
        self._event.record()

    def idle(self) -> bool:
        return self._event is None or bool(self._event.query())


def probe() -> DeviceProbe | None:
    """Return a probe of the device's progress; None where a call returns only when it is done."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return CudaProbe()
    return None


def memory() -> dict[int, dict[str, float]]:
    """Return what each GPU's caching allocator holds, by ordinal. Waits for no device."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    names = {
        "allocated_bytes.all.current": "allocator_used_bytes",
        "allocated_bytes.all.peak": "allocator_peak_bytes",
        "reserved_bytes.all.current": "allocator_reserved_bytes",
        "allocation.all.current": "allocator_live_allocations",
        "num_alloc_retries": "allocator_retries",
        "num_ooms": "allocator_ooms",
    }
    memory_by_gpu = {}
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        if not stats:  # nothing was ever allocated there
            continue
        memory_by_gpu[index] = {ours: float(stats[theirs]) for theirs, ours in names.items() if theirs in stats}
        fraction = _fraction(index)
        if fraction is not None:
            total = torch.cuda.get_device_properties(index).total_memory
            memory_by_gpu[index]["allocator_limit_bytes"] = fraction * total
    return memory_by_gpu


def record_memory(on: bool) -> None:
    """Begin or end to note the stack of each allocation on GPUs."""
    if torch.cuda.is_available():
        torch.cuda.memory._record_memory_history("all" if on else None)


def memory_stacks() -> tuple[str, bytes] | None:
    """Return the snapshot of PyTorch's allocator, for https://pytorch.org/memory_viz."""
    if not torch.cuda.is_initialized():
        return None
    return "memory.pickle", pickle.dumps(torch.cuda.memory._snapshot())


def _fraction(index: int) -> float | None:
    get = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    try:
        return float(get(index)) if get is not None else None
    except Exception:
        return None


def rendezvous() -> tuple[str, str, int, int] | None:
    """Return (source, shared identity, rank, processes); None for a process on its own."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    size = distributed.get_world_size()
    if size < 2:
        return None
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    identity = run if run and run != "none" else ""
    identity = identity or ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return "torchelastic", identity, distributed.get_rank(), size


def tf32() -> dict[str, bool]:
    """Return whether float32 is computed in TF32 on GPUs that have it, by kind of work."""
    matmul = torch.get_float32_matmul_precision() != "highest"
    try:
        conv = bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # set by `fp32_precision`, which does not mix with this one
        conv = torch.backends.cudnn.conv.fp32_precision != "ieee"
    return {"matmul": matmul, "conv": conv}
