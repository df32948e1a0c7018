"""The devices of this process's CUDA driver, listed without starting it.

cuInit is never called: a framework that forks must be the first to do so. Until it has, the driver
answers "not initialised" and the list is empty.
"""

import ctypes
import os
import sys
import uuid

from gpu_util_callback.gpus._mapping import CudaGpu

__all__ = ["cuda_gpus"]


def cuda_gpus() -> list[CudaGpu]:
    """Return the devices in CUDA's own order; empty where CUDA is not up in this process."""
    library = _already_loaded()
    if library is None:
        return []
    try:
        count = ctypes.c_int()
        if library.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return []
        return [CudaGpu(i, _uuid(library, i), _pci_bus_id(library, i)) for i in range(count.value)]
    except (AttributeError, OSError, ValueError):
        return []


def _already_loaded() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def _device(library: ctypes.CDLL, ordinal: int) -> ctypes.c_int | None:
    device = ctypes.c_int()
    return device if library.cuDeviceGet(ctypes.byref(device), ordinal) == 0 else None


def _uuid(library: ctypes.CDLL, ordinal: int) -> str:
    device = _device(library, ordinal)
    names = ("cuDeviceGetUuid_v2", "cuDeviceGetUuid")
    function = next((one for name in names if (one := getattr(library, name, None))), None)
    raw = (ctypes.c_ubyte * 16)()
    if device is None or function is None or function(ctypes.byref(raw), device) != 0:
        return ""
    return str(uuid.UUID(bytes=bytes(raw)))


def _pci_bus_id(library: ctypes.CDLL, ordinal: int) -> str:
    device = _device(library, ordinal)
    text = ctypes.create_string_buffer(32)
    function = getattr(library, "cuDeviceGetPCIBusId", None)
    if device is None or function is None or function(text, len(text), device) != 0:
        return ""
    return text.value.decode(errors="replace")
