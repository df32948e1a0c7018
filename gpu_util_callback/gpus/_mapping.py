"""The mapping from the framework's `gpu<i>` to NVML: by UUID or PCI bus id, never by bare index.

NVML numbers GPUs by PCI bus and ignores CUDA_VISIBLE_DEVICES; CUDA numbers those that the variable
allows, the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID. With equal GPUs both orders agree.

The CUDA driver's own list is read without starting it. cuInit is never called: a framework that
forks must be the first to do so. Until it has, the driver answers "not initialised" and the list is
empty.
"""

import ctypes
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._store import FrameworkGpu


@dataclass(frozen=True)
class CudaGpu:
    """A device of the CUDA driver in this process."""

    ordinal: int
    uuid: str  # hexadecimal with dashes, no prefix
    pci_bus_id: str


@dataclass(frozen=True)
class Visible:
    """The GPUs CUDA may use, in CUDA's order.

    Attributes:
        certain: True if that order is known (False: unlike GPUs, and CUDA sorts them by speed).
        problem: what is wrong with the variables, in words; "" = nothing.
    """

    gpus: list[NvmlGpu]
    certain: bool = True
    problem: str = ""


@dataclass(frozen=True)
class Match:
    """A GPU to record.

    Attributes:
        index: its number in the recording.
        framework: as the framework names it; None = the framework does not use it.
        gpu: NVML's; None = not found in its list.
        certain: False where it was taken by an order that may be another one.
    """

    index: int
    framework: FrameworkGpu | None
    gpu: NvmlGpu | None
    certain: bool = True


def visible(environ: Mapping[str, str], gpus: Sequence[NvmlGpu]) -> Visible:
    """Return the part of `gpus` that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave, in CUDA's order."""
    by_bus = environ.get("CUDA_DEVICE_ORDER", "").strip().upper() == "PCI_BUS_ID"
    ordered = list(gpus)  # NVML's order is that of the bus; a GPU that hangs reports no bus id
    if all(gpu.pci_bus_id for gpu in gpus):
        ordered.sort(key=lambda gpu: pci_key(gpu.pci_bus_id))
    certain = by_bus or len({gpu.name for gpu in ordered}) <= 1
    setting = environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:  # no limit: all GPUs, or the first MIG device if there are only such
        whole = [gpu for gpu in ordered if not gpu.mig_mode]
        if whole:
            return Visible(whole, certain)
        return Visible([mig for gpu in ordered for mig in gpu.migs][:1], certain)
    entries = [entry.strip() for entry in setting.split(",")]
    if entries and not re.match(r"[+-]?\d", entries[0]):
        certain = True  # named by UUID: order does not matter
    chosen: list[NvmlGpu] = []
    problem = ""
    for entry in entries:
        gpu = _gpu_named(entry, ordered)
        if gpu is None:
            if setting.strip() and entry not in ("-1", "NoDevFiles"):
                problem = f"CUDA_VISIBLE_DEVICES={setting}: no GPU is {entry!r}; CUDA ignores the rest"
            break  # CUDA cuts the list at the first invalid entry
        if any(gpu is other for other in chosen):
            return Visible([], True, f"CUDA_VISIBLE_DEVICES={setting} names a GPU twice: CUDA sees none")
        chosen.append(gpu)
        if gpu.mig:
            break  # a process sees at most one MIG device
    return Visible(chosen, certain, problem)


def match(
    framework_gpus: Sequence[FrameworkGpu] | None,
    allowed: Visible,
    every: Sequence[NvmlGpu],
    cuda: Sequence[CudaGpu] = (),
) -> list[Match]:
    """Return the GPUs to record.

    A framework's GPU is found by its UUID or PCI address, else by those of CUDA's device of its number. Only where
    NVML and neither of these can be compared, its number among the allowed ones counts.

    Args:
        framework_gpus: None or empty: all that the variables allow are recorded, numbered in that order.
        allowed: those that the variables allow.
        every: all GPUs in NVML's list.
        cuda: devices of this process's CUDA driver, when it is up.
    """
    if not framework_gpus:
        return [Match(i, None, gpu) for i, gpu in enumerate(allowed.gpus)]
    pool = [device for gpu in every for device in (gpu, *gpu.migs)]
    matches = []
    for framework_gpu in framework_gpus:
        ordinal = framework_gpu.index if framework_gpu.cuda_ordinal is None else framework_gpu.cuda_ordinal
        cuda_device = next((device for device in cuda if device.ordinal == ordinal), None)
        gpu, certain = _gpu_by_identity(framework_gpu.uuid, framework_gpu.pci_bus_id, pool, allowed), True
        if gpu is None and cuda_device is not None:
            gpu = _gpu_by_identity(cuda_device.uuid, cuda_device.pci_bus_id, pool, allowed)
        has_identity = any(_comparable(device, pool) for device in (framework_gpu, cuda_device))
        if gpu is None and not has_identity and ordinal < len(allowed.gpus):
            alike = [device for device in allowed.gpus if _same_name(device.name, framework_gpu.name)]
            certain = allowed.certain or len(alike) == 1
            gpu = alike[0] if certain and not allowed.certain else allowed.gpus[ordinal]
        matches.append(Match(framework_gpu.index, framework_gpu, gpu, certain))
    return matches


def _comparable(device: FrameworkGpu | CudaGpu | None, pool: Sequence[NvmlGpu]) -> bool:
    """Return whether NVML and this device provide an identity of the same kind."""
    if device is None:
        return False
    by_uuid = bool(device.uuid) and any(gpu.uuid for gpu in pool)
    return by_uuid or (bool(device.pci_bus_id) and any(gpu.pci_bus_id for gpu in pool))


def _gpu_by_identity(uuid: str | None, pci: str | None, pool: Sequence[NvmlGpu], allowed: Visible) -> NvmlGpu | None:
    """Return the GPU of `pool` with this UUID, else with this PCI address; else None.

    Args:
        pool: all GPUs and MIG devices.
        allowed: those that CUDA may use: which of a board's MIG devices it is.
    """
    if uuid:
        for gpu in pool:
            if bare_uuid(gpu.uuid) == bare_uuid(uuid):
                return gpu
    if pci:
        for gpu in pool:
            if gpu.pci_bus_id and pci_key(gpu.pci_bus_id) == pci_key(pci):
                # In MIG mode the framework runs on one MIG device of this board.
                migs = [mig for mig in allowed.gpus if mig.parent_uuid == gpu.uuid] if gpu.mig_mode else []
                return (migs or gpu.migs or [gpu])[0]
    return None


def _gpu_named(entry: str, ordered: Sequence[NvmlGpu]) -> NvmlGpu | None:
    """Return the GPU that one entry of CUDA_VISIBLE_DEVICES names: a number, or the begin of a UUID; None = none.

    A GPU in MIG mode stands for its first MIG device.
    """
    if re.fullmatch(r"\+?\d+", entry):
        number = int(entry)
        if number >= len(ordered):
            return None
        gpu = ordered[number]
        return gpu.migs[0] if gpu.mig_mode and gpu.migs else gpu
    if entry.upper().startswith("MIG-"):
        matching = [mig for gpu in ordered for mig in gpu.migs if _begins(mig.uuid, entry)]
    elif entry.upper().startswith("GPU-"):
        matching = [gpu for gpu in ordered if _begins(gpu.uuid, entry)]
        if len(matching) == 1 and matching[0].mig_mode and matching[0].migs:
            matching = matching[0].migs[:1]
    else:
        matching = []
    return matching[0] if len(matching) == 1 else None


def _begins(uuid: str, entry: str) -> bool:
    return len(entry) > 4 and uuid.lower().startswith(entry.lower())


def bare_uuid(uuid: str) -> str:
    """Return a UUID without the GPU-/MIG- prefix that only one side prints."""
    return re.sub(r"^(gpu|mig)-", "", uuid.strip().lower())


def pci_key(bus_id: str) -> tuple[int, ...]:
    """Return (domain, bus, device) of a PCI bus id, with or without domain, of any width; (-1,) if it is none."""
    parts = re.split(r"[:.]", bus_id.strip())
    try:
        numbers = [int(part, 16) for part in parts]
    except ValueError:
        return (-1,)
    if len(numbers) == 3 and "." in bus_id:  # "17:00.0": no domain
        numbers = [0, *numbers]
    return tuple(numbers[:3])


def _same_name(a: str, b: str) -> bool:
    short = [re.sub(r"^nvidia\s+", "", name.strip().lower()) for name in (a, b)]
    return bool(short[1]) and short[0] == short[1]


def describe(match: Match) -> dict[str, object]:
    """Return a GPU by the names of the manifest's `gpus`; unknown values are None."""
    gpu, framework = match.gpu, match.framework
    named = gpu or framework or FrameworkGpu(match.index)
    capability = framework.compute_capability if framework else None
    if capability is not None and not isinstance(capability, str):
        capability = ".".join(map(str, capability))
    label = f"gpu{match.index}"
    if gpu is not None:
        sure = "" if match.certain else ", by order: not certain"
        label += f" (nvml {gpu.nvml_index}, {gpu.uuid[:8]}…{sure})"
    return {
        "index": match.index,
        "nvml_index": gpu and gpu.nvml_index,
        "uuid": named.uuid,
        "name": named.name or "GPU",
        "used_by_framework": framework is not None,
        "memory_total_bytes": None,
        "compute_capability": capability,
        "pci_bus_id": gpu and gpu.pci_bus_id,
        "mig": gpu is not None and gpu.mig,
        **{key: value for key, value in (gpu.facts if gpu else {}).items() if value is not None},
        "label": label,
    }


def describe_listed(gpu: NvmlGpu, allowed: Sequence[NvmlGpu]) -> dict[str, object]:
    """Return a GPU of NVML's list as facts; "visible": CUDA_VISIBLE_DEVICES allows it, or a part of it."""
    visible = any(gpu is other or gpu.uuid == other.parent_uuid for other in allowed)
    return {**describe(Match(gpu.nvml_index, None, gpu)), "visible": visible}


def cuda_gpus() -> list[CudaGpu]:
    """Return the devices in CUDA's own order; [] where CUDA is not up in this process."""
    library = _already_loaded()
    if library is None:
        return []
    try:
        count = ctypes.c_int()
        if library.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return []
        return [_cuda_gpu(library, ordinal) for ordinal in range(count.value)]
    except (AttributeError, OSError, ValueError):
        return []


def _already_loaded() -> ctypes.CDLL | None:
    """Return CUDA's driver library where the framework has loaded it; else None: loading it starts nothing here."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (AttributeError, OSError):  # Windows has no such mode
        return None


def _cuda_gpu(library: ctypes.CDLL, ordinal: int) -> CudaGpu:
    """Return CUDA's device `ordinal`; an identity that the driver does not give is ""."""
    device, raw, text = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
    if library.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return CudaGpu(ordinal, "", "")
    ask_uuid = getattr(library, "cuDeviceGetUuid_v2", None)  # from CUDA 11.4 on
    ask_address = getattr(library, "cuDeviceGetPCIBusId", None)
    has_uuid = ask_uuid is not None and ask_uuid(ctypes.byref(raw), device) == 0
    has_address = ask_address is not None and ask_address(text, len(text), device) == 0
    return CudaGpu(
        ordinal,
        str(uuid.UUID(bytes=bytes(raw))) if has_uuid else "",
        text.value.decode(errors="replace") if has_address else "",
    )
