"""What JAX says of itself, its GPUs, their memory and the other processes of the job."""

from __future__ import annotations

import platform
from typing import Any

import jax

from gpu_util_callback.frameworks.keras_facts import fit_facts, model_facts

__all__ = ["devices", "framework", "keras_facts", "memory", "on_cpu", "rendezvous"]


def framework() -> dict[str, Any]:
    """The manifest's `framework`, without Keras."""
    return {
        "name": "jax",
        "version": jax.__version__,
        "backend": "jax",
        "python": platform.python_version(),
    }


def keras_facts(model: Any, timing: str, distribution: Any) -> dict[str, Any]:
    """Facts for the manifest: `framework`, `model` and what of `fit` the model knows.

    Args:
        model: the Keras model.
        timing: how batches are timed.
        distribution: `keras.distribution.distribution()` of the training thread; None = none.
    """
    import keras

    fit = fit_facts(model, timing)
    fit["strategy"] = type(distribution).__name__ if distribution is not None else None
    fit["replicas"] = _replicas(distribution)
    return {
        "framework": {**framework(), "keras": keras.__version__},
        "model": model_facts(model),
        "fit": fit,
    }


def on_cpu() -> bool:
    """Whether JAX computes on the CPU."""
    return jax.default_backend() == "cpu"


def _replicas(distribution: Any) -> list[dict[str, Any]] | None:
    """The devices of this process that a Keras distribution spreads over; None without one."""
    mesh = getattr(distribution, "device_mesh", None)
    if mesh is None:
        return None
    ordinals = {f"{d.platform}:{d.id}": _ordinal(d) for d in _gpus()}
    local = {f"{d.platform}:{d.id}" for d in jax.local_devices()}
    return [
        {"replica": number, "device": name, "gpu": ordinals.get(name)}
        for number, name in enumerate(map(str, mesh.devices.flatten()))
        if name in local
    ]


def _gpus() -> list[Any]:
    return [device for device in jax.local_devices() if device.platform in ("gpu", "cuda", "rocm")]


def _ordinal(device: Any) -> int:
    number = getattr(device, "local_hardware_id", None)
    return int(device.id if number is None else number)


def devices() -> list[dict[str, Any]] | None:
    """This process's GPUs in JAX's order; None where it has none."""
    found = []
    for device in _gpus():
        capability = getattr(device, "compute_capability", None)
        found.append(
            {
                "index": _ordinal(device),
                "name": device.device_kind,
                "compute_capability": str(capability) if capability else None,
            }
        )
    return found or None


def memory() -> dict[int, dict[str, float]]:
    """What each GPU's allocator holds, by ordinal. Waits for no device."""
    found = {}
    for device in _gpus():
        stats = device.memory_stats()
        if not stats:
            continue
        names = {
            "bytes_in_use": "allocator_used_bytes",
            "peak_bytes_in_use": "allocator_peak_bytes",
            "bytes_reserved": "allocator_reserved_bytes",
            "bytes_limit": "allocator_limit_bytes",
            "largest_free_block_bytes": "allocator_largest_free_bytes",
        }
        found[_ordinal(device)] = {
            ours: float(stats[theirs]) for theirs, ours in names.items() if theirs in stats
        }
    return found


def rendezvous() -> tuple[str, str, int, int] | None:
    """(source, what all processes share, rank, processes); None for a process on its own."""
    try:
        from jax._src import distributed

        state = distributed.global_state
        address, size = state.coordinator_address, int(state.num_processes or 1)
    except (ImportError, AttributeError):
        return None
    if not address or size < 2:
        return None
    return "JAX coordinator", str(address), int(state.process_id), size
