"""The machine that the evidence comes from: GPU, driver, versions. Imports no framework."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
from typing import Any

# module -> the package that has it
NEEDED = {
    "numpy": "numpy",
    "google.protobuf": "protobuf",
    "pynvml": "nvidia-ml-py",
    "psutil": "psutil",
    "fsspec": "fsspec",
    "tensorboard": "tensorboard",
    "keras": "keras",
}
_TELLING = re.compile(
    r"(keras|jax|jaxlib|jax-cuda\d+-\w+|torch|triton|tensorflow|numpy|nvidia-ml-py"
    r"|nvidia-(cublas|cudnn|cuda-cupti|cuda-runtime)(-cu\d+)?)"
)


def missing(backend: str) -> list[str]:
    """Packages that have to be installed first."""
    wanted = {**NEEDED, backend: backend}
    return [package for module, package in wanted.items() if not _found(module)]


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the parent package is not there
        return False


def one_gpu(environ: dict[str, str]) -> dict[str, str]:
    """Variables that leave one GPU: others would only be found unused."""
    known = environ.get("CUDA_VISIBLE_DEVICES")
    if known is None:  # numbered as the driver does
        return {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"CUDA_VISIBLE_DEVICES": known.split(",")[0].strip()}


def machine(environ: dict[str, str]) -> dict[str, Any]:
    """What the driver and the installed packages say; None = not known.

    Returns: "gpu", "memory_gib", "driver", "cuda", "mig", "power_limit_w", "gpus", "nvml" (what is
    wrong with it), "python", "platform", "cpus", "packages".
    """
    found: dict[str, Any] = dict.fromkeys(
        ("gpu", "memory_gib", "driver", "cuda", "mig", "power_limit_w", "gpus", "nvml")
    )
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = _handle(pynvml, environ)
    except Exception as error:
        found["nvml"] = f"{type(error).__name__}: {error}"
    else:
        asked = {
            "gpu": lambda: _text(pynvml.nvmlDeviceGetName(handle)),
            "memory_gib": lambda: round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
            "driver": lambda: _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": lambda: _version(pynvml.nvmlSystemGetCudaDriverVersion()),
            "mig": lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]),
            "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
            "gpus": pynvml.nvmlDeviceGetCount,
        }
        for name, ask in asked.items():
            try:
                found[name] = ask()
            except pynvml.NVMLError:
                pass  # not known on this board
    packages = {
        str(one.metadata["Name"]): one.version
        for one in importlib.metadata.distributions()
        if _TELLING.fullmatch(str(one.metadata["Name"]))
    }
    return {
        **found,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "packages": dict(sorted(packages.items())),
    }


def gpu_memory_bytes(environ: dict[str, str]) -> float:
    """Of the first GPU that CUDA may use; NVML's errors."""
    import pynvml

    pynvml.nvmlInit()
    return float(pynvml.nvmlDeviceGetMemoryInfo(_handle(pynvml, environ)).total)


def _handle(pynvml: Any, environ: dict[str, str]) -> Any:
    """The driver's name for the first of CUDA_VISIBLE_DEVICES: a number or a UUID."""
    first = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.isdigit() or not first:
        return pynvml.nvmlDeviceGetHandleByIndex(int(first or 0))
    return pynvml.nvmlDeviceGetHandleByUUID(first)


def described(facts: dict[str, Any]) -> str:
    """Two lines for people."""
    if facts["gpu"]:
        mig = ", MIG is on: its instruments are blind" if facts["mig"] else ""
        one = f"{facts['gpu']}, {facts['memory_gib']} GiB, driver {facts['driver']} (CUDA {facts['cuda']}){mig}"
    else:
        one = f"no NVIDIA driver answers ({facts['nvml']})"
    packages = ", ".join(
        f"{name} {version}" for name, version in facts["packages"].items() if not name.startswith("nvidia-")
    )
    return f"{one}\n{facts['cpus']} CPU cores, Python {facts['python']}, {packages}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
