"""Memory and utilization of one GPU, split into this process's and other processes'."""

import functools
import os
import time
from collections.abc import Mapping
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
# A framework creates its CUDA context within seconds of its first use of a GPU.
_PATIENCE = 10  # reads


@functools.cache
def host_pids() -> bool:
    """Return True if we are in the first pid namespace: our process ids are the machine's own."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return True  # no namespaces here (or not Linux)


class Processes:
    """One row of `columns`; NaN where the driver cannot attribute usage.

    Usage is attributed to other processes only after this process was seen in the list under its
    own id: in containers drivers report the host's ids (all of them before R530, the utilization's
    in newer ones as well), and sandboxes have their own ids. Where only the utilization's ids are
    foreign, `utilization_other_pct` is the minimum that others can have: at most one id is ours.

    Args:
        expected: True if the framework of this process uses the GPU, so that the driver has to list
            the process.
    """

    columns = (
        "memory_process_bytes",
        "memory_other_bytes",
        "processes_other",
        "utilization_process_pct",
        "utilization_other_pct",
    )

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str, expected: bool = False) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key
        self._own = os.getpid()
        self._expected = expected
        self._listed = False  # we were seen in a list, under our own id
        self._sampled = False  # and among the utilization's samples
        self._reads = 0

    def read(self) -> list[float]:
        """Return [float] * len(columns)."""
        found = self._memory()
        if found is None:
            return [NAN] * len(self.columns)
        self._reads += 1
        self._listed = self._listed or self._names_us(found)
        sampled = self._utilization()
        self._sampled |= self._own in sampled
        return [*self._of_lists(found), *self._of_samples(sampled, found)]

    def _names_us(self, found: Mapping[int, float]) -> bool:
        """Return whether the list holds ids of our namespace, including ours."""
        if self._own not in found:
            return False
        # In a container our id may by chance equal that of a process on the host; that all others
        # exist here as well is no coincidence.
        return host_pids() or all(Path(f"/proc/{pid}").exists() for pid in found)

    def _of_lists(self, found: Mapping[int, float]) -> list[float]:
        if not self._listed and (self._expected or not host_pids()):
            if found and not host_pids():
                self._gate.memory.note(_FOREIGN, self._key, *_words.HOST_PIDS)
            elif self._expected and self._reads > _PATIENCE:
                self._gate.memory.note(_FOREIGN, self._key, *_words.NOT_LISTED)
            return [NAN] * 3
        self._gate.memory.forget(_FOREIGN, self._key)
        own = [used for pid, used in found.items() if pid == self._own]
        others = [used for pid, used in found.items() if pid != self._own]
        return [sum(own), sum(others), float(len(others))]

    def _of_samples(self, sampled: Mapping[int, int], found: Mapping[int, float]) -> list[float]:
        if not sampled:
            return [NAN, NAN]
        own = sampled.get(self._own, 0)
        others = sum(sampled.values()) - own
        ours = self._sampled or (host_pids() and (self._listed or not self._expected))
        if ours:
            return [min(float(own), 100.0), min(float(others), 100.0)]
        # Foreign ids: one of them may be us, and the busiest at most.
        least = sum(sampled.values()) - max(sampled.values())
        return [NAN, min(float(least), 100.0) if len(sampled) > 1 else NAN]

    def _memory(self) -> dict[int, float] | None:
        """Return pid -> bytes (NaN: not reported by the driver), or None without any list."""
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
                # A CUDA context holds memory: in containers some drivers report 0 for unknown.
                value = float(used) if used else NAN
                known = found.get(process.pid)
                found[process.pid] = value if known is None or known != known else max(known, value)
        return found if answered else None

    def _list(self, symbol: str) -> list[Any] | None:
        handle = self._gpu.handle
        # Drivers before 510 have the older call.
        listed = self._gate.first_of((symbol, handle), (f"{symbol}_v2", handle), gpu=self._key)
        if symbol != _LISTS[0]:  # few GPUs have graphics or MPS clients: nothing is missing
            self._gate.memory.forget(f"{symbol}/1", self._key)
        return listed

    def _utilization(self) -> dict[int, int]:
        """Return pid -> its newest SM utilization in percent."""
        since_us = time.time_ns() // 1000 - 1_000_000  # 0 would average the whole buffer
        samples = self._gate.ask(
            "nvmlDeviceGetProcessUtilization", self._gpu.handle, since_us, gpu=self._key
        )
        latest: dict[int, tuple[int, int]] = {}
        for sample in samples or ():
            if 0 < sample.pid < 1 << 31 and sample.smUtil <= 100:  # bogus records have been seen
                latest[sample.pid] = max(
                    latest.get(sample.pid, (0, 0)), (int(sample.timeStamp), int(sample.smUtil))
                )
        return {pid: value for pid, (_, value) in latest.items()}
