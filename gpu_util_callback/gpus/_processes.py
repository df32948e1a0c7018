"""Whose memory is it: this process's and other processes' on one GPU."""

import functools
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_util_callback.gpus import _words
from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._gate import Gate

__all__ = ["Processes", "host_pids"]

NAN = float("nan")
# Linux gives the machine's first pid namespace this inode number (PROC_PID_INIT_INO).
_FIRST_NAMESPACE = 0xEFFFFFFC
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)
_FOREIGN = "process ids"


@functools.cache
def host_pids() -> bool:
    """Whether our process ids are those that the driver reports: it knows no pid namespaces."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return True  # no namespaces here (or not Linux)


class Processes:
    """One row of `columns`; NaN where the driver cannot tell.

    In a container the driver's process ids are the host's and ours are not: nothing is attributed.
    """

    columns = (
        "memory_process_bytes",
        "memory_other_bytes",
        "processes_other",
        "utilization_process_pct",
        "utilization_other_pct",
    )

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str, own_pids: Iterable[int]) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key
        self._own = {os.getpid(), *own_pids}

    def read(self) -> list[float]:
        """[float] * len(columns)."""
        found = self._memory()
        if found and not host_pids():
            self._gate.memory.note(_FOREIGN, self._key, *_words.HOST_PIDS)
            return [NAN] * len(self.columns)
        if found is None:
            return [NAN] * len(self.columns)
        own = [used for pid, used in found.items() if pid in self._own]
        others = [used for pid, used in found.items() if pid not in self._own]
        return [sum(own), sum(others), float(len(others)), *self._utilization()]

    def _memory(self) -> dict[int, float] | None:
        """pid -> bytes (NaN: the driver does not say), or None without any list."""
        found: dict[int, float] = {}
        answered = False
        limit = self._gpu.facts.get("memory_total_bytes") or float("inf")
        for symbol in _LISTS:
            listed = self._list(symbol)
            answered |= listed is not None
            for process in listed or ():
                used = process.usedGpuMemory
                # R535.43 to 535.86 changed this structure without a new version.
                if not 0 < process.pid < 1 << 31 or (used is not None and used > limit):
                    continue
                value = NAN if used is None else float(used)
                known = found.get(process.pid)
                found[process.pid] = value if known is None or known != known else max(known, value)
        return found if answered else None

    def _list(self, symbol: str) -> list[Any] | None:
        ask, key, handle = self._gate.ask, self._key, self._gpu.handle
        listed = ask(symbol, handle, gpu=key)
        if listed is None and self._gate.lacks(symbol, key):  # drivers before 510
            self._gate.memory.forget(symbol, key)
            listed = ask(symbol + "_v2", handle, gpu=key)
            if symbol != _LISTS[0]:  # few GPUs have graphics or MPS clients: nothing is missing
                self._gate.memory.forget(symbol + "_v2", key)
        return listed

    def _utilization(self) -> list[float]:
        since_us = time.time_ns() // 1000 - 1_000_000  # 0 would average the whole buffer
        samples = self._gate.ask(
            "nvmlDeviceGetProcessUtilization", self._gpu.handle, since_us, gpu=self._key
        )
        if not samples:
            return [NAN, NAN]
        latest: dict[int, tuple[int, int]] = {}
        for sample in samples:
            if 0 < sample.pid < 1 << 31 and sample.smUtil <= 100:  # bogus records have been seen
                latest[sample.pid] = max(
                    latest.get(sample.pid, (0, 0)), (int(sample.timeStamp), int(sample.smUtil))
                )
        own = sum(value for pid, (_, value) in latest.items() if pid in self._own)
        others = sum(value for pid, (_, value) in latest.items() if pid not in self._own)
        return [min(float(own), 100.0), min(float(others), 100.0)] if latest else [NAN, NAN]
