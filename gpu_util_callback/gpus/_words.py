"""User-facing explanations of NVML return codes and calls."""

__all__ = ["SOURCES", "explain", "not_supported"]

# The values that are missing when a call has no answer.
SOURCES = {
    "nvmlInit": "NVML",
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetSamples": "utilization buffer",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetEnforcedPowerLimit": "power limit",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetClockInfo": "SM clock",
    "nvmlDeviceGetMaxClockInfo": "maximum SM clock",
    "nvmlDeviceGetCurrentClocksEventReasons": "clock event reasons",
    "nvmlDeviceGetFieldValues": "counters (PCIe, throttling, energy, NVLink)",
    "nvmlDeviceGetComputeRunningProcesses": "memory by process",
    "nvmlDeviceGetProcessUtilization": "utilization by process",
    "nvmlDeviceGetCurrPcieLinkGeneration": "PCIe generation",
    "nvmlDeviceGetMaxPcieLinkGeneration": "maximum PCIe generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "PCIe width",
    "nvmlDeviceGetMaxPcieLinkWidth": "maximum PCIe width",
    "nvmlDeviceGetTotalEccErrors": "ECC errors",
    "nvmlDeviceRegisterEvents": "Xid errors",
    "nvmlEventSetCreate": "Xid errors",
    "nvmlEventSetWait_v2": "Xid errors",
    "nvmlGpmQueryDeviceSupport": "GPM (SM active, occupancy, tensor cores)",
    "nvmlGpmSampleGet": "GPM (SM active, occupancy, tensor cores)",
    "nvmlGpmMigSampleGet": "GPM (SM active, occupancy, tensor cores)",
    "nvmlGpmMetricsGet": "GPM (SM active, occupancy, tensor cores)",
    "psutil": "host",
}

OLD_BINDING = "the installed nvidia-ml-py does not know this call"
OLD_BINDING_CURE = "pip install --upgrade nvidia-ml-py"
LOST_CURE = "see `dmesg | grep -i xid`; a reset or reboot brings a lost GPU back"

NO_GPU = ("no NVIDIA GPU in this machine", "")
NO_GPM = ("this GPU has no GPM: it came with Hopper", "")
HOST_PIDS = (
    "the driver reports the host's process ids, which are not this container's",
    "start the container with `--pid=host` to separate this process's memory from that of others",
)
NOT_LISTED = (
    "the driver does not list this process: a sandbox or MPS stands between them",
    "run outside of it to separate this process's memory from that of others",
)

_CODES: dict[int, tuple[str, str]] = {
    1: ("NVML was shut down by other code in this process", ""),
    2: ("the driver rejects this request", "update the driver"),
    3: ("not supported by this GPU or its driver", ""),
    4: ("no permission", "ask an administrator, or run as root"),
    8: ("a power cable is missing", "attach the GPU's external power cables"),
    9: ("the NVIDIA driver is not loaded", "load it with `modprobe nvidia`, or install the driver"),
    10: ("the driver did not answer in time", ""),
    11: ("the driver has an interrupt problem", "see `dmesg`"),
    12: (
        "no NVIDIA driver library (libnvidia-ml.so.1)",
        "install the NVIDIA driver; in a container pass `--gpus all` and the `utility` capability",
    ),
    13: ("the installed driver is too old for this call", "update the driver"),
    15: ("the GPU is lost: it fell off the bus or is not reachable", LOST_CURE),
    16: ("the GPU requires a reset", "`nvidia-smi --gpu-reset`, or reboot"),
    17: ("the operating system denied the request", "see `dmesg`"),
    18: (
        "the NVIDIA driver was updated and its kernel module is still the old one",
        "reboot, or reload the nvidia kernel modules",
    ),
    20: ("out of memory", ""),
    25: ("driver and nvidia-ml-py disagree on this call's version", OLD_BINDING_CURE),
    28: ("the GPU is no longer there", LOST_CURE),
    999: ("the driver reports an unknown error", "see `dmesg`"),
}


def explain(code: int, error: Exception | None = None) -> tuple[str, str]:
    """Return (reason, cure) of an NVML return code."""
    if code in _CODES:
        return _CODES[code]
    return f"{type(error).__name__}: {error}" if code < 0 else f"NVML error {code}", ""


def not_supported(mode: str) -> str:
    """Return why a value is not supported in the GPU's mode ("MIG", "vGPU", "WSL" or "")."""
    return f"{mode}: not supported in this mode" if mode else _CODES[3][0]
