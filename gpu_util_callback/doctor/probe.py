"""Probes that may hang or crash, each run in its own process.

`python -P probe.py NAME`, which imports no more than it needs, prints one line of JSON behind a mark. A probe that
raises prints {"error": …}; one that dies is recognized by its exit status.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_util_callback.gpus import _devices, _gate

MARK = "gpu-util-probe: "
ProbeAnswer = dict[str, Any]  # what a probe found, as JSON


def nvml() -> ProbeAnswer:
    """Return the driver's facts and everything NVML reports about its GPUs; {"problem"} where it does not start."""
    from gpu_util_callback.gpus import _devices, _gate, _mapping, _reader

    binding, problem = _gate.open_nvml()
    if problem is not None:
        return {"problem": problem}
    memory = _gate.Memory()
    gate = _gate.Gate(binding, memory)
    all_gpus = _devices.list_gpus(gate)
    visibility = _mapping.visible(os.environ, all_gpus)
    return {
        **_devices.driver_facts(gate),
        "visible_problem": visibility.problem,
        "order_certain": visibility.certain,
        "host_pids": _reader.host_pids(),
        "gpus": [_describe_gpu(gate, gpu, visibility.gpus) for gpu in all_gpus],
    }


def _describe_gpu(gate: _gate.Gate, gpu: _devices.NvmlGpu, visible_gpus: list[_devices.NvmlGpu]) -> ProbeAnswer:
    """Return a GPU's identity, mode, PCIe link, errors and processes; memory in bytes, None = unknown."""
    from gpu_util_callback.cgroup import text_of
    from gpu_util_callback.gpus import _devices, _mapping, _reader

    key = f"nvml {gpu.nvml_index}"

    def ask(symbol: str, *args: object) -> _gate.Answer:
        return gate.ask(symbol, gpu.board, *args, gpu=key)

    reasons = [(symbol, gpu.board) for symbol in _reader.REASON_CALLS]
    processes = ask("nvmlDeviceGetComputeRunningProcesses")
    return {
        **_mapping.describe_listed(gpu, visible_gpus),
        "mode": _devices.mode_of(gate, gpu),
        "mig_devices": [mig.uuid for mig in gpu.migs],
        "compute_mode": ask("nvmlDeviceGetComputeMode"),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "event_reasons": gate.first_of(*reasons, gpu=key),
        "ecc_uncorrected": ask("nvmlDeviceGetTotalEccErrors", 1, 0),
        "lost": key in gate.memory.gone,
        "processes": [
            {"pid": int(p.pid), "memory_bytes": p.usedGpuMemory, "name": text_of(Path(f"/proc/{p.pid}/comm")).strip()}
            for p in processes or ()
        ],
    }


def cuda() -> ProbeAnswer:
    """Return whether the CUDA driver library loads, the code that starting it returns (0 = works), and its devices."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"loads": False, "error": str(error)}
    code = library.cuInit(0)
    answer: ProbeAnswer = {"loads": True, "init": code, "library": loaded_path("libcuda.so.1")}
    if code == 0:
        from gpu_util_callback.gpus import _mapping

        answer["gpus"] = [vars(gpu) for gpu in _mapping.cuda_gpus()]
    return answer


def libraries(names: str) -> ProbeAnswer:
    """Return name -> {"loads", "path" or "error"} for each of the comma-separated sonames."""
    answers: ProbeAnswer = {}
    for name in names.split(","):
        # Same order as the frameworks: the loader's own search, then the nvidia-* wheels.
        wheels = (sorted(glob.glob(f"{folder}/nvidia/*/lib/{name}")) for folder in sys.path)  # noqa: PTH207
        for candidate in (name, *chain.from_iterable(wheels)):
            try:
                ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                answers[name] = {"loads": False, "error": str(error)}
            else:
                answers[name] = {"loads": True, "path": loaded_path(name) or candidate}
                break
    return answers


def tensorflow() -> ProbeAnswer:
    """Return TensorFlow's build, the names of the GPUs it sees, and whether their memory grows (None = not known)."""
    import tensorflow as tf

    build = {
        key: value if isinstance(value, str | int | float | bool) else [str(v) for v in value]
        for key, value in dict(tf.sysconfig.get_build_info()).items()
    }
    config, gpus = tf.config.experimental, tf.config.list_physical_devices("GPU")
    growth: list[bool | None] = []
    for gpu in gpus:
        try:
            growth.append(bool(config.get_memory_growth(gpu)))
        except (RuntimeError, ValueError):
            growth.append(None)
    names = [config.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
    return {"version": tf.__version__, "build": build, "gpus": names, "memory_growth": growth}


def jax() -> ProbeAnswer:
    """Return JAX's plugins, the names of the GPUs it sees, and the error that kept it from them ("" = none)."""
    import jax as module

    plugins = [
        name
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"] or "").lower().startswith("jax-cuda")
    ]
    error = ""
    try:
        devices = [d for d in module.devices() if d.platform in ("gpu", "cuda", "rocm")]
    except RuntimeError as failure:
        devices, error = [], str(failure)
    return {
        "version": module.__version__,
        "build": {"is_cuda_build": bool(plugins), "plugins": sorted(set(plugins))},
        "gpus": [device.device_kind for device in devices],
        "init_error": error,
    }


def torch() -> ProbeAnswer:
    """Return torch's build and the names of the GPUs it sees."""
    import torch as module

    available = module.cuda.is_available()
    count = module.cuda.device_count() if available else 0
    return {
        "version": module.__version__,
        "build": {
            "is_cuda_build": module.version.cuda is not None,
            "cuda_version": module.version.cuda,
            "cuda_compute_capabilities": list(module.cuda.get_arch_list()) if available else [],
        },
        "gpus": [module.cuda.get_device_name(gpu) for gpu in range(count)],
    }


def loaded_path(soname: str) -> str | None:
    """Return the file behind a library that this process has loaded; None where that is not known."""
    stem = soname.split(".so")[0] + ".so"
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[-1] for line in mapped)
    return next((path for path in paths if "/" in path and Path(path).name.startswith(stem)), None)


PROBES: dict[str, Callable[..., ProbeAnswer]] = {
    "nvml": nvml,
    "cuda": cuda,
    "libraries": libraries,
    "tensorflow": tensorflow,
    "jax": jax,
    "torch": torch,
}


def main(argv: list[str]) -> int:
    """Run the probe argv[0] with the rest as arguments."""
    try:
        answer = PROBES[argv[0]](*argv[1:])
    except Exception as error:  # the framework's error is the answer
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer, default=str)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
