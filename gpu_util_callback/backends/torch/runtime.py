"""PyTorch: its facts, GPUs, compilations and state, with or without Keras."""

from __future__ import annotations

import os
import pickle
import re
import sys
import time
import weakref
from collections import Counter
from typing import Any

import torch

from gpu_util_callback.backends.base import ListedGpu, Runtime
from gpu_util_callback.recording.manifest_facts import Exchanges, Retraced
from gpu_util_callback.steps.compilations import CompileClock
from gpu_util_callback.steps.frames import instances
from gpu_util_callback.steps.rows import DeviceProbe

SEARCHES = 3  # of some fifty milliseconds each, in which no Python runs
# Why torch.compile compiled again: "0/6: self.n == 6   # self.n += 1  # train.py:7 in forward (HINT: …", or
# "0/6: tensor 'x' size mismatch at index 0. expected 8, actual 9".
_CHANGED = re.compile(r"\d+/\d+: (.+?)(?: == |\. expected| +#|\s*$)(?:.*?([^\s(]+\.py:\d+) in )?")


class TorchRuntime(Runtime):
    """PyTorch in this process."""

    name, version = "torch", torch.__version__
    _parallel: weakref.ref | None = None  # to the module that exchanges gradients
    _searches = 0  # for it, among all objects
    _exposed_ms = 1e9  # of the shortest exchange that was seen: longer ones may have waited for another rank
    _clock_us = 0  # when the clock of this recording was made

    def framework(self) -> dict[str, object]:
        return super().framework() | {
            "device": None if torch.accelerator.is_available() else "cpu",  # None = not known
            "cuda": torch.version.cuda,
            "cuda_build": torch.version.cuda is not None,
            "collectives": _collectives(),
        }

    def step_threads(self) -> int:
        return torch.get_num_threads()

    def debugging(self) -> list[str]:
        profiles = ["torch.profiler"] * torch.autograd.profiler._is_profiler_enabled
        return super().debugging() + profiles + ["torch.autograd.set_detect_anomaly(True)"] * torch.is_anomaly_enabled()

    def precision(self) -> dict[str, object]:
        groups = [group for optimizer in instances(*kinds_of_optimizers()) for group in optimizer.param_groups]
        types = {weight.dtype for group in groups for weight in group["params"]}
        return {"mixed_precision": "float64"} if types == {torch.float64} else {}

    def devices(self) -> list[ListedGpu] | None:
        """Return the GPUs in PyTorch's order, without an identity until the training has initialised CUDA.

        None: none.
        """
        # CUDA is never initialised for this: workers forked later could no longer use it.
        if not torch.cuda.is_available():
            return None
        gpus: list[ListedGpu] = []
        is_initialized = torch.cuda.is_initialized()
        for index in range(torch.cuda.device_count()):
            if not is_initialized:
                gpus.append({"index": index, "name": ""})
                continue
            properties = torch.cuda.get_device_properties(index)
            uuid = getattr(properties, "uuid", None)
            gpus.append(
                {
                    "index": index,
                    "name": properties.name,
                    "uuid": f"GPU-{uuid}" if uuid is not None else None,
                    "compute_capability": f"{properties.major}.{properties.minor}",
                }
            )
        return gpus or None

    def memory(self) -> dict[int, dict[str, float]]:
        """Return the values of each GPU's caching allocator, in bytes or counts, by ordinal.

        {} before CUDA is in use.
        """
        if not _cuda_works():
            return {}
        names = {
            "allocated_bytes.all.current": "allocator_used_bytes",
            "allocated_bytes.all.peak": "allocator_peak_bytes",
            "reserved_bytes.all.current": "allocator_reserved_bytes",
            "allocation.all.current": "allocator_live_allocations",
            "num_alloc_retries": "allocator_retries",
            "num_ooms": "allocator_ooms",
        }
        memory_by_gpu = {}
        for index in range(torch.cuda.device_count()):
            if not (stats := torch.cuda.memory_stats(index)):  # nothing was ever allocated there
                continue
            memory_by_gpu[index] = {ours: float(stats[theirs]) for theirs, ours in names.items() if theirs in stats}
            if hasattr(torch.cuda, "get_per_process_memory_fraction"):
                fraction = torch.cuda.get_per_process_memory_fraction(index)
                total = torch.cuda.get_device_properties(index).total_memory
                memory_by_gpu[index]["allocator_limit_bytes"] = fraction * total
        return memory_by_gpu

    def record_memory(self, on: bool) -> None:
        if torch.cuda.is_available():
            torch.cuda.memory._record_memory_history("all" if on else None)

    def memory_stacks(self) -> tuple[str, bytes] | None:
        if not torch.cuda.is_initialized():
            return None
        return "memory.pickle", pickle.dumps(torch.cuda.memory._snapshot())  # for pytorch.org/memory_viz

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        """Return (source, shared identity, rank, processes) of the process group; None for a lone process."""
        size = self.processes()
        if size < 2:
            return None
        run = os.environ.get("TORCHELASTIC_RUN_ID")
        identity = run if run and run != "none" else ""
        identity = identity or ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        return "torchelastic", identity, torch.distributed.get_rank(), size

    def exchanges(self) -> Exchanges | None:
        """Return counts of gradient exchanges and updates, and the shortest time of one outside the backward pass, ms.

        None where no single DistributedDataParallel is found among the objects, which is tried `SEARCHES` times.
        """
        parallel = self._parallel() if self._parallel is not None else None
        if self.processes() < 2 or (parallel is None and self._searches >= SEARCHES):
            return None
        if parallel is None:
            self._searches += 1
            modules = instances(torch.nn.parallel.DistributedDataParallel)
            if len(modules) != 1:  # of several, one may be called without any exchange
                return None
            [parallel] = modules
            self._parallel, self._exposed_ms = weakref.ref(parallel), TorchRuntime._exposed_ms
        logged = parallel._get_ddp_logging_data()
        # An update changes each parameter in place, once or a few times: a tensor counts that.
        updates = max(parameter._version for parameter in parallel.parameters())
        alone_ns = logged.get("backward_comm_time", 0) - logged.get("backward_compute_comm_overlap_time", 0)
        self._exposed_ms = min(self._exposed_ms, max(0, alone_ns) / 1e6)
        return {"count": logged.get("iteration", 0), "updates": updates, "exposed_ms": self._exposed_ms}

    def tf32(self) -> dict[str, bool]:
        matmul = torch.get_float32_matmul_precision() != "highest"
        try:
            conv = bool(torch.backends.cudnn.allow_tf32)
        except RuntimeError:  # set by `fp32_precision`, which does not mix with this one
            conv = torch.backends.cudnn.conv.fp32_precision != "ieee"
        return {"matmul": matmul, "conv": conv}

    def compile_clock(self) -> CompileClock:
        self._clock_us = time.time_ns() // 1000
        return TorchCompileClock()

    def retraced(self) -> Retraced | None:
        dynamo = sys.modules.get("torch._dynamo.utils")
        metrics = dynamo.get_compilation_metrics() if dynamo is not None else []  # of the last 64 compilations
        own = [one for one in metrics if (getattr(one, "start_time_us", None) or 0) >= self._clock_us]
        matches = [_CHANGED.match(getattr(one, "recompile_reason", None) or "") for one in own]
        found = Counter(match.groups("") for match in matches if match is not None)
        if not found:
            return None
        (changed, line), times = found.most_common(1)[0]
        return {"function": changed, "traces": times, "same_tensors": "size mismatch" not in changed, "line": line}

    def processes(self) -> int:
        distributed = torch.distributed
        is_joined = distributed.is_available() and distributed.is_initialized()
        return int(distributed.get_world_size()) if is_joined else 1


RUNTIME = TorchRuntime()


def kinds_of_optimizers(base: type[torch.optim.Optimizer] = torch.optim.Optimizer) -> list[type]:
    """Return the classes of optimizers that were made: the first object of a class hooks its `step`."""
    kinds = [kind for derived in base.__subclasses__() for kind in kinds_of_optimizers(derived)]
    return kinds + [base] * hasattr(base.step, "hooked")


def _cuda_works() -> bool:
    """Return whether CUDA is in use; asking for more would initialise it."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _collectives() -> str | None:
    """Return the backend of the job's collectives: "nccl", "gloo"; None for a lone process."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    config = str(distributed.get_backend_config()).lower()  # "cpu:gloo,cuda:nccl"
    by_device = dict(part.split(":", 1) for part in config.split(",") if ":" in part)
    return by_device.get("cuda" if torch.cuda.is_available() else "cpu") or config


class CudaProbe(DeviceProbe):
    """Probe of whether a CUDA event recorded after the step has been reached."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None

    def mark(self, result: object) -> None:
        # On the current stream, where the step's kernels are queued; recording waits for nothing.
        self._event = torch.cuda.Event()
        self._event.record()

    def idle(self) -> bool:
        return self._event is None or bool(self._event.query())


def probe() -> DeviceProbe | None:
    """Return a probe of the device's progress; None where a call returns only when it is done."""
    return CudaProbe() if _cuda_works() else None


class TorchCompileClock(CompileClock):
    """Compile times from TorchDynamo's callbacks, where this torch has them.

    They surround tracing and compiling, and run on the thread that calls the compiled function.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handler: Any = None
        self._since = 0

    def start(self) -> None:
        """Listen to TorchDynamo, if it is imported. On the training thread."""
        # Nothing compiles without it, and importing it takes seconds.
        if self._handler is not None or "torch._dynamo" not in sys.modules:
            return
        from torch._dynamo import callback

        handler = callback.callback_handler
        handler.register_start_callback(self._began)
        handler.register_end_callback(self._ended)
        self._handler = handler

    def stop(self) -> None:
        """Stop listening. May be called more than once."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        for remove, listener in (
            (handler.remove_start_callback, self._began),
            (handler.remove_end_callback, self._ended),
        ):
            try:
                remove(listener)
            except ValueError:  # all callbacks were cleared
                pass

    def _began(self, *_: object) -> None:
        self._since = time.perf_counter_ns()

    def _ended(self, *_: object) -> None:
        if self._since:
            self.add(time.perf_counter_ns() - self._since)
            self._since = 0
