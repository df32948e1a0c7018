"""Loading and starting NVML: once per process, never shut down, and again after a fork.

Repeated cycles of initialising and shutting down are slow and have upset drivers; starting may even
hang. So this is only called in a sampler's thread or in the doctor's own process.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gpu_util_callback.gpus import _words

__all__ = [
    "code_of",
    "nvidia_gpus",
    "open_nvml",
    "restart",
    "starting_since",
]

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class: VGA and 3D controllers


def nvidia_gpus(root: str = "/") -> int | None:
    """Return the number of NVIDIA GPUs on the PCI bus; None where the system does not report it.

    Sandboxes show an empty bus, WSL has its GPUs elsewhere, Jetsons do not attach theirs to a bus.
    """
    base = Path(root)
    try:
        if (base / "dev/dxg").exists() or list((base / "dev").glob("nvidia*")):
            return None
        devices = list((base / "sys/bus/pci/devices").iterdir())
        texts = [
            ((device / "vendor").read_text().strip(), (device / "class").read_text().strip())
            for device in devices
        ]
    except OSError:
        return None
    if not texts:
        return None
    return sum(vendor == _NVIDIA and kind.startswith(_DISPLAY) for vendor, kind in texts)


_NO_LIBRARY = 12
_NAME = "libnvidia-ml.so.1"
# Driver folders that the loader does not know: containers without ldconfig, GKE, WSL, NixOS.
_FOLDERS = (
    "/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib",
)  # fmt: skip
_lock = threading.Lock()
_started_in: int | None = None
_starting_since: float | None = None  # perf seconds


def open_nvml() -> tuple[Any, dict[str, str] | None]:
    """Return (the binding, None) with NVML started, or (None, {"source", "reason", "cure"})."""
    global _started_in, _starting_since
    try:
        import pynvml
    except ImportError:
        return None, _problem(
            "the Python package nvidia-ml-py is missing", "pip install nvidia-ml-py"
        )
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        # PyPI's `pynvml` before 12 and `nvidia-ml-py3` install a module of the same name.
        return None, _problem(
            "another package took the module name pynvml",
            "pip uninstall pynvml nvidia-ml-py3; pip install --force-reinstall nvidia-ml-py",
        )
    with _lock:
        if _started_in == os.getpid() and pynvml.nvmlLib is not None:
            return pynvml, None
        _starting_since = time.perf_counter()
        try:
            _start(pynvml)
        except Exception as error:
            code = code_of(pynvml, error)
            if code == _NO_LIBRARY and nvidia_gpus() == 0:
                return None, _problem(*_words.NO_GPU)
            return None, _problem(*_words.explain(code, error))
        finally:
            _starting_since = None
        _started_in = os.getpid()
        return pynvml, None


def starting_since() -> float | None:
    """Return the perf seconds at which starting NVML began; None if it is not being started."""
    return _starting_since


def _start(binding: Any) -> None:
    try:
        binding.nvmlInit()
    except Exception as error:
        if code_of(binding, error) != _NO_LIBRARY or not _load_from_known_folders():
            raise
        binding.nvmlInit()


def _load_from_known_folders() -> bool:
    """Load the driver's library by its path: the loader then finds it by its name."""
    if not sys.platform.startswith("linux"):
        return False
    for path in (Path(folder) / _NAME for folder in _FOLDERS):
        try:
            ctypes.CDLL(str(path))
        except OSError:
            continue
        return True
    return False


def restart(binding: Any) -> None:
    """Start NVML again after other code in the process shut it down."""
    try:
        binding.nvmlInit()
    except Exception:
        pass  # the next query fails, too, and backs off


def code_of(binding: Any, error: Exception) -> int:
    """Return NVML's code behind a binding's exception; 13 for its mismatch error, else -1."""
    if isinstance(error, getattr(binding, "NVMLError", ())):
        return int(getattr(error, "value", -1))
    if isinstance(error, getattr(binding, "NVMLLibraryMismatchError", ())):
        return 13  # raised where a symbol is missing; no subclass of NVMLError
    return -1


def _problem(reason: str, cure: str) -> dict[str, str]:
    return {"source": "NVML", "reason": reason, "cure": cure}


def _after_fork() -> None:
    global _lock, _starting_since
    _starting_since = None
    _lock = threading.Lock()  # the parent's thread may hold the old one for ever


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
