"""The GPUs that NVML sees, and their constant facts."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_util_callback.cgroup import text_of
from gpu_util_callback.gpus._gate import Answer, Gate
from gpu_util_callback.recording.manifest_facts import Gpu, valid

_SM_CLOCK = 1


@dataclass
class NvmlGpu:
    """A GPU or a MIG device of one.

    Attributes:
        nvml_index: place in NVML's list; a MIG device has its board's.
        handle: NVML's handle; None for one that hangs.
        board: handle of the whole GPU.
        parent_uuid: of a MIG device's board; "" = a whole GPU.
        gi: number of a MIG device's GPU instance.
        migs: the MIG devices of a whole GPU in MIG mode.
        facts: those that do not change, by the manifest's names.
    """

    nvml_index: int
    handle: object
    board: object
    uuid: str
    name: str
    pci_bus_id: str
    parent_uuid: str = ""  # of a MIG device
    gi: int | None = None
    migs: list["NvmlGpu"] = field(default_factory=list)
    mig_mode: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def mig(self) -> bool:
        """True for a MIG device."""
        return bool(self.parent_uuid)


def driver_facts(gate: Gate) -> dict[str, str | None]:
    """Return {"driver_version", "cuda_version"}; unknown values are None."""
    cuda = gate.ask("nvmlSystemGetCudaDriverVersion_v2")
    return {
        "driver_version": _text(gate.ask("nvmlSystemGetDriverVersion")),
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
    }


def list_gpus(gate: Gate) -> list[NvmlGpu]:
    """Return all GPUs in NVML's order, each with its MIG devices; GPUs without a handle are left out.

    A GPU in `Memory.skipped` is not queried: it keeps its place, without a handle.
    """
    gpus = []
    for index in range(gate.ask("nvmlDeviceGetCount") or 0):
        key = f"nvml {index}"
        if key in gate.memory.skipped:
            gpus.append(NvmlGpu(index, None, None, "", "NVIDIA GPU", ""))
            continue
        handle = gate.ask("nvmlDeviceGetHandleByIndex", index, gpu=key)
        if handle is None:
            continue
        gpu = _physical_gpu(gate, handle, index, key)
        mode = gate.ask_quietly("nvmlDeviceGetMigMode", handle, gpu=key)  # most GPUs have none
        gpu.mig_mode = bool(mode and mode[0])
        if gpu.mig_mode:
            gpu.migs = _migs(gate, gpu, key)
        gpus.append(gpu)
    return gpus


def find_again(gate: Gate, gpu: NvmlGpu, key: str) -> bool:
    """Get new handles of a GPU that was lost; return True if it answers.

    Args:
        key: "gpu<i>", to which failures are attributed.
    """
    gate.probing = True
    try:
        if gpu.uuid:
            handle = gate.ask("nvmlDeviceGetHandleByUUID", gpu.uuid.encode(), gpu=key)
            name_or_uuid = handle is not None and gate.ask("nvmlDeviceGetUUID", handle, gpu=key)
        else:  # no UUID reported: its position in the list stays the same
            handle = gate.ask("nvmlDeviceGetHandleByIndex", gpu.nvml_index, gpu=key)
            name_or_uuid = handle is not None and gate.ask("nvmlDeviceGetName", handle, gpu=key)
        if not name_or_uuid:
            gate.memory.still_lost(key)
            return False
        board = handle
        if gpu.mig:
            board = gate.ask("nvmlDeviceGetHandleByUUID", gpu.parent_uuid.encode(), gpu=key)
    finally:
        gate.probing = False
    gpu.handle, gpu.board = handle, board if board is not None else handle
    return True


def mode_of(gate: Gate, gpu: NvmlGpu) -> str:
    """Return the mode that keeps calls from being supported: "MIG", "vGPU", "WSL" or ""."""
    if gpu.mig or gpu.mig_mode:
        return "MIG"
    key = f"nvml {gpu.nvml_index}"
    if gate.ask_quietly("nvmlDeviceGetVirtualizationMode", gpu.handle, gpu=key) == 2:
        return "vGPU"
    return "WSL" if "microsoft" in text_of(Path("/proc/sys/kernel/osrelease")).lower() else ""


def _text(value: bytes | str | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _physical_gpu(gate: Gate, handle: object, index: int, key: str) -> NvmlGpu:
    """Return a whole GPU with its facts, without the MIG devices on it."""
    pci = gate.ask("nvmlDeviceGetPciInfo", handle, gpu=key)
    gpu = NvmlGpu(
        nvml_index=index,
        handle=handle,
        board=handle,
        uuid=_text(gate.ask("nvmlDeviceGetUUID", handle, gpu=key)) or "",
        name=_text(gate.ask("nvmlDeviceGetName", handle, gpu=key)) or "NVIDIA GPU",
        pci_bus_id=_text(pci.busId) or "" if pci is not None else "",
    )
    gpu.facts = _facts(gate, gpu, key)
    return gpu


def _migs(gate: Gate, parent: NvmlGpu, key: str) -> list[NvmlGpu]:
    """Return the MIG devices of a GPU: each with its own memory and multiprocessors, on its parent's bus.

    Args:
        key: "nvml <i>", to which failures are attributed.
    """
    migs = []
    for index in range(gate.ask("nvmlDeviceGetMaxMigDeviceCount", parent.handle, gpu=key) or 0):
        handle = gate.ask("nvmlDeviceGetMigDeviceHandleByIndex", parent.handle, index, gpu=key)
        if handle is None:
            continue
        mig = NvmlGpu(
            nvml_index=parent.nvml_index,
            handle=handle,
            board=parent.handle,
            uuid=_text(gate.ask("nvmlDeviceGetUUID", handle, gpu=key)) or "",
            name=_text(gate.ask("nvmlDeviceGetName", handle, gpu=key)) or f"{parent.name} MIG",
            pci_bus_id=parent.pci_bus_id,
            parent_uuid=parent.uuid,
            gi=gate.ask("nvmlDeviceGetGpuInstanceId", handle, gpu=key),
        )
        attributes = gate.ask_quietly("nvmlDeviceGetAttributes_v2", handle, gpu=key)
        mig.facts = {
            **parent.facts,
            "memory_total_bytes": _memory_total(gate, handle, key),
            "multiprocessors": getattr(attributes, "multiprocessorCount", None),
        }
        migs.append(mig)
    return migs


def memory_of(gate: Gate, handle: object, key: str) -> Answer:
    """Return the driver's memory info of a GPU: `total`, `used` and, apart from that, `reserved`, in bytes."""
    return gate.ask("nvmlDeviceGetMemoryInfo", handle, gate.binding.nvmlMemory_v2, gpu=key)


def _memory_total(gate: Gate, handle: object, key: str) -> int | None:
    """Return a GPU's memory in bytes; None where the driver does not report a possible one."""
    memory = memory_of(gate, handle, key)
    gate.memory.forget("nvmlDeviceGetMemoryInfo", key)  # the sampled value has its own reason
    if memory is None or not memory.total:
        return None
    return valid(Gpu, "memory_total_bytes", int(memory.total))


# GPUs that share the CPU's memory, by name, and any whose memory is as large as the machine's.
_UNIFIED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra)\b|Jetson", re.IGNORECASE)
_AS_LARGE = 0.01  # of the machine's memory: the amounts differ at most


def _is_unified(name: str, total: int | None) -> bool:
    """Return whether what the driver reports is the machine's memory, not a GPU's own."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows
        machine = 0
    return bool(_UNIFIED.search(name)) or (machine > 0 and abs((total or 0) - machine) <= _AS_LARGE * machine)


def _facts(gate: Gate, gpu: NvmlGpu, key: str) -> dict[str, object]:
    """Return the facts that do not change while a process runs, by the manifest's names.

    Unknown ones are None, as are numbers that no GPU has: drivers answer nonsense at times.
    """

    def ask(symbol: str, *args: object) -> Answer:  # a fact is null; only sampled values need a reason
        return gate.ask_quietly(symbol, gpu.handle, *args, gpu=key)

    capability = ask("nvmlDeviceGetCudaComputeCapability")
    total = _memory_total(gate, gpu.handle, key)
    unified = _is_unified(gpu.name, total)
    facts = {
        "memory_total_bytes": None if unified else total,
        "unified_memory": unified or None,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "power_limit_mw": ask("nvmlDeviceGetEnforcedPowerLimit"),
        "power_default_mw": ask("nvmlDeviceGetPowerManagementDefaultLimit"),
        "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
        "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "cores": ask("nvmlDeviceGetNumGpuCores"),
        "persistence_mode": _flag(ask("nvmlDeviceGetPersistenceMode")),
    }
    # A limit, clock, link or count of 0 is how drivers say that a virtual GPU has none.
    return {name: valid(Gpu, name, value) if value or value is False else None for name, value in facts.items()}


def _flag(value: object) -> bool | None:
    return None if value is None else bool(value)
