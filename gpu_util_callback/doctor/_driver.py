"""The driver and the GPUs: pure functions from the probes' answers to lines."""

from typing import Any

from gpu_util_callback.doctor._report import OK, PROBLEM, WARNING, Line
from gpu_util_callback.gpus import _words

__all__ = ["check_driver", "check_gpus"]

_GIB = 1 << 30
_PROHIBITED, _EXCLUSIVE = 2, 3  # compute modes
_SLOWED_DOWN = 0x8 | 0x20 | 0x40 | 0x80  # clock event reasons: heat or power, not a plain cap
# Codes of cuInit that occur in practice.
_CUDA_CODES = {
    3: ("CUDA was shut down", ""),
    34: ("the CUDA driver library is a stub", "remove the toolkit's stubs from LD_LIBRARY_PATH"),
    46: ("the GPU is in exclusive use by another process", "end that process"),
    100: ("the CUDA driver sees no GPU", ""),
    101: ("CUDA_VISIBLE_DEVICES names no GPU", "correct the variable"),
    803: (
        "driver and CUDA library do not fit (803)",
        "in a container: remove the cuda-compat libraries, or use an image for this driver",
    ),
    804: ("this GPU cannot use the cuda-compat libraries (804)", "update the driver"),
    802: (
        "the fabric manager is not running (802)",
        "systemctl start nvidia-fabricmanager (NVSwitch machines need it)",
    ),
    999: ("CUDA fails with an unknown error (999)", "modprobe nvidia_uvm; else reboot"),
}


def check_driver(nvml: dict[str, Any], cuda: dict[str, Any]) -> list[Line]:
    """Check that there is a driver and that both of its libraries work."""
    if "error" in nvml:
        cure = "see `dmesg`; `nvidia-smi` probably hangs as well" if nvml.get("timeout") else ""
        return [Line("driver", "NVML", PROBLEM, nvml["error"], cure)]
    if problem := nvml.get("problem"):
        # A machine without a GPU has no library at all.
        missing = "no NVIDIA driver library" in problem["reason"]
        none = problem["reason"] == _words.NO_GPU[0]
        status = OK if none else WARNING if missing else PROBLEM
        return [Line("driver", "NVML", status, problem["reason"], problem["cure"])]
    lines = [
        Line(
            "driver", "NVIDIA driver", OK,
            f"{nvml.get('driver_version')}, supports CUDA {nvml.get('cuda_version') or '?'}",
        )
    ]  # fmt: skip
    lines.append(_cuda_line(cuda, nvml))
    return lines


def _cuda_line(cuda: dict[str, Any], nvml: dict[str, Any]) -> Line:
    check = "CUDA driver library"
    if "error" in cuda and "loads" not in cuda:
        return Line("driver", check, PROBLEM, cuda["error"])
    if not cuda.get("loads"):
        return Line(
            "driver", check, PROBLEM, "libcuda.so.1 does not load, though NVML works",
            "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility and `--gpus all`; "
            "else reinstall the driver",
        )  # fmt: skip
    code = cuda.get("init")
    hidden = nvml.get("gpus") and not any(gpu["visible"] for gpu in nvml["gpus"])
    if code in (100, 101) and hidden:
        return Line("driver", check, OK, "works; CUDA_VISIBLE_DEVICES hides every GPU from it")
    if code != 0:
        text, cure = _CUDA_CODES.get(code or -1, (f"cuInit fails with code {code}", "see `dmesg`"))
        return Line("driver", check, PROBLEM, text, cure)
    count = len(cuda.get("gpus", ()))
    return Line("driver", check, OK, f"{cuda.get('library')}, {count} GPU{'s' * (count != 1)}")


def check_gpus(nvml: dict[str, Any]) -> list[Line]:
    """Report the GPUs NVML sees, equal ones grouped, and the problems of each."""
    if "gpus" not in nvml:
        return []
    gpus = nvml["gpus"]
    if not gpus:
        cure = "in a container start it with `--gpus all`; else see `lspci | grep -i nvidia`"
        return [Line("GPUs", "NVML", WARNING, "the driver is there and sees no GPU", cure)]
    lines = []
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu["name"], gpu.get("memory_total_bytes"), gpu["mode"]), []).append(gpu)
    for (name, memory, mode), alike in kinds.items():
        size = f", {memory / _GIB:.0f} GiB" if memory else ""
        numbers = ", ".join(str(gpu["nvml_index"]) for gpu in alike)
        capability = alike[0].get("compute_capability")
        text = f"{len(alike)} × {name}{size}, compute capability {capability or 'unknown'}"
        text += f", {mode}" if mode else ""
        lines.append(Line("GPUs", f"nvml {numbers}", OK, text))
    for gpu in gpus:
        lines += _one(gpu, nvml)
    return lines


def _one(gpu: dict[str, Any], nvml: dict[str, Any]) -> list[Line]:
    number = gpu["nvml_index"]
    lines: list[Line] = []

    def say(status: str, text: str, cure: str) -> None:
        lines.append(Line("GPUs", f"nvml {number}", status, text, cure))

    others = gpu.get("processes") or []
    limit, default = gpu.get("power_limit_mw"), gpu.get("power_default_mw")
    width, full = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    if gpu.get("lost"):
        say(PROBLEM, "does not answer (lost)", "see `dmesg | grep -i xid`; reboot")
    if gpu.get("compute_mode") == _PROHIBITED:
        say(PROBLEM, "compute mode is Prohibited", f"nvidia-smi -i {number} -c 0")
    if others:
        say(WARNING, _processes(others, nvml), "stop them, or choose another GPU")
        if gpu.get("compute_mode") == _EXCLUSIVE:
            say(PROBLEM, "compute mode is Exclusive, and taken", f"nvidia-smi -i {number} -c 0")
    if limit and default and limit < 0.95 * default:
        text = f"power limit {limit / 1000:.0f} W, the default is {default / 1000:.0f} W"
        say(WARNING, text, f"nvidia-smi -i {number} -pl {default // 1000}")
    if width and full and width < full:
        say(WARNING, f"PCIe link ×{width} of ×{full}", "reseat the card, or use a full slot")
    if gpu.get("ecc_uncorrected"):
        text = f"{gpu['ecc_uncorrected']} uncorrected ECC errors since the last reboot"
        say(WARNING, text, "see `nvidia-smi -q -d ECC,ROW_REMAPPER`; replace it if they go on")
    if (gpu.get("event_reasons") or 0) & _SLOWED_DOWN:
        text = "the GPU slows itself down (heat or power) right now"
        say(WARNING, text, "check cooling and the power supply")
    if gpu.get("persistence_mode") is False:
        text = "persistence mode is off: the first use after a pause is slow"
        say(WARNING, text, f"nvidia-smi -i {number} -pm 1")
    if gpu["mode"] == "MIG" and not gpu.get("mig_devices"):
        text = "MIG mode is on and no MIG device exists"
        say(PROBLEM, text, f"nvidia-smi mig -i {number} -cgi … -C, or nvidia-smi -mig 0")
    return lines


def _processes(processes: list[dict[str, Any]], nvml: dict[str, Any]) -> str:
    sizes = [process["memory_bytes"] for process in processes if process["memory_bytes"]]
    used = f" with {sum(sizes) / _GIB:.1f} GiB" if sizes else ""
    if nvml.get("host_pids"):
        who = ", ".join(f"{p.get('name') or 'process'} {p['pid']}" for p in processes[:3])
        who += ", …" if len(processes) > 3 else ""
    else:
        who = "process ids are the host's"
    count = "1 process uses" if len(processes) == 1 else f"{len(processes)} processes use"
    return f"{count} it{used} ({who})"
