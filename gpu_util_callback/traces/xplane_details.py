"""The small texts inside XPlane events: kernel and copy details, in all spellings seen."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_util_callback.traces import limits
from gpu_util_callback.traces.model import DeviceKind, KernelShape, MemoryKind
from gpu_util_callback.traces.naming import copy_kind, memory_kind
from gpu_util_callback.traces.plausible import number

__all__ = ["CopyDetails", "copy_details", "kernel_shape"]

# Above these the numbers are uninitialised memory: ROCm and TF 2.4 host events write some.
_MAX_DIGITS = 19


def _pairs(text: str) -> dict[str, str]:
    words = (word.partition(":") for word in text.split())
    return {key: value for key, colon, value in words if colon}


def _digits(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _count(text: str | None, most: int) -> int | None:
    if text is None or not _digits(text):
        return None
    value = int(text)
    return value if value <= most else None


def _triple(text: str | None) -> tuple[int, int, int] | None:
    parts = (text or "").split(",")
    if len(parts) != 3 or not all(_digits(p) for p in parts):
        return None
    x, y, z = (int(p) for p in parts)
    return (x, y, z) if 0 < x * y * z <= 1 << 62 else None


def kernel_shape(details: str, occupancy_pct: float | None = None) -> KernelShape:
    """Return the launch of a kernel from `kernel_details`.

    Reads "regs:128 static_shared:16384 dynamic_shared:0 grid:1,2,1 block:256,1,1 occ_pct:50", the
    older "regs:… shm:… grid:… block:…" and ROCm's "grid:… block:… private_mem:0 group_mem:0".
    """
    pairs = _pairs(details)
    parts = [
        _count(pairs.get(key), limits.MAX_SHARED)
        for key in ("static_shared", "dynamic_shared", "shm", "group_mem")
        if key in pairs
    ]
    known = [part for part in parts if part is not None]
    if not occupancy_pct:
        occupancy_pct = number(pairs.get("occ_pct", ""))
    registers = _count(pairs.get("regs"), limits.MAX_REGISTERS)
    wild = registers is None and "regs" in pairs  # then the shared sizes are wrong, too
    return KernelShape(
        registers=registers,
        shared_bytes=sum(known) if known and len(known) == len(parts) and not wild else None,
        grid=_triple(pairs.get("grid")),
        block=_triple(pairs.get("block")),
        # Drivers that do not compute it write 0 %; no kernel runs at 0 %.
        occupancy_pct=occupancy_pct or None,
    )


@dataclass(frozen=True, slots=True)
class CopyDetails:
    """What is known of a copy beside its times."""

    bytes: int  # -1 = unknown
    kind: DeviceKind
    memory: MemoryKind


def copy_details(details: str, name: str) -> CopyDetails:
    """Return a copy from `memcpy_details`.

    Reads "kind_src:pageable kind_dst:device size:4 dest:0 async:1", the older
    "size:4 dest:0 async:1" and ROCm's "kind:Unknown size:655360 dest:2 async:1".
    """
    pairs = _pairs(details)
    source, destination = pairs.get("kind_src", ""), pairs.get("kind_dst", "")
    size = _count(pairs.get("size"), 1 << 62)
    return CopyDetails(
        bytes=-1 if size is None else size,
        kind=copy_kind(name, source, destination),
        memory=memory_kind(source, destination),
    )
