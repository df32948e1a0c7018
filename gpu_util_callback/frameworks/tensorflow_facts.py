"""What TensorFlow and Keras say of the framework, the model, the fit and the GPUs."""

from __future__ import annotations

import platform
from typing import Any

import keras
import tensorflow as tf

__all__ = ["devices", "facts"]


def facts(model: Any, timing: str) -> dict[str, Any]:
    """Facts for the manifest: `framework`, `model` and what of `fit` the model knows."""
    optimizer = getattr(model, "optimizer", None)
    policy = getattr(model, "dtype_policy", None)
    strategy = getattr(model, "_distribute_strategy", None)
    return {
        "framework": {
            "name": "tensorflow",
            "version": tf.__version__,
            "keras": keras.__version__,
            "backend": keras.backend.backend(),
            "python": platform.python_version(),
            "cuda_build": bool(tf.test.is_built_with_cuda()),
            "cuda": _build("cuda_version"),
            "cudnn": _build("cudnn_version"),
        },
        "model": {
            "name": getattr(model, "name", None),
            "parameters": int(model.count_params()) if getattr(model, "built", False) else None,
            "trainable_variables": len(model.trainable_variables) if model.built else None,
        },
        "fit": {
            "steps_per_execution": int(getattr(model, "steps_per_execution", 1) or 1),
            "jit_compile": bool(getattr(model, "jit_compile", False)),
            "run_eagerly": bool(getattr(model, "run_eagerly", False)),
            "timing": timing,
            "mixed_precision": getattr(policy, "name", None),
            "gradient_accumulation_steps": getattr(optimizer, "gradient_accumulation_steps", None),
            "optimizer": type(optimizer).__name__ if optimizer is not None else None,
            "strategy": type(strategy).__name__ if strategy is not None else None,
            "op_determinism": timing.startswith("python"),
        },
    }


def _build(key: str) -> str | None:
    try:
        return tf.sysconfig.get_build_info().get(key)
    except Exception:
        return None


def devices() -> list[dict[str, Any]] | None:
    """TensorFlow's GPUs in its own order; None where it has none."""
    found = []
    for index, device in enumerate(tf.config.list_physical_devices("GPU")):
        try:
            details = tf.config.experimental.get_device_details(device)
        except Exception:  # a plug-in device without details
            details = {}
        capability = details.get("compute_capability")
        found.append(
            {
                "index": index,
                "name": details.get("device_name") or device.name,
                "compute_capability": ".".join(map(str, capability)) if capability else None,
            }
        )
    return found or None
