"""Limits on a trace's size and on its numbers; reading numbers within them.

A file may claim no more than an honest file of its size needs: anything beyond is made up, or far
too long a window. What is no number, or one outside of its range, is absent: -1 in columns of
integers, in which any negative number means that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_EVENTS = 20_000_000  # about 2 GB of memory; windows of a few steps have a thousandth of it
MAX_METADATA = 2_000_000  # names and other entries of one plane
MAX_LINES = 20_000  # of one host: threads, and streams of GPUs
MAX_PLANES = 1_024
MAX_FIELDS = 10_000  # planes, host names and messages of one file
MAX_THREADS = 20_000
MAX_PROCESSES = 256  # of one Nsight Systems export
MAX_GPUS = 128  # of one process, in the account; the largest machines show 72
MAX_SHAPES = 100_000  # different ways in which kernels were launched
MAX_KERNEL_NAMES = 20_000  # listed, of all GPUs; the rest of each is one row
MAX_JUDGED = 4 << 20  # characters of kernel names that are searched for signs of tensor cores
MAX_STAGES = 1_000  # of an input pipeline
MAX_PROBLEMS = 50  # lines about problems of a file
MAX_TEXT = 1_000  # characters of such a line
MAX_NAME = 16_384  # characters of a name; those of C++ templates are long

# A step has a row for each GPU. An honest file has at least one event for each such row.
FEW_CELLS = 20_000
CELLS_PER_EVENT = 4

# XPlane files are read whole; a compressed one may not expand to more than a part of that.
MAX_BYTES = 4 << 30
MAX_UNPACKED = 1 << 30
MAX_UNPACKED_JSON = 64 << 30  # takes minutes to read
# Traces shrink to a tenth or a thirtieth; a file that expands far more holds nothing.
ANY_RATIO_BELOW = 64 << 20
MAX_RATIO = 200

# --- numbers ----------------------------------------------------------------------------------

MAX_ORDINAL = 4_095  # of a GPU
MAX_STEP = 1 << 53  # JSON's readers keep integers exact up to here
MAX_TIME_PS = 1 << 62  # 53 days from the trace's own zero
MAX_TOTAL_PS = 1 << 62  # of all events of a process together: sums stay within 64 bits
MAX_EPOCH_NS = 1 << 62  # the year 2116
MAX_REGISTERS = 1_024
MAX_GRID = (1 << 31) - 1
MAX_BLOCK = 1 << 16
MAX_OCCUPANCY = 100.0
MAX_FACT = 1 << 53  # of a device: bytes, bytes a second, kHz, multiprocessors


def unpacked_limit(packed: int, most: int = MAX_UNPACKED) -> int:
    """Return the bytes that a compressed file of `packed` bytes may expand to."""
    return min(most, max(ANY_RATIO_BELOW, MAX_RATIO * packed))


# ---- numbers as files state them ------------------------------------------------------------

_MAX_DIGITS = 1_000


def integer(value: Any) -> int:
    """Return a number of a file as int64: -1 for no number, -2 for one that does not fit."""
    if type(value) is int and -(1 << 62) < value < 1 << 62:
        return value
    if type(value) is str:
        value = number(value)
    try:
        whole = int(value)
    except (TypeError, ValueError):
        return -1
    except OverflowError:  # infinite
        return -2
    return whole if -(1 << 62) < whole < 1 << 62 else -2


def number(value: Any) -> float | None:
    """Return a number of a file: None for no number, infinite for too large or "NaN"."""
    if type(value) is str and len(value) > _MAX_DIGITS:
        return math.inf
    try:
        parsed = float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None
    return math.inf if math.isnan(parsed) else parsed


def ordinal(digits: str) -> int | None:
    """Return the number of a GPU as written in a name; None if no machine has so many."""
    if len(digits) > 6:
        return None
    index = int(digits)
    return index if index <= MAX_ORDINAL else None


def epoch(value: object) -> int | None:
    """Return a time in nanoseconds since the epoch; None for anything else."""
    return value if isinstance(value, int) and 0 < value < MAX_EPOCH_NS else None


def gpu_facts(numbers: Mapping[str, object], major: object, minor: object) -> dict[str, object]:
    """Return the facts of a GPU that are possible, with its compute capability."""
    facts: dict[str, Any] = {
        name: value for name, value in numbers.items() if isinstance(value, int) and 0 < value <= MAX_FACT
    }
    if isinstance(major, int) and 0 <= major < 1000:
        facts["compute_capability"] = [major, minor if isinstance(minor, int) and 0 <= minor < 1000 else 0]
    return facts
