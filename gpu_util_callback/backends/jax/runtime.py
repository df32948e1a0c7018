"""JAX: its facts, GPUs, compilations and state, with or without Keras."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import jax
import numpy as np
from jax import monitoring

from gpu_util_callback.backends.base import ListedGpu, Runtime
from gpu_util_callback.cgroup import cpus_allowed
from gpu_util_callback.recording.manifest_facts import Retraced
from gpu_util_callback.steps.compilations import SEVERAL_TRACES, CompileClock
from gpu_util_callback.steps.dispatch import CalledBack, is_library, path_of, place_of

# Tracing, lowering and XLA, one after the other for each function that is compiled.
_COMPILING, _LAST = "/jax/core/compile/", "backend_compile_duration"


class JaxRuntime(Runtime):
    """JAX in this process."""

    name, version = "jax", jax.__version__
    _clock: JaxCompileClock | None = None  # of the training that is recorded

    def framework(self) -> dict[str, object]:
        return super().framework() | {
            "device": jax.default_backend(),
            "collectives": "nccl" if any(d.platform in ("gpu", "cuda") for d in _gpus()) else None,
            "eager_by": "jax_disable_jit" if getattr(jax.config, "jax_disable_jit", False) else None,
        }

    def step_threads(self) -> int | None:
        return cpus_allowed()  # XLA takes all

    def debugging(self) -> list[str]:
        on = [name for name in ("jax_debug_nans", "jax_debug_infs") if getattr(jax.config, name, False)]
        return super().debugging() + [f'jax.config.update("{name}", True)' for name in on]

    def called_back(self, code: CodeType) -> CalledBack | None:
        return CalledBack("a callback (jax.pure_callback, io_callback)")

    def precision(self) -> dict[str, object]:
        types = {array.dtype.name for array in jax.live_arrays() if array.dtype.kind == "f"}
        return {"mixed_precision": "float64"} if types == {"float64"} else {}

    def devices(self) -> list[ListedGpu] | None:
        return [
            {
                "index": _ordinal(device),
                "name": device.device_kind,
                # "9.0"; None = JAX does not state it.
                "compute_capability": str(getattr(device, "compute_capability", None) or "") or None,
            }
            for device in _gpus()
        ] or None

    def memory(self) -> dict[int, dict[str, float]]:
        names = {  # JAX's -> ours; those that a device does not state are left out
            "bytes_in_use": "allocator_used_bytes",
            "peak_bytes_in_use": "allocator_peak_bytes",
            "bytes_reserved": "allocator_reserved_bytes",
            "bytes_limit": "allocator_limit_bytes",
            "largest_free_block_bytes": "allocator_largest_free_bytes",
        }
        return {
            _ordinal(device): {ours: float(stats[theirs]) for theirs, ours in names.items() if theirs in stats}
            for device in _gpus()
            if (stats := device.memory_stats())
        }

    def memory_stacks(self) -> tuple[str, bytes]:
        return "memory.pb.gz", jax.profiler.device_memory_profile()  # for `pprof`

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        """Return (source, coordinator's address, this process's number, how many); None for a lone process."""
        try:  # JAX has no public name for these
            from jax._src import distributed

            state = distributed.global_state
            address, size = state.coordinator_address, int(state.num_processes or 1)
        except (ImportError, AttributeError):
            return None
        if not address or size < 2:  # one process
            return None
        return "JAX coordinator", str(address), int(state.process_id), size

    def tf32(self) -> dict[str, bool]:
        enabled = jax.config.jax_default_matmul_precision not in ("highest", "float32")
        return {"matmul": enabled, "conv": enabled}

    def compile_clock(self) -> CompileClock:
        self._clock = JaxCompileClock()
        return self._clock

    def retraced(self) -> Retraced | None:
        return self._clock.retraced() if self._clock is not None else None

    def processes(self) -> int:
        return jax.process_count()


RUNTIME = JaxRuntime()


def distribution(distribution: object) -> dict[str, object]:
    """Return the manifest's `strategy` and `replicas`.

    Args:
        distribution: `keras.distribution.distribution()` of the training thread; None = none.
    """
    return {
        "strategy": type(distribution).__name__ if distribution is not None else None,
        "replicas": _replicas(distribution),
    }


def on_cpu() -> bool:
    """Return whether JAX computes on the CPU."""
    return jax.default_backend() == "cpu"


def _replicas(distribution: object) -> list[dict[str, object]] | None:
    """Return the devices of this process that a Keras distribution spans; None without one.

    `replica` counts along the mesh's batch axis, and is 0 where it has none; `gpu` None = the device is no GPU.
    """
    mesh = getattr(distribution, "device_mesh", None)
    if mesh is None:
        return None
    ordinals = {f"{d.platform}:{d.id}": _ordinal(d) for d in _gpus()}
    local = {f"{d.platform}:{d.id}" for d in jax.local_devices()}
    axes, batch = list(mesh.axis_names), getattr(distribution, "batch_dim_name", None)
    names = np.asarray(mesh.devices)  # "gpu:0", an axis for each of the mesh
    if batch in axes:
        names = np.moveaxis(names, axes.index(batch), 0)
    names = names.reshape(len(names) if batch in axes else 1, -1)
    return [
        {"replica": replica, "device": str(name), "gpu": ordinals.get(str(name))}
        for (replica, _), name in np.ndenumerate(names)
        if str(name) in local
    ]


def _gpus() -> list[jax.Device]:
    return [device for device in jax.local_devices() if device.platform in ("gpu", "cuda", "rocm")]


def _ordinal(device: jax.Device) -> int:
    number = getattr(device, "local_hardware_id", None)
    return int(device.id if number is None else number)


# Compilations of functions of one name that one line calls: in all, of another function than the time before, for
# tensors of the same shapes and types, ns; the last function, held weakly, and the shape and type of its arguments.
_Compiled = tuple[int, int, int, int, Callable[[], Any], list[tuple[Any, Any]]]
# Operations that the program gives functions of its own, as their body or branches.
_OF_FUNCTIONS = ("scan", "while", "cond")


class JaxCompileClock(CompileClock):
    """Compile times from `jax.monitoring`, which calls its listeners on the compiling thread."""

    def __init__(self) -> None:
        super().__init__()
        self._listening = False
        self._compiled: dict[tuple[str, str], _Compiled] = {}  # by line of the program, and function's name
        self._parts_ns = 0  # of the compilation that is under way

    def start(self) -> None:
        if not self._listening:
            monitoring.register_event_duration_secs_listener(self._heard)
            self._listening = True

    def stop(self) -> None:
        if self._listening:
            self._listening = False
            monitoring.unregister_event_duration_listener(self._heard)

    def retraced(self) -> Retraced | None:
        """Return what one line of the program had compiled most often; None where it was only a few times.

        `same_tensors`, `new_function`: in most of them. `seconds`: of all of them.
        """
        compiled = list(self._compiled.items())  # more may be compiled meanwhile
        if not compiled:
            return None
        (line, name), (times, new, same, spent_ns, *_) = max(compiled, key=lambda item: item[1][0])
        if times < SEVERAL_TRACES:
            return None
        counted: Retraced = {"function": name, "traces": times, "same_tensors": 2 * same > times}
        return counted | {"line": line, "new_function": 2 * new >= times, "seconds": round(spent_ns / 1e9, 3)}

    def _heard(self, event: str, duration_secs: float, **_: object) -> None:
        """Add a part of a compilation; after the last part, on the training's thread, note what was compiled."""
        if not event.startswith(_COMPILING):
            return
        self.add(int(duration_secs * 1e9), event.endswith(_LAST))
        if threading.get_ident() == self._thread:
            self._parts_ns += int(duration_secs * 1e9)
            if event.endswith(_LAST):
                with contextlib.suppress(Exception):  # the frames are JAX's own
                    self._note(sys._getframe(1))
                self._parts_ns = 0

    def _note(self, frame: FrameType | None) -> None:
        """Note which function is compiled, and the program's line that calls it.

        Nothing is noted where no frame is the program's, or JAX does not compile for a call of a function.

        Args:
            frame: JAX's, where it reports the compilation; None = there is none.
        """
        call: dict[str, Any] = {}
        of_jax = False  # an operation outside of compiled functions: JAX makes a function of it
        while frame is not None and is_library(path_of(frame.f_code)):
            # The outermost function that is compiled; its frame has the function and its arguments.
            call = frame.f_locals if frame.f_code.co_name == "cache_miss" else call
            of_jax = of_jax or frame.f_code.co_name == "apply_primitive"
            frame = frame.f_back
        if frame is None or not call:
            return
        function, arguments = call["fun"], jax.tree_util.tree_leaves((call["args"], call["kwargs"]))
        name = getattr(function, "__name__", "a function")
        tensors = [(getattr(one, "shape", ()), getattr(one, "dtype", type(one))) for one in arguments]
        key = place_of(frame.f_code, frame.f_lineno), name
        times, new, same, spent_ns, before, known = self._compiled.get(key, (0, 0, 0, 0, lambda: function, tensors))
        # Another function than the time before, unless JAX itself has made it, of an operation alone.
        new += before() is not function and (not of_jax or name in _OF_FUNCTIONS)
        same, spent_ns = same + (tensors == known), spent_ns + self._parts_ns
        self._compiled[key] = times + 1, new, same, spent_ns, weakref.ref(function), tensors
