"""Environment variables that matter, MPS, and permission to profile."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_util_callback.doctor._report import OK, PROBLEM, WARNING, Line

__all__ = ["backend", "check_environment", "check_profiler", "relevant"]

_SECTION = "environment"
_NAMES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "KERAS_BACKEND", "JAX_PLATFORMS", "JAX_PLATFORM_NAME", "XLA_FLAGS", "TF_XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION",
    "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR", "TF_GPU_THREAD_MODE", "TF_DETERMINISTIC_OPS",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "LD_LIBRARY_PATH",
)  # fmt: skip


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set and matter."""
    return {name: environ[name] for name in _NAMES if name in environ}


def backend(environ: Mapping[str, str]) -> str | None:
    """Return the Keras backend chosen here, None if none is."""
    chosen = environ.get("KERAS_BACKEND", "").lower()
    return chosen if chosen in ("tensorflow", "jax", "torch") else None


def check_environment(environ: Mapping[str, str], nvml: dict[str, Any]) -> list[Line]:
    """Return one line per variable that is wrong or slow, and one for all the others."""
    gpus = nvml.get("gpus") or []
    lines = [*_visible(environ, nvml, gpus), *_settings(environ, gpus)]
    named = {line.check for line in lines}
    rest = {
        name: value
        for name, value in relevant(environ).items()
        if name not in named and name != "LD_LIBRARY_PATH"
    }
    if rest or not lines:
        text = (
            ", ".join(f"{name}={value}" for name, value in rest.items()) or "none set that matter"
        )
        lines.append(Line(_SECTION, "variables", OK, text))
    if environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp/nvidia-mps").is_dir():
        lines.append(
            Line(_SECTION, "MPS", OK, "a CUDA MPS server is configured: processes share GPUs")
        )
    return lines


def _visible(environ: Mapping[str, str], nvml: dict[str, Any], gpus: list[Any]) -> list[Line]:
    name = "CUDA_VISIBLE_DEVICES"
    lines = []
    value = environ.get(name)
    visible = sum(gpu["visible"] for gpu in gpus)
    if nvml.get("visible_problem"):
        lines.append(
            Line(
                _SECTION,
                name,
                PROBLEM,
                nvml["visible_problem"],
                "name GPUs that exist, or unset it",
            )
        )
    elif value is not None and gpus and visible == 0:
        hidden = "the GPU" if len(gpus) == 1 else f"all {len(gpus)} GPUs"
        lines.append(
            Line(_SECTION, name, PROBLEM, f"{name}={value} hides {hidden}",
                 f"unset {name}, or set it to the GPUs that are meant")
        )  # fmt: skip
    elif value is not None and gpus:
        lines.append(Line(_SECTION, name, OK, f"{name}={value}: {visible} of {len(gpus)} GPUs"))
    if not nvml.get("order_certain", True) and visible > 1:
        lines.append(
            Line(_SECTION, "CUDA_DEVICE_ORDER", WARNING,
                 "these GPUs differ, and CUDA numbers them by speed while nvidia-smi goes by bus",
                 "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
        )  # fmt: skip
    return lines


def _settings(environ: Mapping[str, str], gpus: list[Any]) -> list[Line]:
    lines = []

    def warn(name: str, status: str, text: str, cure: str) -> None:
        lines.append(Line(_SECTION, name, status, text, cure))

    if environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        warn("CUDA_LAUNCH_BLOCKING", WARNING, "the host waits for every single kernel",
             "unset CUDA_LAUNCH_BLOCKING (it is for debugging)")  # fmt: skip
    for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        value = environ.get(name, "").lower()
        if gpus and value and not {"cuda", "gpu", "rocm"} & set(value.split(",")):
            warn(name, PROBLEM, f"{name}={value} keeps JAX off the GPU", f"unset {name}")
    old, new = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
    if environ.get(old) and environ.get(new):
        warn(new, PROBLEM if gpus else WARNING,
             f"JAX does not start on a GPU with {old} beside it", f"unset {old}")  # fmt: skip
    capabilities = environ.get("NVIDIA_DRIVER_CAPABILITIES", "all").split(",")
    if gpus and not {"all", "compute"} & set(capabilities):
        warn("NVIDIA_DRIVER_CAPABILITIES", PROBLEM, "this container may look at GPUs, not compute",
             "start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility")  # fmt: skip
    percentage = environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    if percentage and percentage != "100":
        warn("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", WARNING,
             f"MPS gives this process {percentage} % of each GPU", "unset it")  # fmt: skip
    return lines


def check_profiler(nvml: dict[str, Any], libraries: dict[str, Any]) -> list[Line]:
    """Check that this user may profile and that CUPTI loads: kernel time needs both."""
    if not nvml.get("gpus"):
        return []
    cupti = next((found for name, found in libraries.items() if name.startswith("libcupti")), None)
    if cupti is not None and not cupti.get("loads"):
        return [Line(_SECTION, "profiler", WARNING, "CUPTI does not load: no kernel times",
                     'pip install "tensorflow[and-cuda]"')]  # fmt: skip
    if _admin_only() and not _is_admin():
        return [
            Line(_SECTION, "profiler", WARNING, "CUPTI: only administrators may profile here",
                 "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then "
                 "reboot; in a container `--cap-add=SYS_ADMIN`")
        ]  # fmt: skip
    return [Line(_SECTION, "profiler", OK, "nothing forbids profiling")]


def _admin_only(path: str = "/proc/driver/nvidia/params") -> bool:
    try:
        return "RmProfilingAdminOnly: 1" in Path(path).read_text()
    except OSError:
        return False


def _is_admin() -> bool:
    try:
        status = Path("/proc/self/status").read_text()
        effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> 21 & 1)  # CAP_SYS_ADMIN
    except (OSError, StopIteration, ValueError):
        return hasattr(os, "geteuid") and os.geteuid() == 0
