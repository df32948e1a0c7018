"""Instructions that a thread has executed, where the kernel and the processor count them."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable

_SYSCALL = {"x86_64": 298, "aarch64": 241}  # perf_event_open
_HARDWARE, _INSTRUCTIONS = 0, 1
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 72),
    )


def counter() -> tuple[Callable[[], int] | None, str]:
    """A reading of the calling thread's instructions so far; or None, and why there is none."""
    number = _SYSCALL.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return None, f"perf_event_open is not known on {platform.system()} {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = _Attributes(
        type=_HARDWARE,
        size=ctypes.sizeof(_Attributes),
        config=_INSTRUCTIONS,
        flags=_EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR,
    )
    file = libc.syscall(number, ctypes.byref(wanted), 0, -1, -1, 0)
    if file < 0:
        return None, f"perf_event_open: {os.strerror(ctypes.get_errno())}"
    return lambda: struct.unpack("q", os.read(file, 8))[0], ""
