"""The sampler: what the GPUs did, from a daemon thread of its own."""

import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

from gpu_util_callback.gpus import _cuda, _library, _mapping
from gpu_util_callback.gpus._devices import NvmlGpu, driver_facts, list_gpus, mode_of
from gpu_util_callback.gpus._gate import Gate, Memory
from gpu_util_callback.gpus._health import XidWatch
from gpu_util_callback.gpus._host import Host, host_facts
from gpu_util_callback.gpus._reader import GpuReader
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.gpus._types import FrameworkGpu, SampleBlock
from gpu_util_callback.gpus._worker import Crew, Opened, Worker
from gpu_util_callback.recording.clock import Clock

__all__ = ["Sampler"]


class Sampler:
    """Samples the GPUs this process may use, at `hz`, until stopped.

    Nothing in it raises to the caller or waits for the driver: NVML is loaded and started in the
    thread. What is missing is in `unavailable`, with a reason.

    Args:
        clock: the recording's clock; samples are stamped on it.
        hz: ticks a second; the rate falls by itself when a driver is slow.
        framework_gpus: the GPUs as the framework numbers them. None or empty: it has none, and all
            GPUs that CUDA_VISIBLE_DEVICES allows are sampled, with `used_by_framework` False.
        own_pids: further processes of this training (data loader workers), whose GPU memory
            counts as this process's.

    Example:
        sampler = Sampler(Clock(), framework_gpus=[FrameworkGpu(0, pci_bus_id="0000:17:00.0")])
        sampler.start()
        ...
        for block in sampler.drain():
            writer.append_samples(block.group, block.columns, block.time_ns, block.values)
        sampler.stop()
    """

    def __init__(
        self,
        clock: Clock,
        hz: float = 10,
        framework_gpus: Sequence[FrameworkGpu] | None = None,
        own_pids: Sequence[int] = (),
    ) -> None:
        self._clock = clock
        self._hz = hz
        self._framework_gpus = framework_gpus
        self._own_pids = frozenset(own_pids)
        self._store = Store()
        self._memory = Memory()
        self._pid: int | None = None
        self._started_s = 0.0
        self._crew: Crew | None = None
        self._gpus: list[dict[str, Any]] = []
        self._driver: dict[str, Any] = {}
        self._nvml_gpus: list[dict[str, Any]] = []
        self._sampled: set[str] = set()  # keys of GPUs that a thread samples
        _samplers.add(self)

    def start(self) -> None:
        """Start the thread; returns at once."""
        if self._crew is not None:
            return
        self._pid = os.getpid()
        self._started_s = time.perf_counter()
        self._crew = Crew(
            self._open, self._memory, lambda: Host(self._store, self._clock, self._memory), self._hz
        )
        self._crew.start()

    def stop(self, timeout_s: float = 0.5) -> None:
        """End the threads, waiting at most `timeout_s`; a call that hangs is left behind."""
        if self._crew is not None and self._here:
            self._crew.stop(timeout_s)

    def drain(self) -> list[SampleBlock]:
        """Samples since the last drain, one block per group."""
        return self._store.drain() if self._here else []

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The sampled GPUs; [] until the driver has answered. Unknown facts are None."""
        return [dict(gpu) for gpu in self._gpus]

    @property
    def nvml_gpus(self) -> list[dict[str, Any]]:
        """All GPUs that NVML sees; "visible" tells whether CUDA_VISIBLE_DEVICES allows them."""
        return [dict(gpu) for gpu in self._nvml_gpus]

    @property
    def driver(self) -> dict[str, Any]:
        """{"driver_version", "nvml_version", "cuda_version"}; {} until known."""
        return dict(self._driver)

    @property
    def host(self) -> dict[str, Any]:
        """{"cpus", "cpus_allowed", "cpu_quota", "memory_total_bytes", "memory_limit_bytes"}."""
        return host_facts()

    @property
    def unavailable(self) -> list[dict[str, str]]:
        """What could not be measured: [{"source", "reason", "cure"}]."""
        return self._memory.unavailable

    @property
    def overhead(self) -> dict[str, float]:
        """{"sampler_cpu_pct": our share of one core, "hz": the rate now}."""
        wall_s = time.perf_counter() - self._started_s
        if self._crew is None or wall_s <= 0:
            return {"sampler_cpu_pct": 0.0, "hz": 0.0}
        return {"sampler_cpu_pct": 100 * self._crew.cpu_s / wall_s, "hz": self._crew.hz}

    @property
    def _here(self) -> bool:
        return self._pid == os.getpid()

    def _open(self, worker: Worker) -> Opened:
        """Open the driver and all GPUs that no thread samples yet. Sampler's threads."""
        binding, problem = _library.open_nvml()
        if problem is not None:
            self._memory.off("nvmlInit", "", problem["reason"], problem["cure"])
            return None, [], None
        gate = worker.gate = Gate(binding, self._memory)
        self._driver = driver_facts(gate)
        every = list_gpus(gate)
        allowed = _mapping.visible(os.environ, every)
        if allowed.problem:
            self._memory.note("CUDA_VISIBLE_DEVICES", "", allowed.problem, "correct the variable")
        self._nvml_gpus = [
            {
                **_mapping.describe(_mapping.Match(gpu.nvml_index, None, gpu, "order")),
                "visible": any(gpu is own or gpu.uuid == own.parent_uuid for own in allowed.gpus),
            }
            for gpu in every
        ]
        matches = _mapping.match(self._framework_gpus, allowed, every, _cuda.cuda_gpus())
        self._gpus = [_mapping.describe(found) for found in matches]
        readers: list[GpuReader] = []
        used: dict[str, NvmlGpu] = {}
        for found in matches:
            key = f"gpu{found.index}"
            if found.gpu is None:
                if not self._memory.skipped:  # else it may be the one that hangs
                    self._memory.note("GPU", key, "NVML knows no GPU with its identity")
                continue
            if found.gpu.handle is None or key in (*self._sampled, *self._memory.skipped):
                continue
            self._memory.modes[key] = mode_of(gate, found.gpu)
            used[key] = found.gpu
            readers.append(
                GpuReader(
                    gate,
                    found.gpu,
                    found.index,
                    self._store,
                    self._clock,
                    self._own_pids,
                    expected=found.framework is not None,
                )
            )
        xid = XidWatch(gate, used, self._store, self._clock) if used else None
        self._sampled.update(used)
        return gate, readers, xid


_samplers: "weakref.WeakSet[Sampler]" = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child (a data loader's worker) has no thread and no driver state: disarm."""
    for sampler in list(_samplers):
        sampler._store = Store()  # the old lock may be held by the parent's thread for ever
        sampler._crew = None
        sampler._pid = None
        sampler._sampled = set()
        sampler._memory.skipped.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
